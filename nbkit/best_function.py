"""The best mark that is a function of the smoothed density, M = sum_j c_j B_j(delta_R), with no mark in the loop.

Such a mark is linear in c: P_dm = sum_j c_j P_dj and P_mm = sum_jk c_j c_k P_jk. The cross spectra of the fields
B_j (1 + delta) are measured once, and the information is then a function of a dozen numbers.
"""

from dataclasses import dataclass

import torch

from nbkit.batches import DRAWN, generator
from nbkit.grid import to_fourier, to_real
from nbkit.information import Sample, cross_validated, wanted_rows
from nbkit.mark import smoothing_kernel
from nbkit.neighbourhood import Joined
from nbkit.suite import DERIVATIVES

# Nodes of B_j in sgn(delta) log(1 + |delta|): from deep voids, -0.9, to knots, 1.5. Beyond them M stays constant.
LOW, HIGH, NODES = -0.65, 0.9, 10
STEPS, RATE = 240, 0.02


@dataclass(frozen=True)
class DensityMark:
    """M = sum_j c_j B_j(delta_R), shifted to be positive.

    Parameters
    ----------
    coefficients : c_j, one for each of the NODES bumps; the first and the last are steps.
    R : smoothing scale of delta_R [Mpc/h].
    """

    coefficients: tuple
    R: float = 10.0
    smoothing: str = "gaussian"

    def __call__(self, delta, grid):
        """M(x), shape (..., n, n, n), of a density contrast of that shape."""
        return self.of_modes(to_fourier(grid.checked(delta), grid), grid)

    def of_modes(self, delta_k, grid):
        """As the call, for a field already transformed."""
        return self.of_smoothed(to_real(delta_k * smoothing_kernel(self.smoothing, self.R, grid, delta_k), grid))

    def of_smoothed(self, delta_R):
        """As the call, for a field already smoothed."""
        every = torch.linspace(LOW - 0.5, HIGH + 0.5, 500, dtype=torch.float64)
        c = torch.tensor(self.coefficients, dtype=torch.float64)
        curve = c @ _bumps(every)
        low, span = curve.min(), curve.max() - curve.min()
        M = (c.to(delta_R) @ _bumps(_seen(delta_R)).flatten(1)).reshape(delta_R.shape)
        return 0.1 + 4 * (M - float(low)) / float(span)


def _seen(delta_R):
    return delta_R.sign() * delta_R.abs().log1p()


def _bumps(t):
    """B_j(t), (NODES, ...)."""
    width = (HIGH - LOW) / (NODES - 1)
    rows = [torch.sigmoid((LOW + width / 2 - t) / (width / 4))]
    rows += [torch.exp(-0.75 * ((t - LOW) / width - j) ** 2) for j in range(1, NODES - 1)]
    return torch.stack([*rows, torch.sigmoid((t - HIGH + width / 2) / (width / 4))])


@torch.no_grad()
def cross_spectra(simulations, R, kmax):
    """(boxes, b, T) spectra of all pairs of the fields delta, B_1 (1 + delta), ... of each box, T pairs in a row."""
    boxes = Joined(simulations)
    grid = boxes.grid
    bins = grid.bins(kmax)
    order = torch.argsort(bins.bin, stable=True)
    mode, root = bins.mode[order].long(), bins.weight[order].sqrt()
    sizes = torch.bincount(bins.bin.long()).tolist()
    first, second = torch.triu_indices(NODES + 1, NODES + 1)
    table = []
    for row in range(len(boxes)):
        delta = boxes[[row]][0]
        delta_k = to_fourier(delta, grid)
        delta_R = to_real(delta_k * smoothing_kernel("gaussian", R, grid, delta_k), grid)
        marked = to_fourier(_bumps(_seen(delta_R)) * (1 + delta), grid)
        modes = torch.cat([delta_k[None], marked]).flatten(1)[:, mode] * root
        grams = [(x @ x.conj().T).real[first, second] for x in modes.split(sizes, dim=1)]
        table.append(torch.stack(grams).double())
    return torch.stack(table), boxes


def spectra_of(table, c):
    """(boxes, 3 b) P_dd, P_dm, P_mm of the mark with coefficients c, from `cross_spectra`."""
    first, second = torch.triu_indices(NODES + 1, NODES + 1)
    c = torch.cat([c.new_zeros(1), c])
    twice = torch.where(first == second, 1, 2)
    return torch.cat([table[..., 0], table[..., first == 0] @ c, table @ (twice * c[first] * c[second])], dim=-1)


def best_function(simulations, kmax, parameters=("Omega_m", "sigma_8"), R=10.0, seed=0):
    """The DensityMark with the most information on these simulations, from cross-validated halves.

    Parameters
    ----------
    simulations : a suite, or a dict of sets, with "fiducial" and the ten derivative sets; those to train on.
    kmax : largest k of the spectra [h/Mpc].
    parameters : whose errors, marginalised over all five, are to become small.
    R : smoothing scale [Mpc/h].
    seed : of the halves.
    """
    wanted = wanted_rows(parameters)
    table, boxes = cross_spectra(simulations, R, kmax)
    t = torch.linspace(LOW, HIGH, NODES, dtype=torch.float64)
    c = (-2 * t).exp().requires_grad_(True)  # falls with density, like the better classical marks
    optimizer = torch.optim.Adam([c], lr=RATE)
    for step in range(STEPS):
        s = spectra_of(table, c / c.detach().std())
        fiducial, pairs = s.split([boxes.fiducial, len(boxes) - boxes.fiducial])
        sample = Sample(fiducial, pairs.reshape(len(DERIVATIVES) // 2, 2, boxes.pairs, -1))
        loss = cross_validated(sample, generator(seed, DRAWN, step), splits=1)[wanted].mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return DensityMark(tuple((c / c.std()).tolist()), R)
