"""The best additive mark, M = sum_a sum_j c_aj B_j(f_a) of the invariants f_a, with no mark in the loop.

Such a mark is linear in c: P_dm = sum_i c_i P_di and P_mm = sum_ij c_i c_j P_ij. The cross spectra of the fields
B_i (1 + delta) are measured once, and the information is then a function of some twenty numbers.
"""

import torch

from nbkit.forecast.information import cross_validated, sample_of, wanted_rows
from nbkit.mark.additive import NODES, SURVEYED, additive_mark, ends_of
from nbkit.measure.cross import cross_spectra, spectra_of
from nbkit.mesh.grid import to_fourier
from nbkit.mesh.threads import generator
from nbkit.train.data import DRAWN

# Smoothing scales to choose from [Mpc/h]: below and about a cell of the presets. Larger ones tell less (notebook 08).
SCALES = (4.0, 7.0)
# M begins as exp(slope * density); a search that begins falling and one that begins rising may end elsewhere.
SLOPES = (-2.0, 1.0)
STEPS, RATE = 300, 0.03


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
            found.append((loss, additive_mark(c, ends, channels, delta_k, data.grid)))
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
    wanted : see `nbkit.forecast.information.wanted_rows`.
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
