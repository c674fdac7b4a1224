"""Run the notebooks, and make what shows them: thumbnails, durations, and the start page notebooks/index.ipynb.

`python figures/gallery.py` runs all of them in place and stores their outputs (`make notebooks`); with names, those
alone; with `--only-pages`, none: the start page is made from what is stored.
"""

import base64
import io
import json
import re
import resource
import sys

import nbformat
from nbclient import NotebookClient
from PIL import Image, ImageOps

from nbkit import disk

FOLDER = disk.figures().parent / "notebooks"
DURATIONS = disk.figures() / "durations.json"
SIZE = (300, 190)  # of a thumbnail
WELCOME = """# nbkit
A *mark* weighs every place of the cosmic density field, so that the power spectrum of what comes out tells more about
cosmology than that of the density alone. Open a notebook, choose *Run All Cells* in the menu *Run*, and move what you
see. 04 to 07 open on marks that come with the kit, 03 trains one of your own. Times are of one core."""


def run(path):
    """Execute a notebook in place; gives the seconds of one core that its kernel took."""
    notebook, before = nbformat.read(path, as_version=4), resource.getrusage(resource.RUSAGE_CHILDREN)
    client = NotebookClient(notebook, timeout=None, kernel_name="python3", store_widget_state=False)
    client.record_timing = False
    client.execute(cwd=str(FOLDER))
    disk.write_atomically(path, nbformat.writes(notebook).encode() + b"\n")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return round(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)


def paths():
    """The numbered notebooks."""
    return sorted(FOLDER.glob("[0-9][0-9]_*.ipynb"))


def about(path):
    """(title, question, what is said of its duration) of a notebook, from its opening cell."""
    opening = nbformat.read(path, as_version=4).cells[0].source
    question = re.search(r"\*\*Question\.\*\* (.*?)\n\n", opening, re.S)[1].replace("\n", " ")
    return opening.splitlines()[0].removeprefix("# "), question, re.search(r"\*\*Takes\*\* ([^,.;:]*)", opening)[1]


def thumbnail(path):
    """PNG bytes of its picture, small: of the cell tagged `thumbnail`, or else the first."""
    cells = nbformat.read(path, as_version=4).cells
    tagged = [cell for cell in cells if "thumbnail" in cell.metadata.get("tags", ())]
    outputs = [out for cell in tagged + cells for out in cell.get("outputs", ()) if "image/png" in out.get("data", {})]
    picture = Image.open(io.BytesIO(base64.b64decode(outputs[0].data["image/png"]))).convert("RGB")
    small, out = ImageOps.pad(picture, SIZE, Image.Resampling.LANCZOS, "white"), io.BytesIO()
    small.quantize(128).save(out, "png", optimize=True)
    return out.getvalue()


def start_page():
    """notebooks/index.ipynb: a picture, a sentence, the measured time and a link for each notebook."""
    durations = json.loads(DURATIONS.read_text())
    rows = ["| | | |", "|---|---|---|"]
    for path in paths():
        title, question, _ = about(path)
        picture = f'<img src="../figures/thumbs/{path.stem}.png" width="220" alt="{title}">'
        seconds = durations[path.stem]
        taken = f"{seconds} s" if seconds < 90 else f"{seconds / 60:.0f} minutes"
        rows.append(f"| [{picture}]({path.name}) | **[{title}]({path.name})**<br>{question} | {taken} |")
    cells = [nbformat.v4.new_markdown_cell(x, id=f"cell-{i:02d}") for i, x in enumerate((WELCOME, "\n".join(rows)))]
    page = nbformat.v4.new_notebook(cells=cells)
    page.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3 (ipykernel)", "language": "python"}
    disk.write_atomically(FOLDER / "index.ipynb", nbformat.writes(page).encode() + b"\n")


def main(*asked):
    """Run those that are asked for, or all, and make the start page."""
    names = [name for name in asked if name != "--only-pages"]
    chosen = [path for path in paths() if path.stem[:2] in [name[:2] for name in names]] if names else paths()
    for path in [] if "--only-pages" in asked else chosen:
        durations = json.loads(DURATIONS.read_text()) if DURATIONS.exists() else {}
        disk.write_json(DURATIONS, durations | {path.stem: run(path)})
        sys.stdout.write(f"{path.name}\n")
    for path in paths():
        disk.write_atomically(disk.figures() / "thumbs" / f"{path.stem}.png", thumbnail(path))
    start_page()


if __name__ == "__main__":
    main(*sys.argv[1:])
