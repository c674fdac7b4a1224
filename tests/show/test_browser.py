"""Notebooks in JupyterLab in a real browser: every cell runs, every slider moves its picture, nothing errs.

Screenshots are kept in runs/browser/.
"""

import json
import os
import re
import secrets
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import anywidget
import nbformat
import pytest
from browser import chromium
from playwright import sync_api as playwright

ROOT = Path(__file__).parents[2]
SHOTS = ROOT / "runs" / "browser"
CHROMIUM = chromium()

if CHROMIUM is None and not os.environ.get("CI"):
    pytest.skip("No Chromium was found: the browser tests were skipped.", allow_module_level=True)

CHECKSUM = """images => Promise.all(images.map(async image => {
    const bytes = new Uint8Array(await (await fetch(image.src)).arrayBuffer());
    return bytes.reduce((sum, byte) => (31 * sum + byte) % 1000000007, bytes.length);
}))"""

# Notebook 03's way of training, with so many epochs that only the button can end it.
TRAINING = (
    """import tempfile
from nbkit.show.training import Monitor
import nbkit as nb
from nbkit.train import RECIPES
view = Monitor()
view""",
    """from dataclasses import replace
recipe = replace(RECIPES["tuned"], pretrain_epochs=100_000)
simulations = nb.suite("demo", sets=("latin_hypercube",))["latin_hypercube"]
run = await view.during(nb.train, nb.Training(recipe=recipe), simulations, tempfile.mkdtemp())
print("finished" if run.finished else f"stopped after {len(run.history)} epochs")""",
)


# Twelve maps of 64^3, five of them terms; a curve of nodes; error ellipses.
PICTURES = (
    """import numpy as np
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
    """nodes = show.Curves({"start": {"x": [0, 3], "y": [0, 0], "ghost": True}}, nodes=[(0, 1), (1, 0), (2, 1), (3, 0)],
                    bounds=(-2, 2), limits=(None, (-2, 2)), histogram=np.linspace(0, 3, 50), name="yours")
nodes""",
    """C = np.diag([0.01, 0.02, 0.03]) ** 2
ellipses = show.Ellipses({"P(k)": C, "with a mark": C / 4}, [0.3, 0.7, 0.8], ["Omega_m", "h", "sigma_8"])
ellipses""",
    """at = 20, 30, 32
expected = {name: float(field[at]) for name, field in fields.items()}
expected["M"] = float(torch.nn.functional.softplus(torch.tensor(0.5 + sum(expected[name] for name in terms))))
expected["M off"] = float(torch.nn.functional.softplus(torch.tensor(
    0.5 + float(fields["h_E1"].mean()) + sum(expected[name] for name in terms if name != "h_E1"))))
import json
print(json.dumps(expected))""",
)
# Milliseconds from a key, or a move of the pointer, to the next picture: the median of a row of them.
TIMED = """async ([selector, events]) => {
    const it = document.querySelector(selector), root = it.closest('.nbkit'), times = [];
    it.hasPointerCapture = () => true;
    for (const [type, init] of events) {
        const [start, before] = [performance.now(), root.dataset.frames];
        const kind = type.startsWith('key') ? KeyboardEvent : PointerEvent;
        it.dispatchEvent(new kind(type, {bubbles: true, ...init}));
        const late = () => performance.now() - start > 2000;
        while (root.dataset.frames === before && !late()) await new Promise(requestAnimationFrame);
        times.push(performance.now() - start);
    }
    delete it.hasPointerCapture;
    return times.sort((a, b) => a - b)[times.length >> 1];
}"""
# When the first cell had its number, and when the first picture was there.
WATCH = """window.seen = {};
const look = () => {
    const prompt = document.querySelector('.jp-CodeCell .jp-InputPrompt');
    if (!window.seen.cell && prompt && /\\d/.test(prompt.textContent)) window.seen.cell = performance.now();
    if (!window.seen.picture && document.querySelector('.nbkit[data-frames]')) window.seen.picture = performance.now();
    requestAnimationFrame(look);
};
look();"""


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    """Address of a JupyterLab over a copy of the notebooks, on a free loopback port, with a token."""
    folder = tmp_path_factory.mktemp("lab")
    shutil.copytree(ROOT / "notebooks", folder / "notebooks", ignore=shutil.ignore_patterns(".*", "out*"))
    for name, sources in {"training": TRAINING, "pictures": PICTURES}.items():
        notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in sources])
        nbformat.write(notebook, folder / "notebooks" / f"{name}.ipynb")
    # Left to itself JupyterLab takes cells off the page while they are out of sight, and asks for news.
    for name, setting in {
        "notebook-extension/tracker": {"windowingMode": "none", "autoStartDefaultKernel": True},
        "apputils-extension/notification": {"fetchNews": "false", "checkForUpdates": False},
    }.items():
        path = folder / "settings" / "@jupyterlab" / f"{name}.jupyterlab-settings"
        path.parent.mkdir(parents=True)
        path.write_text(json.dumps(setting))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    token = secrets.token_hex(16)
    command = [sys.executable, "-m", "jupyterlab", "--no-browser", "--ip=127.0.0.1", f"--port={port}", "--allow-root"]
    command += ["--LabApp.expose_app_in_browser=True"]
    command += [f"--IdentityProvider.token={token}", f"--LabApp.user_settings_dir={folder / 'settings'}"]
    command += [f"--LabApp.workspaces_dir={folder / 'workspaces'}", f"--notebook-dir={folder / 'notebooks'}"]
    log = (folder / "lab.log").open("w")
    environment = os.environ | {
        "JUPYTER_RUNTIME_DIR": str(folder / "runtime"),
        "JUPYTER_CONFIG_DIR": str(folder / "config"),
    }
    server = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=environment)
    address = f"http://127.0.0.1:{port}"
    for _ in range(120):
        try:
            urllib.request.urlopen(f"{address}/api?token={token}", timeout=5)
            break
        except OSError:
            assert server.poll() is None, (folder / "lab.log").read_text()
            time.sleep(0.5)
    yield address, token
    server.terminate()
    server.wait(timeout=30)


@pytest.fixture(scope="module")
def browser():
    flags = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--disable-background-networking", "--disable-sync"]
    with playwright.sync_playwright() as p:
        chromium = p.chromium.launch(executable_path=CHROMIUM, args=flags)
        yield chromium
        chromium.close()


class Notebook:
    """A notebook open in JupyterLab, with all its cells run, or running if it is not `awaited`."""

    def __init__(self, browser, lab, name, minutes=4, awaited=True):
        address, token = lab
        self.name, self.problems, self.said = name, [], []
        self.page = browser.new_page(viewport={"width": 1400, "height": 1000})
        self.page.add_init_script(WATCH)
        self.page.on("console", lambda message: self.said.append(message.text) if message.type == "error" else None)
        self.page.on("pageerror", lambda error: self.problems.append(str(error)))
        self.page.goto(f"{address}/lab/tree/{name}?token={token}&reset", timeout=120_000)
        self.page.wait_for_selector(".jp-NotebookPanel .jp-CodeCell", timeout=60_000)
        self.page.get_by_text("| Idle").wait_for(timeout=60_000)
        # Stored outputs would count as drawn: clear them before running.
        self._menu("Edit", "Clear Outputs of All Cells")
        self._menu("Run", "Run All Cells")
        cells = self.page.locator(".jp-NotebookPanel .jp-CodeCell")
        deadline = time.time() + 60 * minutes
        while awaited:
            prompts = cells.locator(".jp-InputPrompt").all_inner_texts()
            if prompts and all(p.strip("[]:").strip().isdigit() for p in prompts):
                break
            assert time.time() < deadline, f"{name}: cells still running: {prompts}"
            assert not self.errors(), self.errors()
            self.page.wait_for_timeout(500)
        assert not self.errors(), self.errors()

    def _menu(self, menu, item):
        self.page.get_by_role("menuitem", name=menu, exact=True).click()
        self.page.get_by_role("menuitem", name=item, exact=True).click()

    def errors(self):
        """Tracebacks of cells, what they wrote to stderr, and errors of the page, as text."""
        kinds = ("stderr", "error")
        outputs = ", ".join(f"[data-mime-type='application/vnd.jupyter.{kind}']" for kind in kinds)
        return self.page.locator(outputs).all_inner_texts() + self.problems

    def control(self, label):
        """The slider, row of buttons or checkbox with this label."""
        kinds = ".widget-slider, .widget-toggle-buttons, .widget-checkbox"
        return self.page.locator(kinds, has=self.page.get_by_text(label, exact=True))

    def pictures(self, control):
        """Checksums of the images of the explorer a control belongs to."""
        explorer = control.locator("xpath=ancestor::div[contains(@class, 'jp-OutputArea-output')][1]")
        return self.canvases(control) or explorer.locator("img").evaluate_all(CHECKSUM)

    def canvases(self, control):
        """What the canvases of the explorer of a control show."""
        explorer = control.locator("xpath=ancestor::div[contains(@class, 'jp-OutputArea-output')][1]")
        return explorer.locator(".nbkit canvas").evaluate_all("all => all.map(canvas => canvas.toDataURL())")

    def text(self, control):
        """What the explorer of a control says."""
        return control.locator("xpath=ancestor::div[contains(@class, 'jp-OutputArea-output')][1]").inner_text()

    def says(self, control, text):
        """Wait until the explorer of a control says this."""
        for _ in range(40):
            if text in self.text(control):
                return
            self.page.wait_for_timeout(400)
        raise AssertionError(f"{self.name}: {text!r} did not appear within 16 s in {self.text(control)!r}")

    def moved(self, label, key="ArrowRight"):
        """Press a key on a slider, and the checksums before and after its pictures change."""
        control = self.control(label)
        before = self.pictures(control)
        control.locator(".noUi-handle").press(key)
        return before, self._changed(control, before)

    def pressed(self, label, option):
        """Press a button of a row, and the checksums before and after its pictures change."""
        control = self.control(label)
        before = self.pictures(control)
        control.get_by_role("button", name=option, exact=True).click()
        return before, self._changed(control, before)

    def ticked(self, label):
        """Click a checkbox, and the checksums before and after its pictures change."""
        control = self.control(label)
        before = self.pictures(control)
        control.locator("input").click()
        return before, self._changed(control, before)

    def shot(self, control, name):
        """Keep a screenshot of the explorer of a control."""
        SHOTS.mkdir(parents=True, exist_ok=True)
        explorer = control.locator("xpath=ancestor::div[contains(@class, 'jp-OutputArea-output')][1]")
        explorer.scroll_into_view_if_needed()
        explorer.screenshot(path=SHOTS / f"{name}.png")

    def _changed(self, control, before):
        """The checksums once they have changed and, for most of a second, change no more."""
        last = before
        for _ in range(40):
            self.page.wait_for_timeout(400)
            after = self.pictures(control)
            if after == last and after != before:
                return after
            last = after
        raise AssertionError(f"{self.name}: the picture did not change and settle within 16 s")

    def close(self, shot):
        SHOTS.mkdir(parents=True, exist_ok=True)
        self.page.screenshot(path=SHOTS / f"{shot}.png")
        assert not self.errors(), self.errors()
        self.page.close()


def test_kernel_sliders(browser, lab):
    notebook = Notebook(browser, lab, "01_filters.ipynb")
    start = notebook.canvases(notebook.control("multipole l"))
    for label in ("centre r0", "width sigma", "residual at 0.7"):
        before, after = notebook.moved(label)
        assert len(before) == len(after) == 2
        assert before[0] != after[0] and before[1] != after[1], f"{label} must change kernel and profile"
        notebook.moved(label, "ArrowLeft")
    slider = notebook.control("multipole l")
    assert notebook.canvases(slider) == start, "back where they were, the pictures must be too"
    notebook.moved("component m")
    notebook.says(slider, "y = ")
    notebook.moved("multipole l", "ArrowLeft")
    slider.scroll_into_view_if_needed()
    notebook.shot(slider, "01_kernel")
    notebook.close("01_filters")


def test_training_is_seen_and_stopped(browser, lab):
    notebook = Notebook(browser, lab, "training.ipynb", awaited=False)
    button = notebook.page.get_by_role("button", name="Stop, keep the best")
    explorer = button.locator("xpath=ancestor::div[contains(@class, 'jp-OutputArea-output')][1]")
    drawn = explorer.locator("img")
    drawn.wait_for(timeout=120_000)
    first = drawn.evaluate_all(CHECKSUM)
    notebook.page.wait_for_function("image => image.naturalWidth > 100", arg=drawn.element_handle(), timeout=120_000)
    for _ in range(100):
        if drawn.evaluate_all(CHECKSUM) != first:
            break
        notebook.page.wait_for_timeout(300)
    assert drawn.evaluate_all(CHECKSUM) != first, "the picture must follow the training"
    button.click()
    notebook.page.get_by_text(re.compile(r"stopped after \d+ epochs")).wait_for(timeout=60_000)
    notebook.close("03_training")


def test_invariant_maps(browser, lab):
    notebook = Notebook(browser, lab, "02_invariants.ipynb")
    notebook.moved("slice")
    notebook.says(notebook.control("slice"), "z = 262 Mpc/h")
    notebook.moved("filter scale")
    notebook.moved("slab")
    notebook.says(notebook.control("slice"), "z = 258 … 273 Mpc/h")
    notebook.pressed("axis", "x")
    notebook.says(notebook.control("slice"), "x = 258 … 273")
    notebook.shot(notebook.control("slice"), "02_invariants")
    notebook.close("02_invariants")


def test_universe_sliders(browser, lab):
    notebook = Notebook(browser, lab, "00_universe.ipynb", minutes=8)
    before, after = notebook.moved("clustering σ₈")
    assert before[0] != after[0] and before[1] != after[1], "the map and the spectrum must follow"
    notebook.moved("matter Ωm")
    notebook.shot(notebook.control("matter Ωm"), "00_universe_explorer")
    notebook.close("00_universe")


def readout(root):
    """{label: text of the value} that the pictures in `root` say about the voxel under the cursor."""
    root.page.wait_for_timeout(400)
    said = root.locator("[role=status]").first.inner_text()
    return dict(part.rsplit(" ", 1) for part in said.split(": ", 1)[1].replace("−", "-").split(", ") if " " in part)


def check_maps(page, expected):
    """Keys, cursor, terms and colours of the twelve maps: what the kernel says, to three digits."""
    root = page.locator(".nbkit-maps").first
    canvas, place = root.locator("canvas"), root.locator(".nbkit-place")
    canvas.press("ArrowLeft")
    for _ in range(11):
        canvas.press("ArrowLeft")
    canvas.press("ArrowDown")
    canvas.press("ArrowDown")
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
    was = float(high.get_attribute("aria-valuenow"))
    high.press("ArrowLeft")
    playwright.expect(high).not_to_have_attribute("aria-valuenow", str(was))
    canvas.press("Enter")
    canvas.press(".")
    playwright.expect(place).to_have_text("x = 160, y = 238, z = 262 Mpc/h")
    canvas.press("x")
    playwright.expect(place).to_have_text("x = 262, y = 238, z = 262 Mpc/h")
    slice = page.locator(".widget-slider", has=page.get_by_text("slice", exact=True)).first
    slice.locator(".noUi-handle").press("ArrowRight")
    playwright.expect(place).to_have_text("x = 270, y = 238, z = 262 Mpc/h")
    page.get_by_role("button", name="play").first.click()
    playwright.expect(place).not_to_contain_text("x = 270")
    page.get_by_role("button", name="play").first.click()
    with page.expect_download() as download:
        root.get_by_role("button", name="Save picture (PNG)").click()
    assert download.value.path().stat().st_size > 50_000
    root.get_by_role("button", name="Reset").click()
    playwright.expect(place).to_have_text("x = …, y = …, z = 254 Mpc/h")


def test_pictures_in_the_browser(browser, lab):
    notebook = Notebook(browser, lab, "pictures.ipynb")
    page = notebook.page
    first = page.evaluate("() => window.seen.picture - window.seen.cell")
    check_maps(page, json.loads(page.locator(".jp-OutputArea-output pre").last.inner_text()))
    key = [["keydown", {"key": "."}]] * 21
    page.locator(".nbkit-nodes").scroll_into_view_if_needed()
    plot = page.locator(".nbkit-nodes canvas").bounding_box()
    drags = [{"clientX": plot["x"] + 200, "clientY": plot["y"] + 100 + 5 * i} for i in range(15)]
    times = {
        "key to picture": page.evaluate(TIMED, [".nbkit-maps canvas", key]),
        "cursor": page.evaluate(TIMED, [".nbkit-maps canvas", [["keydown", {"key": "ArrowUp"}]] * 15]),
        "drag of a node": page.evaluate(TIMED, [".nbkit-node", [["pointermove", init] for init in drags]]),
        "first picture": first,
    }
    (SHOTS / "pictures.json").write_text(json.dumps(times, indent=2))
    # A frame of the browser lasts 16.7 ms, and other processes may use the machine.
    assert times["key to picture"] < 60 and times["cursor"] < 50 and times["drag of a node"] < 60 and first < 3000
    node = page.get_by_role("slider", name="node 2")
    before = float(node.get_attribute("aria-valuenow"))
    node.press("ArrowUp")
    playwright.expect(node).not_to_have_attribute("aria-valuenow", f"{before:g}")
    assert float(node.get_attribute("aria-valuenow")) == pytest.approx(before + 0.04)
    nodes = page.locator(".nbkit-nodes")
    nodes.locator("canvas").hover(position={"x": plot["width"] / 2, "y": plot["height"] / 2})
    playwright.expect(nodes.locator(".nbkit-place")).to_contain_text("x = ")
    page.get_by_label("across").select_option("h")
    playwright.expect(page.locator(".nbkit-ellipses .nbkit-place")).to_have_text("h, σ₈")
    legend = page.get_by_role("button", name="with a mark")
    legend.click()
    playwright.expect(legend).to_have_attribute("aria-pressed", "false")
    assert not [text for text in notebook.said if "nbkit" in text or "anywidget" in text], notebook.said
    for theme in ("Light", "Dark"):
        change = "theme => window.jupyterapp.commands.execute('apputils:change-theme', {theme})"
        page.evaluate(change, f"JupyterLab {theme}")
        page.wait_for_function(
            "light => document.body.dataset.jpThemeLight === light", arg=str(theme == "Light").lower()
        )
        for width in (1024, 1920):
            page.set_viewport_size({"width": width, "height": 1200})
            for name in ("maps", "nodes"):
                page.locator(f".nbkit-{name}").scroll_into_view_if_needed()
                page.wait_for_timeout(400)
                page.screenshot(path=SHOTS / f"{name}_{width}_{theme}.png")
    paper = page.locator(".nbkit-maps canvas").evaluate("it => [...it.getContext('2d').getImageData(2, 2, 1, 1).data]")
    assert max(paper[:3]) < 60, "the paper of a picture is dark in a dark theme"
    notebook.close("pictures")


@pytest.fixture(scope="module")
def page_folder(tmp_path_factory):
    """A page exported with its state, and beside it the packages that such a page loads."""
    folder = tmp_path_factory.mktemp("page")
    packages = ["requirejs", "@jupyter-widgets/html-manager"]
    npm = shutil.which("npm")
    command = [npm, "install", "--silent", "--no-audit", "--no-fund", "--prefix", str(folder), *packages]
    if npm is None or subprocess.run(command, capture_output=True, timeout=300).returncode:
        pytest.skip("npm could not be asked for html-manager and require.js.")
    modules = folder / "node_modules"
    shutil.copy(modules / "requirejs" / "require.js", folder)
    shutil.copy(modules / "@jupyter-widgets" / "html-manager" / "dist" / "embed-amd.js", folder)
    shutil.copy(Path(anywidget.__file__).parent / "nbextension" / "index.js", folder / "anywidget.js")
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in PICTURES])
    nbformat.write(notebook, folder / "pictures.ipynb")
    urls = [f"--HTMLExporter.{name}=" for name in ("mathjax_url", "mermaid_js_url")]
    urls += ["--HTMLExporter.require_js_url=require.js", "--HTMLExporter.widget_renderer_url=embed-amd.js"]
    command = [sys.executable, "-m", "jupyter", "nbconvert", "--to", "html", "--execute", *urls, "pictures.ipynb"]
    subprocess.run(command, cwd=folder, check=True, capture_output=True, timeout=300)
    return folder


def test_a_page_without_a_kernel_is_alive(browser, page_folder):
    """Slice, cursor, terms and colours move in a static page, and nothing is loaded from elsewhere."""
    context = browser.new_context(viewport={"width": 1200, "height": 1000})
    page, asked, problems = context.new_page(), [], []
    page.on("pageerror", lambda error: problems.append(str(error)))

    def serve(route):
        name = route.request.url.removeprefix("http://page/")
        path = page_folder / name.split("?")[0]
        if route.request.url.startswith("http://page/") and path.is_file():
            return route.fulfill(path=path)
        asked.append(route.request.url)
        return route.abort()

    page.route("**/*", serve)
    page.goto("http://page/pictures.html")
    page.locator(".nbkit-maps[data-frames]").wait_for(timeout=60_000)
    check_maps(page, json.loads(page.locator(".jp-OutputArea-output pre").last.inner_text()))
    page.get_by_role("slider", name="node 1").press("ArrowDown")
    page.get_by_label("across").select_option("h")
    playwright.expect(page.locator(".nbkit-ellipses .nbkit-place")).to_have_text("h, σ₈")
    page.screenshot(path=SHOTS / "page.png", full_page=True)
    assert not problems, problems
    assert not [url for url in asked if not url.startswith("http://page/")], asked
    context.close()


@pytest.fixture(scope="module")
def introspection(browser, lab):
    """Notebook 04, opened and run once for the tests of its explorers."""
    notebook = Notebook(browser, lab, "04_introspection.ipynb", minutes=10)
    yield notebook
    notebook.close("04_introspection")


def test_terms_are_switched(introspection):
    """M follows in the browser; marked field, spectra and what is said about them come from the kernel."""
    slice = introspection.control("slice")
    names = ["h(E₀)", "h(E₁)", "h(E₂)", "h(I₃)", "h×(E₀, E₂, I₃)"]
    start = introspection.canvases(slice)
    assert len(start) == 2, "maps and spectra"
    introspection.says(slice, f"on: {', '.join(names)}. M explains 100%")
    explorer = slice.locator("xpath=ancestor::div[contains(@class, 'jp-OutputArea-output')][1]")
    switches = [explorer.get_by_role("checkbox", name=f"term {name}") for name in names]
    for i, switch in enumerate(switches):
        switch.uncheck()
        introspection.says(slice, f"on: {', '.join(names[i + 1 :]) or 'none'}.")
        if i == 2:
            introspection.page.wait_for_timeout(500)
            introspection.shot(slice, "04_switches")
    assert "P_ΔΔ / P_δδ = 1.00" in introspection.text(slice), "without terms the marked field is the density"
    assert all(a != b for a, b in zip(start, introspection.canvases(slice), strict=True))
    for i, switch in enumerate(switches):
        switch.check()
        introspection.says(slice, f"on: {', '.join(names[: i + 1])}.")
    introspection.page.wait_for_timeout(1000)
    assert introspection.canvases(slice) == start, "all on again, the pictures must be those of the start"


def test_a_voxel_is_pinned(introspection):
    slice = introspection.control("slice")
    explorer = slice.locator("xpath=ancestor::div[contains(@class, 'jp-OutputArea-output')][1]")
    maps = explorer.locator(".nbkit-maps")
    at = r"voxel (\d+), (\d+), (\d+)"
    z = int(re.search(at, introspection.text(slice))[3])
    maps.locator("canvas").press("ArrowUp")
    maps.locator("canvas").press("Enter")
    introspection.says(slice, f"voxel 32, 33, {z}")
    said = float(re.search(r"M = ([\d.]+), [\d.]+ of its mean", introspection.text(slice))[1])
    assert float(readout(maps)["M"]) == pytest.approx(said, rel=6e-3)
    place = maps.locator(".nbkit-place")
    maps.locator("canvas").click(position={"x": 150, "y": 150})
    cell = 500 / 64
    x, y, _ = (float(v) for v in re.findall(r"= ([\d.]+)", place.inner_text()))
    introspection.says(slice, f"voxel {int(x / cell)}, {int(y / cell)}, {z}")
    before, after = introspection.pressed("axis", "x")
    assert before != after
    introspection.shot(slice, "04_anatomy")
    maps.get_by_role("button", name="Reset").click()
    introspection.says(slice, "Click on a map")


def test_fisher_ellipses(browser, lab):
    notebook = Notebook(browser, lab, "05_fisher.ipynb", minutes=8)
    kmax = notebook.control("kmax [h/Mpc]")
    start = notebook.pictures(kmax)
    assert "kmax = 0.288 h/Mpc: 11 bins a spectrum; held fixed: nothing" in notebook.text(kmax)
    before, after = notebook.moved("kmax [h/Mpc]")
    assert before != after
    notebook.says(kmax, "kmax = 0.313 h/Mpc: 12 bins")
    before, after = notebook.ticked("h fixed")
    assert before != after
    notebook.says(kmax, "kmax = 0.313 h/Mpc: 12 bins a spectrum; held fixed: h")
    cells = notebook.page.locator(".widget-html td").all_inner_texts()
    assert cells.count("fixed") == 7, "a row for each of four summaries, and for three ratios"
    kmax.scroll_into_view_if_needed()
    notebook.shot(kmax, "05_fisher_moved")
    notebook.ticked("h fixed")
    notebook.moved("kmax [h/Mpc]", "ArrowLeft")
    assert notebook.pictures(kmax) == start, "back where they were, the ellipses must be too"
    notebook.page.get_by_label("across").select_option("h")
    playwright.expect(notebook.page.locator(".nbkit-ellipses .nbkit-place")).to_have_text("h, σ₈")
    notebook.close("05_fisher")
