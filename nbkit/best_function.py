"""The best additive mark, M = sum_a sum_j c_aj B_j(f_a) of the invariants f_a, with no mark in the loop.

Such a mark is linear in c: P_dm = sum_i c_i P_di and P_mm = sum_ij c_i c_j P_ij. The cross spectra of the fields
B_i (1 + delta) are measured once, and the information is then a function of some twenty numbers.
"""

from dataclasses import dataclass, replace

import torch

from nbkit.batches import DRAWN, generator
from nbkit.filters import filtered
from nbkit.grid import to_fourier, to_real
from nbkit.information import cross_validated, sample_of, wanted_rows
from nbkit.invariants import NAMES, invariants, transformed

# Bumps an invariant, from its RARE quantile to the opposite one; beyond, M stays constant.
NODES, RARE = 7, 0.003
# Smoothing scales to choose from [Mpc/h]: below and about a cell of the presets. Larger ones tell less (notebook 08).
SCALES = (4.0, 7.0)
# M begins as exp(slope * density); a search that begins falling and one that begins rising may end elsewhere.
SLOPES = (-2.0, 1.0)
STEPS, RATE = 300, 0.03
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


@torch.no_grad()
def cross_spectra(data, rows, channels, ends):
    """(m, b, T) spectra of all T pairs of delta and the fields B_i (1 + delta) of boxes, by row of `data`."""
    bins = data.grid.bins(data.kmax)
    order = torch.argsort(bins.bin, stable=True)
    mode, root = bins.mode[order].long(), bins.weight[order].sqrt()
    sizes = torch.bincount(bins.bin.long()).tolist()
    first, second = _pairs(NODES * len(ends))
    table = torch.empty(len(rows), len(sizes), len(first), dtype=torch.float64)
    for row, delta in zip(table, data.fields.parts(rows[:, None]), strict=True):
        delta = delta[0].cpu()
        delta_k = to_fourier(delta, data.grid)
        seen = seen_by(delta_k, data.grid, channels)
        fields = torch.cat([bumps(t, *between) for t, between in zip(seen, ends, strict=True)]) * (1 + delta)
        modes = torch.cat([delta_k[None], to_fourier(fields, data.grid)]).flatten(1)[:, mode] * root
        for out, x in zip(row, modes.split(sizes, dim=1), strict=True):
            out[:] = (x @ x.conj().T).real[first, second]
    return table


def spectra_of(table, c):
    """(m, 3 b) P_dd, P_dm and P_mm of the mark with coefficients c, one after the other, from `cross_spectra`."""
    first, second = (index.to(c.device) for index in _pairs(len(c)))
    c = torch.cat([c.new_zeros(1), c])
    twice = torch.where(first == second, 1, 2)
    return torch.cat([table[..., 0], table[..., first == 0] @ c, table @ (twice * c[first] * c[second])], dim=-1)


def best_function(data, parameters, choices, seed=0):
    """The AdditiveMark with the most information on the training boxes, by cross-validated halves.

    Parameters
    ----------
    data : Neighbourhood; what it holds out is not looked at.
    parameters : names of those whose errors, marginalised over all five, are to become small.
    choices : channels to try, see `AdditiveMark`; the best of them is given.
    seed : of the halves.
    """
    wanted, found = wanted_rows(parameters), []
    delta_k = to_fourier(data.joined[data.training[0][:SURVEYED].tolist()], data.grid)
    for channels in choices:
        ends = ends_of(delta_k, data.grid, channels)
        table = cross_spectra(data, data.rows(*data.training), channels, ends)
        for slope in SLOPES:
            c, loss = minimised(table, list(map(len, data.training)), len(ends), slope, wanted, seed)
            found.append((loss, additive(c, ends, channels, delta_k, data.grid)))
    return min(found, key=lambda each: each[0])[1]


def started(count, slope):
    """Coefficients (count, NODES) to begin with: an exponential of the first channel, nothing of the others."""
    c = torch.zeros(count, NODES, dtype=torch.float64)
    c[0] = (slope * torch.linspace(-1, 1, NODES, dtype=torch.float64)).exp()
    return c


def minimised(table, sizes, count, slope, wanted, seed):
    """Coefficients (count, NODES) that minimise the mean log sigma of the wanted parameters, and its value.

    Parameters
    ----------
    table : `cross_spectra` of boxes, sizes[0] fiducial ones and sizes[1] pairs in the order of `sample_of`.
    count : channels.
    slope : of the mark to begin with.
    wanted : see `nbkit.information.wanted_rows`.
    seed : of the halves.
    """
    c = started(count, slope)
    optimizer = torch.optim.Adam([c.requires_grad_(True)], lr=RATE)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)

    def loss(*words, splits=1):
        sample = sample_of(spectra_of(table, (c / c.detach().std()).flatten()), *sizes)
        return cross_validated(sample, generator(seed, DRAWN, *words), splits)[wanted].mean()

    for step in range(STEPS):
        optimizer.zero_grad()
        loss(step).backward()
        optimizer.step()
        schedule.step()
    with torch.no_grad():
        return c.detach(), float(loss(STEPS, splits=4))


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


def _pairs(count):
    return torch.triu_indices(count + 1, count + 1)
