"""Where trainings begin: a classical mark, or the best additive mark, M = sum_a sum_j c_aj B_j(f_a), in the learned
mark's terms.

The spectra of an additive mark are quadratic in c (`nbkit.measure.cross`), so from cross spectra that are measured once
an epoch of contrast is a matter of a second, and information a function of some twenty numbers. Heads and c are trained
by the same loop as heads and mark.
"""

from copy import copy
from dataclasses import replace
from math import inf

import numpy as np
import torch
from torch import nn

from nbkit.mark.additive import NODES, SURVEYED, additive_mark, channels_of, ends_of, imitation
from nbkit.mark.classical import ClassicalMark
from nbkit.measure.cross import keep_cross_spectra, spectra_of
from nbkit.mesh.grid import to_fourier
from nbkit.mesh.spectra import marked_summary
from nbkit.mesh.threads import generator, seeded
from nbkit.train.contrast import LEAST_VARIANCE, Contrast, UnmarkedHeads, heads_for
from nbkit.train.data import DRAWN, WEIGHTS
from nbkit.train.fit import Objective, fit
from nbkit.train.information import cross_validated, sample_of
from nbkit.train.training import Recipe

# The classical mark to start from, of the 48 the best on sigma_8 at kmax = 0.2 h/Mpc; boxes to fit imitations on.
CLASSICAL, IMITATED_ON = ClassicalMark(2.0, 0.0), 8
# Smoothing scale of the filters by contrast, about half a cell of the presets; those to choose from on information:
# below and about a cell [Mpc/h]. Larger ones tell less (notebook 08).
R, SCALES = 4.0, (4.0, 7.0)
# M begins as exp(slope * density). Searches that begin falling and rising stay apart; those that fall end at a lower
# loss (figures/search_mini.json), and forecasts prefer them, too.
FALLING, RISING = -2.0, 1.0
# Learning rate of c, searches by contrast, with other heads to begin with (some end in marks whose summaries heads
# learn by heart), and steps of a search on information.
RATE, SEARCHES, STEPS = 0.03, 3, 300
# Training boxes over which the mean and scatter of S_M are taken, after every step.
FOLLOWED = 256


class Coefficients(nn.Module):
    """c (channels, nodes) of an additive mark; only their shape counts, so they are used with unit scatter.

    They begin as an exponential of the first channel and nothing of the others.

    Parameters
    ----------
    slope : of the exponential.
    """

    def __init__(self, channels, slope=FALLING, dtype=torch.float32):
        super().__init__()
        c = torch.zeros(channels, NODES, dtype=torch.float64)
        c[0] = (slope * torch.linspace(-1, 1, NODES, dtype=torch.float64)).exp()
        self.c = nn.Parameter(c.to(dtype))

    def forward(self):
        """c, flat."""
        return (self.c / self.c.detach().std()).flatten()


class ContrastSearch(Contrast):
    """Heads and coefficients by contrast; what a batch carries of a box are its cross spectra, (b, T).

    Parameters
    ----------
    data : Prior whose `S_M` are cross spectra.
    mark : Coefficients.
    rate : learning rate of the coefficients.
    """

    def __init__(self, data, heads, mark, rate=RATE):
        super().__init__(data, heads, mark)
        self.micro, self._rate = None, rate

    def groups(self):
        """Heads and coefficients."""
        recipe, heads = self.recipe, [self.heads.marked, self.heads.metric, self.heads.theta]
        decay = recipe.weight_decay if recipe.mark_decay is None else recipe.mark_decay
        return [(heads, recipe.learning_rate, recipe.weight_decay), ([self.mark], self._rate, decay)]

    def S_M(self, marked):
        """Marked summaries (m, 2b) from cross spectra."""
        return marked_summary(*spectra_of(marked, self.mark()).split(marked.shape[1], dim=-1))

    def start(self):
        """Show the heads the first mark as every later one."""
        self.moved(1.0)

    @torch.no_grad()
    def moved(self, factor):
        """Show the heads S_M with zero mean and unit scatter; of these spectra, that is known exactly."""
        self.heads.standardise("marked", self.S_M(self.data.S_M[self.data.training[:FOLLOWED]]), LEAST_VARIANCE)


class InformationSearch(Objective):
    """log sigma of coefficients, on average over the wanted parameters, by cross-validated halves.

    Parameters
    ----------
    table : `cross_spectra` of boxes, sizes[0] fiducial ones and sizes[1] pairs in the order of `sample_of`.
    mark : Coefficients in float64.
    wanted : rows of theta whose errors count.
    seed : of the halves.
    share : of the gradient, one over the number of processes that all do the same.
    """

    name, steps, batch, epochs = "marked", STEPS, 1, 1
    recipe = Recipe(schedule="cosine", warmup=0.0, clip=inf, learning_rate=RATE)

    def __init__(self, table, sizes, mark, wanted, seed, share=1.0):
        super().__init__()
        self.table, self.sizes, self.mark, self.wanted, self.seed = table, sizes, mark, wanted, seed
        self.share = share

    def groups(self):
        """The coefficients."""
        return [([self.mark], self.recipe.learning_rate, 0.0)]

    def step(self, i):
        """Gradients with one division into halves."""
        loss = self.share * self.loss(i)
        loss.backward()
        return loss

    def validate(self):
        """The mean over four more divisions."""
        return None, float(self.loss(STEPS, splits=4))

    def loss(self, word, splits=1):
        """Mean log sigma of the wanted parameters."""
        sample = sample_of(spectra_of(self.table, self.mark()), *self.sizes)
        return cross_validated(sample, generator(self.seed, DRAWN, word), splits)[self.wanted].mean()


def search_by_contrast(data, mark, residual, words, folder, rate=RATE, **how):
    """Lowest validation loss of one search, and the coefficients (channels, nodes) that have it.

    Parameters
    ----------
    data : Prior; its `S_M` are cross spectra.
    mark : the Coefficients to begin with.
    residual : whether only what z_m says beyond z_d counts.
    words : whole numbers that decide the heads to begin with.
    folder, how : see `fit`.
    """
    with seeded(WEIGHTS, *words):
        heads = heads_for(data, residual)
    unmarked = UnmarkedHeads(data, heads)
    before = fit(unmarked, folder, data.processes, **how)
    if not before.ended:
        return inf, mark.c.detach()
    if data.recipe.keep_metric:
        heads.metric.load_state_dict(unmarked.metric.state_dict())
    after = fit(ContrastSearch(data, heads, mark.to(data.device), rate), folder, data.processes, before.history, **how)
    return after.best_loss, mark.c.detach().cpu()


def best_by_contrast(data, training, folder, slope=FALLING, searches=SEARCHES, **how):
    """The AdditiveMark of E0, E1, E2 with the lowest InfoNCE, searched for in a folder or read from there.

    Parameters
    ----------
    data : Prior of the training that begins with this mark; heads and coefficients get its `head_epochs`.
    training : its Training.
    slope : of the mark that the searches begin with.
    searches : how many, with other heads to begin with; the best counts.
    """
    recipe, channels, simulations = data.recipe, channels_of(training.l_max, R), data.simulations
    delta_k = to_fourier(simulations[spread(simulations, SURVEYED)], data.grid)
    ends = ends_of(delta_k, data.grid, channels)
    searched = copy(data)
    searched.S_M = _cross(simulations, data, torch.arange(len(simulations)), channels, ends, torch.float32)
    searched.recipe = replace(
        recipe, head_epochs=0, epochs=recipe.head_epochs, learning_rate=recipe.pretrain_rate, start="unit"
    )
    found = [
        search_by_contrast(
            searched, Coefficients(len(channels), slope), training.residual, (training.seed, k), folder / str(k), **how
        )
        for k in range(searches)
    ]
    c = min(found, key=lambda each: each[0])[1].double()
    # Rounded, so that one process and several begin alike: an imitation amplifies the last bits of what it imitates.
    return additive_mark((c / c.std()).round(decimals=3), ends, channels, delta_k, data.grid)


def best_on_information(data, wanted, choices, seed, folder, **how):
    """The AdditiveMark with the most information on the training boxes, by cross-validated halves.

    Parameters
    ----------
    data : Neighbourhood; what it holds out is not looked at.
    wanted : rows of theta whose errors, marginalised over all five, are to become small.
    choices : channels to try, see `AdditiveMark`; the best of them is given.
    seed : of the halves.
    folder, how : see `fit`.
    """
    found, sizes = [], list(map(len, data.training))
    delta_k = to_fourier(data.joined[data.training[0][:SURVEYED].tolist()], data.grid)
    for i, channels in enumerate(choices):
        ends = ends_of(delta_k, data.grid, channels)
        table = _cross(data.joined, data, data.rows(*data.training), channels, ends, torch.float64)
        for slope in (FALLING, RISING):
            mark = Coefficients(len(ends), slope, torch.float64)
            search = InformationSearch(table, sizes, mark, wanted, seed, 1 / data.processes.size)
            loss = fit(search, folder / f"{i}_{slope:g}", data.processes, **how).best_loss
            found.append((loss, additive_mark(mark.c.detach(), ends, channels, delta_k, data.grid)))
    return min(found, key=lambda each: each[0])[1]


def start_mark(training, start, data, folder, **how):
    """The LearnedMark that a training starts from, or how far its search has come when it is asked to stop.

    Parameters
    ----------
    training : the Training.
    start : "classical" or "function".
    data : its Prior or Neighbourhood.
    folder, how : of the searches, see `fit`.
    """
    contrast, target = training.objective == "contrast", CLASSICAL
    if start == "function" and contrast:
        target = best_by_contrast(data, training, folder, **how)
    elif start == "function":
        choices = [channels_of(training.l_max, scale) for scale in SCALES]
        target = best_on_information(data, training.wanted, choices, training.seed, folder, **how)
    if contrast:
        delta = data.simulations[spread(data.simulations, IMITATED_ON)]
    else:
        delta = data.joined[data.training[0][:IMITATED_ON].tolist()]
    return imitation(target, delta, data.grid, training.seed, **training.mark_settings())[0]


def _cross(simulations, data, rows, channels, ends, dtype):
    """Cross spectra of boxes, measured by the first process."""
    asked, processes = (simulations, data, rows, channels, ends, dtype), data.processes
    if processes.first:
        keep_cross_spectra(*asked)
    processes.wait()
    return keep_cross_spectra(*asked, processes.device)


def spread(simulations, count):
    """So many rows, spread evenly over a set."""
    return np.linspace(0, len(simulations), count, endpoint=False).astype(int).tolist()
