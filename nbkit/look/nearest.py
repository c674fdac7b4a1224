"""The classical mark nearest to a given one, up to the affine maps a M + b that leave its information unchanged."""

from typing import NamedTuple

import numpy as np
from scipy.optimize import minimize

from nbkit.mark.classical import BASE_FLOOR, ClassicalMark, smoothing_kernel
from nbkit.mesh.grid import to_fourier, to_real
from nbkit.mesh.spectra import marked_field, spectra

# The range of the paper's classical marks. p and delta_s are nearly degenerate: beyond it R2 hardly grows.
P_EDGE, DELTA_S_EDGE = 2.5, 0.5
SCALES = tuple(np.geomspace(0.5, 25, 27).round(1))
STARTS = tuple((p, delta_s) for p in (-2.0, -1.0, 1.0, 2.0) for delta_s in (0.1, 0.3))


class Nearest(NamedTuple):
    """A classical mark M_c, and how much of M is explained by a M_c + b."""

    mark: ClassicalMark
    a: float  # slope; where it is negative, M_c is turned upside down
    R2: float  # share of the variance of M, voxel by voxel
    R2_mass: float  # the same with every voxel weighed by its mass 1 + delta
    R2_field: float  # share of the marked field's power, beyond what is proportional to delta, up to kmax
    R2_any: float  # share of the variance of M that any function of delta_R could explain, at the best R


def nearest_classical(M, delta, grid, kmax=0.3, scales=SCALES):
    """The ClassicalMark(p, delta_s, R) that explains the largest share R2 of the variance of M.

    Parameters
    ----------
    M, delta : (n, n, n).
    kmax : of the comparison of marked fields [h/Mpc].
    scales : the R to try [Mpc/h].
    """
    delta_k, found, ceilings = to_fourier(grid.check(delta), grid), [], []
    for R in scales:
        delta_R = to_real(delta_k * smoothing_kernel(R, grid, delta_k), grid)
        known = _Known(delta_R.double().numpy().ravel(), M.double().numpy().ravel())
        fits = [minimize(known.unexplained, start, method="Nelder-Mead") for start in STARTS]
        best = min(fits, key=lambda fit: fit.fun)
        found.append((best.fun, *best.x, float(R)))
        ceilings.append(known.explained)
    _, p, delta_s, R = min(found)
    mark = ClassicalMark(float(p), float(delta_s), R)
    M_c = mark.of_modes(delta_k, grid)
    x, y = (field.double() - field.double().mean() for field in (M_c, M))
    explained = r_squared(M_c, M), r_squared(M_c, M, 1 + delta), field_explained(M_c, M, delta, grid, kmax)
    return Nearest(mark, float((x * y).mean() / (x * x).mean()), *explained, max(ceilings))


class _Known:
    """Means of M in narrow bins of delta_R: all that a search among functions of delta_R needs, in microseconds."""

    def __init__(self, delta_R, M, bins=400):
        order = np.array_split(np.argsort(delta_R), bins)
        self.x, self.M = (np.array([field[rows].mean() for rows in order]) for field in (delta_R, M))
        self.weight = np.array([len(rows) for rows in order]) / len(M)
        self.lowest, self.variance = delta_R.min(), M.var()
        self.away = self.M - self.weight @ self.M
        self.explained = float(self.weight @ self.away**2 / self.variance)

    def unexplained(self, shape):
        """1 - R2 of a classical mark (p, delta_s), 1 outside of the search."""
        p, delta_s = shape
        inside = abs(p) <= P_EDGE and 0 <= delta_s <= DELTA_S_EDGE and 1 + delta_s + self.lowest >= BASE_FLOOR
        if not inside or p == 0:
            return 1.0
        M_c = (1 + delta_s + self.x) ** -p
        M_c = M_c - self.weight @ M_c
        return 1 - (self.weight @ (M_c * self.away)) ** 2 / (self.weight @ M_c**2 * self.variance)


def r_squared(x, y, weights=None):
    """Share of the variance of y that a x + b explains: the squared correlation, with or without weights."""
    x, y = (np.asarray(each, np.float64).ravel() for each in (x, y))
    weights = np.ones_like(x) if weights is None else np.asarray(weights, np.float64).ravel()
    weights = weights / weights.sum()
    x, y = x - weights @ x, y - weights @ y
    return float((weights @ (x * y)) ** 2 / ((weights @ (x * x)) * (weights @ (y * y))))


def field_explained(M_c, M, delta, grid, kmax):
    """Share of the power of the marked field of M, beyond what is proportional to delta, that M_c's accounts for.

    An affine map of the mark turns Delta into a Delta + b delta, so the part along delta tells nothing.
    """
    one, other = marked_field(M, delta), marked_field(M_c, delta)

    def products(a, b):
        P = spectra(a, b, grid=grid, kmax=kmax)
        return [float((x.double() * P.modes.double()).sum()) for x in (P.P_dd, P.P_dm, P.P_mm)]

    dd, d1, p11 = products(delta, one)
    _, d2, p22 = products(delta, other)
    p12 = products(one, other)[1]
    # What is left of both, and of their product, when the part along delta is taken out.
    return (p12 - d1 * d2 / dd) ** 2 / ((p11 - d1**2 / dd) * (p22 - d2**2 / dd))


def on_scale_of(M, M_c):
    """a M_c + b fitted to M, (n, n, n)."""
    x, y = M_c.double() - M_c.double().mean(), M.double() - M.double().mean()
    return (M.double().mean() + (x * y).mean() / (x * x).mean() * x).to(M.dtype)
