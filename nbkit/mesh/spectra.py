"""Fields to power spectra: P_dd, P_dm, P_mm of eqs. 2-3, with k and mode counts."""

from typing import NamedTuple

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
    grid.checked(delta)
    a = to_fourier(delta, grid)
    b = None
    if other is not None:
        if grid.checked(other, "other").shape != delta.shape:
            raise ValueError(
                f"delta has shape {tuple(delta.shape)} but other has {tuple(other.shape)}; make them equal."
            )
        b = to_fourier(other, grid)
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
    if b is None:
        P_dd, P_dm, P_mm = _Binned.apply(a, a.detach(), bins)[0], None, None
    else:
        P_dd, P_dm, P_mm = _Binned.apply(a, b, bins)
    return Spectra(bins.k, P_dd, P_dm, P_mm, bins.modes)


class _Binned(torch.autograd.Function):
    """Sums of weight * (|a|^2, Re a b*, |b|^2) over the modes of each bin, with their gradient in closed form."""

    @staticmethod
    def forward(ctx, a, b, bins):
        ctx.save_for_backward(a, b)
        ctx.bins = bins
        sums = _sums_compiled if a.device.type == "cpu" else _sums
        power = sums(_flat(a), _flat(b), bins).to(a.real.dtype)
        return tuple(power.reshape(3, *a.shape[:-3], -1))

    @staticmethod
    def backward(ctx, g_aa, g_ab, g_bb):
        a, b = ctx.saved_tensors
        gradient = _gradient_compiled if a.device.type == "cpu" else _gradient
        g_aa, g_ab, g_bb = (g.reshape(-1, g.shape[-1]) for g in (g_aa, g_ab, g_bb))
        pairs = ((a, b, g_aa), (b, a, g_bb))
        grads = [
            gradient(_flat(mine), _flat(theirs), g_auto, g_ab, ctx.bins).reshape(mine.shape) if needed else None
            for (mine, theirs, g_auto), needed in zip(pairs, ctx.needs_input_grad[:2], strict=True)
        ]
        return *grads, None


def _flat(modes):
    return modes.reshape(-1, modes.shape[-3:].numel())


def _sums(a, b, bins):
    """(3, batch, b) in float64, on any device."""
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
    partial = torch.zeros(len(a), SLICES, 3, len(bins.k), dtype=torch.float64)
    index = bins.mode.numpy(), bins.bin.numpy(), bins.weight.numpy()
    for a_i, b_i, out in zip(a.detach().numpy(), b.detach().numpy(), partial.numpy(), strict=True):
        over_slices(lambda s, i, j, a=a_i, b=b_i, out=out: _sum_loop(a, b, *index, i, j, out[s]), len(bins.mode))
    return partial.sum(1).transpose(0, 1)


def _gradient_compiled(mine, theirs, g_auto, g_cross, bins):
    grad = torch.zeros_like(mine)
    index = bins.mode.numpy(), bins.bin.numpy(), bins.weight.numpy()
    rows = zip(
        *(x.detach().numpy() for x in (mine, theirs, g_auto.contiguous(), g_cross.contiguous(), grad)), strict=True
    )
    for row in rows:
        over_slices(lambda _, i, j, row=row: _gradient_loop(*row[:4], *index, i, j, row[4]), len(bins.mode))
    return grad


@kernel
def _sum_loop(a, b, mode, bin, weight, start, stop, out):
    for i in range(start, stop):
        x, y, w, k = a[mode[i]], b[mode[i]], weight[i], bin[i]
        out[0, k] += w * (x.real * x.real + x.imag * x.imag)
        out[1, k] += w * (x.real * y.real + x.imag * y.imag)
        out[2, k] += w * (y.real * y.real + y.imag * y.imag)


@kernel
def _gradient_loop(mine, theirs, g_auto, g_cross, mode, bin, weight, start, stop, grad):
    for i in range(start, stop):
        m, k = mode[i], bin[i]
        grad[m] = weight[i] * (2 * g_auto[k] * mine[m] + g_cross[k] * theirs[m])
