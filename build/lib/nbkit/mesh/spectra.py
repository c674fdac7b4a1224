"""Fields to P_dd, P_dm, P_mm of eqs. 2-3, and these to what heads and regressors read, S_delta and S_M."""

from typing import NamedTuple

import numpy as np
import torch

from nbkit.mesh.grid import to_fourier
from nbkit.mesh.threads import SLICES, kernel, over_slices


def marked_field(M, delta):
    """Delta = M (1 + delta) - <M (1 + delta)>, eq. 1; M and delta of shape (..., n, n, n)."""
    weighted = M * (1 + delta)
    return weighted - weighted.mean(dim=(-3, -2, -1), keepdim=True)


class Spectra(NamedTuple):
    """Auto and cross spectra in bins of width k_F."""

    k: torch.Tensor  # (b,) [h/Mpc] mean |k| of the modes in a bin
    P_dd: torch.Tensor  # (..., b) [(Mpc/h)^3]
    P_dm: torch.Tensor | None  # (..., b), None without a second field
    P_mm: torch.Tensor | None  # (..., b), None without a second field
    modes: torch.Tensor  # (b,) independent modes in a bin


def spectra(delta, other=None, *, grid, kmax=None):
    """Power spectra of one field, or the three of a pair, mass assignment deconvolved.

    P_ab(k) = V / N^2 < Re[a(k) b*(k)] / W_MAS(k)^2 >, the mean taken over the modes of a bin of width k_F, N = n^3.

    Parameters
    ----------
    delta : (..., n, n, n) density contrast; any batch axes.
    other : same shape, usually the marked field Delta.
    grid : the Grid both fields live on; its `mas` says which window to remove.
    kmax : largest mean |k| of a bin [h/Mpc]; default and upper bound k_Nyq.
    """
    grid.check(delta)
    if other is not None and grid.check(other, "other", contrast=False).shape != delta.shape:
        raise ValueError(f"delta has shape {tuple(delta.shape)} but other has {tuple(other.shape)}; make them equal.")
    a, b = (None if field is None else to_fourier(field, grid) for field in (delta, other))
    result = spectra_of_modes(a, b, grid=grid, kmax=kmax)
    for name, field, power in (("delta", delta, result.P_dd), ("other", other, result.P_mm)):
        # One bad voxel spoils every bin, so the few bins tell what a pass over the field would.
        if power is not None and not power.is_meta and not torch.isfinite(power).all():
            bad = int((~torch.isfinite(field)).sum())
            raise ValueError(f"{name} has {bad} of {field.numel()} values that are not finite or overflow its dtype.")
    return result


def spectra_of_modes(a, b=None, *, grid, kmax=None):
    """As `spectra`, for fields that `to_fourier` has already transformed."""
    bins = grid.bins(kmax, a.device, a.real.dtype)
    P_dd, *others = _Binned.apply(a, a.detach() if b is None else b, bins)
    P_dm, P_mm = (None, None) if b is None else others
    return Spectra(bins.k, P_dd, P_dm, P_mm, bins.modes)


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
    delta_k = to_fourier(grid.check(delta, contrast=False), grid)
    M = mark.of_modes(delta_k, grid) if hasattr(mark, "of_modes") else mark(delta, grid)
    return spectra_of_modes(delta_k, to_fourier(marked_field(M - centre, delta), grid), grid=grid, kmax=kmax)


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


class _Binned(torch.autograd.Function):
    """Sums of weight * (|a|^2, Re a b*, |b|^2) over the modes of each bin, with their gradient in closed form."""

    @staticmethod
    def forward(ctx, a, b, bins):
        ctx.bins, ctx.shape = bins, a.shape
        a, b = (x.reshape(-1, x.shape[-3:].numel()) for x in (a, b))
        ctx.save_for_backward(a, b)
        sums = _sums_compiled if a.device.type == "cpu" else _sums
        return tuple(sums(a, b, bins).to(a.real.dtype).reshape(3, *ctx.shape[:-3], -1))

    @staticmethod
    def backward(ctx, g_aa, g_ab, g_bb):
        a, b = ctx.saved_tensors
        gradient = _gradient_compiled if a.device.type == "cpu" else _gradient
        g_aa, g_ab, g_bb = (g.reshape(-1, g.shape[-1]) for g in (g_aa, g_ab, g_bb))
        pairs = ((a, b, g_aa), (b, a, g_bb))
        grads = [
            gradient(mine, theirs, g_auto, g_ab, ctx.bins).reshape(ctx.shape) if needed else None
            for (mine, theirs, g_auto), needed in zip(pairs, ctx.needs_input_grad[:2], strict=True)
        ]
        return *grads, None


def _sums(a, b, bins):
    """(3, batch, b) in float64, of a and b (batch, modes) on any device."""
    mode = bins.mode.long()
    a, b = a[:, mode], b[:, mode]
    products = torch.stack([(x.real * y.real + x.imag * y.imag) * bins.weight for x, y in ((a, a), (a, b), (b, b))])
    out = torch.zeros(*products.shape[:2], len(bins.k), dtype=torch.float64, device=a.device)
    return out.index_add_(-1, bins.bin, products.double())


def _gradient(mine, theirs, g_auto, g_cross, bins):
    """d/d mine of g_auto . P_auto + g_cross . P_cross, on any device."""
    mode, bin = bins.mode.long(), bins.bin.long()
    grad = torch.zeros_like(mine)
    grad[:, mode] = bins.weight * (2 * g_auto[:, bin] * mine[:, mode] + g_cross[:, bin] * theirs[:, mode])
    return grad


def _sums_compiled(a, b, bins):
    out = np.zeros((SLICES, 3, len(a), len(bins.k)))
    fields = a.detach().numpy(), b.detach().numpy()
    index = bins.mode.numpy(), bins.bin.numpy(), bins.weight.numpy()
    over_slices(lambda s, i, j: _sum_loop(*fields, *index, i, j, out[s]), len(bins.mode))
    return torch.from_numpy(out.sum(0))


def _gradient_compiled(mine, theirs, g_auto, g_cross, bins):
    grad = torch.zeros_like(mine)
    given = [x.detach().contiguous().numpy() for x in (mine, theirs, g_auto, g_cross)]
    index = bins.mode.numpy(), bins.bin.numpy(), bins.weight.numpy()
    over_slices(lambda _, i, j: _gradient_loop(*given, *index, i, j, grad.numpy()), len(bins.mode))
    return grad


@kernel
def _sum_loop(a, b, mode, bin, weight, start, stop, out):
    for row in range(len(a)):
        for i in range(start, stop):
            x, y, w, k = a[row, mode[i]], b[row, mode[i]], weight[i], bin[i]
            out[0, row, k] += w * (x.real * x.real + x.imag * x.imag)
            out[1, row, k] += w * (x.real * y.real + x.imag * y.imag)
            out[2, row, k] += w * (y.real * y.real + y.imag * y.imag)


@kernel
def _gradient_loop(mine, theirs, g_auto, g_cross, mode, bin, weight, start, stop, grad):
    for row in range(len(mine)):
        for i in range(start, stop):
            m, k = mode[i], bin[i]
            grad[row, m] = weight[i] * (2 * g_auto[row, k] * mine[row, m] + g_cross[row, k] * theirs[row, m])
