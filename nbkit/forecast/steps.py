"""Is the step of the derivatives small enough? The same universes with half the step, and what that does to sigma."""

from dataclasses import dataclass

import numpy as np
import torch

from nbkit.forecast.fisher import UNMARKED, Ingredients, ingredients, standard
from nbkit.mesh.spectra import marked_field, spectra
from nbkit.universe.cosmology import FIDUCIAL, QUIJOTE_NAMES, STEPS
from nbkit.universe.farm import farm
from nbkit.universe.suite import DERIVATIVES, Preset

# Cells to simulate that take about as long as starting worker processes.
WORTH_A_CLUSTER = 1e6


def half_steps(preset, marks, seeds, client=None, progress=True):
    """{label: (N, P, 3, b)} derivatives of P_dd, P_dm, P_mm of single realisations, with half of Quijote's steps.

    Parameters
    ----------
    preset : a Preset with a simulator of its own.
    marks : {label: mark}.
    seeds : N of those of the derivative sets, to be compared realisation by realisation.
    client, progress : see `nbkit.universe.farm.farm`.
    """
    seeds = [int(seed) for seed in seeds]
    calls = {(s, i, sign): (i, sign, s) for s in seeds for i in range(len(STEPS)) for sign in (1, -1)}
    power = {}
    one, cells = _Spectra(preset, tuple(marks.values())), preset.grid.n**3
    if client is None and cells * len(calls) < WORTH_A_CLUSTER:
        power.update((key, one(*call)) for key, call in calls.items())
    else:
        farm(one, calls, power.update, min(max(1, 2**17 // cells), 4), client, progress)
    pairs = [[(power[s, i, 1] - power[s, i, -1]) / STEPS[i] for i in range(len(STEPS))] for s in seeds]
    return dict(zip(marks, np.moveaxis(np.array(pairs, np.float64), 2, 0), strict=True))


def step_change(spectra_by_set, halved, label, seeds, kmax=None, fixed=()):
    """(P,) relative change of sigma when the step is halved; nan for parameters held fixed.

    Central differences err by the square of the step, so three quarters of that error are gone at half of it. Only the
    seeds given were simulated anew: their mean change is added to the derivatives of all.

    Parameters
    ----------
    spectra_by_set, label, kmax : as for `nbkit.forecast.fisher.ingredients`.
    halved : from `half_steps`.
    seeds : those that `half_steps` was given.
    """
    given = ingredients(spectra_by_set, label, kmax)
    rows = np.isin(_common_seeds(spectra_by_set), seeds)
    bins = given.n_d if label == UNMARKED else given.n_d // 3
    new = next(iter(halved.values()))[:, :, :1] if label == UNMARKED else halved[label]
    new = new[..., :bins].reshape(len(new), len(QUIJOTE_NAMES), -1)
    moved = given.derivatives + (new.mean(0) - given.derivatives[rows].mean(0))
    before, after = (standard(x).sigma(fixed) for x in (given, Ingredients(given.fiducial, moved)))
    return np.divide(after, before, out=np.full(len(before), np.nan), where=before > 0) - 1


def _common_seeds(spectra_by_set):
    seeds = [np.asarray(spectra_by_set[name].seeds) for name in DERIVATIVES]
    return seeds[0][np.all([np.isin(seeds[0], other) for other in seeds[1:]], axis=0)]


@dataclass(frozen=True)
class _Spectra:
    """i, sign, seed -> (marks, 3, b) spectra of the universe half a step from the fiducial one; for any process."""

    preset: Preset
    marks: tuple

    @torch.no_grad()
    def __call__(self, i, sign, seed):
        theta = FIDUCIAL.copy()
        theta[i] += sign * STEPS[i] / 2
        delta, grid = self.preset.simulator(theta, seed), self.preset.grid
        fields = (marked_field(mark(delta, grid), delta) for mark in self.marks)
        return np.stack([torch.stack(spectra(delta, field, grid=grid)[1:4]).numpy() for field in fields])
