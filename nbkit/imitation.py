"""A classical mark in the learned mark's own terms: G_0 fitted to its smoothing, h_0 to its power law."""

import torch
from torch.nn.functional import softplus

from nbkit.filters import NORM
from nbkit.grid import to_fourier
from nbkit.mark import LearnedMark, smoothing_kernel

ROUNDS = 150
# h_0 is fitted on this many quantiles of E0: the voxels decide, the emptiest and densest included.
QUANTILES = 501
# Holds the weights of h_0 down: without it large ones cancel, and the first steps of a training break the imitation.
RIDGE = 1e-5


def imitation(classical, delta, grid, l_max=2, radial="fourier", cross=True, seed=0):
    """A LearnedMark that repeats a ClassicalMark, and the rms error of its M in units of the rms scatter of M.

    Only G_0, h_0 and the bias are fitted; the other terms keep their start, at which they add nothing.

    Parameters
    ----------
    classical : the ClassicalMark.
    delta : (N, n, n, n) density contrasts, a few of those it will be used on.
    grid : their Grid.
    l_max, radial, cross : of the LearnedMark.
    seed : of its weights before the fit.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        mark = LearnedMark(grid, l_max, radial, cross)
    _fit_filter(mark, classical, grid)
    _fit_response(mark, classical, delta, grid)
    with torch.no_grad():
        M = classical(delta, grid)
        error = float((mark(delta, grid) - M).std() / M.std())
    return mark, error


def _fit_filter(mark, classical, grid):
    """G_0 on the shells where the taper lets it pass."""
    shells = grid.shells(dtype=torch.float64)
    kernel = smoothing_kernel(classical.smoothing, classical.R, grid, torch.empty(0, dtype=torch.complex128))
    # A classical mark smooths the density as it was painted, the learned one first divides the window out.
    painted = (kernel * grid.window(dtype=torch.float64)).flatten()
    shell = shells.index.flatten().long()
    goal = torch.zeros_like(shells.k).index_add_(0, shell, painted) / torch.bincount(shell)
    x = shells.k / grid.k_nyq
    x, goal = x[x < 1], goal[x < 1]
    profiles = mark.profiles.double()
    mine = [p for name, p in profiles.named_parameters() if name != "coefficients" and _is_monopole(name)]
    mine += [profiles.coefficients] if mark.profiles.radial == "gaussians" else []
    _minimised(mine, lambda: ((profiles(x)[0] - goal) ** 2).mean())
    mark.profiles.float()


def _is_monopole(name):
    return not name.startswith("residuals") or name.startswith("residuals.0.")


def _fit_response(mark, classical, delta, grid):
    """h_0 and the bias on quantiles of delta_R, which E0 is up to its factor Y_00."""
    with torch.no_grad():
        seen = mark.filtered(to_fourier(grid.checked(delta), grid), grid)[0].flatten().double()
    rank = torch.linspace(0, 1, QUANTILES, dtype=torch.float64)
    E0 = seen.sort().values[(rank * (len(seen) - 1)).round().long()]
    goal = classical.of_smoothed(E0 / NORM[0])
    responses = mark.responses.double()
    t = E0.sign() * E0.abs().log1p()

    def loss():
        h = torch.nn.functional.gelu(t[:, None] * responses.w[0] + responses.b[0]) @ responses.v[0]
        error = ((softplus(responses.bias + h) - goal) ** 2).mean() / goal.var()
        return error + RIDGE * sum((x**2).sum() for x in (responses.w[0], responses.b[0], responses.v[0]))

    # A start that already has a slope: from v = 0 the weights inside would not move.
    with torch.no_grad():
        responses.v[0] = torch.linspace(-0.1, 0.1, responses.v.shape[1])
    _minimised([responses.w, responses.b, responses.v, responses.bias], loss)
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
