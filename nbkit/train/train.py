"""Simulations to a trained mark: both stages of section 2.3, in one call that may be killed and called again."""

import json
import warnings
from copy import deepcopy
from dataclasses import asdict

import numpy as np
import torch
from torch import nn

from nbkit.mark import mark_settings, weights_hash
from nbkit.mark.additive import CLASSICAL, IMITATED_ON, imitation
from nbkit.mark.learned import LearnedMark
from nbkit.mesh.threads import generator
from nbkit.train.contrast import Heads
from nbkit.train.contrast_function import contrastive_function
from nbkit.train.data import WEIGHTS, TrainingData
from nbkit.train.objective import LEAST_VARIANCE
from nbkit.train.processes import Processes, chosen_device
from nbkit.train.recipe import as_json, default_recipe, recipe_named
from nbkit.train.run import claimed_folder, load_run
from nbkit.train.trainer import Trainer
from nbkit.universe.store import fingerprint

# Where the mark's filters begin to fade, in units of k_Nyq.
TAPER_BEGINS = 0.85


def train(
    simulations,
    out,
    *,
    recipe=None,
    kmax=0.3,
    l_max=2,
    radial="fourier",
    cross=True,
    residual=True,
    mark=None,
    seed=0,
    device="auto",
    memory=None,
    checkpoint_every=30.0,
    stop=None,
    on_epoch=None,
    progress=None,
    fresh=False,
):
    """Train a mark on simulations, or go on where an earlier call was stopped or killed; gives the Run.

    Under `torchrun` every process makes the same call, and they share each batch.

    Parameters
    ----------
    simulations : a set of a suite, or anything with len(), `theta` (N, 5), `grid` and simulations[list] -> fields.
    out : folder for run.json, checkpoints and history.csv.
    recipe : "paper", "tuned", "warm" or a Recipe; default that of the grid, see `nbkit.train.recipe.default_recipe`.
    kmax : largest k of the spectra [h/Mpc].
    l_max, radial, cross : of the LearnedMark.
    residual : reward only what the mark adds to P_dd.
    mark : start from this module instead; a mark without parameters stays as it is and only heads are trained.
    seed : of weights, split, order and candidates.
    device : "auto", "cpu", "cuda", "cuda:1".
    memory : most bytes of fields to keep in memory [half of what is free]; 0 streams them.
    checkpoint_every, stop, on_epoch, progress : see `Trainer`.
    fresh : throw away what the folder holds of another run.
    """
    grid, processes = simulations.grid, Processes(chosen_device(device))
    recipe = recipe_named(recipe or default_recipe(grid))
    kmax = float(kmax)
    bins = grid.bins(kmax)  # refuses what the grid does not hold
    if kmax > TAPER_BEGINS * grid.k_nyq:
        warnings.warn(
            f"kmax is {kmax:.4g} h/Mpc, but the mark's filters fade from {TAPER_BEGINS * grid.k_nyq:.4g} h/Mpc on: "
            "spectra beyond that hold little of what the mark could see.",
            stacklevel=2,
        )
    for name, size in (("batch", recipe.batch), ("pretrain_batch", recipe.pretrain_batch)):
        if size % processes.size:
            raise ValueError(f"{name} is {size}, which {processes.size} processes cannot share; use a multiple.")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(generator(seed, WEIGHTS).initial_seed())
        heads = Heads(len(bins.k), recipe.width, recipe.dimension, residual)
        # A copy: the caller's mark keeps its weights, and a second call starts where the first did.
        searched = mark is None and recipe.start == "function"
        mark = _start(recipe, simulations, l_max, radial, cross, seed) if mark is None else deepcopy(mark)
    learned = isinstance(mark, nn.Module) and any(True for _ in mark.parameters())
    settings = {
        "recipe": as_json(recipe),
        "kmax": kmax,
        "residual": residual,
        "seed": seed,
        "grid": asdict(grid),
        "simulations": [len(simulations), fingerprint(simulations)],
        "mark": mark_settings(mark),
        "start": recipe.start if searched else weights_hash(mark) if learned else None,
    }
    settings = json.loads(json.dumps(settings))  # as it will be read back
    if processes.first:
        claimed_folder(out, settings, fresh)
    processes.wait()
    folder = claimed_folder(out, settings, False)
    shown = {"checkpoint_every": checkpoint_every, "stop": stop, "on_epoch": on_epoch, "show": progress}
    if searched:
        asked = {"kmax": kmax, "l_max": l_max, "residual": residual, "seed": seed, "processes": processes}
        found = contrastive_function(
            simulations, folder / "function", recipe, memory=memory, fresh=fresh, **asked, **shown
        )
        mark.load_state_dict(_imitated(found, simulations, l_max, radial, cross, seed).state_dict())
    data = TrainingData(simulations, recipe, kmax, seed, processes, memory)
    heads.to(processes.device)
    if learned:
        mark.to(processes.device)
    data.load_summaries(folder, None if learned and not recipe.head_epochs else mark)
    if recipe.standardise:
        heads.standardise("unmarked", data.S_delta[data.training])
        # Where the mark will move, of S_M as it is at M = 1; the heads' own stage, if there is one, knows better.
        unit = torch.cat([torch.zeros(2, len(bins.k)), torch.ones(2, len(bins.k))], dim=1)
        heads.standardise("marked", unit if learned else data.S_M[data.training], LEAST_VARIANCE)
    Trainer(data, mark, heads, recipe, folder, processes, **shown).train()
    processes.wait()
    return load_run(folder, None if isinstance(mark, LearnedMark) else mark, processes.device)


def _start(recipe, simulations, l_max, radial, cross, seed):
    """The mark that a recipe starts from."""
    if recipe.start == "classical":
        return _imitated(CLASSICAL, simulations, l_max, radial, cross, seed)
    mark = LearnedMark(simulations.grid, l_max, radial, cross)
    with torch.no_grad():
        mark.responses.v[0].normal_(0, recipe.kick)  # h_0 alone
    return mark


def _imitated(target, simulations, l_max, radial, cross, seed):
    boxes = np.linspace(0, len(simulations), IMITATED_ON, endpoint=False).astype(int).tolist()
    return imitation(target, simulations[boxes], simulations.grid, l_max, radial, cross, seed)[0]
