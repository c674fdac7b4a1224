"""Intervals on forecasts by resampling simulations, the same for every mark, so that ratios keep what they share.

A resample counts each simulation 0, 1, 2, ... times. Copies carry no news: they lower the rank of the covariance and
make the mean derivatives noisier, so a naive bootstrap finds sigma too small by about as much as its own scatter. Each
resample is therefore treated as the weighted sample it is, with `weighted_hartlap` and with the noise bias of its
effective number of realisations, which centres it on the estimate. The tests measure the coverage.
"""

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from scipy.stats import norm

from nbkit.forecast.fisher import covariance, hartlap, marginalised, standard
from nbkit.universe.cosmology import PARAMETERS, QUIJOTE_NAMES

LEVEL = 0.95


@dataclass(frozen=True, eq=False, repr=False)
class Interval:
    """Estimates, a number for each parameter, and the intervals that hold the truths with probability `level`."""

    value: np.ndarray
    low: np.ndarray
    high: np.ndarray
    level: float = LEVEL

    def __repr__(self):
        return f"{', '.join(map(' '.join, zip(PARAMETERS, self.words(), strict=False)))}; {self.level:.0%}"

    def words(self, digits=3):
        """'0.14 (0.13 to 0.15)' for each parameter, with so many digits; 'fixed' for those held fixed."""
        ends = [[f"{x:.{digits}g}" for x in each] for each in (self.value, self.low, self.high)]
        fixed = (self.high == 0) | np.isnan(self.low)
        return ["fixed" if held else "{} ({} to {})".format(*x) for held, *x in zip(fixed, *ends, strict=True)]

    @property
    def includes_one(self):
        """Where 1 lies inside: a ratio that may be no difference at all."""
        return (self.low <= 1) & (self.high >= 1)

    def in_words(self, i):
        """What a ratio of errors, number i, says of the lower one: tighter, looser, or no difference shown."""
        verdict = "no difference shown" if self.includes_one[i] else "tighter" if self.low[i] > 1 else "looser"
        return f"{verdict}, {self.value[i]:.2f} ({self.low[i]:.2f} to {self.high[i]:.2f})"


def symbol(name):
    """The symbol of a parameter, in letters, by its name in Quijote."""
    return dict(zip(QUIJOTE_NAMES, PARAMETERS, strict=True)).get(name, name)


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
    with np.errstate(invalid="ignore"):
        s = np.where(np.isneginf(high), 0.0, (high - low) / 2)  # all samples are 0: held fixed
        reach = np.exp(norm.ppf((1 + level) / 2) * np.where(np.isnan(s), np.inf, s))
        # Where nothing finite was found, nothing is known: neither how large it is, nor how small it might be.
        known = np.isfinite(reach) & np.isfinite(value)
        return Interval(value, np.where(known, value / reach, 0.0), np.where(known, value * reach, np.inf), level)


class Errors:
    """Marginalised errors with what resampling makes of them; `errors` are sigma (P,) and its resamples (R, P)."""

    def __repr__(self):
        return f"<sigma: {self.sigma}>"

    @property
    def sigma(self):
        """Interval of the errors, (P,); 0 for parameters held fixed, inf where F is not positive."""
        return interval(*self.errors)

    def __truediv__(self, other):
        """Interval of sigma of this over sigma of another, (P,): above 1 where the other is better.

        Both must come from the same `resamples`. Parameters held fixed in either have ratio nan.
        """
        (top, tops), (low, lows) = self.errors, other.errors
        if len(tops) != len(lows):
            raise ValueError(f"{len(tops)} resamples against {len(lows)}; make both with the same `resamples`.")
        with np.errstate(invalid="ignore", divide="ignore"):
            ratio = interval(np.where(np.isfinite(top) & np.isfinite(low), top / low, np.inf), tops / lows)
        fixed = (top == 0) | (low == 0)
        return Interval(*(np.where(fixed, np.nan, end) for end in (ratio.value, ratio.low, ratio.high)))


@dataclass(frozen=True, eq=False, repr=False)
class Forecast(Errors):
    """The corrected standard forecast of one data vector.

    Parameters
    ----------
    F, resampled : (P, P) from all simulations and (R, P, P) of the resamples.
    fixed : names of parameters held fixed.
    """

    F: np.ndarray
    resampled: np.ndarray
    fixed: tuple = ()

    @cached_property
    def errors(self):
        """sigma (P,) from all simulations and (R, P) of the resamples."""
        sigma = marginalised(np.concatenate([self.F[None], self.resampled]), self.fixed)
        return sigma[0], sigma[1:]

    def covariance(self):
        """(P, P) covariance of the parameters, for contours; an F that has no inverse is refused."""
        return covariance(self.F, self.fixed)

    def hold(self, *fixed):
        """The same with these parameters held fixed, and no others."""
        return replace(self, fixed=fixed)


@dataclass(frozen=True, eq=False, repr=False)
class Best(Errors):
    """Of some {label: Forecast}, for each parameter the one that has the smallest error from all simulations.

    Which one that is was not resampled, and it was chosen on the very boxes that judge: the others are judged strictly.
    """

    rivals: dict

    @cached_property
    def labels(self):
        """{name of a parameter: label of the best}."""
        values = {label: each.errors[0] for label, each in self.rivals.items()}
        return {name: min(values, key=lambda label, i=i: values[label][i]) for i, name in enumerate(QUIJOTE_NAMES)}

    @cached_property
    def errors(self):
        """sigma (P,) from all simulations and (R, P) of the resamples."""
        best = [self.rivals[label].errors for label in self.labels.values()]
        return tuple(np.stack([each[part][..., i] for i, each in enumerate(best)], axis=-1) for part in (0, 1))

    def hold(self, *fixed):
        """The best with these parameters held fixed, which may be others."""
        return Best({label: each.hold(*fixed) for label, each in self.rivals.items()})


def resamples(n_s, pairs, count=200, seed=0):
    """How often each fiducial simulation, (count, n_s), and each derivative realisation, (count, pairs), is counted.

    A derivative realisation is drawn as a whole: all parameters, both signs.
    """
    rng = np.random.default_rng(seed)
    return rng.multinomial(n_s, np.full(n_s, 1 / n_s), count), rng.multinomial(pairs, np.full(pairs, 1 / pairs), count)


def resampled(given, weights):
    """The Forecast of Ingredients under `resamples`, the same for all that are to be compared."""
    if [w.shape[-1] for w in weights] != [given.n_s, given.pairs]:
        raise ValueError(
            f"weights are for {weights[0].shape[-1]} simulations and {weights[1].shape[-1]} realisations, there are "
            f"{given.n_s} and {given.pairs}; use resamples({given.n_s}, {given.pairs})."
        )
    # In units of the scatter all matrices below are correlation matrices, near enough.
    scale = given.fiducial.std(0)
    x, D = (given.fiducial - given.fiducial.mean(0)) / scale, given.derivatives / scale
    h = weighted_hartlap(weights[0], given.n_d)
    return Forecast(standard(given), np.stack([_weighted_fisher(x, D, *vwh) for vwh in zip(*weights, h, strict=True)]))


def weighted_hartlap(weights, n_d):
    """The Hartlap factor of samples in which simulations count with weights (R, n_s), at least 0: (R,).

    Equal weights give `hartlap`. Unequal ones give less: copies of a simulation add no rank, so the inverse covariance
    of a bootstrap resample is biased further. For weights w of mean one over the n that are not zero, h solves
    h = < w / (1 + g w / h) >  with  g = (n_d + 1) / (n - 1).
    """
    different = (weights > 0).sum(1)
    hartlap(int(different.min()), n_d)
    w = weights / weights.sum(1, keepdims=True)
    g = different * (n_d + 1) / (different - 1)
    h = np.ones(len(w))
    for _ in range(200):
        last, h = h, np.sum(w / (1 + w * (g / h)[:, None]), axis=1)
        if np.all(np.abs(h - last) < 1e-9 * h):
            return h
    raise ValueError(
        f"{different.min()} different simulations are too few for the covariance of {n_d} numbers; use more."
    )


def _weighted_fisher(x, D, v, w, h):
    """(P, P) corrected F: fiducial simulations x, (n_s, n_d), count v times, derivatives D, (N, P, n_d), w times."""
    x, v, D, w = x[v > 0], v[v > 0] / v.sum(), D[w > 0], w[w > 0] / w.sum()
    C = np.cov(x, rowvar=False, aweights=v)
    whitened = D @ (h * np.linalg.inv(np.atleast_2d(C)))
    mean = np.tensordot(w, D, 1)
    F = np.tensordot(w, whitened, 1) @ mean.T
    scatter = np.tensordot(w, whitened @ D.swapaxes(1, 2), 1) - F
    # The sum of squared weights is one over the effective number of realisations.
    return F - scatter * (w @ w) / (1 - w @ w)
