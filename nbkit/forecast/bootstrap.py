"""Intervals on forecasts by resampling simulations, the same for every mark, so that ratios keep what they share.

A resample counts each simulation 0, 1, 2, ... times. Copies carry no news: they lower the rank of the covariance and
make the mean derivatives noisier, so a naive bootstrap finds sigma too small by about as much as its own scatter. Each
resample is therefore treated as the weighted sample it is, with `weighted_hartlap` and with the noise bias of its
effective number of realisations, which centres it on the estimate. The tests measure the coverage.
"""

from dataclasses import dataclass

import numpy as np
from scipy.stats import norm

from nbkit.forecast.covariance import errors_of, weighted_hartlap
from nbkit.forecast.fisher import Forecast, free_parameters, ingredients, standard
from nbkit.universe.cosmology import QUIJOTE_NAMES

LEVEL = 0.95


@dataclass(frozen=True, eq=False)
class Interval:
    """An estimate and the interval that holds the truth with probability `level`; arrays of one shape."""

    value: np.ndarray
    low: np.ndarray
    high: np.ndarray
    level: float = LEVEL

    @property
    def includes_one(self):
        """Where 1 lies inside: a ratio that may be no difference at all."""
        return (self.low <= 1) & (self.high >= 1)

    def in_words(self, i):
        """What a ratio of errors, number i, says: tighter, looser, or no difference shown."""
        said = "no difference shown" if self.includes_one[i] else "tighter" if self.low[i] > 1 else "looser"
        return f"{said}, {self.value[i]:.2f} ({self.low[i]:.2f} to {self.high[i]:.2f})"


@dataclass(frozen=True, eq=False)
class Resampled:
    """The corrected standard forecast of one data vector, and that of each of its R resamples.

    Parameters
    ----------
    forecast : from all simulations.
    F : (R, P, P).
    """

    forecast: Forecast
    F: np.ndarray

    def sigmas(self, fixed=()):
        """(R, P) marginalised errors of the resamples; inf where F is not positive: more noise than signal."""
        return self._errors(self.F, fixed)

    def sigma(self, fixed=(), level=LEVEL):
        """Interval of the marginalised errors, (P,); 0 for parameters held fixed, inf where F is not positive."""
        return interval(self._errors(self.forecast.F[None], fixed)[0], self.sigmas(fixed), level)

    def ratio(self, other, fixed=(), level=LEVEL):
        """Interval of sigma of another over sigma of this, (P,): above 1 where this one is better.

        Both must come from the same `resamples`. Parameters held fixed have ratio nan.
        """
        if len(self.F) != len(other.F):
            raise ValueError(f"{len(other.F)} resamples against {len(self.F)}; make both with the same `resamples`.")
        (mine, its), free = ((x.sigma(fixed).value, x.sigmas(fixed)) for x in (self, other)), self._free(fixed)
        value, low, high = np.full((3, len(mine[0])), np.nan)
        with np.errstate(invalid="ignore"):
            ratio, ratios = (a[..., free] / b[..., free] for a, b in zip(its, mine, strict=True))
        found = interval(ratio, ratios, level)
        value[free], low[free], high[free] = found.value, found.low, found.high
        return Interval(value, low, high, level)

    def _free(self, fixed):
        return free_parameters(self.forecast.names, fixed)

    def _errors(self, F, fixed):
        free = self._free(fixed)
        sigma = np.zeros(F.shape[:2])
        sigma[:, free] = errors_of(F[:, free][:, :, free])
        return sigma


def resamples(n_s, pairs, count=200, seed=0):
    """How often each fiducial simulation, (count, n_s), and each derivative realisation, (count, pairs), is counted.

    A derivative realisation is drawn as a whole: all parameters, both signs.
    """
    rng = np.random.default_rng(seed)
    return rng.multinomial(n_s, np.full(n_s, 1 / n_s), count), rng.multinomial(pairs, np.full(pairs, 1 / pairs), count)


def resampled(given, weights):
    """Forecasts of Ingredients under `resamples`.

    Parameters
    ----------
    given : Ingredients.
    weights : from `resamples(given.n_s, given.pairs)`; the same for all that are to be compared.
    """
    if [w.shape[-1] for w in weights] != [given.n_s, given.pairs]:
        raise ValueError(
            f"weights are for {weights[0].shape[-1]} simulations and {weights[1].shape[-1]} realisations, there are "
            f"{given.n_s} and {given.pairs}; use resamples({given.n_s}, {given.pairs})."
        )
    forecast = standard(given)
    # In units of the scatter all matrices below are correlation matrices, near enough.
    scale = given.fiducial.std(0)
    x, D = (given.fiducial - given.fiducial.mean(0)) / scale, given.derivatives / scale
    h = weighted_hartlap(weights[0], given.n_d)
    return Resampled(forecast, np.stack([_weighted_fisher(x, D, *vwh) for vwh in zip(*weights, h, strict=True)]))


def by_kmax(spectra_by_set, labels, count=100, seed=0):
    """{kmax: {label: Resampled}} for every kmax at which a single spectrum has more bins than there are parameters.

    Parameters
    ----------
    spectra_by_set, labels : as for `nbkit.forecast.fisher.ingredients`.
    count, seed : of the resamples, the same for all.
    """
    scan = {}
    for kmax in spectra_by_set["fiducial"].k[len(QUIJOTE_NAMES) :]:
        given = {label: ingredients(spectra_by_set, label, kmax) for label in labels}
        weights = [resamples(each.n_s, each.pairs, count, seed) for each in given.values()]
        made = zip(given.items(), weights, strict=True)
        scan[float(kmax)] = {label: resampled(each, drawn) for (label, each), drawn in made}
    return scan


def _weighted_fisher(x, D, v, w, h):
    """(P, P) corrected F: fiducial simulations x, (n_s, n_d), count v times, derivatives D, (N, P, n_d), w times."""
    v, w = v / v.sum(), w / w.sum()
    x, v = x[v > 0], v[v > 0]
    mean = v @ x
    # The sums of squared weights are one over the effective numbers of simulations.
    C = ((x.T * v) @ x - np.outer(mean, mean)) / (1 - v @ v)
    precision = h * np.linalg.inv(C)
    D, w = D[w > 0], w[w > 0]
    whitened = D @ precision
    mean = np.tensordot(w, D, 1)
    F = mean @ precision @ mean.T
    scatter = np.tensordot(w, whitened @ D.swapaxes(1, 2), 1) - F
    return F - scatter * (w @ w) / (1 - w @ w)


def interval(value, samples, level=LEVEL):
    """value exp(-+ z s), with s half the width in the logarithm of the middle 68 % of the samples, z of a Gaussian.

    Percentiles of the samples themselves would carry the bias of an inverse twice, and miss the truth more often.
    """
    with np.errstate(divide="ignore"):
        logs = np.log(samples)
    # Samples may be infinite, so take order statistics; two infinities leave their ratio open on both sides.
    inner = 2 * norm.cdf(1) - 1
    low = np.quantile(np.where(np.isnan(logs), -np.inf, logs), (1 - inner) / 2, axis=0, method="nearest")
    high = np.quantile(np.where(np.isnan(logs), np.inf, logs), (1 + inner) / 2, axis=0, method="nearest")
    held = np.isneginf(high)
    with np.errstate(invalid="ignore"):
        s = np.where(held, 0.0, (high - low) / 2)
    reach = np.exp(norm.ppf((1 + level) / 2) * np.where(np.isnan(s), np.inf, s))
    # Where nothing finite was found, nothing is known: neither how large it is, nor how small it might be.
    known = np.isfinite(reach) & np.isfinite(value)
    with np.errstate(invalid="ignore"):
        low, high = np.where(known, value / reach, 0.0), np.where(known, value * reach, np.inf)
    return Interval(value, low, high, level)
