"""Filtered maps -> eta in one compiled loop over voxels, with its gradient in closed form (float32, CPU).

Does what `invariants`, `transformed` and `Responses.terms` do in plain torch, which is tested. Blocks of voxels stay in
the cache, and nothing is kept for the backward pass but the maps. Each h_a is a function of one number, so it comes as
a table of cubics through its exact values and slopes; the cross term is evaluated as it is.
"""

from math import copysign, floor, isfinite, log1p, pi, sqrt

import numpy as np
import torch

from nbkit.mark.fastmath import log, normal
from nbkit.mark.invariants import ALPHA, EPSILON
from nbkit.mesh.threads import SLICES, kernel, over_slices

BLOCK = 256
SPACING = 1 / 64
PER_UNIT = np.float32(64)
EPS, A, A_ROOT3, A2 = np.float32(EPSILON), np.float32(ALPHA), np.float32(ALPHA / 3**0.5), np.float32(2 * ALPHA**2)
ONE, TWO, THREE = np.float32(1), np.float32(2), np.float32(3)


class FusedResponse(torch.autograd.Function):
    """eta without its bias.

    Parameters
    ----------
    cubics : (intervals, 4): h_a = c0 + c1 u + c2 u^2 + c3 u^3 on each interval, u from 0 to 1, all channels in a row.
    tables : (channels, 2) array: first interval of each channel and the t where it begins, in units of the spacing.
    cross_w : (width, 3), cross_b, cross_v : (width,): h_x of (E0, E2, I3); width 0 where there is none.
    maps : 1, 4 or 9 of one shape.
    """

    @staticmethod
    def forward(ctx, cubics, tables, cross_w, cross_b, cross_v, *maps):
        ctx.save_for_backward(cubics, cross_w, cross_b, cross_v, *maps)
        ctx.tables = tables
        eta = torch.empty_like(maps[0])
        weights = [x.detach().contiguous().numpy() for x in (cubics, cross_w, cross_b, cross_v)]
        flat, out = _nine(maps), eta.view(-1).numpy()
        over_slices(lambda _, i, j: _eta_loop(*flat, tables, *weights, i, j, out), eta.numel())
        return eta

    @staticmethod
    def backward(ctx, grad):
        weights, maps = [x.detach().contiguous() for x in ctx.saved_tensors[:4]], ctx.saved_tensors[4:]
        grads = [torch.empty_like(f) for f in maps]
        partial = [torch.zeros(SLICES, *x.shape, dtype=torch.float64) for x in weights]
        given = *_nine(maps), ctx.tables, *(x.numpy() for x in weights), grad.contiguous().view(-1).numpy()
        out, sums = _nine(grads), [x.numpy() for x in partial]
        over_slices(lambda s, i, j: _gradient_loop(*given, *out, *(x[s] for x in sums), i, j), grad.numel())
        g_cubics, *g_cross = (x.sum(0).float() for x in partial)
        return g_cubics, None, *g_cross, *grads


def cubics(maps, w, b, v):
    """Tables of h_a(t) = sum_j v_aj gelu(w_aj t + b_aj) over the range of t found in the maps, for `FusedResponse`.

    The error is SPACING^4 / 384 times the fourth derivative. Differentiable in w, b, v of shape (channels, width).
    """
    pieces, tables, first = [], [], 0
    w, b, v = w.double(), b.double(), v.double()  # differences of neighbouring values would lose digits in float32
    for (low, high), w_a, b_a, v_a in zip(_ranges(maps)[: len(w)], w, b, v, strict=True):
        begin, end = floor(low / SPACING), floor(high / SPACING) + 2
        z = (SPACING * torch.arange(begin, end + 1, dtype=w.dtype))[:, None] * w_a + b_a
        cdf, density = torch.special.ndtr(z), torch.exp(-(z**2) / 2) / (2 * pi) ** 0.5
        value, slope = (z * cdf) @ v_a, SPACING * ((cdf + z * density) @ (w_a * v_a))
        step, sum_of_slopes = value.diff(), slope[:-1] + slope[1:]
        c2, c3 = 3 * step - slope[:-1] - sum_of_slopes, sum_of_slopes - 2 * step
        pieces.append(torch.stack([value[:-1], slope[:-1], c2, c3], dim=1))
        tables.append((first, begin))
        first += end - begin
    return torch.cat(pieces).float(), np.array(tables)


def _ranges(maps):
    """Bounds of t for each invariant, from the extremes of the maps."""
    bounds = [tuple(map(float, torch.aminmax(f.detach()))) for f in maps]
    if not all(isfinite(x) for pair in bounds for x in pair):
        raise ValueError("The filtered maps are not finite: the field has NaN or inf voxels, or the filters overflow.")
    squares = [max(-low, high) ** 2 for low, high in bounds]
    E0 = tuple(copysign(log1p(abs(x)), x) for x in bounds[0])
    E1, E2 = sqrt(sum(squares[1:4])), sqrt(2 * ALPHA**2 * sum(squares[4:]))
    return E0, (0, log1p(E1)), (0, log1p(E2)), (-0.41, 0.41)


def _nine(maps):
    """Flat arrays of the maps; those beyond l_max are never read and stand empty."""
    flat = [f.detach().contiguous().view(-1).numpy() for f in maps]
    return flat + [np.empty(0, np.float32)] * (9 - len(flat))


@kernel
def _block_features(f, channels, m, E, t):
    """Invariants E and what the MLPs see, t, of the m voxels of a block."""
    for i in range(m):
        E[0, i] = f[0, i]
        y = log(ONE + abs(f[0, i]))
        t[0, i] = y if f[0, i] >= 0 else -y
    if channels > 1:
        for i in range(m):
            x, y, z = f[1, i], f[2, i], f[3, i]
            E[1, i] = np.sqrt(x * x + y * y + z * z + EPS)
            t[1, i] = log(ONE + E[1, i])
    if channels > 2:
        for i in range(m):
            a, b, c, d, e = f[4, i], f[5, i], f[6, i], f[7, i], f[8, i]
            E[2, i] = np.sqrt(A2 * (a * a + b * b + c * c + d * d + e * e) + EPS)
            xx, yy, zz = A * e - A_ROOT3 * c, -A * e - A_ROOT3 * c, TWO * A_ROOT3 * c
            xy, yz, xz = A * a, A * b, A * d
            det = xx * (yy * zz - yz * yz) - xy * (xy * zz - yz * xz) + xz * (xy * yz - yy * xz)
            E[3, i] = THREE * det / (E[2, i] * E[2, i] * E[2, i] + EPS)
            t[2, i] = log(ONE + E[2, i])
            t[3, i] = E[3, i]


@kernel
def _loaded(f0, f1, f2, f3, f4, f5, f6, f7, f8, channels, s, m, f):
    """Copy the voxels s ... s + m of the maps in use into f."""
    f[0, :m] = f0[s : s + m]
    if channels > 1:
        f[1, :m], f[2, :m], f[3, :m] = f1[s : s + m], f2[s : s + m], f3[s : s + m]
    if channels > 2:
        f[4, :m], f[5, :m], f[6, :m] = f4[s : s + m], f5[s : s + m], f6[s : s + m]
        f[7, :m], f[8, :m] = f7[s : s + m], f8[s : s + m]


@kernel
def _eta_loop(f0, f1, f2, f3, f4, f5, f6, f7, f8, tables, cubics, cross_w, cross_b, cross_v, start, stop, eta):
    channels = len(tables)
    # All arithmetic is on rows of one array. Compiled loops pick their SIMD or scalar form by how far apart arrays lie,
    # and the forms round differently: on arrays of their own, results would depend on where memory happened to be.
    work = np.empty((18, BLOCK), np.float32)
    f, E, t, out = work[:9], work[9:13], work[13:17], work[17]
    for s in range(start, stop, BLOCK):
        m = min(BLOCK, stop - s)
        _loaded(f0, f1, f2, f3, f4, f5, f6, f7, f8, channels, s, m, f)
        _block_features(f, channels, m, E, t)
        out[:] = 0
        for a in range(channels):
            first, begin = tables[a]
            for i in range(m):
                x = t[a, i] * PER_UNIT - np.float32(begin)
                k = np.int32(x)
                c, u = first + k, x - np.float32(k)
                out[i] += cubics[c, 0] + u * (cubics[c, 1] + u * (cubics[c, 2] + u * cubics[c, 3]))
        for h in range(len(cross_v)):
            w0, w2, w3, b_h, v_h = cross_w[h, 0], cross_w[h, 1], cross_w[h, 2], cross_b[h], cross_v[h]
            for i in range(m):
                z = w0 * t[0, i] + w2 * t[2, i] + w3 * t[3, i] + b_h
                out[i] += v_h * z * normal(z)[0]
        eta[s : s + m] = out[:m]


@kernel
def _stored(f, channels, s, m, g0, g1, g2, g3, g4, g5, g6, g7, g8):
    """Copy f, now the gradients of the maps, to where they belong."""
    g0[s : s + m] = f[0, :m]
    if channels > 1:
        g1[s : s + m], g2[s : s + m], g3[s : s + m] = f[1, :m], f[2, :m], f[3, :m]
    if channels > 2:
        g4[s : s + m], g5[s : s + m], g6[s : s + m] = f[4, :m], f[5, :m], f[6, :m]
        g7[s : s + m], g8[s : s + m] = f[7, :m], f[8, :m]


@kernel
def _gradient_loop(
    f0, f1, f2, f3, f4, f5, f6, f7, f8, tables, cubics, cross_w, cross_b, cross_v, grad,
    g0, g1, g2, g3, g4, g5, g6, g7, g8, g_cubics, g_cross_w, g_cross_b, g_cross_v, start, stop,
):  # fmt: skip
    channels = len(tables)
    work = np.empty((22, BLOCK), np.float32)  # one array, for the reason given in _eta_loop
    f, E, t, g_t, g = work[:9], work[9:13], work[13:17], work[17:21], work[21]
    for s in range(start, stop, BLOCK):
        m = min(BLOCK, stop - s)
        _loaded(f0, f1, f2, f3, f4, f5, f6, f7, f8, channels, s, m, f)
        _block_features(f, channels, m, E, t)
        g[:m] = grad[s : s + m]
        g_t[:] = 0
        for a in range(channels):
            first, begin = tables[a]
            for i in range(m):
                x = t[a, i] * PER_UNIT - np.float32(begin)
                k = np.int32(x)
                c, u = first + k, x - np.float32(k)
                slope = cubics[c, 1] + u * (TWO * cubics[c, 2] + THREE * u * cubics[c, 3])
                g_t[a, i] += g[i] * slope * PER_UNIT
                g_cubics[c, 0] += g[i]
                g_cubics[c, 1] += g[i] * u
                g_cubics[c, 2] += g[i] * u * u
                g_cubics[c, 3] += g[i] * u * u * u
        for h in range(len(cross_v)):
            w0, w2, w3, b_h, v_h = cross_w[h, 0], cross_w[h, 1], cross_w[h, 2], cross_b[h], cross_v[h]
            sum_v = sum_b = sum_0 = sum_2 = sum_3 = np.float32(0)
            for i in range(m):
                z = w0 * t[0, i] + w2 * t[2, i] + w3 * t[3, i] + b_h
                cdf, density = normal(z)
                g_z = g[i] * v_h * (cdf + z * density)
                sum_v += g[i] * z * cdf
                sum_b += g_z
                sum_0 += g_z * t[0, i]
                sum_2 += g_z * t[2, i]
                sum_3 += g_z * t[3, i]
                g_t[0, i] += g_z * w0
                g_t[2, i] += g_z * w2
                g_t[3, i] += g_z * w3
            g_cross_v[h] += sum_v
            g_cross_b[h] += sum_b
            g_cross_w[h, 0] += sum_0
            g_cross_w[h, 1] += sum_2
            g_cross_w[h, 2] += sum_3
        for i in range(m):
            f[0, i] = g_t[0, i] / (ONE + abs(E[0, i]))
        if channels > 1:
            for i in range(m):
                over = g_t[1, i] / ((ONE + E[1, i]) * E[1, i])
                f[1, i], f[2, i], f[3, i] = over * f[1, i], over * f[2, i], over * f[3, i]
        if channels > 2:
            for i in range(m):
                a, b_, c, d, e = f[4, i], f[5, i], f[6, i], f[7, i], f[8, i]
                xx, yy, zz = A * e - A_ROOT3 * c, -A * e - A_ROOT3 * c, TWO * A_ROOT3 * c
                xy, yz, xz = A * a, A * b_, A * d
                square = E[2, i] * E[2, i]
                g_det = THREE * g_t[3, i] / (square * E[2, i] + EPS)
                # dI3/dE2 = -3 E2^2 I3 / (E2^3 + eps)
                g_E2 = g_t[2, i] / (ONE + E[2, i]) - THREE * g_t[3, i] * E[3, i] * square / (square * E[2, i] + EPS)
                over = A2 * g_E2 / E[2, i]
                g_xx, g_yy, g_zz = yy * zz - yz * yz, xx * zz - xz * xz, xx * yy - xy * xy
                f[4, i] = over * a + g_det * TWO * A * (yz * xz - xy * zz)
                f[5, i] = over * b_ + g_det * TWO * A * (xy * xz - xx * yz)
                f[6, i] = over * c + g_det * A_ROOT3 * (TWO * g_zz - g_xx - g_yy)
                f[7, i] = over * d + g_det * TWO * A * (xy * yz - yy * xz)
                f[8, i] = over * e + g_det * A * (g_xx - g_yy)
        _stored(f, channels, s, m, g0, g1, g2, g3, g4, g5, g6, g7, g8)
