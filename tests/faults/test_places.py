"""Odd places to run in, the same bits from the first process and from later ones, and who gets in."""

import errno
import fcntl
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from nbkit import disk

ROOT = Path(__file__).parents[2]
# A mark with its gradient, and spectra, all of them compiled loops: what they give, in hexadecimal.
WORK = """
import hashlib, torch
import nbkit as nb
from nbkit.disk import kept
torch.set_num_threads(1)
torch.manual_seed(0)
grid, mark = nb.Grid(16, 125.0), nb.LearnedMark(nb.Grid(16, 125.0))
delta = torch.exp(torch.randn(16, 16, 16))
delta = delta / delta.mean() - 1
with torch.no_grad():
    for p in mark.parameters():
        p += 0.3 * torch.randn_like(p)
M = mark(delta)
power = nb.spectra(delta, nb.marked_field(M, delta), grid=grid)
power.P_mm.log().sum().backward()
found = [delta, M.detach(), power.P_mm.detach(), *(p.grad for p in mark.parameters())]
print(hashlib.sha256(b"".join(x.numpy().tobytes() for x in found)).hexdigest())
kept("things", {"a": 1}, lambda: {"delta": delta})
"""
# A checkout that cannot be written, for those who may write everywhere; spectra alone are compiled soonest.
READ_ONLY = """
import os, torch
os.access = lambda path, mode: not (mode & os.W_OK and "nbkit" in str(path))
import nbkit as nb
nb.spectra(torch.randn(8, 8, 8), grid=nb.Grid(8, 50.0))
"""


def work(runs, code=WORK, home=True, **settings):
    """What `WORK` prints in a process of its own."""
    settings |= {"NBKIT_RUNS": str(runs), "OMP_NUM_THREADS": "1"}
    environment = {k: v for k, v in os.environ.items() if k != "NUMBA_CACHE_DIR" and (home or k != "HOME")} | settings
    result = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    return result.stdout


@pytest.fixture(scope="module")
def expected(tmp_path_factory):
    return work(tmp_path_factory.mktemp("plain"))


def test_a_cold_cache_gives_the_bits_of_a_warm_one(tmp_path, expected):
    """Of numba's compiled loops, in the process that compiles them and in those that read them."""
    cold, warm = (work(tmp_path, NUMBA_CACHE_DIR=str(tmp_path / "cache")) for _ in range(2))
    assert cold == warm == expected


def test_folders_with_spaces_and_letters_of_any_kind(tmp_path, expected):
    folder = tmp_path / "Ωm σ₈ — my runs"
    folder.mkdir()
    assert work(folder, home=False) == expected
    assert list((folder / "things").glob("*.safetensors"))


def test_a_checkout_that_cannot_be_written(tmp_path):
    """Its compiled loops go where all else that is kept goes; a home is not needed."""
    work(tmp_path, READ_ONLY, home=False)
    assert list((tmp_path / "numba").rglob("*.nbi"))


def test_a_file_system_without_locks_is_named(tmp_path, monkeypatch):
    def none(*_):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", none)
    with pytest.raises(OSError, match=r"a\.h5 cannot be locked \(No locks available\); set NBKIT_RUNS"):
        disk.lock(tmp_path / "a.h5")


def test_a_place_that_cannot_be_written_is_named(tmp_path, monkeypatch):
    def read_only(*_, **__):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(Path, "mkdir", read_only)
    with pytest.raises(OSError, match=r"x\.json could not be written \(Read-only file system; .*set NBKIT_RUNS"):
        disk.write_json(tmp_path / "away" / "x.json", {})


def test_nothing_evaluates_or_unpickles():
    forbidden = (
        r"\beval\(|\bexec\(|import pickle|pickle\.|torch\.load|allow_pickle=True|yaml\.load|shell=True|os\.system"
    )
    lines = [
        f"{path.name}: {line.strip()}"
        for path in sorted((ROOT / "nbkit").rglob("*.py"))
        for line in path.read_text().splitlines()
        if re.search(forbidden, line)
    ]
    assert lines == []


def test_lab_is_for_this_machine_alone():
    """JupyterLab asks for a token and listens on the loopback interface, unless it is told otherwise."""
    recipe = re.search(r"^lab:.*\n((?:\t.*\n)+)", (ROOT / "Makefile").read_text(), re.M)[1]
    assert "jupyterlab" in recipe and not re.search(r"--ip|token|password|allow.root|0\.0\.0\.0", recipe)
    code = "from jupyter_server.serverapp import ServerApp; from jupyter_server.auth.identity import IdentityProvider; "
    code += "print(ServerApp().ip, len(IdentityProvider().token))"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert said[0] == "localhost" and int(said[1]) >= 32
