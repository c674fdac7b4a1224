"""Particles and meshes: painting densities, reading forces; compiled on the CPU, plain torch on any other device.

Mesh point i along a side lies at x = i L / n, as in Pylians. The compiled loops add particles in their own order
whatever the number of threads, so a density never depends on it.
"""

import numpy as np
import torch

from nbkit.grid import MAS_ORDER
from nbkit.threads import kernel, over_slices

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
    count = counts(positions.float(), grid.n, grid.n / grid.box_size, order)
    return count.mul_(grid.n**3 / len(positions)).sub_(1)


def counts(positions, n, per_length, order):
    """Particles a cell (n, n, n), each spread by the cloud of that order; `per_length` cells in one unit of length."""
    if positions.device.type != "cpu":
        return _counts(positions, n, per_length, order)
    mesh = torch.zeros(n, n, n)
    loop = _paint_cic if order == 2 else _paint
    x, out, bad = positions.contiguous().numpy(), mesh.numpy(), np.zeros(16, dtype=np.int64)
    # Every thread reads all particles but writes only its own planes of x: no races, no private meshes.
    slabs = min(torch.get_num_threads(), 16)
    over_slices(lambda i, lo, hi: loop(x, np.float32(per_length), order, lo, hi, out, bad[i : i + 1]), n, slabs)
    if bad[0]:
        raise ValueError(f"{bad[0]} of {len(x)} positions are not finite or more than {FARTHEST:g} boxes away.")
    return mesh


def kicked(positions, velocities, force, alpha, beta, drift, box_size):
    """v <- alpha v + beta F(x), then x <- x + drift v in the periodic box, both in place; F read by CIC.

    Parameters
    ----------
    positions, velocities : (p, 3) float32 [Mpc/h].
    force : (3, m, m, m) float32.
    """
    m = force.shape[-1]
    if positions.device.type == "cpu":
        x, v, f = positions.numpy(), velocities.numpy(), force.numpy()
        numbers = [np.float32(number) for number in (m / box_size, alpha, beta, drift, box_size)]
        over_slices(lambda _, i, j: _kick_loop(x, v, f, *numbers, i, j), len(x))
        return
    velocities.mul_(alpha).add_(_read(force, positions * (m / box_size)), alpha=beta)
    positions.add_(velocities, alpha=drift).remainder_(box_size)


def _cloud(x, order):
    """First mesh point and the `order` weights of a cloud at x in cells: (p,), (p, order), tensors on any device."""
    first = torch.floor(x if order % 2 == 0 else x + 0.5)
    d = x - first
    if order == 1:
        weights = [torch.ones_like(d)]
    elif order == 2:
        weights = [1 - d, d]
    elif order == 3:
        weights = [0.5 * (0.5 - d) ** 2, 0.75 - d**2, 0.5 * (0.5 + d) ** 2]
    else:
        e = 1 - d
        weights = [e**3 / 6, (4 - 6 * d**2 + 3 * d**3) / 6, (4 - 6 * e**2 + 3 * e**3) / 6, d**3 / 6]
    return first.long() - (order - 1) // 2, torch.stack(weights, -1)


def _clouds(x, n, order):
    """Flat mesh index and weight of every (particle, point of its cloud), one point of the cloud at a time."""
    (i, w_i), (j, w_j), (k, w_k) = (_cloud(x[:, axis], order) for axis in range(3))
    for a in range(order):
        for b in range(order):
            for c in range(order):
                index = (((i + a) % n) * n + (j + b) % n) * n + (k + c) % n
                yield index, w_i[:, a] * w_j[:, b] * w_k[:, c]


def _counts(positions, n, per_length, order):
    mesh = torch.zeros(n**3, device=positions.device, dtype=positions.dtype)
    for index, weight in _clouds(positions * per_length, n, order):
        mesh.index_add_(0, index, weight)
    return mesh.reshape(n, n, n)


def _read(force, x):
    flat, out = force.flatten(1), torch.zeros_like(x)
    for index, weight in _clouds(x, force.shape[-1], 2):
        out += (flat[:, index] * weight).T
    return out


@kernel
def _paint_cic(x, per_length, order, lo, hi, mesh, bad):
    n = mesh.shape[0]
    one = np.float32(1)
    limit = np.float32(FARTHEST * n)
    for p in range(x.shape[0]):
        u, v, w = x[p, 0] * per_length, x[p, 1] * per_length, x[p, 2] * per_length
        if not (abs(u) < limit and abs(v) < limit and abs(w) < limit):
            bad[0] += 1
            continue
        i0 = int(np.floor(u))
        d = u - np.float32(i0)
        if i0 < 0 or i0 >= n:
            i0 %= n
        i1 = i0 + 1 if i0 + 1 < n else 0
        mine0, mine1 = lo <= i0 < hi, lo <= i1 < hi
        if not (mine0 or mine1):
            continue
        j0, k0 = int(np.floor(v)), int(np.floor(w))
        e, f = v - np.float32(j0), w - np.float32(k0)
        if j0 < 0 or j0 >= n:
            j0 %= n
        if k0 < 0 or k0 >= n:
            k0 %= n
        j1 = j0 + 1 if j0 + 1 < n else 0
        k1 = k0 + 1 if k0 + 1 < n else 0
        if mine0:
            a = (one - d) * (one - e)
            mesh[i0, j0, k0] += a * (one - f)
            mesh[i0, j0, k1] += a * f
            a = (one - d) * e
            mesh[i0, j1, k0] += a * (one - f)
            mesh[i0, j1, k1] += a * f
        if mine1:
            a = d * (one - e)
            mesh[i1, j0, k0] += a * (one - f)
            mesh[i1, j0, k1] += a * f
            a = d * e
            mesh[i1, j1, k0] += a * (one - f)
            mesh[i1, j1, k1] += a * f


@kernel
def _weights(x, order, w):
    """Weights of the cloud into w; its first mesh point."""
    first = int(np.floor(x if order % 2 == 0 else x + np.float32(0.5)))
    d = x - np.float32(first)
    e = np.float32(1) - d
    if order == 1:
        w[0] = 1
    elif order == 2:
        w[0], w[1] = e, d
    elif order == 3:
        w[0], w[1], w[2] = 0.5 * (0.5 - d) ** 2, 0.75 - d**2, 0.5 * (0.5 + d) ** 2
    else:
        w[0], w[3] = e**3 / 6, d**3 / 6
        w[1], w[2] = (4 - 6 * d**2 + 3 * d**3) / 6, (4 - 6 * e**2 + 3 * e**3) / 6
    return first - (order - 1) // 2


@kernel
def _paint(x, per_length, order, lo, hi, mesh, bad):
    n = mesh.shape[0]
    limit = np.float32(FARTHEST * n)
    w = np.empty((3, 4), dtype=np.float32)
    for p in range(x.shape[0]):
        u, v, t = x[p, 0] * per_length, x[p, 1] * per_length, x[p, 2] * per_length
        if not (abs(u) < limit and abs(v) < limit and abs(t) < limit):
            bad[0] += 1
            continue
        i = _weights(u, order, w[0])
        j = _weights(v, order, w[1])
        k = _weights(t, order, w[2])
        for a in range(order):
            ia = (i + a) % n
            if lo <= ia < hi:
                for b in range(order):
                    jb, w_ab = (j + b) % n, w[0, a] * w[1, b]
                    for c in range(order):
                        kc = k + c
                        if kc < 0 or kc >= n:
                            kc %= n
                        mesh[ia, jb, kc] += w_ab * w[2, c]


@kernel
def _kick_loop(x, v, force, per_length, alpha, beta, drift, box_size, start, stop):
    n = force.shape[1]
    one = np.float32(1)
    for p in range(start, stop):
        u, t, w = x[p, 0] * per_length, x[p, 1] * per_length, x[p, 2] * per_length
        i0, j0, k0 = int(u), int(t), int(w)
        d, e, f = u - np.float32(i0), t - np.float32(j0), w - np.float32(k0)
        # Rounding may put a particle of the last cell at its far edge.
        i0, j0, k0 = i0 % n if i0 >= n else i0, j0 % n if j0 >= n else j0, k0 % n if k0 >= n else k0
        i1 = i0 + 1 if i0 + 1 < n else 0
        j1 = j0 + 1 if j0 + 1 < n else 0
        k1 = k0 + 1 if k0 + 1 < n else 0
        w00, w01, w10, w11 = (one - d) * (one - e), (one - d) * e, d * (one - e), d * e
        for axis in range(3):
            near = (
                w00 * force[axis, i0, j0, k0]
                + w01 * force[axis, i0, j1, k0]
                + w10 * force[axis, i1, j0, k0]
                + w11 * force[axis, i1, j1, k0]
            )
            far = (
                w00 * force[axis, i0, j0, k1]
                + w01 * force[axis, i0, j1, k1]
                + w10 * force[axis, i1, j0, k1]
                + w11 * force[axis, i1, j1, k1]
            )
            speed = alpha * v[p, axis] + beta * ((one - f) * near + f * far)
            v[p, axis] = speed
            place = x[p, axis] + drift * speed
            if place < 0 or place >= box_size:
                place -= box_size * np.floor(place / box_size)
                if place >= box_size:
                    place = np.float32(0)
            x[p, axis] = place
