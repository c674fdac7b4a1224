"""Intervals on forecasts by resampling simulations, the same for every mark, so that ratios keep what they share.

A resample counts each simulation 0, 1, 2, ... times. Copies carry no news: they lower the rank of the covariance and
make the mean derivatives noisier, so a naive bootstrap finds sigma too small by about as much as its own scatter. Each
resample is therefore treated as the weighted sample it is, with `weighted_hartlap` and with the noise bias of its
effective number of realisations, which centres it on the estimate. The tests measure the coverage.
"""

from dataclasses import dataclass

import numpy as np

from nbkit.covariance import weighted_hartlap
from nbkit.fisher import Forecast, free_parameters, standard

LEVEL = 0.95


@dataclass(frozen=True, eq=False)
class Interval:
    """An estimate and where a share `level` of its resamples lies; arrays of one shape."""

    value: np.ndarray
    low: np.ndarray
    high: np.ndarray
    level: float = LEVEL

    @property
    def includes_one(self):
        """Where 1 lies inside: a ratio that may be no difference at all."""
        return (self.low <= 1) & (self.high >= 1)


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
        """(R, P) marginalised errors; inf for a resample whose F is not positive, where noise exceeds signal."""
        free = free_parameters(self.forecast.names, fixed)
        F = self.F[:, free][:, :, free]
        scale = np.sqrt(np.abs(np.diagonal(F, axis1=1, axis2=2)))
        eigenvalues, vectors = np.linalg.eigh(F / (scale[:, :, None] * scale[:, None]))
        positive = eigenvalues[:, 0] > 0
        sigma = np.zeros(self.F.shape[:2])
        variance = np.einsum("rij,rj->ri", vectors[positive] ** 2, 1 / eigenvalues[positive])
        sigma[np.ix_(positive, free)] = np.sqrt(variance) / scale[positive]
        sigma[np.ix_(~positive, free)] = np.inf
        return sigma

    def sigma(self, fixed=(), level=LEVEL):
        """Interval of the marginalised errors, (P,)."""
        return _interval(self.forecast.sigma(fixed), self.sigmas(fixed), level)

    def ratio(self, other, fixed=(), level=LEVEL):
        """Interval of sigma of another over sigma of this, (P,): above 1 where this one is better.

        Both must come from the same `resamples`. Parameters held fixed have ratio nan.
        """
        if len(self.F) != len(other.F):
            raise ValueError(f"{len(other.F)} resamples against {len(self.F)}; make both with the same `resamples`.")
        mine, its = self.sigmas(fixed), other.sigmas(fixed)
        with np.errstate(invalid="ignore"):
            value, ratios = other.forecast.sigma(fixed) / self.forecast.sigma(fixed), its / mine
        return _interval(value, ratios, level)


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


def _interval(value, samples, level):
    # An order statistic, not an interpolation: samples may be infinite.
    low, high = np.quantile(samples, [(1 - level) / 2, (1 + level) / 2], axis=0, method="nearest")
    return Interval(value, low, high, level)
