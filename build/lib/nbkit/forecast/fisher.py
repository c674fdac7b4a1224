"""The algebra of Fisher forecasts, F_ij = dmu_i C^-1 dmu_j, and three estimators that err in different directions.

Derivatives from a finite number of simulations are noisy, and noise looks like information. `standard` is biased high
by it (and subtracts that bias, unless told not to), `compressed` is biased low, `combined` is their geometric mean, in
which the two biases cancel to first order (Coulton & Wandelt 2023). Where they agree a forecast has converged.

Rows and columns of every F, (P, P), are the first P of the parameters.
"""

import warnings

import numpy as np
from scipy.linalg import sqrtm

from nbkit.universe.cosmology import QUIJOTE_NAMES

# Less than this share of the precision matrix left by Hartlap, and a forecast is mostly correction.
LEAST_HARTLAP = 0.2
# Of a correlation matrix: above the first, a warning; above the second fewer than four digits of the inverse are left.
CONDITION_WARNED, CONDITION_REFUSED = 1e8, 1e12


def hartlap(n_s, n_d):
    """h = (n_s - n_d - 2) / (n_s - 1): h C^-1 is unbiased when C, (n_d, n_d), is measured from n_s simulations."""
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


class Ingredients:
    """What a forecast of one data vector is made of.

    Parameters
    ----------
    fiducial : (n_s, n_d) data vectors of simulations at the fiducial cosmology.
    derivatives : (N, P, n_d) d(data)/d(theta) of single realisations, the same phases for every parameter.
    """

    def __init__(self, fiducial, derivatives):
        self.fiducial, self.derivatives = np.asarray(fiducial, np.float64), np.asarray(derivatives, np.float64)
        shapes = self.fiducial.shape, self.derivatives.shape
        if (len(shapes[0]), len(shapes[1])) != (2, 3) or shapes[0][1] != shapes[1][2]:
            raise ValueError(f"fiducial has shape {shapes[0]}, derivatives {shapes[1]}; give (n_s, n_d), (N, P, n_d).")
        for name, array in (("fiducial", self.fiducial), ("derivatives", self.derivatives)):
            if bad := int((~np.isfinite(array)).sum()):
                raise ValueError(f"{name} has {bad} of {array.size} values that are not finite; measure them anew.")
        (self.n_s, self.n_d), self.pairs = shapes[0], shapes[1][0]
        if self.pairs < 2:
            raise ValueError(f"{self.pairs} derivative realisation(s) tell nothing of their noise; use 2 or more.")

    def covariance(self):
        """(n_d, n_d) covariance of the data vector."""
        return np.atleast_2d(np.cov(self.fiducial, rowvar=False))

    def precision(self):
        """(n_d, n_d) unbiased inverse covariance, h C^-1."""
        return hartlap(self.n_s, self.n_d) * inverse(self.covariance(), f"The covariance of {self.n_d} numbers")

    def subset(self, fiducial=slice(None), pairs=slice(None)):
        """The same from fewer simulations: rows to keep of each kind."""
        return Ingredients(self.fiducial[fiducial], self.derivatives[pairs])


def standard(given, corrected=True):
    """`fisher_matrix` of Ingredients."""
    return fisher_matrix(given.derivatives, given.precision(), corrected)


def compressed(given, splits=20, seed=0):
    """F_c = M S^-1 M^T, with M = dmu^B h C^-1 dmu^A^T and S = dmu^A h C^-1 dmu^A^T: noise can only lose information.

    Half A of the realisations decides how to compress the data to P numbers, half B what these numbers tell; an average
    over random divisions, each used both ways round.
    """
    return np.mean([F_c for F_c, _ in _compressed_and_plain(given, splits, seed)], axis=0)


def combined(given, splits=20, seed=0):
    """F = F_s (F_s^-1 F_c)^(1/2), the geometric mean of `compressed` and the uncorrected F of half B, over splits."""
    return np.mean([geometric_mean(F_s, F_c) for F_c, F_s in _compressed_and_plain(given, splits, seed)], axis=0)


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
    root = sqrtm(np.linalg.solve(A, B))
    if np.iscomplexobj(root):
        raise ValueError("The compressed Fisher matrix is not positive; use more derivative simulations.")
    return A @ root


def covariance(F, fixed=()):
    """(P, P) covariance of the parameters; rows of those held fixed, by name, are zero."""
    free = free_parameters(len(F), fixed)
    names, C = ", ".join(QUIJOTE_NAMES[i] for i in free), np.zeros_like(F)
    C[np.ix_(free, free)] = inverse(F[np.ix_(free, free)], f"The Fisher matrix of {names}")
    return C


def sigma(F, fixed=()):
    """(P,) marginalised errors; zero for parameters held fixed."""
    return np.sqrt(np.diagonal(covariance(F, fixed)))


def free_parameters(count, fixed=()):
    """Numbers of those of the first `count` parameters that are not held fixed, by name."""
    names, fixed = QUIJOTE_NAMES[:count], (fixed,) if isinstance(fixed, str) else tuple(fixed)
    if unknown := [name for name in fixed if name not in names]:
        raise ValueError(f"fixed has {', '.join(map(repr, unknown))}; allowed are {', '.join(names)}.")
    if not (free := [i for i, name in enumerate(names) if name not in fixed]):
        raise ValueError(f"fixed has all of {', '.join(names)}; leave at least one parameter free.")
    return free


def inverse(C, what):
    """C^-1 of a symmetric positive matrix, (m, m), by its name; inverted in units in which its diagonal is one."""
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


def correlation(C, what="The matrix"):
    """C in units in which its diagonal is one."""
    diagonal = np.diagonal(C)
    if bad := np.flatnonzero(~(np.isfinite(C).all(0) & (diagonal > 0))).tolist():
        raise ValueError(
            f"{what} has no positive diagonal at {bad} of its {len(C)} numbers; leave these out, hold parameters "
            "fixed, or use more simulations."
        )
    scale = np.sqrt(diagonal)
    return C / np.outer(scale, scale)


def marginalised(F, fixed=()):
    """(R, P) errors of many Fisher matrices, (R, P, P), inf where F is not positive; 0 for parameters held fixed.

    For resamples and subsets, some of which may hold more noise than signal: infinite is then the honest answer.
    """
    free = free_parameters(F.shape[1], fixed)
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
