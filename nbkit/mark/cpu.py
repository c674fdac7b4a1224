"""Filtered maps -> eta in one compiled loop over voxels, with its gradient in closed form (float32, CPU).

Does what `invariants`, `mlp_inputs` and `Responses.terms` do in plain torch, which is tested. Blocks of voxels stay in
the cache, and nothing is kept for the backward pass but the maps. Each h_a is a function of one number, so it comes as
a table of cubics through its exact values and slopes; the cross term is evaluated as it is.

exp, log and the normal distribution are written so that the compiler runs them on SIMD lanes, with errors below 3e-7 of
max(1, |value|): calls into libm would be made one number at a time.
"""

from math import copysign, floor, isfinite, log1p, pi, sqrt

import numpy as np
import torch

from nbkit.mark.invariants import ALPHA, EPSILON
from nbkit.mesh.threads import SLICES, inlined, kernel, over_slices

BLOCK = 256
SPACING = 1 / 64
f32, i32 = np.float32, np.int32
PER_UNIT, EPS, A, A_ROOT3, A2 = map(f32, (64, EPSILON, ALPHA, ALPHA / 3**0.5, 2 * ALPHA**2))
ONE, TWO, THREE, HALF = map(f32, (1, 2, 3, 0.5))

LOG2_E, LN2_HIGH, LN2_LOW, EXP_MIN, EXP_MAX = map(f32, (1.4426950408889634, 0.693359375, -2.12194440e-4, -87, 88))
# Taylor coefficients of exp on |r| <= ln(2)/2, and of atanh(s)/s on |s| <= 0.172.
E2, E3, E4, E5, E6, E7 = (f32(1 / c) for c in (2, 6, 24, 120, 720, 5040))
A3, A5, A7, A9 = (f32(1 / c) for c in (3, 5, 7, 9))
# Abramowitz & Stegun 7.1.26: erf(x) = 1 - (p1 t + ... + p5 t^5) exp(-x^2), t = 1 / (1 + p0 x); error below 1.5e-7.
P0, P1, P2, P3, P4, P5 = map(f32, (0.3275911, 0.254829592, -0.284496736, 1.421413741, -1.453152027, 1.061405429))
SQRT_HALF, INV_SQRT_2PI = f32(0.5**0.5), f32((2 * np.pi) ** -0.5)
SQRT_HALF_BITS = SQRT_HALF.view(i32)


class FusedResponse(torch.autograd.Function):
    """eta without its bias, of flat maps (voxels,).

    Parameters
    ----------
    places, table : of `cubics`.
    cross_w : (width, 3), cross_b, cross_v : (width,): h_x of (E0, E2, I3); width 0 where there is none.
    maps : 1, 4 or 9.
    """

    @staticmethod
    def forward(ctx, places, table, cross_w, cross_b, cross_v, *maps):
        ctx.save_for_backward(table, cross_w, cross_b, cross_v, *maps)
        ctx.places, eta = places, torch.empty_like(maps[0])
        given = _arrays(*maps), places, *_arrays(table, cross_w, cross_b, cross_v), eta.numpy()
        over_slices(lambda _, i, j: _eta_loop(i, j, *given), len(eta))
        return eta

    @staticmethod
    def backward(ctx, grad):
        weights, maps = ctx.saved_tensors[:4], ctx.saved_tensors[4:]
        grads, sums = [torch.empty_like(f) for f in maps], [np.zeros((SLICES, *x.shape)) for x in weights]
        given = _arrays(*maps), ctx.places, *_arrays(*weights, grad), _arrays(*grads)
        over_slices(lambda s, i, j: _gradient_loop(i, j, *given, *(x[s] for x in sums)), len(grad))
        return None, *(torch.from_numpy(x.sum(0)).float() for x in sums), *grads


def _arrays(*tensors):
    return tuple(x.detach().contiguous().numpy() for x in tensors)


def cubics(maps, w, b, v):
    """h_a(t) = sum_j v_aj gelu(w_aj t + b_aj) over the range of t in the maps, differentiable in w, b, v (a, width).

    The error is SPACING^4 / 384 times the fourth derivative.

    Returns
    -------
    places : (a, 2) array: first interval of each invariant and the t where it begins, in units of the spacing.
    table : (intervals, 4): h_a = c0 + c1 u + c2 u^2 + c3 u^3 on each interval, u from 0 to 1, all invariants in a row.
    """
    pieces, places = [], []
    w, b, v = w.double(), b.double(), v.double()  # differences of neighbouring values would lose digits in float32
    for (low, high), w_a, b_a, v_a in zip(_ranges(maps)[: len(w)], w, b, v, strict=True):
        begin, end = floor(low / SPACING), floor(high / SPACING) + 2
        z = (SPACING * torch.arange(begin, end + 1, dtype=w.dtype))[:, None] * w_a + b_a
        cdf, density = torch.special.ndtr(z), torch.exp(-(z**2) / 2) / (2 * pi) ** 0.5
        value, slope = (z * cdf) @ v_a, SPACING * ((cdf + z * density) @ (w_a * v_a))
        step, sum_of_slopes = value.diff(), slope[:-1] + slope[1:]
        c2, c3 = 3 * step - slope[:-1] - sum_of_slopes, sum_of_slopes - 2 * step
        places.append((sum(map(len, pieces)), begin))
        pieces.append(torch.stack([value[:-1], slope[:-1], c2, c3], dim=1))
    return np.array(places), torch.cat(pieces).float()


def _ranges(maps):
    """Bounds of t for each invariant, from the extremes of the maps."""
    bounds = [tuple(map(float, torch.aminmax(f.detach()))) for f in maps]
    if not all(isfinite(x) for pair in bounds for x in pair):
        raise ValueError("The filtered maps are not finite: the field has NaN or inf voxels, or the filters overflow.")
    squares = [max(-low, high) ** 2 for low, high in bounds]
    E0 = tuple(copysign(log1p(abs(x)), x) for x in bounds[0])
    E1, E2 = sqrt(sum(squares[1:4])), sqrt(2 * ALPHA**2 * sum(squares[4:]))
    return E0, (0, log1p(E1)), (0, log1p(E2)), (-0.41, 0.41)


@inlined
def exp(x):
    """e^x for x in [-87, 88]; outside, the value at the nearer end."""
    x = min(max(x, EXP_MIN), EXP_MAX)
    n = i32(np.floor(x * LOG2_E + HALF))
    r = x - f32(n) * LN2_HIGH - f32(n) * LN2_LOW
    power = ONE + r * (ONE + r * (E2 + r * (E3 + r * (E4 + r * (E5 + r * (E6 + r * E7))))))
    return power * i32((n + i32(127)) << i32(23)).view(f32)


@inlined
def log(y):
    """ln y for normal y > 0."""
    exponent = i32((f32(y).view(i32) - SQRT_HALF_BITS) >> i32(23))
    m = i32(f32(y).view(i32) - i32(exponent << i32(23))).view(f32)
    s = (m - ONE) / (m + ONE)
    q = s * s
    atanh = s * (ONE + q * (A3 + q * (A5 + q * (A7 + q * A9))))
    return f32(exponent) * LN2_HIGH + (f32(exponent) * LN2_LOW + TWO * atanh)


@inlined
def normal(z):
    """Cumulative distribution and density of the standard normal; gelu(z) = z cdf, gelu'(z) = cdf + z density."""
    decay = exp(-HALF * z * z)
    t = ONE / (ONE + P0 * SQRT_HALF * abs(z))
    tail = HALF * decay * t * (P1 + t * (P2 + t * (P3 + t * (P4 + t * P5))))
    return (tail if z < 0 else ONE - tail), decay * INV_SQRT_2PI


@inlined
def _load(maps, s, m, f, E, t):
    """The maps f of m voxels from voxel s on, (E1, E2), and what the MLPs see, t, of all invariants there are."""
    for c in range(len(maps)):
        f[c, :m] = maps[c][s : s + m]
    for i in range(m):
        y = log(ONE + abs(f[0, i]))
        t[0, i] = y if f[0, i] >= 0 else -y
    if len(maps) > 1:
        for i in range(m):
            x, y, z = f[1, i], f[2, i], f[3, i]
            E[0, i] = np.sqrt(x * x + y * y + z * z + EPS)
            t[1, i] = log(ONE + E[0, i])
    if len(maps) > 4:
        for i in range(m):
            a, b, c, d, e = f[4, i], f[5, i], f[6, i], f[7, i], f[8, i]
            E[1, i] = np.sqrt(A2 * (a * a + b * b + c * c + d * d + e * e) + EPS)
            xx, yy, zz = A * e - A_ROOT3 * c, -A * e - A_ROOT3 * c, TWO * A_ROOT3 * c
            xy, yz, xz = A * a, A * b, A * d
            det = xx * (yy * zz - yz * yz) - xy * (xy * zz - yz * xz) + xz * (xy * yz - yy * xz)
            t[2, i] = log(ONE + E[1, i])
            t[3, i] = THREE * det / (E[1, i] * E[1, i] * E[1, i] + EPS)


@kernel
def _eta_loop(start, stop, maps, places, cubics, cross_w, cross_b, cross_v, eta):
    # All arithmetic is on rows of one array. Compiled loops pick their SIMD or scalar form by how far apart arrays lie,
    # and the forms round differently: on arrays of their own, results would depend on where memory happened to be.
    work = np.empty((16, BLOCK), np.float32)
    f, E, t, out = work[:9], work[9:11], work[11:15], work[15]
    for s in range(start, stop, BLOCK):
        m = min(BLOCK, stop - s)
        _load(maps, s, m, f, E, t)
        out[:] = 0
        for a in range(len(places)):
            first, begin = places[a]
            for i in range(m):
                x = t[a, i] * PER_UNIT - f32(begin)
                k = i32(x)
                c, u = first + k, x - f32(k)
                out[i] += cubics[c, 0] + u * (cubics[c, 1] + u * (cubics[c, 2] + u * cubics[c, 3]))
        for h in range(len(cross_v)):
            w0, w2, w3, b_h, v_h = cross_w[h, 0], cross_w[h, 1], cross_w[h, 2], cross_b[h], cross_v[h]
            for i in range(m):
                z = w0 * t[0, i] + w2 * t[2, i] + w3 * t[3, i] + b_h
                out[i] += v_h * z * normal(z)[0]
        eta[s : s + m] = out[:m]


@kernel
def _gradient_loop(
    start, stop, maps, places, cubics, cross_w, cross_b, cross_v, grad,
    g_maps, g_cubics, g_cross_w, g_cross_b, g_cross_v,
):  # fmt: skip
    work = np.empty((21, BLOCK), np.float32)  # one array, for the reason given in _eta_loop
    f, E, t, g_t, g, g_z = work[:9], work[9:11], work[11:15], work[15:19], work[19], work[20]
    for s in range(start, stop, BLOCK):
        m = min(BLOCK, stop - s)
        _load(maps, s, m, f, E, t)
        g[:m] = grad[s : s + m]
        g_t[:] = 0
        for a in range(len(places)):
            first, begin = places[a]
            for i in range(m):
                x = t[a, i] * PER_UNIT - f32(begin)
                k = i32(x)
                c, u = first + k, x - f32(k)
                slope = cubics[c, 1] + u * (TWO * cubics[c, 2] + THREE * u * cubics[c, 3])
                g_t[a, i] += g[i] * slope * PER_UNIT
                g_cubics[c, 0] += g[i]
                g_cubics[c, 1] += g[i] * u
                g_cubics[c, 2] += g[i] * u * u
                g_cubics[c, 3] += g[i] * u * u * u
        for h in range(len(cross_v)):
            w0, w2, w3, b_h, v_h = cross_w[h, 0], cross_w[h, 1], cross_w[h, 2], cross_b[h], cross_v[h]
            sum_v = sum_b = f32(0)
            for i in range(m):
                z = w0 * t[0, i] + w2 * t[2, i] + w3 * t[3, i] + b_h
                cdf, density = normal(z)
                g_z[i] = g[i] * v_h * (cdf + z * density)
                sum_v += g[i] * z * cdf
                sum_b += g_z[i]
            g_cross_v[h] += sum_v
            g_cross_b[h] += sum_b
            for j, a in enumerate((0, 2, 3)):
                sum_w = f32(0)
                for i in range(m):
                    sum_w += g_z[i] * t[a, i]
                    g_t[a, i] += g_z[i] * cross_w[h, j]
                g_cross_w[h, j] += sum_w
        for i in range(m):
            f[0, i] = g_t[0, i] / (ONE + abs(f[0, i]))
        if len(maps) > 1:
            for i in range(m):
                over = g_t[1, i] / ((ONE + E[0, i]) * E[0, i])
                f[1, i], f[2, i], f[3, i] = over * f[1, i], over * f[2, i], over * f[3, i]
        if len(maps) > 4:
            for i in range(m):
                a, b_, c, d, e = f[4, i], f[5, i], f[6, i], f[7, i], f[8, i]
                xx, yy, zz = A * e - A_ROOT3 * c, -A * e - A_ROOT3 * c, TWO * A_ROOT3 * c
                xy, yz, xz = A * a, A * b_, A * d
                square = E[1, i] * E[1, i]
                g_det = THREE * g_t[3, i] / (square * E[1, i] + EPS)
                # dI3/dE2 = -3 E2^2 I3 / (E2^3 + eps)
                g_E2 = g_t[2, i] / (ONE + E[1, i]) - THREE * g_t[3, i] * t[3, i] * square / (square * E[1, i] + EPS)
                over = A2 * g_E2 / E[1, i]
                g_xx, g_yy, g_zz = yy * zz - yz * yz, xx * zz - xz * xz, xx * yy - xy * xy
                f[4, i] = over * a + g_det * TWO * A * (yz * xz - xy * zz)
                f[5, i] = over * b_ + g_det * TWO * A * (xy * xz - xx * yz)
                f[6, i] = over * c + g_det * A_ROOT3 * (TWO * g_zz - g_xx - g_yy)
                f[7, i] = over * d + g_det * TWO * A * (xy * yz - yy * xz)
                f[8, i] = over * e + g_det * A * (g_xx - g_yy)
        for c in range(len(maps)):
            g_maps[c][s : s + m] = f[c, :m]
