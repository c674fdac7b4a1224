"""The cosmic web by the tidal tensor: void, sheet, filament or knot, voxel by voxel."""

import torch

from nbkit.mark.classical import smoothing_kernel
from nbkit.mesh.grid import to_fourier, to_real

CLASSES = ("void", "sheet", "filament", "knot")


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


def stacked(field, centres, grid, r_max=60.0):
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
    bin, last = r.round().long(), int(r_max / grid.cell_size)
    count = torch.bincount(bin.flatten())
    mean_r = torch.bincount(bin.flatten(), r.flatten()) / count
    return grid.cell_size * mean_r[: last + 1], (torch.bincount(bin.flatten(), around.flatten()) / count)[: last + 1]
