"""InfoNCE of a mark as it is, from spectra alone: heads are trained anew on it, no field is read."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
from nbkit.train.objective import LEAST_VARIANCE
from nbkit.train.trainer import Trainer

from nbkit.mesh.grid import Grid
from nbkit.mesh.spectra import marked_summary, unmarked_summary
from nbkit.mesh.threads import generator
from nbkit.train.contrast import Heads
from nbkit.train.data import WEIGHTS, TrainingData
from nbkit.train.processes import Processes
from nbkit.train.run import load_run


@dataclass(frozen=True, eq=False)
class Boxes:
    """All that training heads asks of simulations whose summaries are known: thetas (N, 5), and a Grid."""

    theta: np.ndarray
    grid: Grid

    def __len__(self):
        return len(self.theta)


def info_nce_of(power, label, grid, recipe, kmax, residual=True, seed=0):
    """The lowest validation loss of heads on a mark that does not change, as `nbkit.train.train` gives it for one.

    Parameters
    ----------
    power : Measurement of the training set.
    label : of the mark among them.
    grid : Grid of the boxes.
    recipe, kmax, residual, seed : as of `nbkit.train.train`; kmax is at most that of the spectra.
    """
    power, processes = power.cut(kmax), Processes(torch.device("cpu"))
    data = TrainingData(Boxes(power.theta, grid), recipe, kmax, seed, processes, 0)
    P_dd, P_dm, P_mm = torch.from_numpy(power[label]).float().unbind(1)
    data.S_delta, data.S_M = unmarked_summary(P_dd), marked_summary(P_dd, P_dm, P_mm)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(generator(seed, WEIGHTS).initial_seed())
        heads = Heads(len(power.k), recipe.width, recipe.dimension, residual)
    if recipe.standardise:
        heads.standardise("unmarked", data.S_delta[data.training])
        heads.standardise("marked", data.S_M[data.training], LEAST_VARIANCE)
    with TemporaryDirectory() as folder:
        shown = {"checkpoint_every": float("inf"), "stop": None, "on_epoch": None, "show": False}
        trainer = Trainer(data, None, heads, recipe, Path(folder), processes, **shown)
        trainer.train()
    return trainer.progress.best_loss


@dataclass(frozen=True)
class FrozenMark:
    """The trained mark of a run as it is: something to train heads on.

    Parameters
    ----------
    run : folder of the run.
    """

    run: str

    @cached_property
    def mark(self):
        """The mark itself."""
        return load_run(self.run).mark

    def __call__(self, delta, grid):
        """M(x), shape (..., n, n, n)."""
        return self.mark.to(delta.device)(delta, grid)
