"""What a mark is like in familiar words: the classical mark nearest to it, and where in the cosmic web it is high."""

from typing import NamedTuple

import numpy as np
import torch
from scipy.ndimage import maximum_filter
from scipy.optimize import minimize
from scipy.stats import linregress

from nbkit.mark.classical import BASE_FLOOR, ClassicalMark, smoothing_kernel
from nbkit.mesh.grid import to_fourier, to_real
from nbkit.mesh.spectra import marked_field, spectra_of_modes

# The range of the paper's classical marks. p and delta_s are nearly degenerate: beyond it R2 hardly grows.
P_EDGE, DELTA_S_EDGE = 2.5, 0.5
SCALES = tuple(np.geomspace(0.5, 25, 27).round(1))
STARTS = tuple((p, delta_s) for p in (-2.0, -1.0, 1.0, 2.0) for delta_s in (0.1, 0.3))
WEB_CLASSES = ("void", "sheet", "filament", "knot")


class Nearest(NamedTuple):
    """A classical mark M_c, and how much of M is explained by a M_c + b: affine maps leave a mark's information."""

    mark: ClassicalMark
    a: float  # slope; where it is negative, M_c is turned upside down
    R2: float  # share of the variance of M, voxel by voxel
    R2_any: float  # share of the variance of M that any function of delta_R could explain, at the best R


def nearest_classical(M, delta, grid, scales=SCALES):
    """The ClassicalMark(p, delta_s, R) that explains most of the variance of M (n, n, n), R among `scales` [Mpc/h]."""
    delta_k, M, fits = to_fourier(grid.check(delta), grid), M.double().numpy().ravel(), []
    for R in scales:
        delta_R = to_real(delta_k * smoothing_kernel(R, grid, delta_k), grid)
        fits.append((*_fit(delta_R.double().numpy().ravel(), M), float(R)))
    _, p, delta_s, _, R = min(fits)
    mark = ClassicalMark(float(p), float(delta_s), R)
    line = linregress(mark.of_modes(delta_k, grid).double().ravel(), M)
    return Nearest(mark, float(line.slope), float(line.rvalue**2), max(fit[3] for fit in fits))


def _fit(delta_R, M):
    """1 - R2, p and delta_s of the classical mark of delta_R nearest to M, both (N,); R2 of any function of delta_R."""
    # Means in narrow bins of delta_R are all that a search needs, in microseconds.
    parts = equal_parts(delta_R, 400)
    x, away = (np.array([field[rows].mean() for rows in parts]) for field in (delta_R, M - M.mean()))
    weight, lowest, variance = np.array([len(rows) for rows in parts]) / len(M), delta_R.min(), M.var()

    def unexplained(shape):
        p, delta_s = shape
        inside = abs(p) <= P_EDGE and 0 <= delta_s <= DELTA_S_EDGE and 1 + delta_s + lowest >= BASE_FLOOR
        if not inside or p == 0:
            return 1.0
        M_c = (1 + delta_s + x) ** -p
        M_c = M_c - weight @ M_c
        return 1 - (weight @ (M_c * away)) ** 2 / (weight @ M_c**2 * variance)

    best = min((minimize(unexplained, start, method="Nelder-Mead") for start in STARTS), key=lambda fit: fit.fun)
    return best.fun, *best.x, float(weight @ away**2 / variance)


def equal_parts(x, count):
    """Rows of x (N,) in parts of equal size, from the lowest x to the highest."""
    return np.array_split(np.argsort(x), count)


def against_density(M, delta, bins=50):
    """Curve of a mark over the density of its own cell: (1 + delta, mean M, and the limits of the central 68 %)."""
    density, mark = 1 + delta.double().numpy().ravel(), M.double().numpy().ravel()
    # The median of 1 + delta, for an axis that is logarithmic: many cells of a sparse catalogue are empty.
    parts = equal_parts(density, bins)
    rows = [(max(np.median(density[i]), 0.01), mark[i].mean(), *np.quantile(mark[i], (0.16, 0.84))) for i in parts]
    return tuple(np.transpose(rows))


def tidal_eigenvalues(delta, grid, R=10.0):
    """Eigenvalues (..., n, n, n, 3), ascending, of T_ij = d_i d_j phi, nabla^2 phi = delta smoothed over R [Mpc/h]."""
    delta_k = to_fourier(grid.check(delta), grid)
    k = grid.wavevector(delta.device, delta.dtype)
    k2 = sum(x**2 for x in k)
    potential = delta_k * smoothing_kernel(R, grid, delta_k) / k2.where(k2 > 0, 1)
    # An odd power of k_i has no real transform where k_i is the Nyquist wavenumber, so mixed derivatives drop it.
    odd = [x.where(x.abs() < grid.k_nyq * (1 - 1e-6), 0) for x in k]
    T = delta.new_zeros(*delta.shape, 3, 3)
    for i in range(3):
        for j in range(i + 1):
            T[..., i, j] = to_real(potential * (k[i] ** 2 if i == j else odd[i] * odd[j]), grid)
    return torch.linalg.eigvalsh(T)  # which reads the lower triangle alone


def web_class(delta, grid, R=10.0, threshold=0.0):
    """How many directions collapse, 0 ... 3 = void, sheet, filament, knot: eigenvalues above the threshold."""
    return (tidal_eigenvalues(delta, grid, R) > threshold).sum(-1)


def peaks(field, quantile=0.95):
    """Voxels above all 26 neighbours, among the highest of the field: (n, n, n) bool."""
    highest = torch.from_numpy(maximum_filter(field.numpy(), 3, mode="wrap"))
    return (field == highest) & (field > torch.quantile(field.flatten()[::7], quantile))


def stack(field, centres, grid, r_max=60.0):
    """Mean of a field at distance r from voxels `centres`, (n, n, n) bool: r [Mpc/h], values, in bins of one cell."""
    correlation = to_fourier(field, grid) * to_fourier(centres.to(field.dtype), grid).conj()
    around = to_real(correlation, grid) / centres.sum()
    cells = torch.minimum(torch.arange(grid.n), grid.n - torch.arange(grid.n)).to(field.dtype)
    r = (cells[:, None, None] ** 2 + cells[:, None] ** 2 + cells**2).sqrt()
    bin, last = r.round().long().flatten(), int(r_max / grid.cell_size)
    mean_r, mean = (torch.bincount(bin, x.flatten()) / torch.bincount(bin) for x in (r, around))
    return grid.cell_size * mean_r[: last + 1], mean[: last + 1]


def environments(M, delta, grid, R=10.0, kmax=0.3):
    """{class: row} with the shares of volume and mass, M over its mean, and the shares of P_dd and P_mm.

    A field is the sum of its parts in the four environments, so its power is the sum of their cross power with the
    whole: these are the shares, over all modes up to kmax. One can be negative; the four add up to 1.

    Parameters
    ----------
    M, delta : (n, n, n).
    R : smoothing of the tidal tensor that tells voids from knots [Mpc/h].
    """
    web, rows = web_class(delta, grid, R), {}
    for number, name in enumerate(WEB_CLASSES):
        here = web == number
        volume, mass = here.float().mean(), ((1 + delta) * here).mean()
        rows[name] = {"volume": float(volume), "mass": float(mass), "M": float(M[here].mean() / M.mean())}
    for power, field in (("P_dd", delta), ("P_mm", marked_field(M, delta))):
        whole = to_fourier(field, grid)
        for number, row in enumerate(rows.values()):
            P = spectra_of_modes(to_fourier(field * (web == number), grid), whole, grid=grid, kmax=kmax)
            row[power] = float((P.P_dm * P.modes).sum() / (P.P_mm * P.modes).sum())
    return rows
