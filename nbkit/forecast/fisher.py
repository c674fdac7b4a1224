"""Spectra -> Fisher forecasts: F_ij = dmu_i C^-1 dmu_j, by three estimators that err in different directions.

Derivatives from a finite number of simulations are noisy, and noise looks like information. `standard` is biased high
by it (and subtracts that bias, unless told not to), `compressed` is biased low, `combined` is their geometric mean, in
which the two biases cancel to first order (Coulton & Wandelt 2023). Where they agree a forecast has converged.
"""

from dataclasses import dataclass, field, replace

import numpy as np

from nbkit.forecast.covariance import hartlap, inverse
from nbkit.universe.cosmology import QUIJOTE_NAMES, STEPS
from nbkit.universe.suite import DERIVATIVES, FIDUCIAL_SETS

# The label of the unmarked power spectrum among the marks.
UNMARKED = "P_dd"


@dataclass(frozen=True, eq=False)
class Ingredients:
    """What a forecast is made of, for one data vector.

    Parameters
    ----------
    fiducial : (n_s, n_d) data vectors of simulations at the fiducial cosmology.
    derivatives : (N, P, n_d) d(data)/d(theta) of single realisations, the same phases for every parameter.
    names : of the P parameters.
    """

    fiducial: np.ndarray
    derivatives: np.ndarray
    names: tuple = QUIJOTE_NAMES

    def __post_init__(self):
        fiducial, derivatives = np.asarray(self.fiducial, np.float64), np.asarray(self.derivatives, np.float64)
        object.__setattr__(self, "fiducial", fiducial)
        object.__setattr__(self, "derivatives", derivatives)
        if (
            fiducial.ndim != 2
            or derivatives.ndim != 3
            or derivatives.shape[1:] != (len(self.names), fiducial.shape[-1])
        ):
            raise ValueError(
                f"fiducial has shape {fiducial.shape} and derivatives {derivatives.shape}; allowed are (n_s, n_d) and "
                f"(N, {len(self.names)}, n_d) for the parameters {', '.join(self.names)}."
            )
        for name, array in (("fiducial", fiducial), ("derivatives", derivatives)):
            if bad := int((~np.isfinite(array)).sum()):
                raise ValueError(f"{name} has {bad} of {array.size} values that are not finite; measure them anew.")
        if len(derivatives) < 2:
            raise ValueError(
                f"{len(derivatives)} derivative realisation(s) tell nothing of their noise; use 2 or more."
            )

    @classmethod
    def from_pairs(cls, fiducial, plus, minus, steps=STEPS, names=QUIJOTE_NAMES):
        """Ingredients from data vectors one step up and down, (P, N, n_d) each; realisation by realisation a pair."""
        steps = np.asarray(steps, np.float64)[:, None, None]
        return cls(fiducial, np.swapaxes((np.asarray(plus) - np.asarray(minus)) / (2 * steps), 0, 1), names)

    @property
    def n_s(self):
        """Fiducial simulations."""
        return len(self.fiducial)

    @property
    def n_d(self):
        """Numbers in the data vector."""
        return self.fiducial.shape[1]

    @property
    def pairs(self):
        """Realisations of the derivatives."""
        return len(self.derivatives)

    def covariance(self):
        """(n_d, n_d) covariance of the data vector."""
        return np.cov(self.fiducial, rowvar=False).reshape(self.n_d, self.n_d)

    def precision(self):
        """(n_d, n_d) unbiased inverse covariance, h C^-1."""
        return hartlap(self.n_s, self.n_d) * inverse(self.covariance(), f"The covariance of {self.n_d} numbers")

    def subset(self, fiducial=slice(None), pairs=slice(None)):
        """The same from fewer simulations: rows to keep of each kind."""
        return replace(self, fiducial=self.fiducial[fiducial], derivatives=self.derivatives[pairs])


@dataclass(frozen=True, eq=False)
class Forecast:
    """A Fisher matrix and the errors it promises.

    Parameters
    ----------
    F : (P, P) Fisher matrix.
    noise : (P, P) the part of `standard`'s F that is noise of the derivatives, already taken off; else zeros.
    names : of the P parameters.
    """

    F: np.ndarray
    noise: np.ndarray = field(repr=False)
    names: tuple = QUIJOTE_NAMES

    def covariance(self, fixed=()):
        """(P, P) covariance of the parameters; rows of those held fixed are zero."""
        free = free_parameters(self.names, fixed)
        covariance = np.zeros_like(self.F)
        listed = ", ".join(self.names[i] for i in free)
        covariance[np.ix_(free, free)] = inverse(self.F[np.ix_(free, free)], f"The Fisher matrix of {listed}")
        return covariance

    def sigma(self, fixed=()):
        """(P,) marginalised errors, in the order of `names`; zero for parameters held fixed (given by name)."""
        return np.sqrt(np.diagonal(self.covariance(fixed)))


def free_parameters(names, fixed=()):
    """Indices of the parameters that are not held fixed."""
    fixed = (fixed,) if isinstance(fixed, str) else tuple(fixed)
    if unknown := [name for name in fixed if name not in names]:
        raise ValueError(f"fixed has {', '.join(map(repr, unknown))}; allowed are {', '.join(names)}.")
    free = [i for i, name in enumerate(names) if name not in fixed]
    if not free:
        raise ValueError(f"fixed has all of {', '.join(names)}; leave at least one parameter free.")
    return free


def ingredients(spectra_by_set, label, kmax=None):
    """Ingredients of one mark: data vector [P_dd, P_dm, P_mm], or P_dd alone for the label `UNMARKED`.

    Derivatives are taken between simulations of the same seed; seeds that one of the ten sets lacks are left out.

    Parameters
    ----------
    spectra_by_set : {"fiducial": Measurement, "Om_p": Measurement, ...}, for all of `FIDUCIAL_SETS`.
    label : of a mark among them.
    kmax : largest k [h/Mpc]; default all bins.
    """
    if missing := [name for name in FIDUCIAL_SETS if name not in spectra_by_set]:
        raise ValueError(f"The sets {', '.join(missing)} are missing; a forecast needs {', '.join(FIDUCIAL_SETS)}.")
    wanted = {name: spectra_by_set[name] for name in FIDUCIAL_SETS}
    cut = {name: each if kmax is None else each.cut(kmax) for name, each in wanted.items()}
    seeds = [np.asarray(cut[name].seeds) for name in DERIVATIVES]
    common = seeds[0][np.all([np.isin(seeds[0], other) for other in seeds[1:]], axis=0)]
    if len(common) < 2:
        raise ValueError(f"The derivative sets have {len(common)} seed(s) in common; a forecast needs 2 or more.")
    vectors = {}
    for name, its_seeds in zip(DERIVATIVES, seeds, strict=True):
        row = {seed: i for i, seed in enumerate(its_seeds.tolist())}
        vectors[name] = data_vectors(cut[name], label)[[row[seed] for seed in common.tolist()]]
    plus, minus = ([vectors[f"{name}_{sign}"] for name in QUIJOTE_NAMES] for sign in "pm")
    return Ingredients.from_pairs(data_vectors(cut["fiducial"], label), np.stack(plus), np.stack(minus))


def unseen(spectra_by_set, run):
    """Spectra of those simulations alone that a Run was not trained on, so that a forecast judges it fairly.

    Parameters
    ----------
    spectra_by_set : as for `ingredients`.
    run : a Run; only one on information has seen any of these sets, and its settings name the seeds.
    """
    trained = run.settings.get("seeds", {})
    kept = {}
    for name, each in spectra_by_set.items():
        low, high = trained.get("fiducial" if name == "fiducial" else "derivatives", (1, 0))
        new = (each.seeds < low) | (each.seeds > high)
        kept[name] = each if new.all() else each.rows(new)
    return kept


def data_vectors(spectra, label):
    """(N, 3 b) spectra of a mark one after the other, or (N, b) of P_dd alone for `UNMARKED`."""
    if label == UNMARKED:
        return spectra.P_dd
    return spectra[label].reshape(len(spectra[label]), -1)


def standard(given, corrected=True):
    """F = dmu (h C^-1) dmu^T with the mean derivatives, less the noise bias dF_ij = Tr[h C^-1 Sigma_ij] / N.

    Sigma_ij is the covariance over realisations of the single-realisation derivatives.

    Parameters
    ----------
    given : Ingredients.
    corrected : take the noise bias off; without, F is too large.
    """
    precision = given.precision()
    noise = noise_bias(given.derivatives, precision) if corrected else np.zeros((len(given.names),) * 2)
    return Forecast(_information(given.derivatives, precision) - noise, noise, given.names)


def noise_bias(derivatives, precision):
    """(P, P) what noise of the derivatives, (N, P, n_d), adds to F on average."""
    apart = derivatives - derivatives.mean(0)
    N = len(derivatives)
    return np.einsum("nia,ab,njb->ij", apart, precision, apart, optimize=True) / (N * (N - 1))


def compressed(given, splits=20, seed=0):
    """F_c = M S^-1 M^T, with M = dmu^B h C^-1 dmu^A^T and S = dmu^A h C^-1 dmu^A^T: noise can only lose information.

    Half A of the realisations decides how to compress the data to P numbers, half B what these numbers tell.

    Parameters
    ----------
    given : Ingredients.
    splits : random divisions into A and B to average over; each is used both ways round.
    seed : of the divisions.
    """
    pairs = _compressed_and_plain(given, splits, seed)
    return Forecast(np.mean([F_c for F_c, _ in pairs], axis=0), np.zeros((len(given.names),) * 2), given.names)


def combined(given, splits=20, seed=0):
    """F = F_s (F_s^-1 F_c)^(1/2), the geometric mean of `compressed` and the uncorrected F of half B, over splits."""
    means = [geometric_mean(F_s, F_c) for F_c, F_s in _compressed_and_plain(given, splits, seed)]
    return Forecast(np.mean(means, axis=0), np.zeros((len(given.names),) * 2), given.names)


ESTIMATORS = {
    "standard": lambda given: standard(given, corrected=False),
    "corrected": standard,
    "compressed": compressed,
    "combined": combined,
}


def geometric_mean(A, B):
    """A (A^-1 B)^(1/2) of two symmetric positive matrices, (m, m)."""
    scale = np.sqrt(np.diagonal(A))
    L = np.linalg.cholesky(A / np.outer(scale, scale)) * scale[:, None]
    between = np.linalg.solve(L, np.linalg.solve(L, B).T)
    eigenvalues, vectors = np.linalg.eigh((between + between.T) / 2)
    if eigenvalues[0] <= 0:
        raise ValueError(
            f"The compressed Fisher matrix is not positive (smallest eigenvalue {eigenvalues[0]:.1e} in units of the "
            "standard one); use more derivative simulations."
        )
    return (L @ vectors * np.sqrt(eigenvalues)) @ (L @ vectors).T


def _information(derivatives, precision):
    mean = derivatives.mean(0)
    return mean @ precision @ mean.T


def _compressed_and_plain(given, splits, seed):
    """[(F_c, uncorrected F of half B)] for each division, both ways round."""
    if given.pairs < 4:
        raise ValueError(f"{given.pairs} derivative realisations cannot be split in two halves; use 4 or more.")
    precision, rng, out = given.precision(), np.random.default_rng(seed), []
    for _ in range(splits):
        order = rng.permutation(given.pairs)
        halves = np.array_split(order, 2)
        for a, b in (halves, halves[::-1]):
            A, B = given.derivatives[a].mean(0), given.derivatives[b].mean(0)
            M, S = B @ precision @ A.T, A @ precision @ A.T
            out.append((M @ inverse(S, "The Fisher matrix of half A") @ M.T, B @ precision @ B.T))
    return out
