"""The static site: made whole, opened from its folder with the network cut, alive."""

import os
import shutil

import nbformat
import pages
import pytest
from browser import chromium, open_browser


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The site with the pages of notebooks 02 and 04, and all that holds them together."""
    if chromium() is None and not os.environ.get("CI"):
        pytest.skip("No Chromium was found: the site was not opened.")
    if shutil.which("npm") is None:
        pytest.skip("npm was not found: the site was not made.")
    folder = tmp_path_factory.mktemp("site")
    pages.main("02", "04", site=folder)
    return folder


@pytest.fixture(scope="module")
def browser():
    with open_browser() as chrome:
        yield chrome


@pytest.mark.parametrize("stem", ["02_invariants", "04_introspection"])
def test_pages_move_without_kernel_and_network(site, browser, stem):
    context = browser.new_context(viewport={"width": 1280, "height": 800}, offline=True)
    page, failed, problems = context.new_page(), [], []
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("requestfailed", lambda request: failed.append(request.url))
    page.on("request", lambda request: request.url.startswith("http") and failed.append(request.url))
    page.goto((site / f"{stem}.html").as_uri())
    maps = page.locator(".nbkit-maps[data-frames]").first
    maps.wait_for(timeout=60_000)
    page.locator("mjx-container").first.wait_for()
    canvas = maps.locator("canvas").first
    before = canvas.evaluate("it => it.toDataURL()")
    maps.get_by_role("slider").first.press("ArrowRight")
    page.wait_for_function("([it, was]) => it.toDataURL() !== was", arg=[canvas.element_handle(), before])
    assert not problems and not failed, (problems, failed)
    context.close()


def test_start_page_and_search_lead_to_the_notebooks(site, browser):
    context = browser.new_context(offline=True)
    page = context.new_page()
    page.goto((site / "index.html").as_uri())
    assert all(image["width"] for image in page.evaluate("[...document.images].map(x => ({width: x.naturalWidth}))"))
    page.get_by_role("searchbox").fill("pancake")
    page.locator(".site li a", has_text="02").click()
    assert page.url.endswith("02_invariants.html")
    context.close()


def test_the_studio_has_a_page_without_code_or_network(site, browser):
    pages.studio(site)
    context = browser.new_context(viewport={"width": 420, "height": 800}, offline=True)
    page, failed = context.new_page(), []
    page.on("requestfailed", lambda request: failed.append(request.url))
    page.goto((site / "studio.html").as_uri())
    page.locator(".nbkit-number", has_text="tighter than the best of 48").wait_for(timeout=60_000)
    assert not page.locator(".jp-InputArea").count() and not failed
    assert page.evaluate("document.documentElement.scrollWidth") <= 420  # on a phone, too
    context.close()


def test_a_site_without_npm_is_refused_in_a_sentence(monkeypatch, tmp_path):
    monkeypatch.setattr("pages.shutil.which", lambda name: None)
    with pytest.raises(SystemExit, match="npm is missing: it fetches the scripts of the widgets; install it"):
        pages.scripts(tmp_path)


def test_links_between_notebooks_lead_to_pages():
    cell = nbformat.v4.new_markdown_cell("[a](05_fisher.ipynb), [b](../figures/RESULTS.md), ![c](../figures/x.png)")
    body = pages.page(nbformat.v4.new_notebook(cells=[cell]))
    assert 'href="05_fisher.html"' in body and 'href="results.html"' in body and 'src="figures/x.png"' in body
    assert "https://cdn" not in body and "http://cdn" not in body and "unpkg" not in body
