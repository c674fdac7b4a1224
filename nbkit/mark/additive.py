"""The best additive mark, M = sum_a sum_j c_aj B_j(f_a) of the invariants f_a, with no mark in the loop.

Such a mark is linear in c: P_dm = sum_i c_i P_di and P_mm = sum_ij c_i c_j P_ij. The cross spectra of the fields
B_i (1 + delta) are measured once, and the information is then a function of some twenty numbers.
"""

from dataclasses import dataclass, replace

import torch

from nbkit.mark.filters import filtered
from nbkit.mark.invariants import NAMES, invariants, transformed
from nbkit.mesh.grid import to_fourier, to_real

# Bumps an invariant, from its RARE quantile to the opposite one; beyond, M stays constant.
NODES, RARE = 7, 0.003
# Version of the shape of `bumps`: raise it when they change, and no cross spectra from before are found.
BUMPS = 1
# Boxes that tell the quantiles, and the value below which M falls in one voxel of a thousand: softplus, which an
# imitation has to pass through, is nearly straight above it.
SURVEYED, LEAST = 16, 2.0
# The channel that is the density as painted: no filter, no taper.
DENSITY = ("delta", 0.0)


@dataclass(frozen=True)
class AdditiveMark:
    """M = shift + sum_a sum_j c_aj B_j(f_a), f_a invariants of the smoothed density, as MLPs see them.

    Parameters
    ----------
    coefficients : c_aj, a row a channel and NODES columns; the first and the last bump are steps.
    ends : (first, last) node of each row.
    channels : what each row is a function of: (name, R) for E0, E1 or E2 behind a filter exp(-k^2 R^2 / 2), R in Mpc/h,
        or `DENSITY`.
    shift : of M; it changes no information.
    """

    coefficients: tuple
    ends: tuple
    channels: tuple
    shift: float = 0.0

    def __call__(self, delta, grid):
        """M(x), shape (..., n, n, n), of a density contrast of that shape."""
        return self.of_modes(to_fourier(grid.checked(delta), grid), grid)

    def of_modes(self, delta_k, grid):
        """As the call, for a field already transformed."""
        seen = seen_by(delta_k, grid, self.channels)
        return self.shift + sum(self.curve(a, t) for a, t in enumerate(seen))

    def curve(self, a, t):
        """What invariant number a, as the MLPs see it, adds to M."""
        c = torch.tensor(self.coefficients[a], dtype=t.dtype, device=t.device)
        return (c @ bumps(t, *self.ends[a]).flatten(1)).reshape(t.shape)


def channels_of(l_max, R):
    """E0; E0 and E1; or E0, E1 and E2, all behind one filter."""
    return tuple((name, R) for name in NAMES[: l_max + 1])


def seen_by(delta_k, grid, channels):
    """The maps of each of the channels, as MLPs see them."""
    maps, k = {}, grid.shells(delta_k.device, delta_k.real.dtype).k
    if DENSITY in channels:
        maps[DENSITY] = transformed({"E0": to_real(delta_k, grid)})["E0"]
    for R in {R for _, R in channels if R}:
        count = 1 + max(NAMES.index(name) for name, its in channels if its == R)
        smooth = torch.exp(-((k * R) ** 2) / 2).expand(count, -1)
        found = transformed(invariants(filtered(delta_k, smooth, grid, k_cut=grid.k_nyq)))
        maps |= {(name, R): found[name] for name in NAMES[:count]}
    return [maps[channel] for channel in channels]


def bumps(t, low, high):
    """B_j(t), (NODES, ...): nearly constant in sum."""
    width = (high - low) / (NODES - 1)
    rows = [torch.sigmoid((low + width / 2 - t) / (width / 4))]
    rows += [torch.exp(-0.75 * ((t - low) / width - j) ** 2) for j in range(1, NODES - 1)]
    return torch.stack([*rows, torch.sigmoid((t - high + width / 2) / (width / 4))])


def additive(c, ends, channels, delta_k, grid):
    """The AdditiveMark of coefficients, with unit scatter and so far up that one voxel of a thousand is below LEAST."""
    mark = AdditiveMark(tuple(map(tuple, c.tolist())), ends, channels)
    M = mark.of_modes(delta_k, grid).flatten().sort().values
    rows = tuple(tuple(x / float(M.std()) for x in row) for row in mark.coefficients)
    return replace(mark, coefficients=rows, shift=LEAST - float(M[len(M) // 1000] / M.std()))


def ends_of(delta_k, grid, channels):
    """(first, last) node of each channel: its RARE quantiles."""
    return tuple(_ends(t) for t in seen_by(delta_k, grid, channels))


def _ends(t):
    values = t.flatten().sort().values
    rare = round(RARE * len(values))
    return float(values[rare]), float(values[-1 - rare])
