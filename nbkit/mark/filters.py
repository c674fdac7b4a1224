"""delta -> f_lm, eq. 5: learned radial profiles G_l(k) times real spherical harmonics Y_lm of the direction of k."""

from functools import lru_cache
from math import pi, sqrt

import numpy as np
import torch
from torch import nn

from nbkit.mesh.grid import to_real
from nbkit.mesh.threads import SLICES, kernel, over_slices

CHANNELS = [(l, m) for l in range(3) for m in range(-l, l + 1)]

# Y_lm = NORM[l] * polynomial(k) / |k|^l, with the polynomials of `_rows` below (m = -l ... l, orthonormal, real).
NORM = (sqrt(1 / (4 * pi)), sqrt(3 / (4 * pi)), sqrt(15 / (4 * pi)))

# Where the band-pass of each l starts, in units of k_Nyq; `shared` gives every l the paper's single one.
R0, SIGMA = (0.15, 0.25, 0.35), (0.10, 0.12, 0.15)
R0_SHARED, SIGMA_SHARED = 0.30, 0.12
R0_LOW, R0_HIGH = 0.05, 0.60
UNIT_GAIN_WIDTH = 0.10


class RadialProfiles(nn.Module):
    """G_l(x), x = k / k_Nyq, for l = 0 ... l_max.

    radial = "fourier":   G_l = exp[-(x - r0_l)^2 / 2 sigma_l^2] + MLP_l([x, sin f x, cos f x]), f = 1 ... 16 in equal
                          ratios, the MLP zero at the start.
    radial = "gaussians": G_l = sum_j c_lj exp[-(x - x_j)^2 / 2 w^2], 12 Gaussians equally spaced on [0, 1], started
                          from the least-squares fit to the same band-pass.

    The monopole is given unit gain at k = 0 by adding a low-pass, G_0(x) + [1 - G_0(0)] exp(-x^2 / 2 w_0^2); dividing
    by G_0(0) instead would blow up where that passes through zero.

    Parameters
    ----------
    shared : one learned centre and width for every l, the paper's, instead of one each ("fourier" only).
    r0 : where the centres start, in units of k_Nyq, 0.05 < r0 < 0.60; default 0.30 if shared, else 0.15, 0.25, 0.35.
    """

    def __init__(self, l_max=2, radial="fourier", shared=False, r0=None):
        super().__init__()
        if l_max not in (0, 1, 2):
            raise ValueError(f"l_max is {l_max!r}; allowed are 0, 1 and 2.")
        if radial not in ("fourier", "gaussians"):
            raise ValueError(f'radial is {radial!r}; allowed are "fourier" and "gaussians".')
        if r0 is not None and not (isinstance(r0, (int, float)) and R0_LOW < r0 < R0_HIGH):
            raise ValueError(f"r0 is {r0!r}; it must be a number between {R0_LOW} and {R0_HIGH}, in units of k_Nyq.")
        self.l_max, self.radial = l_max, radial
        centres, sigma = ((R0_SHARED,), (SIGMA_SHARED,)) if shared else (R0[: l_max + 1], SIGMA[: l_max + 1])
        r0, sigma = torch.tensor(centres if r0 is None else [float(r0)] * len(centres)), torch.tensor(sigma)
        if radial == "fourier":
            self.r0_logit = nn.Parameter(torch.logit((r0 - R0_LOW) / (R0_HIGH - R0_LOW)))
            self.log_sigma = nn.Parameter(sigma.log())
            self.register_buffer("frequencies", torch.logspace(0, np.log10(16), 8), persistent=False)
            self.residuals = nn.ModuleList(
                nn.Sequential(nn.Linear(17, 16), nn.GELU(), nn.Linear(16, 1)) for _ in range(l_max + 1)
            )
            for parameter in (p for mlp in self.residuals for p in mlp[-1].parameters()):
                nn.init.zeros_(parameter)
        else:
            self.register_buffer("centres", torch.linspace(0, 1, 12), persistent=False)
            x = torch.linspace(0, 1, 200)[:, None]
            fit = torch.linalg.lstsq(_gaussian(x, self.centres, 1 / 11), _gaussian(x, r0, sigma)).solution.T
            self.coefficients = nn.Parameter(fit.expand(l_max + 1, 12).clone())

    @property
    def r0(self):
        """Centres of the band-passes, in units of k_Nyq, kept within (0.05, 0.60)."""
        return R0_LOW + (R0_HIGH - R0_LOW) * torch.sigmoid(self.r0_logit)

    def forward(self, x):
        """G_l at x (s,): shape (l_max + 1, s)."""
        at = torch.cat([x.new_zeros(1), x])[:, None]
        if self.radial == "gaussians":
            G = self.coefficients @ _gaussian(at, self.centres, 1 / 11).T
        else:
            phase = at * self.frequencies
            features = torch.cat([at, phase.sin(), phase.cos()], dim=1)
            band = _gaussian(at.T, self.r0[:, None], self.log_sigma.exp()[:, None])
            G = band + torch.stack([mlp(features)[:, 0] for mlp in self.residuals])
        low_pass = _gaussian(x, 0.0, UNIT_GAIN_WIDTH)
        return torch.cat([G[:1, 1:] + (1 - G[:1, :1]) * low_pass, G[1:, 1:]])


def _gaussian(x, centre, width):
    return torch.exp(-(((x - centre) / width) ** 2) / 2)


@lru_cache(maxsize=16)
def _rows(grid, device, dtype):
    """|k|^l Y_lm / NORM[l] = c0 + c1 k_z + c2 k_z^2 on each row of constant k_x, k_y: c, shape (9, n, n, 3)."""
    k_x, k_y, _ = (k[..., 0] for k in grid.wavevector(device, dtype))
    rows = [(1, 0, 0), (k_y, 0, 0), (0, 1, 0), (k_x, 0, 0)]
    rows += [(k_x * k_y, 0, 0), (0, k_y, 0), (-(k_x**2 + k_y**2) / (2 * sqrt(3)), 0, 1 / sqrt(3))]
    rows += [(0, k_x, 0), ((k_x**2 - k_y**2) / 2, 0, 0)]
    zero = 0 * (k_x + k_y)
    return torch.stack([torch.stack([c + zero for c in row], dim=-1) for row in rows])


def _polynomials(grid, l_max, device, dtype):
    """l and |k|^l Y_lm / NORM[l] of every mode, a map at a time."""
    k_z = grid.wavevector(device, dtype)[2]
    for (l, _), c in zip(CHANNELS[: (l_max + 1) ** 2], _rows(grid, device, dtype), strict=False):
        yield l, c[..., :1] + c[..., 1:2] * k_z + c[..., 2:] * k_z**2


def harmonics(grid, l_max=2, device="cpu", dtype=torch.float32):
    """Real Y_lm of the direction of every mode, ((l_max + 1)^2, n, n, n//2+1); at k = 0 all but Y_00 are 0."""
    shells = grid.shells(device, dtype)
    k = shells.k.where(shells.k > 0, 1)
    return torch.stack([(NORM[l] / k**l)[shells.index] * Y for l, Y in _polynomials(grid, l_max, device, dtype)])


def filter_maps(delta_k, G_l, grid, k_cut=None):
    """f_lm = F^-1[ delta(k) W_MAS^-1 T_tap G_l i^l Y_lm ], eq. 5, as (l_max + 1)^2 maps (..., n, n, n).

    The taper is 0 from k_Nyq on, so the Nyquist planes, where i k has no real transform, never enter: every map is
    real and turns exactly with the cube.

    Parameters
    ----------
    delta_k : (..., n, n, n//2+1) from `to_fourier`.
    G_l : (l_max + 1, s) on the shells of the grid.
    k_cut : where the taper reaches 0 [h/Mpc]; default and upper bound k_Nyq.
    """
    shells = grid.shells(delta_k.device, delta_k.real.dtype)
    k, k_cut = shells.k.where(shells.k > 0, 1), min(k_cut or grid.k_nyq, grid.k_nyq)
    # i^l = 1, i, -1: the sign goes into the profile, the factor i is applied to the modes.
    sign_norm = torch.stack([sign * NORM[l] / k**l for l, sign in enumerate((1, 1, -1)[: len(G_l)])])
    profiles = sign_norm * grid.taper(shells.k * (grid.k_nyq / k_cut)) * G_l
    if delta_k.device.type != "cpu" or delta_k.requires_grad:
        return _maps(delta_k, profiles, grid)
    return _FilterMaps.apply(delta_k, profiles, grid)


def _maps(delta_k, profiles, grid):
    """The filter bank in plain torch, for any device, precision and gradient."""
    place = delta_k.device, profiles.dtype
    index, sharp, maps = grid.shells(*place).index.long(), delta_k / grid.window(*place), []
    for l, Y in _polynomials(grid, len(profiles) - 1, *place):
        modes = sharp * (profiles[l][index] * Y)
        maps.append(to_real(1j * modes if l == 1 else modes, grid))
    return tuple(maps)


class _FilterMaps(torch.autograd.Function):
    """The filter bank in one compiled loop a map; its gradient is a sum over the modes of each shell."""

    @staticmethod
    def forward(ctx, delta_k, profiles, grid):
        ctx.save_for_backward(delta_k)
        ctx.grid, ctx.shape = grid, profiles.shape
        modes, maps, (rows, *tables) = delta_k.new_empty(delta_k.shape), [], _loop_tables(grid, profiles.dtype)
        for (l, _), row in zip(CHANNELS[: len(profiles) ** 2], rows, strict=False):
            arrays = _boxes(delta_k), _boxes(modes), profiles[l].detach().numpy()
            over_slices(lambda _, i, j, given=(l == 1, row, *tables, *arrays): _filter_loop(i, j, *given), grid.n)
            maps.append(to_real(modes, grid))
        return tuple(maps)

    @staticmethod
    def backward(ctx, *grads):
        (delta_k,), grid, sums = ctx.saved_tensors, ctx.grid, np.zeros((SLICES, *ctx.shape))
        rows, *tables = _loop_tables(grid, delta_k.real.dtype)
        for (l, _), row, grad in zip(CHANNELS, rows, grads, strict=False):
            grad_k = torch.stack([torch.fft.rfftn(box) for box in grad.reshape(-1, *grid.shape)])
            given = l == 1, row, *tables, _boxes(delta_k), grad_k.numpy(), sums[:, l]
            over_slices(lambda s, i, j, given=given: _shell_loop(i, j, *given, s), grid.n)
        return None, torch.from_numpy(sums.sum(0)).to(delta_k.real.dtype) / grid.n**3, None


def _boxes(modes):
    return modes.reshape(-1, *modes.shape[-3:]).numpy()


@lru_cache(maxsize=8)
def _loop_tables(grid, dtype):
    """What both loops read: polynomial rows, shells, k_z, 1 / W along one axis, and how many shells are below k_Nyq."""
    shells, k_z = grid.shells(dtype=torch.float64), grid.wavevector(dtype=dtype)[2].flatten()
    tables = _rows(grid, "cpu", dtype), shells.index, k_z, 1 / grid.window(dtype=dtype)[:, 0, 0]
    return *(x.contiguous().numpy() for x in tables), int((shells.k < grid.k_nyq * (1 - 1e-12)).sum())


@kernel
def _filter_loop(start, stop, times_i, rows, shell, k_z, inverse_window, below, delta_k, out, profile):
    for b in range(len(delta_k)):
        for i in range(start, stop):
            for j in range(delta_k.shape[2]):
                c0, c1, c2 = rows[i, j, 0], rows[i, j, 1], rows[i, j, 2]
                w = inverse_window[i] * inverse_window[j]
                end = np.searchsorted(shell[i, j], below)
                for z in range(end):
                    y = (c0 + (c1 + c2 * k_z[z]) * k_z[z]) * (w * inverse_window[z]) * profile[shell[i, j, z]]
                    d = delta_k[b, i, j, z]
                    out[b, i, j, z] = complex(-y * d.imag, y * d.real) if times_i else complex(y * d.real, y * d.imag)
                out[b, i, j, end:] = 0


@kernel
def _shell_loop(start, stop, times_i, rows, shell, k_z, inverse_window, below, delta_k, grad, sums, part):
    for b in range(len(delta_k)):
        for i in range(start, stop):
            for j in range(delta_k.shape[2]):
                c0, c1, c2 = rows[i, j, 0], rows[i, j, 1], rows[i, j, 2]
                w = inverse_window[i] * inverse_window[j]
                for z in range(np.searchsorted(shell[i, j], below)):
                    # Modes with k_z > 0 stand for themselves and their conjugates; k_z = k_Nyq is never reached.
                    y = (c0 + (c1 + c2 * k_z[z]) * k_z[z]) * (w * inverse_window[z]) * (2 if z > 0 else 1)
                    d, g = delta_k[b, i, j, z], grad[b, i, j, z]
                    re = d.real * g.imag - d.imag * g.real if times_i else d.real * g.real + d.imag * g.imag
                    sums[part, shell[i, j, z]] += y * re
