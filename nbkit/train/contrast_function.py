"""The additive mark that tells cosmologies apart best: contrast with no mark in the loop.

The spectra of M = sum_a sum_j c_aj B_j(f_a) are quadratic in c (`nbkit.train.search`), so cross spectra that are
measured once make an epoch of contrastive training a matter of a second. Heads and c are trained together, as heads and
mark are, in a run of its own: checkpoints, history, resume and processes are the trainer's.
"""

import json
from dataclasses import asdict, replace
from math import inf
from shutil import rmtree

import numpy as np
import torch
from torch import nn

from nbkit.disk import read_tensors
from nbkit.mark.additive import SURVEYED, additive, channels_of, ends_of
from nbkit.measure.cross import keep_cross_spectra, spectra_of
from nbkit.mesh.grid import to_fourier
from nbkit.mesh.summaries import marked_summary
from nbkit.mesh.threads import generator
from nbkit.train.contrast import Heads
from nbkit.train.data import WEIGHTS, TrainingData
from nbkit.train.objective import LEAST_VARIANCE, MarkedObjective
from nbkit.train.recipe import as_json
from nbkit.train.run import claimed_folder
from nbkit.train.search import started
from nbkit.train.trainer import Stage, Trainer
from nbkit.universe.store import fingerprint

# Smoothing scale of the filters, about half a cell of the presets [Mpc/h], and learning rate of c.
R, RATE = 4.0, 0.03
# Searches, with other heads to begin with: some end in marks whose summaries heads learn by heart.
SEARCHES = 3
# M begins as exp(slope * density). Searches that begin falling and rising stay apart; those that fall end at a lower
# loss (figures/search_mini.json), and forecasts prefer them, too.
FALLING, RISING = -2.0, 1.0
# Training boxes over which the mean and scatter of S_M are taken, after every step.
FOLLOWED = 256


class Coefficients(nn.Module):
    """c (channels, nodes) of an additive mark; only their shape counts, so they are used with unit scatter."""

    def __init__(self, channels, slope=FALLING):
        super().__init__()
        self.c = nn.Parameter(started(channels, slope).float())

    def forward(self):
        """c, flat."""
        return (self.c / self.c.detach().std()).flatten()


class FunctionObjective(MarkedObjective):
    """Stage two for an additive mark; what a batch carries of a box are its cross spectra, (b, T).

    Parameters
    ----------
    followed : (m, b, T) cross spectra of the boxes that tell how the heads see S_M.
    """

    def __init__(self, mark, heads, data, temperature, followed):
        super().__init__(mark, heads, data.grid, data.kmax, temperature)
        self._followed = followed

    def S_M(self, cross):
        """Marked summaries (m, 2b) from cross spectra."""
        power = spectra_of(cross, self.mark()).split(cross.shape[1], dim=-1)
        return marked_summary(*power)

    def forward(self, batch):
        """The sum of the anchors' InfoNCE."""
        return super().forward(batch._replace(marked=self.S_M(batch.marked)))

    @torch.no_grad()
    def follow(self, *_):
        """Show the heads S_M with zero mean and unit scatter; of these spectra, that is known exactly."""
        self.heads.standardise("marked", self.S_M(self._followed), LEAST_VARIANCE)


class FunctionTrainer(Trainer):
    """Trains heads and, at a `rate` of their own, coefficients; `data.S_M` are cross spectra."""

    rate = RATE

    def _marked(self):
        heads, recipe, data = self.heads, self.recipe, self.data
        objective = FunctionObjective(self.mark, heads, data, recipe.temperature, data.S_M[data.training[:FOLLOWED]])
        if not self.progress.epoch and not self.progress.step:
            objective.follow()
        groups = [([heads.marked, heads.metric, heads.theta], recipe.learning_rate), ([self.mark], self.rate)]
        return Stage("marked", 1, objective, groups, recipe.batch, recipe.epochs, "best.safetensors", None)


def contrastive_function(
    simulations,
    out,
    recipe,
    kmax,
    l_max,
    residual,
    seed,
    processes,
    memory,
    fresh,
    slope=FALLING,
    searches=SEARCHES,
    **trainer,
):
    """The AdditiveMark of E0, E1, E2 with the lowest InfoNCE, trained in the folder `out` or read from there.

    Parameters
    ----------
    simulations, kmax, residual, seed, processes, memory, fresh : as of `nbkit.train.train`.
    recipe : of the training that begins with this mark; heads and coefficients get its `head_epochs`.
    l_max : 0, 1 or 2: functions of E0; E0 and E1; E0, E1 and E2.
    slope : of the mark that the searches begin with.
    searches : how many, with other heads to begin with; the best counts.
    trainer : passed to `Trainer`.
    """
    recipe = replace(recipe, start="unit", head_epochs=0, epochs=recipe.head_epochs, learning_rate=recipe.pretrain_rate)
    channels = channels_of(l_max, R)
    settings = {"recipe": as_json(recipe), "kmax": kmax, "residual": residual, "seed": seed, "channels": channels}
    settings |= {} if slope == FALLING else {"slope": slope}
    settings |= {"grid": asdict(simulations.grid), "simulations": [len(simulations), fingerprint(simulations)]}
    settings = json.loads(json.dumps(settings))
    if processes.first:
        if fresh:
            rmtree(out, ignore_errors=True)
        claimed_folder(out, settings, fresh)
    processes.wait()
    folder = claimed_folder(out, settings, False)
    boxes = np.linspace(0, len(simulations), SURVEYED, endpoint=False).astype(int).tolist()
    delta_k = to_fourier(simulations[boxes], simulations.grid)
    ends = ends_of(delta_k, simulations.grid, channels)
    data = TrainingData(simulations, recipe, kmax, seed, processes, memory)
    data.load_summaries(folder)
    # The same for all seeds and recipes; the first process measures them, the others read.
    asked = simulations, data, torch.arange(len(simulations)), channels, ends, torch.float32
    if processes.first:
        keep_cross_spectra(*asked)
    processes.wait()
    data.S_M = keep_cross_spectra(*asked, device=processes.device)
    found = [
        searched(data, Coefficients(len(channels), slope), recipe, residual, (seed, k), folder / str(k), **trainer)
        for k in range(searches)
    ]
    c = min(found, key=lambda each: each[0])[1].double()
    # Rounded, so that one process and several begin alike: an imitation amplifies the last bits of what it imitates.
    return additive((c / c.std()).round(decimals=3), ends, channels, delta_k, simulations.grid)


def searched(data, mark, recipe, residual, seed, folder, rate=RATE, **trainer):
    """Lowest validation loss of one search, and the coefficients (channels, nodes) that have it.

    Parameters
    ----------
    data : TrainingData; its `S_M` are cross spectra.
    mark : the Coefficients to begin with.
    recipe, residual, folder, trainer : see `contrastive_function`.
    seed : whole numbers that decide the heads to begin with.
    rate : learning rate of the coefficients.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(generator(WEIGHTS, *seed).initial_seed())
        heads = Heads(data.S_delta.shape[1], recipe.width, recipe.dimension, residual)
    heads.standardise("unmarked", data.S_delta[data.training])
    device = data.processes.device
    search = FunctionTrainer(data, mark.to(device), heads.to(device), recipe, folder, data.processes, **trainer)
    search.rate = rate
    search.train()
    data.processes.wait()
    best = folder / "best.safetensors"  # a search may be stopped before it has one
    c = read_tensors(best)[0]["weights.mark.c"] if best.exists() else mark.c.detach().cpu()
    return search.progress.best_loss if best.exists() else inf, c
