"""The mark studio in a real browser: dragged, finished and exported without a kernel or a network, kept with one."""

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
from playwright import sync_api as playwright

from nbkit.look.design import design
from nbkit.train import load

ROOT = Path(__file__).parents[2]
SHOTS = ROOT / "runs" / "browser"
# What is kept goes into a folder of its own.
CELL = """import os
import tempfile
os.environ["NBKIT_RUNS"] = tempfile.mkdtemp()
from nbkit import show
show.Studio("demo")"""

if chromium() is None and not os.environ.get("CI"):
    pytest.skip("No Chromium was found: the browser tests were skipped.", allow_module_level=True)


@pytest.fixture(scope="module")
def browser():
    with open_browser() as chromium:
        yield chromium


@pytest.fixture(scope="module")
def folder(tmp_path_factory, node_modules):
    """A page exported with its widgets, and what it loads."""
    folder = tmp_path_factory.mktemp("page")
    shutil.copy(node_modules / "requirejs" / "require.js", folder)
    shutil.copy(node_modules / "@jupyter-widgets" / "html-manager" / "dist" / "embed-amd.js", folder)
    shutil.copy(Path(anywidget.__file__).parent / "nbextension" / "index.js", folder / "anywidget.js")
    nbformat.write(nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(CELL)]), folder / "studio.ipynb")
    urls = [f"--HTMLExporter.{name}=" for name in ("mathjax_url", "mermaid_js_url")]
    urls += ["--HTMLExporter.require_js_url=require.js", "--HTMLExporter.widget_renderer_url=embed-amd.js"]
    command = [sys.executable, "-m", "jupyter", "nbconvert", "--to", "html", "--execute", *urls, "studio.ipynb"]
    subprocess.run(command, cwd=folder, check=True, capture_output=True, timeout=300)
    return folder


def gain(page):
    """Gain in Omega_m and sigma_8, and the errors, that the studio shows."""
    words = page.locator(".nbkit-number").inner_text()
    sigma = page.locator(".nbkit-studio").get_attribute("data-sigma")
    return [float(x) for x in re.findall(r"([\d.]+) ×", words)], [float(x) for x in sigma.split()]


def test_a_mark_is_designed_without_a_kernel(browser, folder):
    """A node is dragged, the search finishes the mark, what it found goes into a file that `nb.load` reads."""
    page, asked, problems = browser.new_page(viewport={"width": 1200, "height": 1000}), [], []
    page.on("pageerror", lambda error: problems.append(str(error)))

    def serve(route):
        path = folder / route.request.url.removeprefix("http://page/").split("?")[0]
        if route.request.url.startswith("http://page/") and path.is_file():
            return route.fulfill(path=path)
        asked.append(route.request.url)
        return route.abort()

    page.route("**/*", serve)
    page.goto("http://page/studio.html")
    board = page.locator(".nbkit-studio[data-frames]")
    board.wait_for(timeout=60_000)
    before, frames = gain(page), int(board.get_attribute("data-frames"))
    place = page.get_by_role("slider", name="node 2").first.bounding_box()
    x, y = place["x"] + place["width"] / 2, place["y"] + place["height"] / 2
    page.mouse.move(x, y)
    page.mouse.down()
    page.mouse.move(x, y + 60, steps=5)
    page.mouse.up()
    page.wait_for_function("frames => document.querySelector('.nbkit-studio').dataset.frames > frames", arg=frames)
    assert gain(page) != before
    page.get_by_role("button", name="Undo").click()
    back = "sigma => document.querySelector('.nbkit-studio').dataset.sigma === sigma"
    page.wait_for_function(back, arg=" ".join(map(str, before[1])))
    page.get_by_role("button", name="Finish it for me").click()
    page.locator(".nbkit-studio[data-done]").wait_for(timeout=180_000)
    assert min(gain(page)[0]) > 1.3, "tighter than the best of 48 on boxes that the search has not seen"
    said = page.locator(".nbkit-said").inner_text()
    unseen, own, naive = (float(x) for x in re.findall(r"([\d.]+) ×", said))
    assert unseen == pytest.approx(np.sqrt(np.prod(gain(page)[0])), rel=0.02) and naive >= own > 1.3
    with page.expect_download() as download:
        page.get_by_role("button", name="Export").click()
    download.value.save_as(folder / "my_mark.json")
    shown = gain(page)[1]
    SHOTS.mkdir(parents=True, exist_ok=True)
    page.screenshot(path=SHOTS / "page_studio.png", full_page=True)
    assert not problems, problems
    assert not [url for url in asked if not url.startswith("http://page/")], asked
    page.close()
    mark = load(folder / "my_mark.json").mark
    forecasts = design("demo", progress=False).forecasts({"mine": mark}, 0.2, count=1)
    np.testing.assert_allclose(forecasts["mine"].sigma.value, shown, rtol=1e-3)


def test_a_mark_is_kept_as_a_run(browser, tmp_path):
    with jupyterlab(tmp_path, {"studio": [CELL]}) as lab:
        notebook = Notebook(browser, lab, "studio")
        page = notebook.page
        page.locator(".nbkit-studio[data-frames]").wait_for(timeout=60_000)
        page.get_by_label("start from").select_option("knots up")
        page.get_by_role("button", name="Keep").click()
        said = page.locator(".nbkit-said")
        playwright.expect(said).to_contain_text('nb.load("my_mark") is this mark', timeout=30_000)
        assert not notebook.errors(), notebook.errors()
        page.close()
