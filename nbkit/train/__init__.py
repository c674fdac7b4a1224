"""Simulations -> a trained mark: the stages of section 2.3, or information at the fiducial point, in one call that may
be killed and called again."""

import sys
import warnings
from copy import deepcopy
from pathlib import Path

import torch
from torch import nn

from nbkit.disk import read_tensors, runs, write_tensors
from nbkit.mark import identity, mark_settings, weights_hash
from nbkit.mark.learned import LearnedMark
from nbkit.mesh.threads import seeded
from nbkit.train.contrast import LEAST_VARIANCE, Contrast, Heads, MarkedHeads, UnmarkedHeads, heads_for
from nbkit.train.data import WEIGHTS, Prior
from nbkit.train.fit import TrainingDiverged, fit, part
from nbkit.train.information import Information
from nbkit.train.neighbourhood import Joined, Neighbourhood
from nbkit.train.processes import Processes, choose_device, follow
from nbkit.train.run import Run, bundled_runs, claim, load, own_runs, read, settings_of
from nbkit.train.search import start_mark
from nbkit.train.training import OBJECTIVES, RECIPES, STARTS, Recipe, Training, parser
from nbkit.universe.store import fingerprint

__all__ = [
    "OBJECTIVES",
    "RECIPES",
    "Heads",
    "Recipe",
    "Run",
    "Training",
    "TrainingDiverged",
    "bundled_runs",
    "fixed_losses",
    "follow",
    "load",
    "own_runs",
    "train",
]
# Where the mark's filters begin to fade, in units of k_Nyq.
TAPER_BEGINS = 0.85
# Scatter of the output weights at the start "unit" of information. At M = 1 itself P_dm and P_mm repeat P_dd, and which
# way to go is not defined: information does not change when M - 1 is made smaller, only when it becomes 0.
UNIT_SCATTER = 0.1


def train(
    training,
    simulations=None,
    folder=None,
    *,
    mark=None,
    fixed=None,
    data_root=None,
    device="auto",
    memory=None,
    checkpoint_every=30.0,
    stop=None,
    on_epoch=None,
    progress=None,
    fresh=False,
):
    """Train a mark, or go on where an earlier call was stopped or killed; gives the Run.

    Under `torchrun` every process makes the same call, and they share the work.

    Parameters
    ----------
    training : the Training.
    simulations : what to train on [the suite of its preset]: over the prior anything with len(), `theta` (N, 5), `grid`
        and simulations[list] -> fields; on information a dict with "fiducial" and the ten derivative sets.
    folder : of run.json, checkpoints and history.csv [named after the training, in `train` of `nbkit.disk.runs()`].
    mark : a module to start from instead.
    fixed : a mark that stays as it is; heads alone learn to read it.
    data_root : folder with Quijote's files, see `suite`.
    device : "auto", "cpu", "cuda", "cuda:1".
    memory : most bytes of fields to keep in memory [half of what is free]; 0 streams them.
    checkpoint_every, stop, on_epoch, progress : see `fit`.
    fresh : throw away what the folder holds of another run.
    """
    processes, contrast = Processes(choose_device(device)), training.objective == "contrast"
    if fixed is not None and not contrast:
        raise ValueError("objective is 'information', which trains no heads to read a fixed mark; see fixed_losses.")
    if mark is not None and not isinstance(mark, nn.Module):
        raise TypeError(f"mark is a {type(mark).__name__}, which has nothing to train; give a module, or use `fixed`.")
    simulations = training.simulations(data_root) if simulations is None else simulations
    if isinstance(simulations, dict) == contrast:
        wanted = "one set over the prior" if contrast else "a suite of the sets around the fiducial point"
        what = type(simulations).__name__
        raise TypeError(f"objective is {training.objective!r}, but simulations is a {what}; give {wanted}.")
    joined = simulations if contrast else Joined(simulations)
    recipe = training.recipe_for(joined.grid)
    _check(training, recipe, joined.grid, processes)
    if mark is None and training.start not in ("default", *STARTS):
        mark = load(training.start).mark
    start = weights_hash(mark) if mark is not None else identity(fixed) if fixed is not None else recipe.start
    # A copy: the caller's mark keeps its weights, and a second call starts where the first did.
    mark = deepcopy(fixed or mark) or LearnedMark(joined.grid, **training.mark_settings())
    what = [len(joined), fingerprint(joined)] if contrast else [joined.fiducial, joined.pairs, joined.fingerprint]
    more = {"simulations": what, "start": start} | ({} if contrast else {"seeds": joined.seeds})
    settings = settings_of(training, recipe, joined.grid, mark_settings(mark), **more)
    name = training.name if fixed is None else f"{training.name}_fixed-{start[:8]}"
    folder = runs() / "train" / name if folder is None else Path(folder).expanduser()
    if contrast:
        data = Prior(simulations, recipe, training.kmax, training.seed, processes, memory)
    else:
        data = Neighbourhood(simulations, training.kmax, recipe.validation, training.seed, processes, memory)
    # Only now, when nothing impossible has been asked for.
    if processes.first:
        claim(folder, settings, fresh)
    processes.wait()
    claim(folder, settings, False)
    own = None if isinstance(mark, LearnedMark) else mark
    if (folder / "marked.safetensors").exists() and (run := read(folder, own, processes.device)).finished:
        return run
    how = {"checkpoint_every": checkpoint_every, "stop": _Stop(stop), "on_epoch": on_epoch, "show": progress}
    about = data, training, recipe, start, mark, folder, processes, how
    objectives = _over_prior(*about, fixed) if contrast else _at_fiducial(*about)
    history = ()
    for objective in objectives:
        now = fit(objective, folder, processes, history, **how)
        if not now.ended:
            break
        history = now.history
    processes.wait()
    return read(folder, own, processes.device)


def _over_prior(data, training, recipe, start, mark, folder, processes, how, fixed):
    """The objectives of a training by contrast, in turn; each holds its best weights when the next one is asked for."""
    data.load_summaries()
    with seeded(training.seed, WEIGHTS):
        heads, first = heads_for(data, training.residual), LearnedMark(data.grid, **training.mark_settings())
        if start == "unit":
            torch.nn.init.normal_(first.responses.v[0], 0, recipe.kick)  # h_0 alone
            mark.load_state_dict(first.state_dict())
    if _begin(mark, training, start, data, folder, processes, how, write=isinstance(fixed, nn.Module)):
        return
    start_loss = None
    if fixed is not None or recipe.head_epochs:
        data.load_summaries(mark)
    if recipe.standardise:
        # Where the mark will move, of S_M as it is at M = 1.
        unit = torch.cat([torch.zeros_like(data.S_delta[:2]), torch.ones_like(data.S_delta[:2])], dim=1)
        heads.standardise("marked", unit if data.S_M is None else data.S_M[data.training], LEAST_VARIANCE)
    unmarked = UnmarkedHeads(data, heads)
    yield unmarked
    if recipe.keep_metric:
        heads.metric.load_state_dict(unmarked.metric.state_dict())
    if fixed is None and recipe.head_epochs:
        reading = MarkedHeads(data, heads, mark)
        yield reading
        start_loss = reading.best_loss
    yield Contrast(data, heads, None if fixed is not None else mark, start_loss)


def _at_fiducial(data, training, recipe, start, mark, folder, processes, how):
    """The objective of a training on information."""
    if start == "unit":
        with seeded(training.seed, WEIGHTS):
            mark.load_state_dict(LearnedMark(data.grid, **training.mark_settings()).state_dict())
            torch.nn.init.normal_(mark.responses.v, 0, UNIT_SCATTER)
    if not _begin(mark, training, start, data, folder, processes, how):
        yield Information(data, mark, recipe, training.wanted, training.seed)


def _begin(mark, training, start, data, folder, processes, how, write=False):
    """Put the weights it starts with into a mark, from start.safetensors once they are known; and it on its device.

    Gives whether the search for them was stopped; then the file has what was best so far.
    """
    path = folder / "start.safetensors"
    known, stopped = path.exists() and not read_tensors(path)[1].get("stopped"), False
    if start in ("classical", "function") and not known:
        mark.load_state_dict(start_mark(training, start, data, folder / "start", **how).state_dict())
        write, stopped = True, processes.total(float(how["stop"].asked))[0] > 0
    processes.wait()
    if write and processes.first:
        tensors = {f"weights.mark.{name}": x for name, x in mark.state_dict().items()}
        write_tensors(path, tensors, {"stopped": stopped})
    processes.wait()
    if path.exists():
        mark.load_state_dict(part(read_tensors(path)[0], "weights.mark"))
    if isinstance(mark, nn.Module):
        mark.to(processes.device)
    return stopped


def fixed_losses(training, marks, simulations=None, *, data_root=None, device="auto", memory=None):
    """{label: loss} of marks that do not learn, on the boxes that a training on information would hold out.

    Parameters
    ----------
    training, simulations, data_root, device, memory : as of `train`.
    marks : {label: mark}.
    """
    simulations = training.simulations(data_root) if simulations is None else simulations
    recipe = training.recipe_for(simulations["fiducial"].grid)
    processes = Processes(choose_device(device))
    data = Neighbourhood(simulations, training.kmax, recipe.validation, training.seed, processes, memory)
    losses = {}
    for label, mark in marks.items():
        data.centre_on(mark)
        table = data.table(mark, data.rows(*data.held_out))
        losses[label] = data.loss(table, data.held_out, training.wanted, training.seed)
    return losses


def main(line=None):
    """Train from a shell, in one process or, under `torchrun`, in many; a line an epoch for a log."""
    asked = vars(parser().parse_args(line))
    about = {name: asked.pop(name) for name in ("folder", "data_root", "device")}

    def tell(objective, now):
        row = now.history[-1]
        losses = f"training {row['train_loss']:.4f}, validation {row['val_loss']:.4f}"
        sys.stdout.write(f"{row['stage']} epoch {row['epoch']}: {losses}, {row['seconds']:.1f} s\n")
        sys.stdout.flush()

    train(Training(**asked), on_epoch=tell, **about)


class _Stop:
    """A request to stop: once made it stands."""

    def __init__(self, stop):
        self._stop, self.asked = stop, False

    def __call__(self):
        self.asked = self.asked or bool(self._stop and self._stop())
        return self.asked


def _check(training, recipe, grid, processes):
    grid.bins(training.kmax)  # refuses what the grid does not hold
    if training.kmax > TAPER_BEGINS * grid.k_nyq:
        warnings.warn(
            f"kmax is {training.kmax:.4g} h/Mpc, but the mark's filters fade from {TAPER_BEGINS * grid.k_nyq:.4g} "
            "h/Mpc on: spectra beyond that hold little of what the mark could see.",
            stacklevel=3,
        )
    for name, size in (("batch", recipe.batch), ("pretrain_batch", recipe.pretrain_batch)):
        if training.objective == "contrast" and size % processes.size:
            raise ValueError(f"{name} is {size}, which {processes.size} processes cannot share; use a multiple.")
