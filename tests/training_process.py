"""Small trainings of every kind, here or in processes of their own that end themselves as `kill -9` would.

`torchrun training_process.py FOLDER` trains all of them, each in a folder of its name.
"""

import os
import signal
import sys
from dataclasses import replace
from functools import cache
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import torch
from fake import FakeSet

from nbkit import ClassicalMark, Grid, Training, train
from nbkit.train import Recipe, search
from nbkit.train.contrast import Negatives
from nbkit.universe.cosmology import FIDUCIAL, STEPS, derivative_thetas

GRID = Grid(12, 12 * 7.8125, "none")
RECIPE = Recipe(
    batch=8,
    pretrain_batch=8,
    pretrain_epochs=2,
    epochs=3,
    learning_rate=5e-3,
    plateau_patience=0,
    negatives=Negatives(n_real=16, n_global=32, n_local=4),
)
# Standardised, from the best sum of functions, as the default of `mini`.
WARM = replace(
    RECIPE, standardise=True, keep_metric=True, schedule="cosine", pretrain_rate=5e-3, head_epochs=2, start="function"
)
# Five bins and 30 pairs are little: more boxes a step, fewer steps.
ON_INFORMATION = replace(RECIPE, batch=100, learning_rate=2e-3, clip=1.0, schedule="cosine", validation=1 / 3)
CONTRAST = Training(kmax=0.3, seed=3, recipe=RECIPE)
INFORMATION = Training(objective="information", kmax=0.38, l_max=0, seed=3, recipe=ON_INFORMATION, start="function")
# Every kind of training, and the mark that stays as it is.
CASES = {
    "paper": (CONTRAST, None),
    "warm": (replace(CONTRAST, recipe=WARM, l_max=1), None),
    "fixed": (CONTRAST, ClassicalMark(1.0, 0.3)),
    "information": (INFORMATION, None),
}
FORK = get_context("forkserver")
FORK.set_forkserver_preload(["nbkit.train"])


class Boxes:
    """Skewed fields at one theta, the same phases for the same seeds: power in five shells, and skewness."""

    grid = GRID

    def __init__(self, theta, seeds, phases=None):
        self.seeds, self.theta = np.asarray(seeds), np.tile(theta, (len(seeds), 1))
        shift = 0.2 * (theta - FIDUCIAL) / STEPS
        phases = self.seeds if phases is None else phases
        noise = np.stack([np.random.default_rng(seed).standard_normal(GRID.shape) for seed in phases])
        shells = GRID.shells()
        shell = (shells.k / GRID.k_f).floor().clamp(1, 5)
        power = sum((1 + each) * (shell == i + 1) for i, each in enumerate(shift)) / shell
        modes = torch.fft.rfftn(torch.from_numpy(noise).float(), dim=(1, 2, 3)) * power.float()[shells.index]
        smooth = torch.fft.irfftn(modes, s=GRID.shape, dim=(1, 2, 3))
        density = torch.exp(smooth + shift[4] * smooth**2 / 2)
        self.fields = density / density.mean(dim=(1, 2, 3), keepdim=True) - 1

    def __len__(self):
        return len(self.seeds)

    def __getitem__(self, index):
        return self.fields[index]


@cache
def boxes(count=150, pairs=30):
    """Sets around the fiducial point."""
    sets = {name: Boxes(theta, range(10_000, 10_000 + pairs)) for name, theta in derivative_thetas().items()}
    return sets | {"fiducial": Boxes(FIDUCIAL, range(count))}


def noise_only(count=150, pairs=20, first=0):
    """As `boxes`, but up and down are unrelated boxes of the fiducial point: there is no derivative to be found."""
    sets = {"fiducial": Boxes(FIDUCIAL, range(first, first + count))}
    for i, name in enumerate(each for each in boxes() if each != "fiducial"):
        phases = range(first + 10_000 * (i + 1), first + 10_000 * (i + 1) + pairs)
        sets[name] = Boxes(FIDUCIAL, range(pairs), phases)
    return sets


@cache
def fake(count):
    """A FakeSet, made once."""
    return FakeSet(count)


def simulations_of(training):
    """What a case trains on."""
    return fake(40) if training.objective == "contrast" else boxes()


def stirred(mark):
    """A mark moved away from M = 1, so that every weight has a gradient."""
    with torch.no_grad():
        for parameter in mark.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return mark


def trained(training, folder, simulations=None, **options):
    """The Run of a Training, or of a case by name, on few small boxes."""
    if isinstance(training, str):
        training, options["fixed"] = CASES[training]
    simulations = simulations_of(training) if simulations is None else simulations
    return train(training, simulations, folder, **{"device": "cpu"} | options)


def shorten():
    """Searches on information of few steps: only their end is like that of long ones."""
    search.InformationSearch.steps, search.SCALES = 30, (8.0,)


def bomb(count):
    """Callable that kills this process when called for the COUNT-th time."""
    left = [count]

    def tick(*_):
        left[0] -= 1
        if left[0] == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return False

    return tick


def _train(case, folder, caches, moment, count):
    os.environ["NBKIT_RUNS"] = str(caches)
    torch.set_num_threads(1)
    shorten()
    tick = bomb(count)  # never, of 0
    if moment == "syncs":
        os.fsync = tick
    if moment == "replaces":
        really = Path.replace
        Path.replace = lambda self, target: tick() or really(self, target)
    trained(case, folder, checkpoint_every=0.0, stop=tick if moment == "steps" else None)


def in_a_process(case, folder, caches, moment=None, count=0):
    """Exit code of a process of its own that trains a case, and ends itself at its COUNT-th moment if one is given.

    Only fresh processes round alike to the last bit: what a long one did before decides where its memory lies.

    Parameters
    ----------
    caches : its $NBKIT_RUNS.
    moment : "steps" of the optimiser, "syncs" (flushes to disk) or "replaces" (renames).
    """
    child = FORK.Process(target=_train, args=(case, folder, caches, moment, count))
    child.start()
    child.join()
    return child.exitcode


def main(folder):
    torch.set_num_threads(1)
    shorten()
    for case in CASES:
        trained(case, Path(folder) / case)


if __name__ == "__main__":
    main(*sys.argv[1:])
