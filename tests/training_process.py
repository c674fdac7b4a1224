"""A training in a process of its own: training_process.py FOLDER [function | steps|syncs|replaces COUNT].

"function" begins with the best sum of functions. With a moment given it ends itself,
as `kill -9` would, at the COUNT-th optimiser step, flush to disk or rename.
"""

import os
import signal
import sys
from dataclasses import replace
from pathlib import Path

import torch
from fake import FakeSet
from nbkit.train.recipe import Recipe
from nbkit.train.train import train

from nbkit.train.negatives import Negatives

RECIPE = Recipe(
    batch=8,
    pretrain_batch=8,
    pretrain_epochs=2,
    epochs=3,
    learning_rate=5e-3,
    plateau_patience=0,
    negatives=Negatives(n_real=16, n_global=32, n_local=4),
)


# The same from the best sum of functions, as the default of `mini`.
FROM_FUNCTION = replace(RECIPE, standardise=True, schedule="cosine", head_epochs=2, start="function")


def bomb(moment, count):
    """Callable that kills this process when called for the COUNT-th time."""
    left = [int(count)]

    def tick(*_):
        left[0] -= 1
        if left[0] == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return False

    return tick


def main(folder, moment=None, count=0):
    torch.set_num_threads(1)
    tick = bomb(moment, count)
    if moment == "syncs":
        os.fsync = tick
    if moment == "replaces":
        really = Path.replace
        Path.replace = lambda self, target: tick() or really(self, target)
    stop = tick if moment == "steps" else None
    recipe = FROM_FUNCTION if moment == "function" else RECIPE
    train(FakeSet(40), folder, recipe=recipe, kmax=0.3, seed=3, checkpoint_every=0.0, stop=stop, device="cpu")


if __name__ == "__main__":
    main(*sys.argv[1:])
