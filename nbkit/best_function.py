"""The best mark that is a function of the smoothed density, M = sum_j c_j B_j(delta_R), with no mark in the loop.

Such a mark is linear in c: P_dm = sum_j c_j P_dj and P_mm = sum_jk c_j c_k P_jk. The cross spectra of the fields
B_j (1 + delta) are measured once, and the information is then a function of a dozen numbers.
"""

from dataclasses import dataclass

import torch

from nbkit.batches import DRAWN, generator
from nbkit.grid import to_fourier, to_real
from nbkit.information import cross_validated, sample_of, wanted_rows
from nbkit.mark import smoothing_kernel

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
def cross_spectra(data, rows, R):
    """(m, b, T) spectra of all T pairs of the fields delta, B_1 (1 + delta), B_2 (1 + delta), ... of boxes, by row."""
    bins = data.grid.bins(data.kmax)
    order = torch.argsort(bins.bin, stable=True)
    mode, root = bins.mode[order].long(), bins.weight[order].sqrt()
    sizes = torch.bincount(bins.bin.long()).tolist()
    first, second = torch.triu_indices(NODES + 1, NODES + 1)
    table = []
    for delta in data.fields.parts(rows[:, None]):
        delta = delta[0].cpu()
        delta_k = to_fourier(delta, data.grid)
        delta_R = to_real(delta_k * smoothing_kernel("gaussian", R, data.grid, delta_k), data.grid)
        marked = to_fourier(_bumps(_seen(delta_R)) * (1 + delta), data.grid)
        modes = torch.cat([delta_k[None], marked]).flatten(1)[:, mode] * root
        grams = [(x @ x.conj().T).real[first, second] for x in modes.split(sizes, dim=1)]
        table.append(torch.stack(grams).double())
    return torch.stack(table)


def spectra_of(table, c):
    """(m, 3 b) P_dd, P_dm and P_mm of the mark with coefficients c, from `cross_spectra`."""
    first, second = torch.triu_indices(NODES + 1, NODES + 1)
    c = torch.cat([c.new_zeros(1), c])
    twice = torch.where(first == second, 1, 2)
    return torch.cat([table[..., 0], table[..., first == 0] @ c, table @ (twice * c[first] * c[second])], dim=-1)


def best_function(data, parameters, R=10.0, seed=0):
    """The DensityMark with the most information on the training boxes, by cross-validated halves.

    Parameters
    ----------
    data : Neighbourhood; what it holds out is not looked at.
    parameters : names of those whose errors, marginalised over all five, are to become small.
    R : smoothing scale [Mpc/h].
    seed : of the halves.
    """
    wanted, rows = wanted_rows(parameters), data.rows(*data.training)
    table = cross_spectra(data, rows, R)
    c = (-2 * torch.linspace(LOW, HIGH, NODES, dtype=torch.float64)).exp()  # falls with density
    optimizer = torch.optim.Adam([c.requires_grad_(True)], lr=RATE)
    for step in range(STEPS):
        sample = sample_of(spectra_of(table, c / c.detach().std()), *map(len, data.training))
        loss = cross_validated(sample, generator(seed, DRAWN, step), splits=1)[wanted].mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return DensityMark(tuple((c / c.std()).tolist()), R)
