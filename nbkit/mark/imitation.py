"""A given mark in the learned mark's own terms: G_l fitted to its filters, h_a to what it makes of the invariants."""

import warnings

import torch
from torch.nn.functional import gelu, softplus

from nbkit.mark.classical import ClassicalMark, smoothing_kernel
from nbkit.mark.invariants import invariants, transformed
from nbkit.mark.learned import LearnedMark
from nbkit.mesh.grid import to_fourier

# The classical mark to start from: of the 48 the best on sigma_8 at kmax = 0.2 h/Mpc.
CLASSICAL = ClassicalMark(2.0, 0.0)
# Boxes that an imitation is fitted on, and the error of M, in units of its scatter, above which a warning says so.
IMITATED_ON, WORST = 8, 0.3
ROUNDS = 150
# The h_a are fitted on voxels at this many quantiles of each invariant, the emptiest and densest included.
QUANTILES = 501
# Holds the weights of the h_a down: large ones would cancel, and the first steps of a training break the imitation.
RIDGE = 1e-5


def imitation(target, delta, grid, l_max=2, radial="fourier", cross=True, seed=0):
    """A LearnedMark that repeats a given mark, and the rms error of its M in units of the rms scatter of M.

    Only filters and responses that the given mark has are fitted; the others keep their start, at which they add
    nothing.

    Parameters
    ----------
    target : a ClassicalMark, or an AdditiveMark of the first of E0, E1, E2 in this order.
    delta : (N, n, n, n) density contrasts, a few of those it will be used on.
    grid : their Grid.
    l_max, radial, cross : of the LearnedMark.
    seed : of its weights before the fit.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        mark = LearnedMark(grid, l_max, radial, cross)
    M, filters = target(grid.check(delta), grid), _filters(target, grid)
    _fit_filters(mark, filters, grid)
    _fit_responses(mark, len(filters), M, delta, grid)
    with torch.no_grad():
        error = float((mark(delta, grid) - M).std() / M.std())
    if error > WORST:
        warnings.warn(
            f"The learned mark imitates {type(target).__name__} with an error of {error:.0%} of its scatter.",
            stacklevel=2,
        )
    return mark, error


def _filters(target, grid):
    """(1 ... 3, s) radial profiles G_l of a given mark on the shells, float64."""
    shells = grid.shells(dtype=torch.float64)
    if not isinstance(target, ClassicalMark):
        return torch.stack([torch.exp(-((shells.k * R) ** 2) / 2) for _, R in target.channels])
    kernel = smoothing_kernel(target.smoothing, target.R, grid, torch.empty(0, dtype=torch.complex128))
    # A classical mark smooths the density as it was painted, the learned one first divides the window out.
    painted = (kernel * grid.window(dtype=torch.float64)).flatten()
    shell = shells.index.flatten().long()
    return (torch.zeros_like(shells.k).index_add_(0, shell, painted) / torch.bincount(shell))[None]


def _fit_filters(mark, goal, grid):
    """The first G_l, on the shells where the taper lets them pass."""
    x = grid.shells(dtype=torch.float64).k / grid.k_nyq
    x, goal = x[x < 1], goal[:, x < 1]
    profiles = mark.profiles.double()
    _minimised(profiles.parameters(), lambda: ((profiles(x)[: len(goal)] - goal) ** 2).sum(0).mean())
    mark.profiles.float()


def _fit_responses(mark, count, M, delta, grid):
    """The first h_a and the bias on voxels that tell M."""
    with torch.no_grad():
        maps = transformed(invariants(mark.filtered(to_fourier(delta, grid), grid)))
    seen = torch.stack([t.flatten().double() for t in maps.values()])[:count]
    rank = torch.linspace(0, seen.shape[1] - 1, QUANTILES).long()
    voxels = seen.argsort(1)[:, rank].flatten()
    t, goal = seen[:, voxels, None], M.flatten().double()[voxels]
    responses = mark.responses.double()
    w, b, v = responses.w, responses.b, responses.v

    def loss():
        h = gelu(t * w[:count, None] + b[:count, None]) @ v[:count, :, None]
        error = ((softplus(responses.bias + h.sum((0, 2))) - goal) ** 2).mean() / goal.var()
        return error + RIDGE * sum((x[:count] ** 2).sum() for x in (w, b, v))

    # A start that already has a slope: from v = 0 the weights inside would not move.
    with torch.no_grad():
        v[:count] = torch.linspace(-0.1, 0.1, v.shape[1])
    _minimised([w, b, v, responses.bias], loss)
    mark.responses.float()


def _minimised(parameters, loss):
    optimizer = torch.optim.LBFGS(parameters, max_iter=ROUNDS, line_search_fn="strong_wolfe", tolerance_change=1e-12)

    def closure():
        optimizer.zero_grad()
        value = loss()
        value.backward()
        return value

    optimizer.step(closure)
    optimizer.zero_grad(set_to_none=True)
