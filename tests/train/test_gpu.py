"""On a real card: notebook 03 takes up a training that was stopped, and the mark measures what it does on the CPU."""

from pathlib import Path

import numpy as np
import papermill
import pytest
import torch
from test_train import same_run

import nbkit as nb

NOTEBOOK = Path(__file__).parents[2] / "notebooks" / "03_train.ipynb"


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="has no GPU")
def test_notebook_03_on_a_gpu(monkeypatch, tmp_path, device="cuda"):
    simulations = nb.suite("demo", sets=("BSQ",))["BSQ"]
    (tmp_path / "suites").symlink_to((nb.disk.runs() / "suites").resolve())
    monkeypatch.setenv("NBKIT_RUNS", str(tmp_path))
    training, asked = nb.Training("demo", epochs=1, seed=1), iter([False] * 30 + [True] * 1000)
    assert not nb.train(training, simulations, device=device, stop=lambda: next(asked)).finished
    parameters = {"epochs": 1, "seed": 1, "compare": False, "device": device}
    papermill.execute_notebook(NOTEBOOK, tmp_path / "out.ipynb", parameters=parameters, progress_bar=False)
    run = nb.load(training.name)
    whole = nb.train(training, simulations, tmp_path / "whole", device=device)
    assert run.finished and whole.finished
    same_run(run.folder, whole.folder)
    power = []
    for where in (device, "cpu"):
        monkeypatch.setenv("NBKIT_RUNS", str(tmp_path / f"measured on {where}"))
        power.append(nb.measure({"BSQ": simulations}, {"mark": run.mark}, device=where)["BSQ"]["mark"])
    np.testing.assert_allclose(*power, rtol=1e-4)
