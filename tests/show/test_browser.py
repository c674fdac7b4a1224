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
from nbkit.train.recipe import recipe_named
from nbkit.universe.suite import suite
from nbkit.train.train import train
view = Monitor()
view""",
    """recipe = recipe_named("tuned", pretrain_epochs=100_000)
simulations = suite("demo", sets=("latin_hypercube",))["latin_hypercube"]
run = await view.during(train, simulations, tempfile.mkdtemp(), recipe=recipe)
print("finished" if run.finished else f"stopped after {len(run.history)} epochs")""",
)


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    """Address of a JupyterLab over a copy of the notebooks, on a free loopback port, with a token."""
    folder = tmp_path_factory.mktemp("lab")
    shutil.copytree(ROOT / "notebooks", folder / "notebooks", ignore=shutil.ignore_patterns(".*", "out*"))
    training = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in TRAINING])
    nbformat.write(training, folder / "notebooks" / "training.ipynb")
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
        self.name, self.problems = name, []
        self.page = browser.new_page(viewport={"width": 1400, "height": 1000})
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
        return explorer.locator("img").evaluate_all(CHECKSUM)

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
    start = notebook.pictures(notebook.control("multipole l"))
    for label in ("centre r0", "width sigma", "residual at 0.7"):
        before, after = notebook.moved(label)
        assert len(before) == len(after) == 2
        assert before[0] != after[0] and before[1] != after[1], f"{label} must change kernel and profile"
        notebook.moved(label, "ArrowLeft")
    assert notebook.pictures(notebook.control("multipole l")) == start, "back where they were, the pictures must be too"
    notebook.moved("component m")
    assert "l = 2, m = 1" in notebook.text(notebook.control("multipole l"))
    notebook.moved("multipole l", "ArrowLeft")
    assert "l = 1, m = 1" in notebook.text(notebook.control("multipole l"))
    assert notebook.page.locator(".js-plotly-plot canvas").count() > 0, "the 3D kernel must be drawn"
    notebook.control("multipole l").scroll_into_view_if_needed()
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


def test_invariant_sliders(browser, lab):
    notebook = Notebook(browser, lab, "02_invariants.ipynb")
    before, after = notebook.moved("slice")
    assert before[0] != after[0] and before[1] != after[1]
    assert "z = 262 Mpc/h" in notebook.text(notebook.control("slice")) or "z = 258 Mpc/h" in notebook.text(
        notebook.control("slice")
    )
    before, after = notebook.pressed("channel", "E2")
    assert before[0] == after[0] and before[1] != after[1], "delta stays, the invariant changes"
    before, after = notebook.moved("filter scale")
    assert before[0] == after[0] and before[1] != after[1]
    assert "stretched by 1.1" in notebook.text(notebook.control("slice"))
    before, after = notebook.pressed("axis", "x")
    assert before[0] != after[0] and before[1] != after[1]
    assert "x = " in notebook.text(notebook.control("slice"))
    notebook.control("slice").scroll_into_view_if_needed()
    notebook.close("02_invariants")


@pytest.fixture(scope="module")
def introspection(browser, lab):
    """Notebook 04, opened and run once for the tests of its explorers."""
    notebook = Notebook(browser, lab, "04_introspection.ipynb", minutes=10)
    yield notebook
    notebook.close("04_introspection")


def test_anatomy_slices(introspection):
    slice = introspection.control("slice")
    start = introspection.pictures(slice)
    assert len(start) == 12, "delta, four invariants, marked field, M and five terms"
    introspection.says(slice, "z = 254 Mpc/h")
    before, after = introspection.moved("slice")
    assert all(a != b for a, b in zip(before, after, strict=True)), "every map must follow the slice"
    introspection.says(slice, "z = 262 Mpc/h")
    introspection.moved("slice", "ArrowLeft")
    assert introspection.pictures(slice) == start, "back where it was, the pictures must be too"
    before, after = introspection.pressed("axis", "x")
    assert all(a != b for a, b in zip(before, after, strict=True)), "every map must follow the axis"
    introspection.says(slice, "x = 254 Mpc/h")
    introspection.shot(slice, "04_anatomy")


def test_channel_switches(introspection):
    labels = ["h(E0)", "h(E1)", "h(E2)", "h(I3)", "h×(E0, E2, I3)"]
    first = introspection.control(labels[0])
    start = introspection.pictures(first)
    assert len(start) == 3, "M, marked field and spectra"
    introspection.says(first, f"on: {', '.join(labels)}.")
    for i, label in enumerate(labels):
        introspection.control(label).locator("input").click()
        # What it says changes after the pictures have; a term that does nothing may leave these as they were.
        introspection.says(first, f"on: {', '.join(labels[i + 1 :]) or 'none'}.")
        if i == 2:
            introspection.shot(first, "04_switches")
    assert "P_mm / P_dd = 1.00" in introspection.text(first), "without channels the marked field is the density"
    assert all(a != b for a, b in zip(start, introspection.pictures(first), strict=True))
    for i, label in enumerate(labels):
        introspection.control(label).locator("input").click()
        introspection.says(first, f"on: {', '.join(labels[: i + 1])}.")
    assert introspection.pictures(first) == start, "all on again, the pictures must be those of the start"


def picked(notebook, control):
    """x, y, z of the voxel that the picker says it shows."""
    return [int(x) for x in re.search(r"voxel (\d+), (\d+), (\d+)", notebook.text(control)).groups()]


def test_voxel_picker(introspection):
    slider = introspection.control("voxel x")
    for axis, label in enumerate(("voxel x", "voxel y", "voxel z")):
        voxel = picked(introspection, slider)
        step = 1 if voxel[axis] < 63 else -1
        introspection.moved(label, "ArrowRight" if step == 1 else "ArrowLeft")
        voxel[axis] += step
        introspection.says(slider, f"voxel {voxel[0]}, {voxel[1]}, {voxel[2]}")
    explorer = slider.locator("xpath=ancestor::div[contains(@class, 'jp-OutputArea-output')][1]")
    explorer.scroll_into_view_if_needed()
    assert explorer.locator(".js-plotly-plot .heatmaplayer image").count() == 1, "the map must be drawn"
    map = explorer.locator(".js-plotly-plot .nsewdrag").first
    # The middle of the cell in column 47 from the left and row 15 from the bottom, of 64, then of its mirror image.
    for column, row in ((47, 15), (15, 47)):
        box = map.bounding_box()
        position = {"x": box["width"] * (column + 0.5) / 64, "y": box["height"] * (1 - (row + 0.5) / 64)}
        map.click(position=position)
        introspection.says(slider, f"voxel {column}, {row}, {voxel[2]}:")
    introspection.shot(slider, "04_voxel")


def test_mark_in_three_dimensions(introspection):
    level = introspection.control("1 + delta")
    triangles = r"1 \+ delta = ([\d.]+), over 8 Mpc/h: (\d+) triangles"
    was, count = re.search(triangles, introspection.text(level)).groups()
    level.locator(".noUi-handle").press("ArrowRight")
    introspection.says(level, f"1 + delta = {float(was) + 0.1:.1f}")
    assert re.search(triangles, introspection.text(level))[2] != count, "another level is another surface"
    explorer = level.locator("xpath=ancestor::div[contains(@class, 'jp-OutputArea-output')][1]")
    explorer.locator(".js-plotly-plot canvas").first.wait_for(state="attached", timeout=30_000)
    introspection.page.wait_for_timeout(1500)
    introspection.shot(level, "04_surface")


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
    assert cells.count("fixed") == 4, "a row for each of four summaries"
    kmax.scroll_into_view_if_needed()
    notebook.shot(kmax, "05_fisher_moved")
    notebook.ticked("h fixed")
    notebook.moved("kmax [h/Mpc]", "ArrowLeft")
    assert notebook.pictures(kmax) == start, "back where they were, the ellipses must be too"
    notebook.close("05_fisher")
