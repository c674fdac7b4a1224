"""Particles and meshes: painting densities, reading forces; compiled loops, for the CPU.

Mesh point i along a side lies at x = i L / n, as in Pylians. The compiled loops add particles in their own order
whatever the number of threads, so a density never depends on it.
"""

from functools import lru_cache

import numpy as np
import torch

from nbkit.mesh.grid import MAS_ORDER
from nbkit.mesh.threads import inlined, kernel, over_slices

# Positions this many boxes away are a fault, and would overflow whole-number cell indices.
FARTHEST = 1e4


def paint(positions, grid):
    """Density contrast (n, n, n), float32, of particles of equal mass, by the scheme `grid.mas`.

    Parameters
    ----------
    positions : (p, 3) float32 [Mpc/h]; the box is periodic.
    grid : mesh and scheme: "NGP", "CIC", "TSC" or "PCS".
    """
    order = MAS_ORDER[grid.mas]
    if order == 0:
        raise ValueError('grid.mas is "none"; to paint particles choose NGP, CIC, TSC or PCS.')
    if positions.ndim != 2 or positions.shape[1] != 3 or len(positions) == 0:
        raise ValueError(f"positions have shape {tuple(positions.shape)}; give (p, 3) with at least one particle.")
    count = counts(positions.float().cpu(), grid.n, grid.n / grid.box_size, order)
    return count.mul_(grid.n**3 / len(positions)).sub_(1).to(positions.device)


def counts(positions, n, per_length, order):
    """Particles a cell (n, n, n), each spread by the cloud of that order; `per_length` cells in one unit of length."""
    mesh = torch.zeros(n, n, n)
    loop = _painter(order)
    x, out, bad = positions.contiguous().numpy(), mesh.view(-1).numpy(), np.zeros(16, dtype=np.int64)
    # Every thread reads all particles but writes only its own planes of x: no races, no private meshes.
    slabs = min(torch.get_num_threads(), 16)
    over_slices(lambda i, lo, hi: loop(x, np.float32(per_length), n, lo, hi, out, bad[i : i + 1]), n, slabs)
    if bad[0]:
        raise ValueError(f"{bad[0]} of {len(x)} positions are not finite or more than {FARTHEST:g} boxes away.")
    return mesh


def kick(positions, velocities, force, alpha, beta, drift, box_size):
    """v <- alpha v + beta F(x), then x <- x + drift v in the periodic box, both in place; F read by CIC.

    Parameters
    ----------
    positions, velocities : (p, 3) float32 [Mpc/h].
    force : three fields (m, m, m) float32, its components.
    """
    m = force[0].shape[-1]
    # In memory as the FFT leaves them: y, x, z.
    flat = [f.transpose(0, 1).contiguous().view(-1) for f in force]
    arrays = [a.numpy() for a in (positions, velocities, *flat)]
    numbers = [np.float32(number) for number in (m / box_size, alpha, beta, drift, box_size)]
    over_slices(lambda _, i, j: _kick_loop(*arrays, m, *numbers, i, j), len(positions))


@inlined
def _start(x, n, size, order):
    """First mesh point of a cloud at x in cells, and how far x lies from the cloud's reference point.

    Indices are unsigned, which spares the compiled loops a test for negative ones at every access.
    """
    if not (x >= 0 and x < size):
        x -= size * np.floor(x / size)
    whole = int(x if order % 2 == 0 else x + np.float32(0.5))
    first = whole - (order - 1) // 2
    if first < 0:
        first += n
    if first >= n:
        first -= n
    return np.uint64(first), x - np.float32(whole)


@inlined
def _weights(d, order):
    """Weights of the cloud; unused ones are 0."""
    half, zero, one = np.float32(0.5), np.float32(0), np.float32(1)
    e = one - d
    if order == 1:
        return one, zero, zero, zero
    if order == 2:
        return e, d, zero, zero
    if order == 3:
        return half * (half - d) * (half - d), np.float32(0.75) - d * d, half * (half + d) * (half + d), zero
    sixth, three, four, six = np.float32(1 / 6), np.float32(3), np.float32(4), np.float32(6)
    inner = (four - six * d * d + three * d * d * d) * sixth, (four - six * e * e + three * e * e * e) * sixth
    return e * e * e * sixth, inner[0], inner[1], d * d * d * sixth


@lru_cache(maxsize=4)
def _painter(order):
    """The painting loop of one order; a constant order lets the compiler unroll the cloud."""

    @kernel
    def loop(x, per_length, n, lo, hi, mesh, bad):
        N, lo, hi = np.uint64(n), np.uint64(lo), np.uint64(hi)
        size, limit = np.float32(n), np.float32(FARTHEST * n)
        for p in range(x.shape[0]):
            u, v, t = x[p, 0] * per_length, x[p, 1] * per_length, x[p, 2] * per_length
            if not (abs(u) < limit and abs(v) < limit and abs(t) < limit):
                bad[0] += 1
                continue
            i, d_i = _start(u, n, size, order)
            if i + np.uint64(order) <= N and (i >= hi or i + np.uint64(order) <= lo):
                continue
            j, d_j = _start(v, n, size, order)
            k, d_k = _start(t, n, size, order)
            w_i, w_j, w_k = _weights(d_i, order), _weights(d_j, order), _weights(d_k, order)
            inside = k + np.uint64(order) <= N
            for a in range(order):
                i_a = i + np.uint64(a)
                if i_a >= N:
                    i_a -= N
                if i_a < lo or i_a >= hi:
                    continue
                for b in range(order):
                    j_b = j + np.uint64(b)
                    if j_b >= N:
                        j_b -= N
                    row, w = (i_a * N + j_b) * N, w_i[a] * w_j[b]
                    for c in range(order):
                        k_c = k + np.uint64(c)
                        if not inside and k_c >= N:
                            k_c -= N
                        mesh[row + k_c] += w * w_k[c]

    return loop


@kernel
def _kick_loop(x, v, f_x, f_y, f_z, n, per_length, alpha, beta, drift, box_size, start, stop):
    N, one, size = np.uint64(n), np.float32(1), np.float32(n)
    for p in range(start, stop):
        i, d = _start(x[p, 0] * per_length, n, size, 2)
        j, e = _start(x[p, 1] * per_length, n, size, 2)
        k, f = _start(x[p, 2] * per_length, n, size, 2)
        i_1 = i + np.uint64(1) if i + np.uint64(1) < N else np.uint64(0)
        j_1 = j + np.uint64(1) if j + np.uint64(1) < N else np.uint64(0)
        k_1 = k + np.uint64(1) if k + np.uint64(1) < N else np.uint64(0)
        rows = (j * N + i) * N, (j_1 * N + i) * N, (j * N + i_1) * N, (j_1 * N + i_1) * N
        w = (one - d) * (one - e), (one - d) * e, d * (one - e), d * e
        _move(x, v, p, 0, alpha, beta * _cic(f_x, rows, w, k, k_1, f), drift, box_size)
        _move(x, v, p, 1, alpha, beta * _cic(f_y, rows, w, k, k_1, f), drift, box_size)
        _move(x, v, p, 2, alpha, beta * _cic(f_z, rows, w, k, k_1, f), drift, box_size)


@inlined
def _cic(field, rows, w, k, k_1, f):
    near = w[0] * field[rows[0] + k] + w[1] * field[rows[1] + k]
    near += w[2] * field[rows[2] + k] + w[3] * field[rows[3] + k]
    far = w[0] * field[rows[0] + k_1] + w[1] * field[rows[1] + k_1]
    far += w[2] * field[rows[2] + k_1] + w[3] * field[rows[3] + k_1]
    return (np.float32(1) - f) * near + f * far


@inlined
def _move(x, v, p, axis, alpha, kick, drift, box_size):
    speed = alpha * v[p, axis] + kick
    place = x[p, axis] + drift * speed
    if place < 0 or place >= box_size:
        place -= box_size * np.floor(place / box_size)
    v[p, axis] = speed
    x[p, axis] = place
