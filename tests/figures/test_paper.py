"""The paper on real data, whole: on a Quijote-shaped tree of small boxes that the embedded simulator writes."""

from dataclasses import replace
from functools import partial

import ablations
import numpy as np
import paper
import pretend as pretend_gpu
import pytest
from pretend import pretend

import nbkit as nb
from nbkit import disk
from nbkit.recover import pyramid
from nbkit.train import RECIPES
from nbkit.train.contrast import Negatives
from nbkit.universe import PRESETS, SETS, Preset
from nbkit.universe.suite import suite

# Shaped like `quijote`, and where its boxes come from.
SMALL = Preset("small", nb.Grid(24, 200.0, "PCS"), 60, 60, 80, 60, near_sizes=(240, 30))
MAKER = replace(SMALL, particles=24, force_factor=2, steps=2, fiducial=320)
FEW = {"epochs": 1, "pretrain_epochs": 1, "start": "classical", "validation": 0.3}
CONTRAST = replace(RECIPES["tuned"], **FEW, negatives=Negatives(n_real=8, n_global=8, n_local=2))
NEAR = replace(RECIPES["information"], epochs=1, batch=500, start="classical")


def trainings(preset):
    """Those of the paper, made short."""
    about = {"l2": {}, "l0": {"l_max": 0}, "i2": {"objective": "information", "kmax": 0.3}}
    return {label: nb.Training(preset, recipe=NEAR if label == "i2" else CONTRAST, **of) for label, of in about.items()}


def write_tree(root):
    """3D_cubes/<set>/<i>/df_m_24_PCS_z=0.npy of all sets, and the two files of parameters."""
    for name in SETS:
        contents = MAKER.contents(name)
        for i, theta in enumerate(contents.theta):
            path = root / f"3D_cubes/{name}/{i}/df_m_24_PCS_z=0.npy"
            path.parent.mkdir(parents=True)
            np.save(path, MAKER.field(theta, int(contents.seeds[i])))
        if name in ("BSQ", "latin_hypercube"):
            np.savetxt(root / f"{name}_params.txt", contents.theta)


@pytest.fixture
def client():
    from distributed import Client

    with Client(processes=False, n_workers=1, threads_per_worker=2, dashboard_address="127.0.0.1:0") as client:
        yield client


def test_the_paper_on_files_like_those_of_quijote(monkeypatch, tmp_path, client):
    """All marks are trained, measured and judged; a second call makes nothing anew; notebooks get marks that exist."""
    executed = []
    monkeypatch.setenv("NBKIT_RUNS", str(tmp_path / "runs"))
    monkeypatch.setitem(PRESETS, "small", SMALL)
    monkeypatch.setattr(nb, "suite", partial(suite, client=client))
    monkeypatch.setitem(nb.measure.__globals__, "WORTH_A_CLUSTER", np.inf)
    monkeypatch.setattr(paper, "trainings", trainings)
    monkeypatch.setattr(paper.papermill, "execute_notebook", lambda *given: executed.append(given))
    monkeypatch.setattr(pyramid, "RegressionRecipe", partial(pyramid.RegressionRecipe, epochs=2))
    write_tree(tmp_path / "Quijote")
    line = ["--preset=small", f"--data-root={tmp_path / 'Quijote'}", "--device=cpu"]
    paper.main(line)
    rows = ablations.lines(disk.runs() / "experiment/small/table.csv")
    assert [row["mark"] for row in rows[::3]] == 2 * ["l2", "l0", "i2"]
    assert {row["what"] for row in rows} == {"itself", "P_dd over it", "best of 48 over it"}
    assert all(float(row[name]) > 0 for row in rows for name in ablations.QUANTITIES)
    assert all(float(row["sigma_s8"]) > 1 for row in rows if row["what"] == "P_dd over it")
    for _, out, given in executed:
        assert out.parent == disk.runs() / "experiment/small" and given["preset"] == "small"
        assert all(nb.load(given[name], "small").finished for name in ("run", "versus"))
    assert [path.name[:2] for path, _, _ in executed] == ["04", "05", "06", "07"]
    made = {path: path.stat().st_mtime_ns for end in ("h5", "safetensors") for path in disk.runs().rglob(f"*.{end}")}
    paper.main(line)
    assert made and made == {path: path.stat().st_mtime_ns for path in made}


def test_what_cannot_work_is_refused_before_anything_is_made(monkeypatch, tmp_path):
    monkeypatch.setenv("NBKIT_RUNS", str(tmp_path / "runs"))
    for line, said in (
        ([], "Preset 'quijote' is of real data and has no simulator; pass data_root"),
        ([f"--data-root={tmp_path}"], "a folder that holds 3D_cubes or Snapshots is needed"),
        (["--preset=demo", "--data-root=x"], "Preset 'demo' makes its own boxes; Quijote's files are for"),
        (["--device=cuda:99"], "device is 'cuda:99', but"),
    ):
        with pytest.raises(SystemExit, match=said):
            paper.main(line)
    monkeypatch.setattr(pretend_gpu, "MEMORY", 500_000_000)
    with pretend(), pytest.raises(SystemExit, match=r"has 0\.5 GB free, and training on boxes of 128\^3 takes 0\.8 GB"):
        paper.main(["--device=cuda"])
    assert not (tmp_path / "runs").exists()


def test_the_trainings_on_quijote_are_those_of_the_paper():
    whole = paper.trainings("quijote")["l2"]
    assert whole == nb.Training("quijote", recipe="paper")
    assert whole.papermill().endswith("-p preset quijote -p recipe paper")
    assert paper.trainings("demo")["l0"] == nb.Training("demo", l_max=0)
