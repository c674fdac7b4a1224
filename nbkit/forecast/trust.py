"""Can a forecast be believed? More and fewer simulations, halves of them, Gaussian data, half the step; a verdict."""

from dataclasses import dataclass

import numpy as np
import torch
from scipy import stats

from nbkit.forecast import UNMARKED, common_seeds, ingredients
from nbkit.forecast.fisher import ESTIMATORS, LEAST_HARTLAP, Ingredients, inverse, marginalised, standard
from nbkit.mesh.spectra import marked_field, spectra
from nbkit.universe.cosmology import FIDUCIAL, STEPS
from nbkit.universe.farm import farm
from nbkit.universe.suite import Preset

# Differences of sigma that still count as converged.
ALLOWED = {"bracket": 0.10, "fiducial": 0.10, "halves": 0.10, "step": 0.05}
# Mardia's excess above which the data vector has tails that a Gaussian has not.
TAILS = 3.0
# Cells to simulate that take about as long as starting worker processes.
WORTH_A_CLUSTER = 1e6


@dataclass(frozen=True, eq=False)
class Convergence:
    """sigma from subsets of the simulations.

    Parameters
    ----------
    counts : (c,) simulations in a subset.
    sigma : {estimator: (c, repeats, P)}; inf where noise left no positive F.
    """

    counts: np.ndarray
    sigma: dict


def against_pairs(given, repeats=10, seed=0):
    """Convergence of every estimator with the number of derivative realisations; subsets are drawn at random."""
    rng = np.random.default_rng(seed)
    return _convergence(given.pairs, 8, repeats, lambda n: given.subset(pairs=rng.permutation(given.pairs)[:n]))


def against_fiducial(given, repeats=10, seed=0):
    """Convergence of every estimator with the number of fiducial simulations."""
    rng, least = np.random.default_rng(seed), int(np.ceil(2 * (given.n_d + 2) / (1 - LEAST_HARTLAP)))
    return _convergence(given.n_s, least, repeats, lambda n: given.subset(fiducial=rng.permutation(given.n_s)[:n]))


def _convergence(most, least, repeats, subset):
    counts = np.unique(np.geomspace(min(least, most), most, 6).round().astype(int))
    parts = [[subset(n) for _ in range(repeats)] for n in counts]
    sigma = {
        name: np.array([_sigmas([estimate(part) for part in same]) for same in parts])
        for name, estimate in ESTIMATORS.items()
    }
    return Convergence(counts, sigma)


def half_splits(given, splits=20, seed=0):
    """(splits, 2, P) sigma (corrected standard) of disjoint halves of all simulations."""
    rng, found = np.random.default_rng(seed), []
    for _ in range(splits):
        halves = zip(*(np.array_split(rng.permutation(n), 2) for n in (given.n_s, given.pairs)), strict=True)
        found += [standard(given.subset(*half)) for half in halves]
    return _sigmas(found).reshape(splits, 2, -1)


def _sigmas(matrices):
    """(R, P) errors of some FisherMatrix."""
    return marginalised(np.stack([each.F for each in matrices]))


@dataclass(frozen=True, eq=False)
class Gaussianity:
    """How far a data vector is from the Gaussian that a Fisher forecast takes it for.

    Parameters
    ----------
    skewness, kurtosis : (n_d,) of each number (excess kurtosis: 0 for a Gaussian).
    scatter : what Gaussian data of this many simulations would show in both, one standard deviation each.
    chi2, expected : (n_s,) sorted x C^-1 x of the simulations, and its quantiles if they were Gaussian.
    p_value : of the Kolmogorov-Smirnov distance between the two.
    tails : Mardia's excess of far-out simulations, in units of its scatter; 0 for a Gaussian.
    """

    skewness: np.ndarray
    kurtosis: np.ndarray
    scatter: tuple
    chi2: np.ndarray
    expected: np.ndarray
    p_value: float
    tails: float


def gaussianity(given):
    """Moments of each number, and x C^-1 x of all together."""
    x, n_s, n_d = given.fiducial - given.fiducial.mean(0), given.n_s, given.n_d
    precision = inverse(given.covariance(), f"The covariance of {n_d} numbers")
    chi2 = np.sort(np.einsum("na,ab,nb->n", x, precision, x))
    # Mean and covariance come from the same simulations: chi2 is then a scaled Beta variable, exactly.
    law = stats.beta(n_d / 2, (n_s - n_d - 1) / 2, scale=(n_s - 1) ** 2 / n_s)
    expected = law.ppf((np.arange(n_s) + 0.5) / n_s)
    scatter = float(np.sqrt(6 / n_s)), float(np.sqrt(24 / n_s))
    p_value = float(stats.kstest(chi2, law.cdf).pvalue)
    moment = np.mean((chi2 * n_s / (n_s - 1)) ** 2)
    tails = (moment - n_d * (n_d + 2) * (n_s - 1) / (n_s + 1)) / np.sqrt(8 * n_d * (n_d + 2) / n_s)
    return Gaussianity(stats.skew(x), stats.kurtosis(x), scatter, chi2, expected, p_value, float(tails))


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


def step_change(power, halved, label, seeds, kmax=None):
    """(P,) relative change of sigma when the step is halved.

    Central differences err by the square of the step, so three quarters of that error are gone at half of it. Only the
    seeds given were simulated anew: their mean change is added to the derivatives of all.

    Parameters
    ----------
    power, label, kmax : as for `nbkit.forecast.ingredients`.
    halved : from `half_steps`.
    seeds : those that `half_steps` was given.
    """
    given = ingredients(power, label, kmax)
    rows = np.isin(common_seeds(power), seeds)
    new = next(iter(halved.values()))[:, :, :1] if label == UNMARKED else halved[label]
    N, P, spectra_of_one, _ = new.shape
    new = new[..., : given.n_d // spectra_of_one].reshape(N, P, given.n_d)
    moved = given.derivatives + (new.mean(0) - given.derivatives[rows].mean(0))
    return standard(Ingredients(given.fiducial, moved)).sigma() / standard(given).sigma() - 1


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


def verdict(label, given, of, step=None, seed=0):
    """(converged, sentence): is sigma of these parameters known, and if not, by how much is it not.

    More simulations settle convergence; whether data with heavy tails may be taken for Gaussian is another question,
    and the sentence says when to ask it.

    Parameters
    ----------
    label : what the sentence calls the data vector.
    given : Ingredients.
    of : names of the parameters that count.
    step : (P,) relative change of sigma with the step of the derivatives, if it was measured.
    """
    kept = [given.names.index(name) for name in of]
    # Noise may leave an F that is not positive: sigma is then infinite, and what is compared with it without bound.
    with np.errstate(invalid="ignore"):
        off = _changes(given, kept, seed)
    off |= {} if step is None else {"step": np.abs(np.asarray(step)[kept])}
    said = {
        "bracket": "standard and compressed estimators are {} apart",
        "fiducial": "half of the fiducial simulations give {} another sigma",
        "halves": "halves of the simulations scatter by {}",
        "step": "half the step gives {} another sigma",
    }
    largest = {what: float(np.max(change)) for what, change in off.items()}
    bad = {what: change for what, change in largest.items() if not change <= ALLOWED[what]}
    told = bad or largest
    words = "; ".join(f"{said[what].format(_percent(x))} ({ALLOWED[what]:.0%} allowed)" for what, x in told.items())
    tails = gaussianity(given).tails
    beware = f" Beware: its tails are heavier than a Gaussian's ({tails:.0f} sigma)." if tails > TAILS else ""
    return not bad, f"{label}, {' and '.join(of)}: {'not converged' if bad else 'converged'}: {words}.{beware}"


def _changes(given, kept, seed):
    """{check: relative change of sigma of the parameters kept}."""
    estimates = [ESTIMATORS[name](given) for name in ("standard", "corrected", "compressed")]
    plain, corrected, compressed = _sigmas(estimates)[:, kept]
    rng = np.random.default_rng(seed)
    fewer = [standard(given.subset(rng.permutation(given.n_s)[: given.n_s // 2])) for _ in range(20)]
    halves = half_splits(given, seed=seed)[:, :, kept]
    return {
        "bracket": compressed / plain - 1,
        "fiducial": np.abs(np.median(_sigmas(fewer)[:, kept], axis=0) / corrected - 1),
        # The difference of two halves scatters twice as much as the whole.
        "halves": np.sqrt(np.mean(np.log(halves[:, 0] / halves[:, 1]) ** 2, axis=0)) / 2,
    }


def _percent(x):
    return f"{x:.0%}" if np.isfinite(x) else "without bound"
