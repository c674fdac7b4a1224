"""InfoNCE from spectra alone is that of training heads on the fields."""

from dataclasses import replace

import numpy as np
import pytest
from frozen import info_nce_of
from nbkit.train.train import train
from test_train import RECIPE, simulations  # noqa: F401 (fixture)

from nbkit import ClassicalMark
from nbkit.measure import Measurement
from nbkit.mesh.spectra import marked_spectra


def test_heads_on_spectra_are_heads_on_fields(simulations, tmp_path):  # noqa: F811
    mark, recipe = ClassicalMark(2.0, 0.0), replace(RECIPE, standardise=True, head_epochs=3)
    run = train(simulations, tmp_path, recipe=recipe, mark=mark, kmax=0.3, seed=3, device="cpu")
    P = marked_spectra(mark, simulations[list(range(len(simulations)))], grid=simulations.grid, kmax=0.3)
    marked = {"p": np.stack([P.P_dm.numpy(), P.P_mm.numpy()], axis=1)}
    power = Measurement(P.k.numpy(), P.modes.numpy(), simulations.theta, None, P.P_dd.numpy(), marked)
    loss = info_nce_of(power, "p", simulations.grid, recipe, 0.3, seed=3)
    assert loss == pytest.approx(run.best_loss, abs=1e-3)
