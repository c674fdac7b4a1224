"""Additive marks, M = sum_a sum_j c_aj B_j(f_a) of the invariants f_a, and marks repeated in the learned mark's terms.

An additive mark is linear in c: P_dm = sum_i c_i P_di and P_mm = sum_ij c_i c_j P_ij. The cross spectra of the fields
B_i (1 + delta) are measured once, and the information is then a function of some twenty numbers. An imitation has G_l
fitted to the filters of a given mark, and h_a to what it makes of the invariants.
"""

import warnings
from dataclasses import dataclass, replace

import torch
from torch.nn.functional import gelu, softplus

from nbkit.mark.classical import ClassicalMark
from nbkit.mark.filters import filter_maps
from nbkit.mark.invariants import NAMES, invariants, mlp_inputs
from nbkit.mark.learned import LearnedMark
from nbkit.mesh.grid import to_fourier, to_real

NODES, RARE = 7, 0.003  # bumps an invariant, from its RARE quantile to the opposite one; beyond, M stays constant
BUMPS = 1  # version of their shape: what was measured with another is another
DENSITY = ("delta", 0.0)  # the channel that is the density as painted: no filter, no taper
# Boxes that tell the quantiles, and the value below which M falls in one voxel of a thousand: softplus, which an
# imitation has to pass through, is nearly straight above it.
SURVEYED, LEAST = 16, 2.0

WORST = 0.3  # error of M of an imitation, in units of its scatter, above which a warning says so
QUANTILES = 501  # of each invariant, the emptiest and densest included: their voxels are what the h_a are fitted on
# Of the fits: steps, and what holds the weights of the h_a down: large ones would cancel, and the first steps of a
# training break the imitation.
ROUNDS, RIDGE = 150, 1e-5


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

    def __post_init__(self):
        for name in ("coefficients", "ends", "channels"):  # lists, as JSON has them, become what can be compared
            object.__setattr__(self, name, tuple(map(tuple, getattr(self, name))))
        rows = [len(row) for row in self.coefficients]
        if rows != [NODES] * len(self.channels) or len(self.ends) != len(rows):
            raise ValueError(f"coefficients has rows of {rows}; give one of {NODES} for each of {self.channels}.")

    def __call__(self, delta, grid):
        """M(x), shape (..., n, n, n), of a density contrast of that shape."""
        return self.of_modes(to_fourier(grid.check(delta), grid), grid)

    def of_modes(self, delta_k, grid):
        """As the call, for a field already transformed."""
        maps = channel_maps(delta_k, grid, self.channels)
        rows = zip(maps, self.coefficients, self.ends, strict=True)
        return self.shift + sum(torch.tensordot(t.new_tensor(c), bumps(t, *ends), 1) for t, c, ends in rows)


def channels_of(l_max, R):
    """E0; E0 and E1; or E0, E1 and E2, all behind one filter."""
    return tuple((name, R) for name in NAMES[: l_max + 1])


def channel_maps(delta_k, grid, channels):
    """The map of each of the channels, as MLPs see it."""
    maps, k = {}, grid.shells(delta_k.device, delta_k.real.dtype).k
    if DENSITY in channels:
        maps[DENSITY] = mlp_inputs({"E0": to_real(delta_k, grid)})["E0"]
    for R in {R for _, R in channels if R}:
        count = 1 + max(NAMES.index(name) for name, its in channels if its == R)
        smooth = torch.exp(-((k * R) ** 2) / 2).expand(count, -1)
        inputs = mlp_inputs(invariants(filter_maps(delta_k, smooth, grid)))
        maps |= {(name, R): inputs[name] for name in NAMES[:count]}
    return [maps[channel] for channel in channels]


def bumps(t, low, high):
    """B_j(t), (NODES, ...): nearly constant in sum."""
    width = (high - low) / (NODES - 1)
    rows = [torch.sigmoid((low + width / 2 - t) / (width / 4))]
    rows += [torch.exp(-0.75 * ((t - low) / width - j) ** 2) for j in range(1, NODES - 1)]
    return torch.stack([*rows, torch.sigmoid((t - high + width / 2) / (width / 4))])


def additive_mark(c, ends, channels, delta_k, grid):
    """The AdditiveMark of coefficients, with unit scatter and so far up that one voxel of a thousand is below LEAST."""
    mark = AdditiveMark(c.tolist(), ends, channels)
    M = mark.of_modes(delta_k, grid).flatten().sort().values
    rows = [[x / float(M.std()) for x in row] for row in mark.coefficients]
    return replace(mark, coefficients=rows, shift=LEAST - float(M[len(M) // 1000] / M.std()))


def ends_of(delta_k, grid, channels):
    """(first, last) node of each channel: its RARE quantiles."""
    maps = [t.flatten().sort().values for t in channel_maps(delta_k, grid, channels)]
    rare = round(RARE * len(maps[0]))
    return tuple((float(t[rare]), float(t[-1 - rare])) for t in maps)


def imitation(target, delta, grid, seed=0, **settings):
    """A LearnedMark of some settings that repeats a mark, and the rms error of its M in units of the rms scatter of M.

    Only filters and responses that the given mark has are fitted; the others keep their start and add nothing.

    Parameters
    ----------
    target : a ClassicalMark, or an AdditiveMark of the first of E0, E1, E2 in this order.
    delta : (N, n, n, n) density contrasts, a few of those it will be used on.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        mark = LearnedMark(grid, **settings)
    M = target(delta, grid)
    _fit_responses(mark, _fit_profiles(mark.profiles, target, grid), M, delta, grid)
    with torch.no_grad():
        error = float((mark(delta, grid) - M).std() / M.std())
    if error > WORST:
        said = f"The learned mark imitates {type(target).__name__} with an error of {error:.0%} of its scatter."
        warnings.warn(said, stacklevel=2)
    return mark, error


def _fit_profiles(profiles, target, grid):
    """The first G_l to the filters of a given mark, on the shells where the taper lets them pass; how many it has."""
    shells, classical = grid.shells(dtype=torch.float64), isinstance(target, ClassicalMark)
    scales = (target.R,) if classical else (R for _, R in target.channels)
    goal = torch.stack([torch.exp(-((shells.k * R) ** 2) / 2) for R in scales])
    if classical:
        # It smooths the density as it was painted; the learned mark first divides the window out.
        shell, window = shells.index.flatten(), grid.window(dtype=torch.float64).flatten()
        goal = (torch.bincount(shell, goal[0, shell] * window) / torch.bincount(shell))[None]
    x = shells.k / grid.k_nyq
    x, goal = x[x < 1], goal[:, x < 1]
    profiles.double()
    _minimise(profiles.parameters(), lambda: ((profiles(x)[: len(goal)] - goal) ** 2).sum(0).mean())
    profiles.float()
    return len(goal)


def _fit_responses(mark, count, M, delta, grid):
    """The first h_a and the bias on voxels that tell M."""
    with torch.no_grad():
        maps = mlp_inputs(mark.invariants(delta, grid))
    inputs = torch.stack([t.flatten().double() for t in maps.values()])[:count]
    rank = torch.linspace(0, inputs.shape[1] - 1, QUANTILES).long()
    voxels = inputs.argsort(1)[:, rank].flatten()
    t, goal = inputs[:, voxels, None], M.flatten().double()[voxels]
    responses = mark.responses.double()
    w, b, v = responses.w, responses.b, responses.v
    # A start that already has a slope: from v = 0 the weights inside would not move.
    v.data[:count] = torch.linspace(-0.1, 0.1, v.shape[1])

    def loss():
        h = gelu(t * w[:count, None] + b[:count, None]) @ v[:count, :, None]
        error = ((softplus(responses.bias + h.sum((0, 2))) - goal) ** 2).mean() / goal.var()
        return error + RIDGE * sum((x[:count] ** 2).sum() for x in (w, b, v))

    _minimise([w, b, v, responses.bias], loss)
    responses.float()


def _minimise(parameters, loss):
    optimizer = torch.optim.LBFGS(parameters, max_iter=ROUNDS, line_search_fn="strong_wolfe", tolerance_change=1e-12)

    def closure():
        optimizer.zero_grad()
        value = loss()
        value.backward()
        return value

    optimizer.step(closure)
    optimizer.zero_grad()
