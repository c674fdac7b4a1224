"""The algebra of Fisher forecasts, F_ij = dmu_i C^-1 dmu_j, and three estimators that err in different directions.

Derivatives from a finite number of simulations are noisy, and noise looks like information. `standard` is biased high
by it (and subtracts that bias, unless told not to), `compressed` is biased low, `combined` is their geometric mean, in
which the two biases cancel to first order (Coulton & Wandelt 2023). Where they agree a forecast has converged.
"""

import warnings
from dataclasses import dataclass, replace

import numpy as np

from nbkit.universe.cosmology import QUIJOTE_NAMES

# Less than this share of the precision matrix left by Hartlap, and a forecast is mostly correction.
LEAST_HARTLAP = 0.2
# Of a correlation matrix: above the first, a warning; above the second fewer than four digits of the inverse are left.
CONDITION_WARNED, CONDITION_REFUSED = 1e8, 1e12


def hartlap(n_s, n_d):
    """h = (n_s - n_d - 2) / (n_s - 1): h C^-1 is unbiased when C is measured from n_s simulations.

    Parameters
    ----------
    n_s : simulations.
    n_d : numbers in the data vector.
    """
    h = (n_s - n_d - 2) / (n_s - 1) if n_s > 1 else -np.inf
    if h < LEAST_HARTLAP:
        enough = int(np.ceil((n_d + 2 - LEAST_HARTLAP) / (1 - LEAST_HARTLAP)))
        raise ValueError(
            f"{n_s} simulations are too few for the covariance of {n_d} numbers: n_s - n_d - 2 is {n_s - n_d - 2} and "
            f"the Hartlap factor {h:.2f}, below {LEAST_HARTLAP}; use at least {enough} simulations, or a smaller kmax."
        )
    return h


def fisher_matrix(derivatives, precision, corrected=True):
    """F = dmu (h C^-1) dmu^T of the mean derivatives, (P, P), less `noise_bias`; of numpy arrays or torch tensors.

    Parameters
    ----------
    derivatives : (N, P, n_d) of single realisations.
    precision : (n_d, n_d) h C^-1.
    corrected : take the noise bias off; without, F is too large.
    """
    mean = derivatives.mean(0)
    F = mean @ precision @ mean.swapaxes(0, 1)
    return F - noise_bias(derivatives, precision) if corrected else F


def noise_bias(derivatives, precision):
    """dF_ij = Tr[h C^-1 Sigma_ij] / N, (P, P): what noise of the derivatives, (N, P, n_d), adds to F on average.

    Sigma_ij is the covariance over realisations of the single-realisation derivatives.
    """
    apart, N = derivatives - derivatives.mean(0), len(derivatives)
    return (apart @ precision @ apart.swapaxes(1, 2)).sum(0) / (N * (N - 1))


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
        wanted = (len(self.names), fiducial.shape[-1])
        if fiducial.ndim != 2 or derivatives.ndim != 3 or derivatives.shape[1:] != wanted:
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
class FisherMatrix:
    """A Fisher matrix F, (P, P), and the errors it promises.

    Parameters
    ----------
    names : of the P parameters.
    noise : (P, P) the part of `standard`'s F that was noise of the derivatives and is taken off; else 0.
    """

    F: np.ndarray
    names: tuple = QUIJOTE_NAMES
    noise: np.ndarray = 0.0

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


def standard(given, corrected=True):
    """`fisher_matrix` of Ingredients."""
    precision = given.precision()
    noise = noise_bias(given.derivatives, precision) if corrected else 0.0
    return FisherMatrix(fisher_matrix(given.derivatives, precision, corrected=False) - noise, given.names, noise)


def compressed(given, splits=20, seed=0):
    """F_c = M S^-1 M^T, with M = dmu^B h C^-1 dmu^A^T and S = dmu^A h C^-1 dmu^A^T: noise can only lose information.

    Half A of the realisations decides how to compress the data to P numbers, half B what these numbers tell.

    Parameters
    ----------
    given : Ingredients.
    splits : random divisions into A and B to average over; each is used both ways round.
    seed : of the divisions.
    """
    return FisherMatrix(np.mean([F_c for F_c, _ in _compressed_and_plain(given, splits, seed)], axis=0), given.names)


def combined(given, splits=20, seed=0):
    """F = F_s (F_s^-1 F_c)^(1/2), the geometric mean of `compressed` and the uncorrected F of half B, over splits."""
    means = [geometric_mean(F_s, F_c) for F_c, F_s in _compressed_and_plain(given, splits, seed)]
    return FisherMatrix(np.mean(means, axis=0), given.names)


ESTIMATORS = {
    "standard": lambda given: standard(given, corrected=False),
    "corrected": standard,
    "compressed": compressed,
    "combined": combined,
}


def _compressed_and_plain(given, splits, seed):
    """[(F_c, uncorrected F of half B)] for each division, both ways round."""
    if given.pairs < 4:
        raise ValueError(f"{given.pairs} derivative realisations cannot be split in two halves; use 4 or more.")
    precision, rng, out = given.precision(), np.random.default_rng(seed), []
    for _ in range(splits):
        halves = np.array_split(rng.permutation(given.pairs), 2)
        for a, b in (halves, halves[::-1]):
            A, B = given.derivatives[a].mean(0), given.derivatives[b].mean(0)
            M, S = B @ precision @ A.T, A @ precision @ A.T
            out.append((M @ inverse(S, "The Fisher matrix of half A") @ M.T, B @ precision @ B.T))
    return out


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


def inverse(C, what):
    """C^-1 of a symmetric positive matrix, (m, m), inverted in units in which its diagonal is one.

    Parameters
    ----------
    what : its name, for messages.
    """
    units, scale = correlation(C, what), np.sqrt(np.diagonal(C))
    eigenvalues, vectors = np.linalg.eigh((units + units.T) / 2)
    condition = eigenvalues[-1] / eigenvalues[0] if eigenvalues[0] > 0 else np.inf
    if condition > CONDITION_REFUSED:
        raise ValueError(
            f"{what} cannot be inverted: in correlation units its eigenvalues run from {eigenvalues[0]:.1e} to "
            f"{eigenvalues[-1]:.1e}, a condition number of {condition:.1e}, and {CONDITION_REFUSED:.0e} is allowed; "
            "leave out numbers that repeat others, hold parameters fixed, or use more simulations."
        )
    if condition > CONDITION_WARNED:
        warnings.warn(f"{what} is ill-conditioned: {condition:.1e} in correlation units.", stacklevel=3)
    return (vectors / eigenvalues) @ vectors.T / np.outer(scale, scale)


def correlation(C, what="the matrix"):
    """C in units in which its diagonal is one."""
    diagonal = np.diagonal(C)
    if not (np.isfinite(C).all() and (diagonal > 0).all()):
        bad = np.flatnonzero(~(np.isfinite(C).all(0) & (diagonal > 0)))
        raise ValueError(
            f"{what} has no positive diagonal at {bad.tolist()} of its {len(C)} numbers; leave these out, hold "
            "parameters fixed, or use more simulations."
        )
    scale = np.sqrt(diagonal)
    return C / np.outer(scale, scale)


def marginalised(F, free=None):
    """(R, P) errors of many Fisher matrices, (R, P, P), inf where F is not positive; 0 for what is not `free`.

    For resamples and subsets, some of which may hold more noise than signal: infinite is then the honest answer.

    Parameters
    ----------
    free : from `free_parameters`; default all.
    """
    free = np.arange(len(F[0])) if free is None else free
    errors, F = np.zeros(F.shape[:2]), F[:, free][:, :, free]
    scale = np.sqrt(np.abs(np.diagonal(F, axis1=1, axis2=2)))
    with np.errstate(divide="ignore", invalid="ignore"):
        units = F / (scale[:, :, None] * scale[:, None])
    units[~np.isfinite(units).all((1, 2))] = -np.eye(len(free))  # no information at all on some parameter
    eigenvalues, vectors = np.linalg.eigh(units)
    positive = eigenvalues[:, 0] > len(F[0]) / CONDITION_REFUSED
    variance = np.einsum("rij,rj->ri", vectors[positive] ** 2, 1 / eigenvalues[positive])
    among = np.full(scale.shape, np.inf)
    among[positive] = np.sqrt(variance) / scale[positive]
    errors[:, free] = among
    return errors
