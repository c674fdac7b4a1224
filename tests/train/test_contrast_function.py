"""The best additive mark by contrast: its summaries are the mark's own, and the search gets somewhere."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from nbkit.train.contrast_function import RATE, SEARCHES, Coefficients, contrastive_function
from nbkit.train.recipe import Recipe
from nbkit.train.train import train
from test_train import RECIPE, one_thread, simulations, small  # noqa: F401 (fixtures)
from training_process import FROM_FUNCTION

from nbkit.disk import read_tensors
from nbkit.mark import weights_hash
from nbkit.mesh.spectra import marked_spectra
from nbkit.train.processes import Processes
from nbkit.train.run import load_run

CPU = torch.device("cpu")
QUICK = replace(RECIPE, standardise=True, schedule="cosine", pretrain_rate=5e-3, head_epochs=8, start="function")


@pytest.fixture(autouse=True)
def _runs(tmp_path, monkeypatch):
    monkeypatch.setenv("NBKIT_RUNS", str(tmp_path / "runs"))


def searched(sims, folder, recipe=QUICK, l_max=2, stop=None, seen=None, fresh=False):
    """contrastive_function with everything that is not looked at left alone; `seen` collects the trainer's states."""
    seen = [] if seen is None else seen
    trainer = {"checkpoint_every": 1e9, "stop": stop, "on_epoch": seen.append, "show": False}
    options = {"residual": True, "seed": 3, "processes": Processes(CPU), "memory": None, "fresh": fresh}
    return contrastive_function(sims, folder, recipe, 0.3, l_max, **options, **trainer)


def test_search_lowers_the_loss_and_moves_the_functions(simulations, tmp_path):  # noqa: F811
    seen = []
    mark = searched(simulations, tmp_path, seen=seen)
    losses = [row["val_loss"] for row in seen[-1].progress.history if row["stage"] == "marked"]
    assert len(losses) == 8 and min(losses) < losses[0]
    assert not torch.equal(seen[-1].mark.c, Coefficients(3).c) and len(mark.coefficients) == 3
    # The summaries it was trained on are those of the mark it gives, which an affine map does not tell apart.
    data, c = seen[-1].data, torch.tensor(mark.coefficients).flatten()
    objective = seen[-1]._marked().objective
    with torch.no_grad():
        seen[-1].mark.c.copy_(c.reshape(3, -1))
        S_M = objective.S_M(data.S_M[:4])
    plain = replace(mark, shift=0.0)
    power = marked_spectra(plain, simulations[[0, 1, 2, 3]], grid=simulations.grid, kmax=0.3)
    ratio = torch.log10(power.P_mm / power.P_dd)
    scale = S_M[:, : ratio.shape[1]] - ratio  # c has unit scatter, the mark its own
    assert float((scale - scale.mean()).abs().max()) < 1e-3
    r = power.P_dm / (power.P_dd * power.P_mm).sqrt()
    assert torch.allclose(S_M[:, ratio.shape[1] :], r, atol=1e-3)


def test_a_finished_search_is_read(small, tmp_path, monkeypatch):  # noqa: F811
    first = searched(small, tmp_path, replace(QUICK, head_epochs=2))
    monkeypatch.setattr("nbkit.train.contrast_function.cross_spectra", None)
    assert searched(small, tmp_path, replace(QUICK, head_epochs=2)) == first
    with pytest.raises(ValueError, match="other settings"):
        searched(small, tmp_path, replace(QUICK, head_epochs=3))


def test_training_begins_with_what_was_found(small, tmp_path):  # noqa: F811
    marks = []
    recipe = replace(QUICK, head_epochs=2, epochs=1)
    asked = {"recipe": recipe, "kmax": 0.3, "seed": 3, "device": "cpu", "l_max": 0}
    run = train(small, tmp_path, on_epoch=lambda t: marks.append(weights_hash(t.mark)), **asked)
    assert (
        run.finished and run.settings["start"] == "function" and (tmp_path / "function" / "0" / "history.csv").is_file()
    )
    assert [row["stage"] for row in run.history] == ["unmarked"] * 2 + ["heads"] * 2 + ["marked"]


def test_two_processes_find_what_one_finds(small, tmp_path):  # noqa: F811
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    command += [str(Path(__file__).parents[1] / "training_process.py"), str(tmp_path / "two"), "function"]
    subprocess.run(command, check=True, capture_output=True, text=True)
    train(small, tmp_path / "one", recipe=FROM_FUNCTION, kmax=0.3, seed=3, device="cpu", progress=False)
    for k in range(SEARCHES):
        one, two = (read_tensors(tmp_path / name / "function" / str(k) / "best.safetensors") for name in ("one", "two"))
        assert torch.allclose(one[0]["weights.mark.c"], two[0]["weights.mark.c"], rtol=1e-4, atol=1e-4)
        assert abs(one[1]["best_loss"] / two[1]["best_loss"] - 1) < 2e-4
    assert load_run(tmp_path / "two").finished


def test_a_search_needs_epochs():
    with pytest.raises(ValueError, match="head_epochs is 0"):
        Recipe(start="function")
    assert RATE > 0
