"""What a mark is like in familiar words: the classical mark nearest to it, and where in the cosmic web it is high."""

from typing import NamedTuple

import numpy as np
import torch
from scipy.optimize import minimize
from scipy.stats import linregress

from nbkit.mark.classical import BASE_FLOOR, ClassicalMark, smoothing_kernel
from nbkit.mesh.grid import to_fourier, to_real
from nbkit.mesh.spectra import marked_field, spectra, spectra_of_modes

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
    delta_k, fits, ceilings = to_fourier(grid.check(delta), grid), [], []
    for R in scales:
        delta_R = to_real(delta_k * smoothing_kernel(R, grid, delta_k), grid)
        means = _BinMeans(delta_R.double().numpy().ravel(), M.double().numpy().ravel())
        best = min((minimize(means.unexplained, x, method="Nelder-Mead") for x in STARTS), key=lambda fit: fit.fun)
        fits.append((best.fun, *best.x, float(R)))
        ceilings.append(means.explained)
    _, p, delta_s, R = min(fits)
    mark = ClassicalMark(float(p), float(delta_s), R)
    M_c = mark.of_modes(delta_k, grid)
    explained = r_squared(M_c, M), r_squared(M_c, M, 1 + delta), field_r_squared(M_c, M, delta, grid, kmax)
    return Nearest(mark, _affine_fit(M_c, M)[0], *explained, max(ceilings))


class _BinMeans:
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


def against_density(M, delta, bins=50):
    """Curve of a mark over the density of its own cell: (1 + delta, mean M, and the limits of the central 68 %)."""
    order = np.array_split(np.argsort(delta.numpy().ravel()), bins)
    density, mark = 1 + delta.double().numpy().ravel(), M.double().numpy().ravel()
    # The median of 1 + delta, for an axis that is logarithmic: many cells of a sparse catalogue are empty.
    rows = [(max(np.median(density[i]), 0.01), mark[i].mean(), *np.quantile(mark[i], (0.16, 0.84))) for i in order]
    return tuple(np.transpose(rows))


def r_squared(x, y, weights=None):
    """Share of the variance of y that a x + b explains: the squared correlation, with or without weights."""
    C = np.cov(np.ravel(x), np.ravel(y), aweights=None if weights is None else np.ravel(weights))
    return float(C[0, 1] ** 2 / (C[0, 0] * C[1, 1]))


def field_r_squared(M_c, M, delta, grid, kmax):
    """Share of the power of the marked field of M, beyond what is proportional to delta, that M_c's accounts for.

    An affine map of the mark turns Delta into a Delta + b delta, so the part along delta tells nothing.
    """
    fields = delta, marked_field(M, delta), marked_field(M_c, delta)
    power = [[spectra(x, y, grid=grid, kmax=kmax) for y in fields] for x in fields]
    sums = np.array([[float((P.P_dm.double() * P.modes.double()).sum()) for P in row] for row in power])
    # What is left of both marked fields, and of their product, when the part along delta is taken out.
    left = sums[1:, 1:] - np.outer(sums[1:, 0], sums[0, 1:]) / sums[0, 0]
    return float(left[0, 1] ** 2 / (left[0, 0] * left[1, 1]))


def rescale(M_c, M):
    """a M_c + b fitted to M, (n, n, n)."""
    a, b = _affine_fit(M_c, M)
    return (a * M_c.double() + b).to(M.dtype)


def _affine_fit(x, y):
    """(a, b) of the least squares fit of a x + b to y."""
    fit = linregress(x.double().ravel(), y.double().ravel())
    return float(fit.slope), float(fit.intercept)


def tidal_eigenvalues(delta, grid, R=10.0):
    """Eigenvalues (..., n, n, n, 3), ascending, of T_ij = d_i d_j phi with nabla^2 phi = delta smoothed over R.

    Parameters
    ----------
    R : Gaussian smoothing scale [Mpc/h].
    """
    delta_k = to_fourier(grid.check(delta), grid)
    k = grid.wavevector(delta.device, delta.dtype)
    k2 = sum(x**2 for x in k)
    potential = delta_k * smoothing_kernel(R, grid, delta_k) / k2.where(k2 > 0, 1)
    # An odd power of k_i has no real transform where k_i is the Nyquist wavenumber, so mixed derivatives drop it.
    odd = [x.where(x.abs() < grid.k_nyq * (1 - 1e-6), 0) for x in k]
    T = {
        (i, j): to_real(potential * (k[i] ** 2 if i == j else odd[i] * odd[j]), grid)
        for i in range(3)
        for j in range(i + 1)
    }
    rows = [torch.stack([T[max(i, j), min(i, j)] for j in range(3)], dim=-1) for i in range(3)]
    return torch.linalg.eigvalsh(torch.stack(rows, dim=-2))


def web_class(delta, grid, R=10.0, threshold=0.0):
    """How many directions collapse, 0 ... 3 = void, sheet, filament, knot: eigenvalues above the threshold."""
    return (tidal_eigenvalues(delta, grid, R) > threshold).sum(-1)


def peaks(field, quantile=0.95):
    """Voxels above all 26 neighbours, among the highest of the field: (n, n, n) bool."""
    wrapped = torch.nn.functional.pad(field[None, None], (1,) * 6, mode="circular")
    highest = torch.nn.functional.max_pool3d(wrapped, 3, stride=1)[0, 0]
    return (field == highest) & (field > torch.quantile(field.flatten()[::7], quantile))


def stack(field, centres, grid, r_max=60.0):
    """Mean of a field at distance r from marked voxels: r [Mpc/h] and values, in bins of one cell.

    Parameters
    ----------
    field : (n, n, n).
    centres : (n, n, n) bool, the voxels to stack on.
    """
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
    fields = {"P_dd": delta, "P_mm": marked_field(M, delta)}
    modes = {power: to_fourier(field, grid) for power, field in fields.items()}
    for number, name in enumerate(WEB_CLASSES):
        here = web == number
        row = {"volume": float(here.float().mean()), "mass": float(((1 + delta) * here).mean())}
        row["M"] = float(M[here].mean() / M.mean())
        for power, field in fields.items():
            P = spectra_of_modes(to_fourier(field * here, grid), modes[power], grid=grid, kmax=kmax)
            row[power] = float((P.P_dm * P.modes).sum() / (P.P_mm * P.modes).sum())
        rows[name] = row
    return rows
