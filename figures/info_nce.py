"""InfoNCE of a mark as it is, from spectra alone: heads are trained anew on it, no field is read."""

from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from nbkit.mesh.spectra import marked_summary, unmarked_summary
from nbkit.mesh.threads import choose_device, seeded
from nbkit.train.data import WEIGHTS, Prior
from nbkit.train.fit import Processes, fit_stages
from nbkit.train.objectives import Contrast, UnmarkedHeads, heads_for

CPU = Processes(choose_device("cpu"))


class Boxes:
    """All that training heads asks of simulations whose summaries are known: thetas (N, 5), and a Grid."""

    def __init__(self, theta, grid):
        self.theta, self.grid = theta, grid

    def __len__(self):
        return len(self.theta)


def info_nce_of(power, label, training, grid):
    """The lowest validation loss of heads on a mark that does not change: that of `nbkit.train` with it as `fixed`.

    Parameters
    ----------
    power : Measurement of the training set, at least up to the kmax of the training.
    label : of the mark among them.
    training : the Training; of it kmax, residual, seed and all that its recipe says of heads count.
    grid : Grid of the boxes.
    """
    power, recipe = power.cut(training.kmax), training.recipe_for(grid)
    data = Prior(Boxes(power.theta, grid), recipe, training.kmax, training.seed, CPU)
    P_dd, P_dm, P_mm = torch.from_numpy(power[label]).float().unbind(1)
    data.S_delta, data.S_M = unmarked_summary(P_dd), marked_summary(P_dd, P_dm, P_mm)
    with seeded(training.seed, WEIGHTS):
        heads = heads_for(data, training.residual)
    if recipe.standardise:
        heads.standardise("marked", data.S_M[data.training])
    stages = UnmarkedHeads(data, heads), Contrast(data, heads)
    with TemporaryDirectory() as folder:
        return fit_stages(stages, Path(folder), CPU, checkpoint_every=float("inf"), show=False).best_loss
