"""Simulations around the fiducial point to a mark that measures it well: the second objective, beside `nbkit.train`."""

import json
from copy import deepcopy
from dataclasses import asdict

import torch
from torch import nn

from nbkit.batches import WEIGHTS, generator
from nbkit.imitation import imitation
from nbkit.information_trainer import InformationTrainer
from nbkit.mark import ClassicalMark, LearnedMark
from nbkit.neighbourhood import Neighbourhood
from nbkit.processes import Processes, chosen_device
from nbkit.recipe import Recipe, as_json, recipe_named
from nbkit.run import claimed_folder, load_run, mark_settings, weights_hash
from nbkit.shipped import run_folder

INFORMATION = Recipe(
    batch=256,
    learning_rate=0.02,
    weight_decay=1e-4,
    clip=1.0,
    schedule="cosine",
    validation=1 / 3,
    epochs=10,
    patience=1000,
)
WANTED = ("Omega_m", "sigma_8")
# The classical mark to start from: the best of the 48 on sigma_8 at kmax = 0.2 h/Mpc.
CLASSICAL = ClassicalMark(2.0, 0.0)
# Scatter of the output weights at the start "unit". At M = 1 itself P_dm and P_mm repeat P_dd, and the way out is
# not defined: information does not change when M - 1 is made smaller, only when it becomes 0.
UNIT_SCATTER = 0.1


def train_information(
    simulations,
    out,
    *,
    recipe=INFORMATION,
    kmax=0.3,
    parameters=WANTED,
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
    """Train a mark on its Fisher information, or go on where an earlier call was stopped or killed; gives the Run.

    Under `torchrun` every process makes the same call, and they share the boxes. The Run has no heads.

    Parameters
    ----------
    simulations : a suite, or a dict of sets, with "fiducial" and the ten derivative sets.
    out : folder for run.json, checkpoints and history.csv.
    recipe : a Recipe; see `InformationTrainer` for what is used of it.
    kmax : largest k of the spectra [h/Mpc].
    parameters : names of those whose errors, marginalised over all five, are to become small.
    mark : the LearnedMark to start from, see `start_mark`; default the start "unit".
    seed : of the split, the order and the halves.
    device, memory, checkpoint_every, stop, on_epoch, progress, fresh : as of `nbkit.train.train`.
    """
    processes, recipe, kmax = Processes(chosen_device(device)), recipe_named(recipe), float(kmax)
    grid = simulations["fiducial"].grid
    grid.bins(kmax)  # refuses what the grid does not hold
    mark = start_mark("unit", grid, seed=seed) if mark is None else deepcopy(mark)
    if not isinstance(mark, nn.Module):
        raise TypeError(f"mark is a {type(mark).__name__}, which has nothing to train; start_mark makes one that has.")
    data = Neighbourhood(simulations, kmax, recipe.validation, seed, processes, memory)
    settings = {
        "objective": "information",
        "parameters": list(parameters),
        "recipe": as_json(recipe),
        "kmax": kmax,
        "seed": seed,
        "grid": asdict(grid),
        "simulations": [data.joined.fiducial, data.joined.pairs, data.joined.fingerprint],
        "mark": mark_settings(mark),
        "start": weights_hash(mark),
    }
    settings = json.loads(json.dumps(settings))  # as it will be read back
    mark.to(processes.device)
    if processes.first:
        claimed_folder(out, settings, fresh)
    processes.wait()
    folder = claimed_folder(out, settings, False)
    trainer = InformationTrainer(
        data, mark, recipe, parameters, seed, folder, processes, checkpoint_every, stop, on_epoch, progress
    )
    trainer.train()
    processes.wait()
    return load_run(folder, None if isinstance(mark, LearnedMark) else mark, processes.device)


def start_mark(start, grid, delta=None, l_max=2, radial="fourier", cross=True, seed=0):
    """The LearnedMark to begin with.

    Parameters
    ----------
    start : "unit", M = 1 with a little scatter; "classical", the imitation of p = 2, delta_s = 0; or a run by name.
    grid : the Grid it is made for.
    delta : (N, n, n, n) density contrasts to fit the imitation on.
    l_max, radial, cross : of the LearnedMark; a run has its own.
    seed : of its weights.
    """
    if start == "classical":
        return imitation(CLASSICAL, delta, grid, l_max, radial, cross, seed)[0]
    if start != "unit":
        return load_run(run_folder(start)).mark
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(generator(seed, WEIGHTS).initial_seed())
        mark = LearnedMark(grid, l_max, radial, cross)
        with torch.no_grad():
            mark.responses.v.normal_(0, UNIT_SCATTER)
    return mark
