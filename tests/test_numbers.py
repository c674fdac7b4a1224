"""Numbers that a change of the code must not change: bundled marks on a fixed box, forecasts behind the results."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from nbkit.disk import figures
from nbkit.forecast import UNMARKED, ingredients
from nbkit.forecast.fisher import sigma, standard
from nbkit.mark.classical import classical_marks
from nbkit.measure import measure
from nbkit.mesh.grid import Grid
from nbkit.train import bundled_runs, load
from nbkit.universe.cosmology import QUIJOTE_NAMES
from nbkit.universe.suite import FIDUCIAL_SETS

MARKS = json.loads((Path(__file__).parent / "numbers.json").read_text())["marks"]
RESULTS = json.loads((figures() / "results.json").read_text())
TRAINED = ("mini_c2", "mini_l2", "mini_l0", "mini_i2", "mini_i3", "mini_l2_seed1", "mini_l2_seed2")


@pytest.fixture(scope="module")
def box():
    """A skewed field of 32^3 cells as large as those of the presets."""
    grid = Grid(32, 250.0, "PCS")
    shells, noise = grid.shells(dtype=torch.float64), np.random.default_rng(42).standard_normal(grid.shape)
    damped = np.fft.rfftn(noise) * np.exp(-((shells.k.numpy() * 6) ** 2) / 2)[shells.index.numpy()]
    field = np.fft.irfftn(damped, s=grid.shape, axes=(0, 1, 2))
    density = np.exp(1.2 * field / field.std())
    return torch.from_numpy((density / density.mean() - 1).astype("f4")), grid


def test_every_bundled_mark_is_frozen():
    assert set(MARKS) == set(bundled_runs())


@pytest.mark.parametrize("name", MARKS)
def test_bundled_marks_give_the_same_field(name, box):
    with torch.no_grad():
        M = load(name).mark(*box).double().numpy()
    kept = MARKS[name]
    np.testing.assert_allclose(M.ravel()[::4099], kept["voxels"], rtol=1e-6)
    np.testing.assert_allclose([M.mean(), M.std()], [kept["mean"], kept["std"]], rtol=1e-6, atol=1e-9)


@pytest.fixture(scope="module")
def spectra():
    marks = classical_marks() | {name: load(name).mark for name in TRAINED}
    return measure("mini", marks, FIDUCIAL_SETS)


@pytest.mark.parametrize("kmax", [0.2, 0.3])
def test_forecasts_are_those_of_the_results(kmax, spectra):
    labels = (UNMARKED, *TRAINED, *classical_marks())
    errors = {label: sigma(standard(ingredients(spectra, label, kmax))) for label in labels}
    for parameter in ("Om", "s8"):
        i, end = QUIJOTE_NAMES.index(parameter), f"{parameter}_k{kmax:g}"
        for label in (UNMARKED, *TRAINED):
            assert errors[label][i] == pytest.approx(RESULTS[f"sigma_{label}_{end}"]["value"], rel=1e-3)
        rival = min(classical_marks(), key=lambda label, i=i: errors[label][i])
        assert rival == RESULTS[f"best48_{end}"]["value"]
        best = errors[rival][i] / errors[f"mini_i{10 * kmax:.0f}"][i]
        assert best == pytest.approx(RESULTS[f"sigma_best48_over_information_{end}"]["value"], rel=1e-3)
