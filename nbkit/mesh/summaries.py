"""Spectra to the vectors that heads and regressors read: S_delta and S_M of section 2.3, in their only copy."""

import torch

from nbkit.mesh.grid import to_fourier
from nbkit.mesh.spectra import marked_field, spectra_of_modes


def unmarked_summary(P_dd):
    """S_delta = log10 P_dd, shape (..., b)."""
    _refuse_not_positive(P_dd, "P_dd")
    return torch.log10(P_dd)


def marked_summary(P_dd, P_dm, P_mm):
    """S_M = [log10(P_mm / P_dd), r(k)], shape (..., 2b); [0, 1] for M = 1."""
    _refuse_not_positive(P_dd, "P_dd")
    _refuse_not_positive(P_mm, "P_mm")
    return torch.cat([torch.log10(P_mm / P_dd), correlation(P_dd, P_dm, P_mm)], dim=-1)


def correlation(P_dd, P_dm, P_mm):
    """r(k) = P_dm / sqrt(P_dd P_mm), between -1 and 1, shape (..., b)."""
    # Two roots, not the root of a product: the product of two large float32 spectra overflows.
    return P_dm / (P_dd.sqrt() * P_mm.sqrt())


def marked_spectra(mark, delta, *, grid, kmax=None, centre=0.0):
    """P_dd, P_dm and P_mm of a density and its marked field Delta = M (1 + delta) - mean, with one FFT of delta.

    Parameters
    ----------
    mark : anything with `of_modes(delta_k, grid)`, or callable as `mark(delta, grid)`, that gives M (..., n, n, n).
    delta : (..., n, n, n) density contrast.
    grid : the Grid it lives on.
    kmax : largest mean |k| of a bin [h/Mpc]; default and upper bound k_Nyq.
    centre : taken off M first.
    """
    delta_k = to_fourier(grid.checked(delta), grid)
    M = mark.of_modes(delta_k, grid) if hasattr(mark, "of_modes") else mark(delta, grid)
    return spectra_of_modes(delta_k, to_fourier(marked_field(M - centre, delta), grid), grid=grid, kmax=kmax)


def _refuse_not_positive(power, name):
    if power.is_meta:
        return
    good = (power > 0) & torch.isfinite(power)
    if not good.all():
        # Spectra of a field that is constant, or has lost all its digits to rounding, end up here.
        worst = power[~good].flatten()[0].item()
        raise ValueError(
            f"{name} is not a positive number in {int((~good).sum())} of {good.numel()} bins (for one, {worst:.3g}); "
            "its logarithm needs a field that varies and is finite on every scale kept."
        )
