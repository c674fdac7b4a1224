"""InfoNCE from spectra alone is that of training heads on the fields."""

from dataclasses import replace

import numpy as np
import pytest
from fake import FakeSet
from info_nce import info_nce_of

import nbkit as nb
from nbkit.measure import Measurement
from nbkit.mesh.spectra import marked_spectra
from nbkit.train import RECIPES


@pytest.mark.parametrize("head_epochs", [0, 3])
def test_heads_on_spectra_are_heads_on_fields(head_epochs, tmp_path, monkeypatch):
    monkeypatch.setenv("NBKIT_RUNS", str(tmp_path))
    simulations, mark, recipe = FakeSet(), nb.ClassicalMark(2.0, 0.0), RECIPES["tuned"]
    few = replace(recipe.negatives, n_real=16, n_global=32, n_local=4)
    recipe = replace(recipe, batch=8, pretrain_batch=8, pretrain_epochs=2, epochs=4, negatives=few)
    training = nb.Training(recipe=recipe, head_epochs=head_epochs, seed=3)
    run = nb.train(training, simulations, fixed=mark, device="cpu")
    assert len(run.column("val_loss")) == (head_epochs or 4)
    P = marked_spectra(mark, simulations[list(range(len(simulations)))], grid=simulations.grid, kmax=0.3)
    marked = {"p": np.stack([P.P_dm.numpy(), P.P_mm.numpy()], axis=1)}
    power = Measurement(P.k.numpy(), P.modes.numpy(), simulations.theta, None, P.P_dd.numpy(), marked)
    assert info_nce_of(power, "p", training, simulations.grid) == pytest.approx(run.best_loss, abs=1e-3)
