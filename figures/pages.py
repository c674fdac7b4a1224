"""The notebooks as a static site with living explorers: `make site`, into runs/site/; open index.html, also offline.

Every notebook is run with the state of its widgets stored. All that the pages load lies beside them: the scripts of the
widgets and of the formulas come from npm when the site is made. `python figures/pages.py 02 04` makes those alone,
`python figures/pages.py studio` the mark studio without a notebook around it.
"""

import html
import json
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import anywidget
import nbformat
from gallery import FOLDER, about, paths
from nbclient import NotebookClient
from nbconvert import HTMLExporter

from nbkit import disk

SITE = disk.runs() / "site"
VIEW, STATE = (f"application/vnd.jupyter.widget-{what}+json" for what in ("view", "state"))
PACKAGES = {
    "requirejs@2.3.7": ("requirejs/require.js", "require.js"),
    "@jupyter-widgets/html-manager@1.0.14": ("@jupyter-widgets/html-manager/dist/embed-amd.js", "embed-amd.js"),
    "mathjax@3.2.2": ("mathjax/es5/tex-svg-full.js", "mathjax.js"),
}
HEAD = """<link rel="stylesheet" href="site.css"><script src="pages.js"></script><script src="site.js" defer></script>
<script>const Hub = {Queue: job => MathJax.typesetPromise && MathJax.typesetPromise([job[2]])};  // what widgets ask for
window.MathJax = {Hub, tex: {inlineMath: [["$", "$"]], processEscapes: true},
  startup: {ready() { MathJax.startup.defaultReady(); MathJax.Hub = Hub; }}};</script>
<script src="mathjax.js" async></script></head>"""
BAR = """<nav class="site"><a href="index.html">nbkit</a><input type="search" placeholder="search" aria-label="search">
<ul hidden></ul></nav>"""
STYLE = """.site { position: sticky; top: 0; z-index: 9; display: flex; gap: 24px; padding: 8px 24px; background: #fff;
  border-bottom: 1px solid #ddd; font: 16px sans-serif; }
.site a { color: #0072B2; text-decoration: none; }
.site input { width: 280px; font-size: 14px; }
.site ul { position: absolute; top: 40px; left: 80px; max-width: 640px; margin: 0; padding: 12px 24px; list-style: none;
  background: #fff; border: 1px solid #ddd; font-size: 14px; }
.site li { margin: 8px 0; }
.nbkit-picker { display: none; }  /* choosing another mark needs a kernel */
body { max-width: 1320px; margin: 0 auto !important; }"""
SEARCH = """const field = document.querySelector('.site input'), list = document.querySelector('.site ul');
field.addEventListener('input', () => {
    const words = field.value.toLowerCase().split(/\\s+/).filter(Boolean);
    const found = PAGES.filter(page => words.every(word => page.text.toLowerCase().includes(word)));
    list.replaceChildren(...found.map(page => {
        const [item, link] = [document.createElement('li'), document.createElement('a')];
        const at = Math.max(0, page.text.toLowerCase().indexOf(words[0]) - 60);
        Object.assign(link, {href: page.href, textContent: page.title});
        item.append(link, ` … ${page.text.slice(at, at + 160)} …`);
        return item;
    }));
    if (words.length && !found.length) list.textContent = 'Nothing was found.';
    list.hidden = !words.length;
});"""


def scripts(folder):
    """Put what pages with widgets and formulas load into a folder; the packages come from npm."""
    npm = shutil.which("npm")
    if npm is None:
        sys.exit("npm is missing: it fetches the scripts of the widgets; install it (on Debian: the package npm).")
    with tempfile.TemporaryDirectory() as place:
        command = [npm, "install", "--silent", "--no-audit", "--no-fund", "--prefix", place, *PACKAGES]
        result = subprocess.run(command, capture_output=True, text=True)
        if result.returncode:
            sys.exit(f"npm could not fetch {', '.join(PACKAGES)}: {result.stderr.strip() or 'no reason was given'}.")
        for source, name in PACKAGES.values():
            shutil.copy(Path(place) / "node_modules" / source, folder / name)
    shutil.copy(Path(anywidget.__file__).parent / "nbextension" / "index.js", folder / "anywidget.js")


def page(notebook, **look):
    """HTML of a notebook that loads nothing but what lies beside it."""
    exporter = HTMLExporter(mathjax_url="", mermaid_js_url="", jquery_url="", require_js_url="require.js", **look)
    exporter.widget_renderer_url, exporter.embed_images = "embed-amd.js", False
    body, _ = exporter.from_notebook_node(notebook)
    body = re.sub(r"<script[^>]*src=\"\"[^>]*></script>", "", body)
    body = re.sub(r"<script type=\"module\">(?:(?!</script>).)*mermaid.*?</script>", "", body, flags=re.S)
    body = re.sub(r'href="(?:\.\./)?(?:notebooks/)?([\w/]+)\.ipynb', r'href="\1.html', body)
    body = body.replace('href="../figures/RESULTS.md', 'href="results.html').replace(
        'src="../figures/', 'src="figures/'
    )
    return re.sub(r"(<body[^>]*>)", rf"\1{BAR}", body.replace("</head>", HEAD, 1), count=1)


def studio(site):
    """The mark studio on a page of its own."""
    cell = nbformat.v4.new_code_cell("from nbkit import show\nshow.Studio()")
    notebook = executed(nbformat.v4.new_notebook(cells=[cell]))
    body = page(notebook, exclude_input=True, exclude_output_prompt=True)
    (site / "studio.html").write_text(body.replace(HEAD, "</head>").replace(BAR, ""))
    sys.stdout.write(f"{site / 'studio.html'}\n")


def executed(notebook):
    """A notebook, run with the state of the widgets that it shows."""
    NotebookClient(notebook, timeout=None, kernel_name="python3", store_widget_state=True).execute(cwd=str(FOLDER))
    views = [out.data.get(VIEW) for cell in notebook.cells for out in cell.get("outputs", ()) if "data" in out]
    states = notebook.metadata.widgets[STATE]["state"] if "widgets" in notebook.metadata else {}
    wanted = [view["model_id"] for view in views if view]
    for model in wanted:  # grows as it goes: a model that is shown, and those that it names
        named = re.findall(r"IPY_MODEL_(\w+)", json.dumps(states.get(model, {})))
        wanted += [name for name in dict.fromkeys(named) if name not in wanted]
    for model in set(states) - set(wanted):
        del states[model]
    return notebook


def text_of(notebook):
    """The prose of a notebook, for the search."""
    prose = " ".join(cell.source for cell in notebook.cells if cell.cell_type == "markdown")
    return re.sub(r"\s+", " ", re.sub(r"<[^>]*>|[#*`|]", " ", html.unescape(prose)))


def results_page():
    """figures/RESULTS.md as a notebook, and the pictures it shows."""
    text = (disk.figures() / "RESULTS.md").read_text()
    pictures = re.findall(r"\]\((\w+\.png)\)", text)
    cell = nbformat.v4.new_markdown_cell(re.sub(r"\]\((\w+\.png)\)", r"](../figures/\1)", text))
    return nbformat.v4.new_notebook(cells=[cell]), [disk.figures() / name for name in pictures]


def main(*asked, site=SITE):
    """Make the pages that are asked for, or all, and those that hold them together."""
    site.mkdir(parents=True, exist_ok=True)
    scripts(site)
    if asked == ("studio",):
        return studio(site)
    results, pictures = results_page()
    titles = {"index": "Notebooks", "results": "What marks are worth"} | {path.stem: about(path)[0] for path in paths()}
    notebooks = {"index": nbformat.read(FOLDER / "index.ipynb", as_version=4), "results": results}
    for path in paths():
        if not asked or path.stem[:2] in asked:
            sys.stdout.write(f"{path.name}\n")
            notebooks[path.stem] = executed(nbformat.read(path, as_version=4))
    for picture in [*disk.figures().glob("thumbs/*.png"), *pictures]:
        target = site / "figures" / picture.relative_to(disk.figures())
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(picture, target)
    index = [{"title": titles[x], "href": f"{x}.html", "text": text_of(each)} for x, each in notebooks.items()]
    files = {"site.css": STYLE, "site.js": SEARCH, "pages.js": f"const PAGES = {json.dumps(index)};"}
    files |= {f"{stem}.html": page(notebook) for stem, notebook in notebooks.items()}
    for name, content in files.items():
        (site / name).write_text(content)
    size = sum(path.stat().st_size for path in site.rglob("*") if path.is_file()) / 1e6
    sys.stdout.write(f"{site / 'index.html'}: {len(notebooks)} pages, {size:.0f} MB\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
