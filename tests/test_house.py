"""The house rules: one list of packages, honest notebooks, targets that set themselves up."""

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import gallery
import nbformat
import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import nbkit as nb
from nbkit import look, universe
from nbkit.measure.bundled import Bundle
from nbkit.universe.suite import Preset

ROOT = Path(__file__).parents[1]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("[0-9][0-9]_*.ipynb"))
# Cells whose stored output is not compared; each needs a reason beside it.
MOST_IGNORED = 3
LONGEST, MOST_WORDS = 16, 760  # lines of a cell; words of prose, with what formulas are made of
# What an opening cell says of its duration, in seconds.
DURATIONS = {"a few seconds": 7, "about ten seconds": 10, "about twenty seconds": 20, "about half a minute": 30}
DURATIONS |= {"about a minute": 60, "about two minutes": 120}


def declared():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lines = project["dependencies"] + [line for extra in project["optional-dependencies"].values() for line in extra]
    return {canonicalize_name(r.name): r for r in map(Requirement, lines)}


def test_lock_pins_every_declared_package_within_its_range():
    lines = (ROOT / "requirements.lock").read_text().split("\n")
    locked = {canonicalize_name(name): version for name, version in (x.split("==") for x in lines if x)}
    for name, requirement in declared().items():
        assert name in locked, f"{name} is in pyproject.toml but not in requirements.lock: run make lock"
        assert requirement.specifier.contains(locked[name]), f"{name}=={locked[name]} is outside {requirement}"


def test_conda_environment_lists_the_same_packages():
    text = (ROOT / "environment.yml").read_text()
    pip_part = text.split("- pip:")[1]
    listed = {canonicalize_name(x) for x in re.findall(r"^ +- ([A-Za-z][\w-]*)$", pip_part, re.M)}
    assert listed == set(declared())
    assert "- -c requirements.lock" in pip_part
    assert "- -e ." in pip_part
    wanted = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["requires-python"]
    assert f"- python{wanted}" in text


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.name)
def test_stored_notebook_is_whole(path):
    """Executed from top to bottom, without errors, with one parameters cell, and with its outputs compared."""
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    code = [cell for cell in notebook.cells if cell.cell_type == "code" and cell.source.strip()]
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1)), "not run once from top to bottom"
    errors = [out.ename for cell in code for out in cell.outputs if out.output_type == "error"]
    assert not errors
    tags = [tag for cell in code for tag in cell.metadata.get("tags", [])]
    assert tags.count("parameters") == 1
    ignored = sum("nbval-ignore-output" in cell.metadata.get("tags", []) for cell in code)
    ignored += sum("NBVAL_IGNORE_OUTPUT" in cell.source for cell in code)
    assert ignored <= MOST_IGNORED
    marked = [line for cell in code for line in cell.source.splitlines() if "NBVAL_IGNORE_OUTPUT" in line]
    assert set(marked) <= {"# NBVAL_IGNORE_OUTPUT"}, "nbval knows the words only alone on their line"
    assert "papermill" not in notebook.metadata, "a papermill output: those belong in runs/"
    long = [
        cell.source
        for cell in code
        if len(cell.source.splitlines()) > LONGEST and "parameters" not in cell.metadata.get("tags", [])
    ]
    assert not long
    prose = " ".join(cell.source for cell in notebook.cells if cell.cell_type == "markdown")
    assert len(prose.split()) < MOST_WORDS


def test_papermill_outputs_are_not_collected(tmp_path):
    """Neither an `out.ipynb` nor a numbered name fools `pytest --nbval`."""
    folder = tmp_path / "notebooks"
    folder.mkdir()
    (folder / "conftest.py").write_text((ROOT / "notebooks" / "conftest.py").read_text())
    cell = nbformat.v4.new_code_cell("1 + 1", execution_count=1)
    plain, run = nbformat.v4.new_notebook(cells=[cell]), nbformat.v4.new_notebook(cells=[cell])
    for notebook in (plain, run):
        notebook.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3"}
    run.metadata["papermill"] = {"parameters": {}}
    for name, notebook in {"00_a": plain, "out": plain, "01_out": run}.items():
        nbformat.write(notebook, folder / f"{name}.ipynb")
    command = [sys.executable, "-m", "pytest", "--nbval", "--collect-only", "-q", "-c", "/dev/null", str(folder)]
    listed = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=True).stdout
    assert "00_a.ipynb" in listed
    assert "out.ipynb" not in listed


def make(*arguments, **variables):
    command = ["make", "--no-print-directory", *arguments, *(f"{k}={v}" for k, v in variables.items())]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True)


def test_missing_python_is_said_in_one_sentence():
    result = make("--always-make", ".venv/ready", PYTHON="no-such-python")
    assert result.returncode != 0
    said = [line for line in result.stdout.splitlines() if line]
    assert said == [
        "Python is missing: 'no-such-python' was not found; install python 3.11 or newer, or name one with "
        "'make PYTHON=...'."
    ]


def test_old_python_is_said_in_one_sentence(tmp_path):
    old = tmp_path / "old python"
    old.write_text('#!/bin/sh\n[ "$1" = -V ] && echo "Python 3.9.2" && exit 0\nexit 1\n')
    old.chmod(0o755)
    result = make("--always-make", ".venv/ready", PYTHON=old)
    assert result.returncode != 0
    assert result.stdout.startswith("Python is too old:")
    assert "Python 3.9.2, 3.11 or newer is needed" in result.stdout


def test_missing_compiler_is_said_in_one_sentence(tmp_path):
    for tool in ("sh", "make", "python3", "echo"):
        found = subprocess.run(["sh", "-c", f"command -v {tool}"], capture_output=True, text=True, check=True)
        target = sys.executable if tool == "python3" else found.stdout.strip()
        if target.startswith("/"):
            (tmp_path / tool).symlink_to(target)
    result = subprocess.run(
        [str(tmp_path / "make"), "--always-make", ".venv/ready"],
        cwd=ROOT,
        env={"PATH": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert result.returncode != 0
    assert [line for line in result.stdout.splitlines() if line] == [
        "A C compiler is missing (Pylians is built from source); install gcc or clang."
    ]


def test_ci_runs_make_test_and_nothing_else():
    lines = [x for x in (ROOT / ".ci" / "run").read_text().splitlines() if x and not x.startswith(("#", "set ", "cd "))]
    assert lines == ["exec make test"]


def test_no_pickle_is_loaded():
    """np.load and torch.load may only be called in their safe forms."""
    for path in (ROOT / "nbkit").rglob("*.py"):
        text = path.read_text()
        assert "torch.load" not in text
        assert "import pickle" not in text
        assert "allow_pickle=True" not in text


def test_readme_is_short_and_lists_all_notebooks():
    readme = (ROOT / "README.md").read_text()
    assert len(readme.split()) <= 1000
    for path in NOTEBOOKS:
        assert f"notebooks/{path.name}" in readme
        assert f"figures/thumbs/{path.stem}.png" in readme


def test_pictures_of_pages_are_there():
    pages = [ROOT / "README.md", ROOT / "figures" / "RESULTS.md"]
    for page in pages:
        for name in re.findall(r"!\[[^]]*\]\(([^)]+)\)", page.read_text()):
            assert (page.parent / name).is_file(), f"{page.name} shows {name}"


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.name)
def test_durations_are_those_of_the_last_run(path):
    said, taken = DURATIONS[gallery.about(path)[2]], json.loads(gallery.DURATIONS.read_text())[path.stem]
    assert taken / 2 <= said <= 2 * taken


def test_start_page_is_that_of_the_notebooks(monkeypatch, tmp_path):
    stored = (gallery.FOLDER / "index.ipynb").read_text()
    monkeypatch.setattr(gallery.disk, "write_atomically", lambda path, data: (tmp_path / path.name).write_bytes(data))
    gallery.start_page()
    assert (tmp_path / "index.ipynb").read_text() == stored, "run `python figures/gallery.py --only-pages`"


def test_04_to_07_open_on_what_comes_with_the_kit():
    """Marks and spectra that their parameters name are bundled, so that no suite is made."""
    bundle = Bundle.of("mini")
    wanted = {
        "04": universe.FIDUCIAL_SETS,
        "05": universe.FIDUCIAL_SETS,
        "06": universe.SETS[1:2],
        "07": universe.SETS[:2],
    }
    for path in NOTEBOOKS:
        for number, sets in wanted.items():
            if path.name.startswith(number):
                cells = nbformat.read(path, as_version=4).cells
                source = next(cell.source for cell in cells if "parameters" in cell.metadata.get("tags", []))
                given = dict(re.findall(r'^(\w+): str = "(.*?)"', source, re.M))
                names = [given[name] for name in ("run", "versus")]
                assert given["preset"] == "mini"
                assert bundle.holds(sets, {name: nb.load(name, "mini").mark for name in names})
                if "silenced" in given:
                    mark = nb.load(given["silenced"], "mini").mark
                    assert bundle.holds(sets, look.variants(mark, look.term_means(mark, "mini")))


def test_installed_elsewhere_it_finds_what_comes_with_it(tmp_path):
    source, kit = tmp_path / "source", tmp_path / "kit"
    shutil.copytree(ROOT / "nbkit", source / "nbkit", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    options = ["-q", "--no-deps", "--no-build-isolation", "--target", kit]
    install = [sys.executable, "-m", "pip", "install", *options, source]
    subprocess.run(install, check=True, capture_output=True)
    code = "import nbkit as nb; print(nb.__file__, nb.load('mini_i2').finished, len(nb.show.Curves._esm) > 0)"
    home = {"PYTHONPATH": str(kit), "PATH": os.environ["PATH"], "HOME": str(tmp_path)}
    said = subprocess.run([sys.executable, "-P", "-c", code], cwd=tmp_path, env=home, capture_output=True, text=True)
    assert said.stdout.split() == [str(kit / "nbkit" / "__init__.py"), "True", "True"], said.stderr


def test_the_kit_in_a_dozen_lines_runs(capsys, monkeypatch, tmp_path):
    """The README's snippet, as it stands, on boxes of 16^3."""
    sizes = {"BSQ": 200, "latin_hypercube": 60, "fiducial": 80, "pairs": 8}
    tiny = Preset("demo", nb.Grid(16, 125.0, "PCS"), **sizes, particles=16, force_factor=1, steps=2)
    monkeypatch.setitem(universe.PRESETS, "demo", tiny)
    monkeypatch.setenv("NBKIT_RUNS", str(tmp_path))
    snippet = re.search(r"## nbkit in a dozen lines\n+```python\n(.*?)```", (ROOT / "README.md").read_text(), re.S)[1]
    names = {}
    exec(compile(snippet, "README.md", "exec"), names)
    assert re.match(r"Omega_m \S+ \(\S+ to \S+\), ", capsys.readouterr().out)  # ratios, with their intervals
    assert names["run"].finished and names["M"].shape == (16, 16, 16)
    assert set(names["power"]) == set(universe.SETS) and len(names["forecasts"]) == 48 + 4
    assert names["recovery"].mse("mine").shape == (3, 5)
