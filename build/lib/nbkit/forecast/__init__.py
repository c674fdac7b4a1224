"""Spectra -> Fisher forecasts with intervals, of many marks from the same simulations."""

from functools import reduce

import numpy as np

from nbkit.forecast.bootstrap import Best, resampled, resamples, symbol
from nbkit.forecast.fisher import Ingredients
from nbkit.mark.classical import classical_marks
from nbkit.universe.cosmology import QUIJOTE_NAMES, STEPS
from nbkit.universe.suite import DERIVATIVES, FIDUCIAL_SETS

# The labels of the unmarked power spectrum, and of the best of the paper's classical marks for each parameter.
UNMARKED, BEST = "P_dd", "best of 48"


class Forecasts(dict):
    """{label: Forecast}, all from the same simulations and resamples: `a / b` is sigma_a / sigma_b, with intervals."""

    def __repr__(self):
        rows = [list(self.rows()[0]), *(list(row.values()) for row in self.rows())]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        return "\n".join("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)

    def rows(self, of=QUIJOTE_NAMES, digits=2):
        """For a table: a {"sigma": label, symbol: value (low to high), ...} for each forecast."""
        words = {label: dict(zip(QUIJOTE_NAMES, each.sigma.words(digits), strict=True)) for label, each in self.items()}
        return [{"sigma": label} | {symbol(name): row[name] for name in of} for label, row in words.items()]

    def only(self, *labels):
        """The forecasts with these labels."""
        return Forecasts({label: self[label] for label in labels})

    def hold(self, *fixed):
        """The same with these parameters held fixed, and no others."""
        return Forecasts({label: each.hold(*fixed) for label, each in self.items()})


def forecast(power, kmax=None, labels=None, fixed=(), count=200, seed=0):
    """Forecasts of marks, beside that of P_dd alone and, if all 48 classical marks are among them, of their best.

    Parameters
    ----------
    power : {set: Measurement} for all of `FIDUCIAL_SETS`.
    kmax : largest k [h/Mpc]; default all bins.
    labels : of marks; default all that were measured.
    fixed : names of the parameters held fixed, among those of Quijote: Om, Ob2, h, ns, s8.
    count, seed : of the resamples, the same for all.
    """
    labels = tuple(power["fiducial"].labels if labels is None else labels)
    given = {label: ingredients(power, label, kmax) for label in dict.fromkeys((UNMARKED, *labels))}
    weights = resamples(given[UNMARKED].n_s, given[UNMARKED].pairs, count, seed)
    found = Forecasts({label: resampled(each, weights) for label, each in given.items()})
    if set(classical_marks()) <= set(labels):
        found[BEST] = Best(found.only(*classical_marks()))
    return found.hold(*([fixed] if isinstance(fixed, str) else fixed))


def by_kmax(power, labels=None, count=100, seed=0):
    """{kmax: Forecasts} for every kmax at which a single spectrum has more bins than there are parameters."""
    useful = power["fiducial"].k[len(QUIJOTE_NAMES) :]
    return {float(kmax): forecast(power, kmax, labels, count=count, seed=seed) for kmax in useful}


def ingredients(power, label, kmax=None):
    """Ingredients of one mark among those of `power`: data vector [P_dd, P_dm, P_mm], or P_dd alone for `UNMARKED`."""
    if missing := [name for name in FIDUCIAL_SETS if name not in power]:
        raise ValueError(f"The sets {', '.join(missing)} are missing; a forecast needs {', '.join(FIDUCIAL_SETS)}.")
    return Ingredients(vectors(power["fiducial"], label, kmax), derivatives(power, label, kmax))


def vectors(spectra, label, kmax=None):
    """(N, n_d) data vectors of a Measurement, [P_dd, P_dm, P_mm] or P_dd alone."""
    spectra = spectra if kmax is None else spectra.cut(kmax)
    return spectra.P_dd if label == UNMARKED else spectra[label].reshape(len(spectra), -1)


def derivatives(power, label, kmax=None, steps=STEPS):
    """(N, P, n_d) d(data)/d(theta) between simulations of the same seed; seeds that one of the sets lacks are left out.

    Parameters
    ----------
    power, label, kmax : as for `ingredients`.
    steps : (P,) how far the sets are from the fiducial point.
    """
    common, data = common_seeds(power), {}
    for name in DERIVATIVES:
        rows = {seed: row for row, seed in enumerate(power[name].seeds.tolist())}
        data[name] = vectors(power[name], label, kmax)[[rows[seed] for seed in common.tolist()]]
    slopes = ((data[f"{name}_p"] - data[f"{name}_m"]) / (2 * h) for name, h in zip(QUIJOTE_NAMES, steps, strict=True))
    return np.stack(list(slopes), axis=1)


def common_seeds(power):
    """(N,) seeds that all ten derivative sets have."""
    return reduce(np.intersect1d, (power[name].seeds for name in DERIVATIVES))


def unseen(power, run):
    """Spectra of those simulations alone that a Run was not trained on, so that a forecast judges it fairly.

    Only a run on information has seen any of these sets; its settings name the seeds.
    """
    trained, kept = run.settings.get("seeds", {}), {}
    for name, each in power.items():
        low, high = trained.get("fiducial" if name == "fiducial" else "derivatives", (1, 0))
        new = (each.seeds < low) | (each.seeds > high)
        kept[name] = each if new.all() else each.rows(new)
    return kept
