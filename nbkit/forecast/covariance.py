"""Covariance of a summary from simulations, its Hartlap factor, and inverses that say how far they can be trusted."""

import warnings

import numpy as np

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


def weighted_hartlap(weights, n_d):
    """The Hartlap factor of samples in which simulations count with weights, (R,).

    Equal weights give `hartlap`. Unequal ones give less: copies of a simulation add no rank, so the inverse covariance
    of a bootstrap resample is biased further. For weights w of mean one over the n that are not zero, h solves
    h = < w / (1 + g w / h) >  with  g = (n_d + 1) / (n - 1).

    Parameters
    ----------
    weights : (R, n_s), at least 0.
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


def inverse(C, what):
    """C^-1 of a symmetric positive matrix, inverted in units in which its diagonal is one.

    Parameters
    ----------
    C : (m, m).
    what : its name, for messages.
    """
    scale, eigenvalues, vectors = _spectrum(C, what)
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


def errors_of(F):
    """(R, m) square roots of the diagonals of F^-1 for many Fisher matrices, (R, m, m); inf where F is not positive.

    For resamples and subsets, some of which may hold more noise than signal: infinite is then the honest answer.
    """
    scale = np.sqrt(np.abs(np.diagonal(F, axis1=1, axis2=2)))
    eigenvalues, vectors = np.linalg.eigh(F / (scale[:, :, None] * scale[:, None]))
    positive = eigenvalues[:, 0] > len(F[0]) / CONDITION_REFUSED
    errors = np.full(scale.shape, np.inf)
    variance = np.einsum("rij,rj->ri", vectors[positive] ** 2, 1 / eigenvalues[positive])
    errors[positive] = np.sqrt(variance) / scale[positive]
    return errors


def condition_number(C, what="the matrix"):
    """Largest over smallest eigenvalue of C in correlation units; inf where the smallest is not positive."""
    _, eigenvalues, _ = _spectrum(C, what)
    return eigenvalues[-1] / eigenvalues[0] if eigenvalues[0] > 0 else np.inf


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


def _spectrum(C, what):
    units = correlation(C, what)
    return np.sqrt(np.diagonal(C)), *np.linalg.eigh((units + units.T) / 2)
