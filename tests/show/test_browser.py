"""Explorers in a real browser, in JupyterLab and in pages without a kernel; screenshots are kept in runs/browser/."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import anywidget
import nbformat
import numpy as np
import pytest
from browser import Notebook, chromium, jupyterlab, open_browser
from ipywidgets.embed import embed_data
from playwright import sync_api as playwright

from nbkit import Grid, show

ROOT = Path(__file__).parents[2]
SHOTS = ROOT / "runs" / "browser"
playwright.expect.set_options(timeout=30_000)

if chromium() is None and not os.environ.get("CI"):
    pytest.skip("No Chromium was found: the browser tests were skipped.", allow_module_level=True)

EXPLORERS = {
    "universe": """import numpy as np
import torch
import nbkit as nb
from nbkit import look, show, universe
from nbkit.forecast import by_kmax
grid = universe.PRESETS["demo"].grid
simulator = universe.Simulator(grid, particles=32)
delta, mark = simulator(universe.FIDUCIAL, 4_000_000), nb.load("mini_l2").mark
show.universe_explorer(simulator, 1)""",
    "kernel": "show.kernel_explorer(grid.k_nyq)",
    "invariants": "show.invariant_explorer(delta, grid)",
    "anatomy": """parts = look.anatomy(mark, delta, grid)
show.anatomy_explorer(parts)""",
    "surface": "show.surface_explorer(parts)",
    "fisher": """power = nb.measure("mini", {"mini_l2": mark}, sets=universe.FIDUCIAL_SETS)
show.fisher_explorer(by_kmax(power, ["mini_l2"], count=40), 0.3)""",
    "latent": """rng = np.random.default_rng(0)
theta, z = rng.random((200, 5)), rng.standard_normal((2, 200, 6))
clouds = {label: look.latent.principal_components(x, theta) for label, x in zip(("learned mark", "M = 1"), z)}
show.latent_explorer(clouds, theta, {label: np.arange(200) for label in clouds})""",
    "nodes": """start = {"start": {"x": [0, 3], "y": [0, 0], "ghost": True}}
look = {"bounds": (-2, 2), "limits": (None, (-2, 2)), "histogram": np.linspace(0, 3, 50), "name": "yours"}
show.Curves(start, nodes=[(0, 1), (1, 0), (2, 1), (3, 0)], **look)""",
}
# What moves in each explorer, and whether all of it is back where it was when the control is.
SLIDERS = {
    "universe": ("matter Ωm", "clustering σ₈", "slice", "slab"),
    "kernel": ("centre r0", "width sigma", "residual at 0.7", "component m", "slice"),
    "invariants": ("filter scale", "slice", "slab"),
    "surface": ("1 + delta", "slice"),
    "fisher": ("kmax [h/Mpc]",),
}
# Twelve maps, five of them terms, and what the kernel says of one voxel.
MAPS = (
    """import json
import torch
import nbkit as nb
from nbkit import show
grid = nb.Grid(64, 500.0)
torch.manual_seed(1)
smooth = torch.exp(-((grid.shells().k * 10) ** 2) / 2)[grid.shells().index]
fields = [torch.fft.irfftn(torch.fft.rfftn(torch.randn(grid.shape)) * smooth, s=grid.shape) for _ in range(11)]
terms = ["h_E0", "h_E1", "h_E2", "h_I3", "h_x"]
fields = dict(zip(["delta", "E0", "E1", "E2", "I3", "Delta", *terms], (x / x.std() for x in fields)))
fields["delta"] = fields["delta"].exp() / fields["delta"].exp().mean() - 1
maps = show.Maps(fields, grid, terms=terms, bias=0.5)
maps""",
    """at = 20, 30, 32
expected = {name: float(field[at]) for name, field in fields.items()}
expected["M"] = float(torch.nn.functional.softplus(torch.tensor(0.5 + sum(expected[name] for name in terms))))
expected["M off"] = float(torch.nn.functional.softplus(torch.tensor(
    0.5 + float(fields["h_E1"].mean()) + sum(expected[name] for name in terms if name != "h_E1"))))
print(json.dumps(expected))""",
)
# Notebook 03's way of training, with so many epochs that only the button can end it.
TRAINING = (
    """import tempfile
import nbkit as nb
from nbkit import show
from nbkit.train import RECIPES
view = show.Monitor()
view""",
    """from dataclasses import replace
recipe = replace(RECIPES["tuned"], pretrain_epochs=100_000)
simulations = nb.suite("demo", sets=("latin_hypercube",))["latin_hypercube"]
run = await view.during(nb.train, nb.Training(recipe=recipe), simulations, tempfile.mkdtemp())
print("finished" if run.finished else f"stopped after {len(run.history)} epochs")""",
)
# What sticks out of its explorer, or lies over its neighbour, by more than two pixels.
MISFITS = """() => [...document.querySelectorAll('.nbkit-explorer')].flatMap((explorer, number) => {
    const outer = explorer.getBoundingClientRect(), found = [];
    const kinds = '.widget-slider, .widget-dropdown, .widget-checkbox, .widget-toggle-button, .widget-toggle-buttons, '
        + '.widget-html, .nbkit-place, .nbkit-buttons, .nbkit-stage, .nbkit-hint';
    const overlaid = '.nbkit-stage input, .nbkit-legend';
    const seen = selector => [...explorer.querySelectorAll(selector)].map(it => [it, it.getBoundingClientRect()])
        .filter(([it, box]) => box.width && box.height);
    const name = it => `${number}: ${it.className} ${it.textContent.slice(0, 20)}`;
    for (const [it, box] of [...seen(kinds), ...seen(overlaid)])
        if (box.right > outer.right + 2 || box.left < outer.left - 2) found.push(`${name(it)} sticks out`);
    for (const group of [seen(kinds), seen(overlaid)])
        group.forEach(([a, p], i) => group.slice(i + 1).forEach(([b, q]) => {
            const over = [Math.min(p.right, q.right) - Math.max(p.left, q.left),
                          Math.min(p.bottom, q.bottom) - Math.max(p.top, q.top)];
            if (Math.min(...over) > 2 && !a.contains(b) && !b.contains(a)) found.push(`${name(a)} / ${name(b)}`);
        }));
    for (const [it] of seen('.widget-label, .widget-readout, button'))
        if (it.scrollWidth > it.clientWidth + 2) found.push(`${name(it)} is cut`);
    return found;
})"""

# Pixels of a square at x of a canvas, and which share of them is another in the square at `other`.
BOTH = """(it, [x, other, y, side]) => {
    const [a, b] = [x, other].map(left => it.getContext('2d').getImageData(left, y, side, side).data);
    return [a.join(), a.filter((v, i) => v !== b[i]).length / a.length];
}"""


@pytest.fixture(scope="module")
def browser():
    with open_browser() as chromium:
        yield chromium


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    notebooks = {"explorers": EXPLORERS.values(), "maps": MAPS, "training": TRAINING}
    SHOTS.mkdir(parents=True, exist_ok=True)
    with jupyterlab(tmp_path_factory.mktemp("lab"), notebooks) as address:
        yield address


@pytest.fixture(scope="module")
def explorers(browser, lab):
    """{name: explorer} of all of them, in one notebook that is open and has run."""
    notebook = Notebook(browser, lab, "explorers")
    every = notebook.page.locator(".nbkit-explorer")
    assert every.count() == len(EXPLORERS)
    yield {"notebook": notebook} | {name: every.nth(i) for i, name in enumerate(EXPLORERS)}
    assert not notebook.errors(), notebook.errors()
    notebook.page.close()


def pictures(explorer):
    """What its canvases show."""
    return explorer.locator(".nbkit canvas").evaluate_all("all => all.map(canvas => canvas.toDataURL())")


def settled(explorer, before):
    """The pictures once they are others than before and, for a third of a second, change no more."""
    last = before
    for _ in range(60):
        explorer.page.wait_for_timeout(330)
        now = pictures(explorer)
        if now == last and now != before:
            return now
        last = now
    raise AssertionError("the picture did not change and settle within 20 s")


@pytest.mark.parametrize("name", SLIDERS)
def test_sliders_move_their_pictures(explorers, name):
    explorer = explorers[name]
    for label in SLIDERS[name]:
        box = explorer.locator(".widget-slider", has=explorer.page.get_by_text(label, exact=True))
        handle, start = box.locator(".noUi-handle"), pictures(explorer)
        way, back = ("ArrowLeft", "ArrowRight") if name == "fisher" else ("ArrowRight", "ArrowLeft")
        handle.press(way)
        moved = settled(explorer, start)
        handle.press(back)
        assert settled(explorer, moved) == start, f"{name}: with {label} back where it was, the pictures must be too"


def test_kernel_changes_plane_with_its_channel(explorers):
    place = explorers["kernel"].locator(".nbkit-place").first
    playwright.expect(place).to_contain_text("y = 0")
    box = explorers["kernel"].locator(".widget-slider", has=explorers["kernel"].page.get_by_text("component m"))
    box.locator(".noUi-handle").press("ArrowLeft")
    playwright.expect(place).to_contain_text("x = 0")
    box.locator(".noUi-handle").press("ArrowRight")


def test_solid_turns_and_has_its_level_in_the_histogram(explorers):
    explorer = explorers["surface"]
    view, start = explorer.get_by_role("slider", name="view in three dimensions"), pictures(explorer)
    view.press("ArrowLeft")
    turned = settled(explorer, start)
    view.press("ArrowRight")
    assert settled(explorer, turned) == start
    level = explorer.get_by_role("slider", name="level of the surface").first
    level.press("ArrowRight")
    assert settled(explorer, start) != turned
    explorer.get_by_role("button", name="Reset").click()
    explorer.get_by_label("3D").select_option("none")
    playwright.expect(view).to_be_hidden()
    explorer.get_by_label("3D").select_option("M / mean")
    playwright.expect(explorer.get_by_role("slider", name="M / mean, level of the surface")).to_be_visible()


def test_terms_are_switched_and_voxels_pinned(explorers):
    """M follows in the browser; marked field, spectra and what is said of them and of a voxel come from the kernel."""
    explorer, names = explorers["anatomy"], ["h(E₀)", "h(E₁)", "h(E₂)", "h(I₃)", "h×(E₀, E₂, I₃)"]
    start, said = pictures(explorer), playwright.expect(explorer)
    said.to_contain_text(f"on: {', '.join(names)}. M explains 100%")
    switches = [explorer.get_by_role("checkbox", name=f"term {name}") for name in names]
    for i, switch in enumerate(switches):
        switch.uncheck()
        said.to_contain_text(f"on: {', '.join(names[i + 1 :]) or 'none'}.")
    said.to_contain_text("P_ΔΔ / P_δδ = 1.00")
    without = pictures(explorer)
    for switch in switches:
        switch.check()
    said.to_contain_text(f"on: {', '.join(names)}.")
    assert settled(explorer, without) == start
    maps, z = explorer.locator(".nbkit-maps"), re.search(r"voxel \d+, \d+, (\d+)", explorer.inner_text())[1]
    maps.locator("canvas").press("ArrowUp")
    maps.locator("canvas").press("Enter")
    said.to_contain_text(f"voxel 16, 17, {z}")
    M = float(re.search(r"M = ([\d.]+), [\d.]+ of its mean", explorer.inner_text())[1])
    assert float(readout(maps)["M"]) == pytest.approx(M, rel=6e-3)
    explorer.get_by_role("button", name="Reset").first.click()
    said.to_contain_text("Click on a map")


def test_forecast_follows_what_is_held_fixed(explorers):
    explorer = explorers["fisher"]
    start = pictures(explorer)
    explorer.get_by_label("h fixed").check()
    playwright.expect(explorer).to_contain_text("held fixed: h")
    held = settled(explorer, start)
    explorer.get_by_label("h fixed").uncheck()
    assert settled(explorer, held) == start
    explorer.get_by_label("across").select_option("h")
    playwright.expect(explorer.locator(".nbkit-place")).to_have_text("h, σ₈")
    legend = explorer.get_by_role("button", name="mini_l2")
    legend.click()
    playwright.expect(legend).to_have_attribute("aria-pressed", "false")
    legend.click()


def test_points_change_their_colour(explorers):
    plot = explorers["latent"].locator(".js-plotly-plot")
    plot.scroll_into_view_if_needed()
    playwright.expect(plot.locator("path.point")).to_have_count(200, timeout=30_000)
    first = plot.locator("path.point").first
    before = first.get_attribute("style")
    explorers["latent"].get_by_label("colour").select_option("retrieval rank")
    playwright.expect(first).not_to_have_attribute("style", before)


def test_nodes_are_dragged_and_moved_by_keys(explorers):
    explorer = explorers["nodes"]
    node = explorer.get_by_role("slider", name="node 2")
    before = float(node.get_attribute("aria-valuenow"))
    node.press("ArrowUp")
    playwright.expect(node).not_to_have_attribute("aria-valuenow", f"{before:g}")
    assert float(node.get_attribute("aria-valuenow")) == pytest.approx(before + 0.04)
    node.scroll_into_view_if_needed()
    box = node.bounding_box()
    explorer.page.mouse.move(box["x"] + 12, box["y"] + 12)
    explorer.page.mouse.down()
    explorer.page.mouse.move(box["x"] + 40, box["y"] - 40, steps=4)
    explorer.page.mouse.up()
    assert float(node.get_attribute("aria-valuenow")) > before + 0.3
    plot = explorer.locator("canvas").bounding_box()
    explorer.locator("canvas").hover(position={"x": plot["width"] / 2, "y": plot["height"] / 2})
    playwright.expect(explorer.locator(".nbkit-place")).to_contain_text("x = ")


@pytest.mark.parametrize("kind", ["png", "pdf"])
def test_pictures_are_saved_by_the_kernel(explorers, kind):
    button = explorers["invariants"].get_by_role("button", name=f"Save picture ({kind.upper()})")
    with explorers["notebook"].page.expect_download() as download:
        button.click()
    content = download.value.path().read_bytes()
    assert content.startswith({"png": b"\x89PNG", "pdf": b"%PDF"}[kind]) and len(content) > 20_000
    assert download.value.suggested_filename == f"maps.{kind}"


@pytest.mark.parametrize("light", [True, False])
def test_explorers_fit(explorers, light):
    """Nothing is cut, nothing overlaps, at three widths; in a dark theme the paper is dark."""
    notebook = explorers["notebook"]
    notebook.theme(light)
    for width in (1024, 1280, 1920):
        notebook.page.set_viewport_size({"width": width, "height": 1100})
        notebook.page.wait_for_timeout(1000)
        for name in EXPLORERS:
            explorers[name].scroll_into_view_if_needed()
            notebook.page.wait_for_timeout(150)
            explorers[name].screenshot(path=SHOTS / f"{name}_{width}_{'light' if light else 'dark'}.png")
        assert notebook.page.evaluate(MISFITS) == []
    corner = "it => [...it.getContext('2d').getImageData(2, 2, 1, 1).data]"
    paper = explorers["invariants"].locator("canvas").evaluate(corner)
    assert min(paper[:3]) > 200 if light else max(paper[:3]) < 60


def readout(root):
    """{label: text of the value} that the pictures in `root` say about the voxel under the cursor."""
    root.page.wait_for_timeout(400)
    said = root.locator("[role=status]").first.inner_text()
    return dict(part.rsplit(" ", 1) for part in said.split(": ", 1)[1].replace("−", "-").split(", ") if " " in part)


def test_keys_cursor_terms_and_colours(browser, lab):
    """The twelve maps say what the kernel computes, to three digits."""
    notebook = Notebook(browser, lab, "maps")
    page, root = notebook.page, notebook.page.locator(".nbkit-maps")
    canvas, place = root.locator("canvas"), root.locator(".nbkit-place")
    expected = json.loads(page.locator(".jp-OutputArea-output pre").last.inner_text())
    for key in ["ArrowLeft"] * 12 + ["ArrowDown"] * 2:
        canvas.press(key)
    playwright.expect(place).to_have_text("x = 160, y = 238, z = 254 Mpc/h")
    said = readout(root)
    symbols = {"delta": "δ", "E0": "E₀", "E1": "E₁", "E2": "E₂", "I3": "I₃", "Delta": "Δ", "h_E1": "h(E₁)", "M": "M"}
    for name, label in symbols.items():
        assert float(said[label]) == pytest.approx(expected[name], rel=6e-3, abs=1e-4), name
    root.get_by_role("checkbox", name="term h(E₁)").uncheck()
    assert float(readout(root)["M"]) == pytest.approx(expected["M off"], rel=6e-3)
    canvas.press("2")
    playwright.expect(root.get_by_role("checkbox", name="term h(E₁)")).to_be_checked()
    high = root.get_by_role("slider", name="E₀, high end of the colours")
    was = high.get_attribute("aria-valuenow")
    high.press("ArrowLeft")
    playwright.expect(high).not_to_have_attribute("aria-valuenow", was)
    for key, words in ((".", "x = 160, y = 238, z = 262"), ("x", "x = 262, y = 238, z = 262")):
        canvas.press(key)
        playwright.expect(place).to_have_text(f"{words} Mpc/h")
    page.get_by_role("button", name="play").click()
    playwright.expect(place).not_to_contain_text("x = 262")
    page.get_by_role("button", name="play").click()
    root.get_by_role("button", name="Reset").click()
    playwright.expect(place).to_have_text("x = …, y = …, z = 254 Mpc/h")
    assert not notebook.errors(), notebook.errors()
    page.close()


def test_training_is_seen_and_stopped(browser, lab):
    notebook = Notebook(browser, lab, "training", awaited=False)
    button = notebook.page.get_by_role("button", name="Stop, keep the best")
    drawn = notebook.page.locator(".jp-OutputArea-output", has=button).locator("img")
    drawn.wait_for(timeout=120_000)
    notebook.page.wait_for_function("image => image.naturalWidth > 100", arg=drawn.element_handle(), timeout=120_000)
    first = drawn.get_attribute("src")
    playwright.expect(drawn).not_to_have_attribute("src", first, timeout=60_000)
    button.click()
    notebook.page.get_by_text(re.compile(r"stopped after \d+ epochs")).wait_for(timeout=60_000)
    notebook.page.close()


@pytest.fixture(scope="module")
def folder(tmp_path_factory, node_modules):
    """What pages without a kernel load."""
    folder = tmp_path_factory.mktemp("site")
    shutil.copy(node_modules / "requirejs" / "require.js", folder)
    shutil.copy(node_modules / "@jupyter-widgets" / "html-manager" / "dist" / "embed-amd.js", folder)
    shutil.copy(Path(anywidget.__file__).parent / "nbextension" / "index.js", folder / "anywidget.js")
    return folder


def test_fingers_and_the_wheel_move_all_maps(browser, folder):
    """A tap reads out and pins, a drag moves, a pinch or the wheel zooms: two maps of one field stay the same."""
    grid, field = Grid(16, 160.0), np.random.default_rng(1).standard_normal((16, 16, 16))
    data = embed_data([show.Maps({"first": field, "second": field}, grid)], drop_defaults=False)
    html = "".join(f"<script src='{name}.js'></script>" for name in ("require", "embed-amd"))
    for kind, part in (("state", data["manager_state"]), ("view", data["view_specs"][0])):
        html += f"<script type='application/vnd.jupyter.widget-{kind}+json'>{json.dumps(part)}</script>"
    (folder / "touch.html").write_text(f"<!doctype html><meta charset='utf-8'><body>{html}")
    page = browser.new_page(viewport={"width": 900, "height": 700}, has_touch=True)
    page.goto((folder / "touch.html").as_uri())
    canvas, place = page.locator(".nbkit-maps[data-frames] canvas"), page.locator(".nbkit-place")
    at = canvas.bounding_box()
    low = [page.get_by_role("slider", name=f"{name}, low end").bounding_box()["x"] for name in ("first", "second")]
    apart = round(low[1] - low[0])
    side = apart - 18
    x, y = at["x"] + 50 + side * 17 / 32, at["y"] + 62 + side * 15 / 32  # of the voxel right of and above the middle
    send = page.context.new_cdp_session(page).send

    def drawn():
        page.wait_for_timeout(100)
        first, unlike = canvas.evaluate(BOTH, [50, 50 + apart, 62, side])
        assert unlike < 1e-3
        return first

    def tapped(dx):
        page.touchscreen.tap(x + dx, y)
        page.wait_for_timeout(100)
        return place.inner_text()

    def move(*fingers):
        """Fingers that go from the first to the second dx of each, in four steps."""
        for kind, step in zip(("Start", *["Move"] * 4), range(5), strict=True):
            points = [{"x": x + a + (b - a) * step / 4, "y": y, "id": i} for i, (a, b) in enumerate(fingers)]
            send("Input.dispatchTouchEvent", {"type": f"touch{kind}", "touchPoints": points})
        send("Input.dispatchTouchEvent", {"type": "touchEnd", "touchPoints": []})

    said = "x = {}, y = 85.0, z = 85.0 Mpc/h".format
    canvas.press("ArrowLeft")
    canvas.press("ArrowRight")
    pictures = [drawn()]
    assert tapped(0) == said("85.0")
    pictures.append(drawn())  # the cursor was there; now there is a pin, too
    assert tapped(side / 4) == tapped(apart + side / 4) == said("125")
    move((0, side / 4))
    pictures.append(drawn())
    assert (tapped(0), tapped(side / 4)) == (said("45.0"), said("85.0"))
    move((side / 4 - 20, side / 4 - 40), (side / 4 + 20, side / 4 + 40))
    pictures.append(drawn())
    assert (tapped(0), tapped(side / 4)) == (said("65.0"), said("85.0"))
    page.mouse.move(x + apart + side / 4, y)
    page.keyboard.down("Control")
    page.mouse.wheel(0, -100)
    pictures.append(drawn())
    page.mouse.move(x + side / 4 + 1, y)
    assert tapped(side / 4) == said("85.0")
    assert len(set(pictures)) == len(pictures)
    page.close()


@pytest.fixture(scope="module")
def site(folder):
    """Notebooks 02 and 04, run as far as their first explorer and exported with its state."""
    urls = [f"--HTMLExporter.{name}=" for name in ("mathjax_url", "mermaid_js_url")]
    urls += ["--HTMLExporter.require_js_url=require.js", "--HTMLExporter.widget_renderer_url=embed-amd.js"]
    for name in ("02_invariants", "04_introspection"):
        notebook = nbformat.read(ROOT / "notebooks" / f"{name}.ipynb", as_version=4)
        last = next(i for i, cell in enumerate(notebook.cells) if "_explorer(" in cell.source)
        notebook.cells = notebook.cells[: last + 1]
        nbformat.write(notebook, folder / f"{name}.ipynb")
        command = [sys.executable, "-m", "jupyter", "nbconvert", "--to", "html", "--execute", *urls, f"{name}.ipynb"]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=600)
        assert done.returncode == 0, done.stderr[-2000:]
    return folder


@pytest.mark.parametrize("name", ["02_invariants", "04_introspection"])
def test_a_page_without_a_kernel_is_alive(browser, site, name):
    """Slice, cursor, terms and colours move in a static page, nothing is loaded from elsewhere; without WebGL, too."""
    page, asked, problems = browser.new_page(viewport={"width": 1200, "height": 1000}), [], []
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.add_init_script("""const get = HTMLCanvasElement.prototype.getContext;
        HTMLCanvasElement.prototype.getContext = function (kind, ...more) {
            return kind === 'webgl2' ? null : get.call(this, kind, ...more);
        };""")

    def serve(route):
        path = site / route.request.url.removeprefix("http://page/").split("?")[0]
        if route.request.url.startswith("http://page/") and path.is_file():
            return route.fulfill(path=path)
        asked.append(route.request.url)
        return route.abort()

    page.route("**/*", serve)
    page.goto(f"http://page/{name}.html")
    maps = page.locator(".nbkit-maps[data-frames]").first
    maps.wait_for(timeout=60_000)
    canvas, place = maps.locator("canvas"), maps.locator(".nbkit-place")
    canvas.press("ArrowRight")
    first = readout(maps)
    assert len(first) >= 4 and "…" not in place.inner_text()
    canvas.press(".")
    moved = readout(maps)
    assert moved != first
    page.locator(".widget-slider", has=page.get_by_text("slice", exact=True)).locator(".noUi-handle").press("ArrowLeft")
    assert readout(maps) == first
    for switch in maps.get_by_role("checkbox").all()[:1]:
        switch.uncheck()
        assert float(readout(maps)["M"]) != pytest.approx(float(first["M"]), rel=2e-3)
    high = maps.get_by_role("slider", name="E₀, high end of the colours")
    high.press("ArrowLeft")
    page.get_by_label("3D").first.select_option("E₀")
    playwright.expect(maps.get_by_role("slider", name=re.compile("no WebGL"))).to_be_visible()
    with page.expect_download() as download:
        maps.get_by_role("button", name="Save picture (PNG)").click()
    assert download.value.path().stat().st_size > 30_000
    page.screenshot(path=SHOTS / f"page_{name}.png", full_page=True)
    assert not problems, problems
    assert not [url for url in asked if not url.startswith("http://page/")], asked
    page.close()
