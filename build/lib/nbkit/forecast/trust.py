"""Can a forecast be believed? More and fewer simulations, halves of them, Gaussian data, half the step; a verdict."""

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from scipy import stats

from nbkit.forecast import common_seeds, derivatives, ingredients
from nbkit.forecast.fisher import ESTIMATORS, LEAST_HARTLAP, Ingredients, inverse, marginalised, sigma, standard
from nbkit.measure import measure
from nbkit.universe.cosmology import FIDUCIAL, QUIJOTE_NAMES, STEPS, derivative_thetas
from nbkit.universe.suite import Preset

# Differences of sigma that still count as converged.
ALLOWED = {"bracket": 0.10, "fiducial": 0.10, "halves": 0.10, "step": 0.05}
SENTENCES = {
    "bracket": "standard and compressed estimators are {} apart",
    "fiducial": "half of the fiducial simulations give {} another sigma",
    "halves": "halves of the simulations scatter by {}",
    "step": "half the step gives {} another sigma",
}
# Mardia's excess above which the data vector has tails that a Gaussian has not.
TAILS = 3.0


class Convergence(NamedTuple):
    """sigma from subsets of the simulations."""

    counts: np.ndarray  # (c,) simulations in a subset
    sigma: dict  # {estimator: (c, repeats, P)}; inf where noise left no positive F


def convergence(given, what, repeats=10, seed=0):
    """Convergence of every estimator with the number of derivative realisations ("pairs") or of "fiducial" simulations.

    Subsets are drawn at random.
    """
    enough = int(np.ceil(2 * (given.n_d + 2) / (1 - LEAST_HARTLAP)))
    most, least = {"pairs": (given.pairs, 8), "fiducial": (given.n_s, enough)}[what]
    counts = np.unique(np.geomspace(min(least, most), most, 6).round().astype(int))
    rng = np.random.default_rng(seed)
    parts = [[given.subset(**{what: rng.permutation(most)[:n]}) for _ in range(repeats)] for n in counts]
    sigma = {name: np.array([_sigmas(map(estimate, same)) for same in parts]) for name, estimate in ESTIMATORS.items()}
    return Convergence(counts, sigma)


def half_splits(given, splits=20, seed=0):
    """(splits, 2, P) sigma (corrected standard) of disjoint halves of all simulations."""
    rng, matrices = np.random.default_rng(seed), []
    for _ in range(splits):
        halves = zip(*(np.array_split(rng.permutation(n), 2) for n in (given.n_s, given.pairs)), strict=True)
        matrices += [standard(given.subset(*half)) for half in halves]
    return _sigmas(matrices).reshape(splits, 2, -1)


def _sigmas(matrices):
    """(R, P) errors of some Fisher matrices."""
    return marginalised(np.stack(list(matrices)))


class Gaussianity(NamedTuple):
    """How far a data vector is from the Gaussian that a Fisher forecast takes it for."""

    skewness: np.ndarray  # (n_d,) of each number
    kurtosis: np.ndarray  # (n_d,) excess kurtosis of each number: 0 for a Gaussian
    scatter: tuple  # what Gaussian data of this many simulations would show in both, one standard deviation each
    chi2: np.ndarray  # (n_s,) sorted x C^-1 x of the simulations
    expected: np.ndarray  # (n_s,) its quantiles if they were Gaussian
    p_value: float  # of the Kolmogorov-Smirnov distance between the two
    tails: float  # Mardia's excess of far-out simulations, in units of its scatter; 0 for a Gaussian


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


@dataclass(frozen=True, eq=False)
class Simulated:
    """A set of universes of one theta that are simulated when they are asked for, for `nbkit.measure`."""

    name: str
    preset: Preset
    theta: np.ndarray
    seeds: np.ndarray

    @property
    def grid(self):
        """The mesh of the fields."""
        return self.preset.grid

    @property
    def fingerprint(self):
        """As that of a set on disk."""
        return replace(self.preset.contents(self.name), theta=self.theta, seeds=self.seeds).fingerprint

    def __len__(self):
        return len(self.seeds)

    def __getitem__(self, row):
        return self.preset.simulator(self.theta[row], int(self.seeds[row]))


def half_steps(preset, marks, seeds, **how):
    """{set: Measurement} of the derivative sets, with these seeds and half of Quijote's steps.

    The Preset needs a simulator of its own; `how` is for `nbkit.measure`.
    """
    halfway = {name: (theta + FIDUCIAL) / 2 for name, theta in derivative_thetas().items()}
    seeds = np.asarray(seeds)
    sets = {name: Simulated(name, preset, np.tile(x, (len(seeds), 1)), seeds) for name, x in halfway.items()}
    return measure(sets, marks, **how)


def step_change(power, halved, label, kmax=None):
    """(P,) relative change of sigma when the step is halved.

    Central differences err by the square of the step, so three quarters of that error are gone at half of it. Only
    some seeds were simulated anew: their mean change is added to the derivatives of all.

    Parameters
    ----------
    power, label, kmax : as for `nbkit.forecast.ingredients`.
    halved : from `half_steps`.
    """
    given, new = ingredients(power, label, kmax), derivatives(halved, label, kmax, STEPS / 2)
    same = np.isin(common_seeds(power), common_seeds(halved))
    moved = given.derivatives + (new.mean(0) - given.derivatives[same].mean(0))
    return sigma(standard(Ingredients(given.fiducial, moved))) / sigma(standard(given)) - 1


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
    kept = [QUIJOTE_NAMES.index(name) for name in of]
    # Noise may leave an F that is not positive: sigma is then infinite, and what is compared with it without bound.
    with np.errstate(invalid="ignore"):
        off = _changes(given, kept, seed)
    off |= {} if step is None else {"step": np.abs(np.asarray(step)[kept])}
    largest = {what: float(np.max(change)) for what, change in off.items()}
    bad = {what: change for what, change in largest.items() if not change <= ALLOWED[what]}
    told = "; ".join(
        f"{SENTENCES[what].format(f'{x:.0%}' if np.isfinite(x) else 'without bound')} ({ALLOWED[what]:.0%} allowed)"
        for what, x in (bad or largest).items()
    )
    tails = gaussianity(given).tails
    beware = f" Beware: its tails are heavier than a Gaussian's ({tails:.0f} sigma)." if tails > TAILS else ""
    return not bad, f"{label}, {' and '.join(of)}: {'not converged' if bad else 'converged'}: {told}.{beware}"


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
