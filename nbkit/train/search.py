"""Where trainings begin: a classical mark, or the best additive mark, M = sum_a sum_j c_aj B_j(f_a), in the learned
mark's terms.

The spectra of an additive mark are quadratic in c (`nbkit.measure.cross`), so from cross spectra that are measured once
an epoch of contrast is a matter of a second, and information a function of some twenty numbers. Heads and c are trained
by the same loop as heads and mark.
"""

from copy import copy
from dataclasses import replace
from functools import partial
from math import inf

import torch
from torch import nn

from nbkit.mark.additive import NODES, SURVEYED, additive_mark, channels_of, ends_of, imitation
from nbkit.mark.classical import ClassicalMark
from nbkit.measure.cross import keep_cross_spectra, spectra_of
from nbkit.mesh.grid import to_fourier
from nbkit.mesh.spectra import marked_summary
from nbkit.mesh.threads import generator, seeded
from nbkit.train.data import DRAWN, WEIGHTS
from nbkit.train.fit import Objective, fit, fit_stages
from nbkit.train.information import cross_validated, sample_of
from nbkit.train.objectives import Contrast, UnmarkedHeads, heads_for
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

    They begin as exp(slope * first channel) and nothing of the others.
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
    """Heads and Coefficients, the mark, by contrast; the `S_M` of its Prior are cross spectra, (N, b, T)."""

    def __init__(self, data, heads, mark):
        super().__init__(data, heads, mark)
        self.micro = None

    def S_M(self, marked):
        """Marked summaries (m, 2b) from cross spectra."""
        return marked_summary(*spectra_of(marked, self.mark()).split(marked.shape[1], dim=-1))

    def start(self):
        self.moved(1.0)

    @torch.no_grad()
    def moved(self, factor):
        """Show the heads S_M with zero mean and unit scatter; of these spectra, that is known exactly."""
        self.heads.standardise("marked", self.S_M(self.data.S_M[self.data.training[:FOLLOWED]]))


class InformationSearch(Objective):
    """log sigma of Coefficients in float64, on average over the `wanted` rows of theta, by cross-validated halves; the
    `S_M` of its Neighbourhood are cross spectra of the training boxes."""

    name, steps, batch, epochs = "marked", STEPS, 1, 1
    recipe = Recipe(schedule="cosine", warmup=0.0, clip=inf, learning_rate=RATE, weight_decay=0.0)

    def __init__(self, data, mark, wanted):
        super().__init__()
        self.data, self.mark, self.learning, self.wanted = data, mark, [mark], wanted

    def step(self, i):
        loss = self.loss(i) / self.data.processes.size  # every process does the same
        loss.backward()
        return loss

    def validate(self):
        return None, float(self.loss(STEPS, splits=4))

    def loss(self, word, splits=1):
        """Mean log sigma of the wanted parameters, over so many divisions."""
        sample = sample_of(spectra_of(self.data.S_M, self.mark()), *map(len, self.data.training))
        return cross_validated(sample, generator(self.data.seed, DRAWN, word), splits)[self.wanted].mean()


def search_recipe(recipe):
    """Of a search by contrast, for a training of this Recipe: heads and coefficients get its `head_epochs`."""
    heads = {"head_epochs": 0, "epochs": recipe.head_epochs, "learning_rate": recipe.pretrain_rate, "theta_rate": 1.0}
    return replace(recipe, **heads, mark_rate=RATE / recipe.pretrain_rate, start="unit")


def search_by_contrast(data, mark, residual, words, folder, **how):
    """Lowest validation loss of one search from Coefficients, which then have it; `words` decide the first heads.

    `data` is the Prior of a `search_recipe`, with cross spectra as `S_M`; for folder and how see `fit`.
    """
    with seeded(WEIGHTS, *words):
        heads = heads_for(data, residual)
    now = fit_stages((UnmarkedHeads(data, heads), ContrastSearch(data, heads, mark)), folder, data.processes, **how)
    return now.best_loss if now.stage == "marked" else inf


def best_function(data, training, folder, choices=None, slopes=None, **how):
    """The AdditiveMark with the lowest loss of a Training, searched for in a folder or read from there; see `fit`.

    Parameters
    ----------
    data : its Prior, or Neighbourhood, of which what is held out is not looked at.
    choices : channels to try, see `AdditiveMark` [E0, or E0 and E1, or all three, behind a filter of the usual scales].
    slopes : that the searches begin with [by contrast the same one several times, with other heads to begin with].
    """
    contrast, delta_k = training.objective == "contrast", to_fourier(data.some(SURVEYED), data.grid)
    choices = choices or [channels_of(training.l_max, scale) for scale in ((R,) if contrast else SCALES)]
    slopes = slopes or ((FALLING,) * SEARCHES if contrast else (FALLING, RISING))
    rows = torch.arange(len(data.simulations)) if contrast else data.rows(*data.training)
    dtype, searched, found = torch.float32 if contrast else torch.float64, copy(data), []
    searched.recipe = search_recipe(data.recipe) if contrast else None
    for i, channels in enumerate(choices):
        ends = ends_of(delta_k, data.grid, channels)
        asked = data.simulations, data, rows, channels, ends, dtype, data.device
        searched.S_M = data.processes.in_turn(partial(keep_cross_spectra, *asked))
        for k, slope in enumerate(slopes):
            mark, place = Coefficients(len(ends), slope, dtype).to(data.device), folder / f"{i}_{k}"
            if contrast:
                loss = search_by_contrast(searched, mark, training.residual, (training.seed, k), place, **how)
            else:
                search = InformationSearch(searched, mark, training.wanted)
                loss = fit(search, place, data.processes, **how).best_loss
            found.append((loss, mark.c.detach().cpu(), ends, channels))
    _, c, ends, channels = min(found, key=lambda each: each[0])
    if contrast:
        # Rounded, so that one process and several begin alike: an imitation amplifies the last bits of what it repeats.
        c = (c.double() / c.double().std()).round(decimals=3)
    return additive_mark(c, ends, channels, delta_k, data.grid)


def start_mark(training, start, data, folder, **how):
    """The LearnedMark of a start "classical" or "function", or how far its search has come when it is asked to stop."""
    target = CLASSICAL if start == "classical" else best_function(data, training, folder, **how)
    return imitation(target, data.some(IMITATED_ON), data.grid, training.seed, **training.mark_settings(data.grid))[0]
