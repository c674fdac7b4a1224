"""The cosmic web by the tidal tensor: void, sheet, filament or knot, voxel by voxel."""

import torch

from nbkit.grid import to_fourier, to_real
from nbkit.mark import smoothing_kernel

CLASSES = ("void", "sheet", "filament", "knot")


def tidal_eigenvalues(delta, grid, R=10.0):
    """Eigenvalues (..., n, n, n, 3), ascending, of T_ij = d_i d_j phi with nabla^2 phi = delta smoothed over R.

    Parameters
    ----------
    R : Gaussian smoothing scale [Mpc/h].
    """
    delta_k = to_fourier(grid.checked(delta), grid)
    k = grid.wavevector(delta.device, delta.dtype)
    k2 = sum(x**2 for x in k)
    potential = delta_k * smoothing_kernel("gaussian", R, grid, delta_k) / k2.where(k2 > 0, 1)
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
