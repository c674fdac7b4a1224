"""Simulations around the fiducial point to a mark that measures it well: the second objective, beside `train`."""

import json
from copy import deepcopy
from dataclasses import asdict

import torch
from torch import nn

from nbkit.forecast.information import wanted_rows
from nbkit.mark import mark_settings, weights_hash
from nbkit.mark.additive import CLASSICAL, IMITATED_ON, channels_of, imitation
from nbkit.mark.learned import LearnedMark
from nbkit.mesh.threads import generator
from nbkit.train.data import WEIGHTS
from nbkit.train.information_trainer import InformationTrainer
from nbkit.train.neighbourhood import Neighbourhood
from nbkit.train.processes import Processes, chosen_device
from nbkit.train.recipe import Recipe, as_json, recipe_named
from nbkit.train.run import claimed_folder, load_run
from nbkit.train.search import SCALES, best_function
from nbkit.train.shipped import run_folder

INFORMATION = Recipe(
    batch=300,
    learning_rate=2e-3,
    weight_decay=1e-4,
    clip=1.0,
    schedule="cosine",
    validation=1 / 3,
    epochs=8,
    patience=1000,
)
WANTED = ("Omega_m", "sigma_8")
STARTS = ("unit", "classical", "function")
# Scatter of the output weights at the start "unit". At M = 1 itself P_dm and P_mm repeat P_dd, and which way to go is
# not defined: information does not change when M - 1 is made smaller, only when it becomes 0.
UNIT_SCATTER = 0.1


def train_information(
    simulations,
    out,
    *,
    recipe=INFORMATION,
    kmax=0.3,
    parameters=WANTED,
    start="function",
    l_max=2,
    radial="fourier",
    cross=True,
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
    simulations : a suite, or a dict of sets, with "fiducial" and the ten derivative sets: `suite(preset.near)`.
    out : folder for run.json, checkpoints and history.csv.
    recipe : a Recipe; see `InformationTrainer` for what is used of it.
    kmax : largest k of the spectra [h/Mpc].
    parameters : names of those whose errors, marginalised over all five, are to become small.
    start : where to start from: "unit", "classical" or "function", see `start_mark`; or a run, by name or path.
    l_max, radial, cross : of the LearnedMark; a run to start from has its own.
    mark : start from this module instead.
    seed : of the split, the order and the halves.
    device, memory, checkpoint_every, stop, on_epoch, progress, fresh : as of `nbkit.train.train`.
    """
    processes, recipe, kmax = Processes(chosen_device(device)), recipe_named(recipe), float(kmax)
    grid = simulations["fiducial"].grid
    grid.bins(kmax)  # refuses what the grid does not hold
    if mark is not None and not isinstance(mark, nn.Module):
        raise TypeError(f"mark is a {type(mark).__name__}, which has nothing to train; give a LearnedMark or a start.")
    data = Neighbourhood(simulations, kmax, recipe.validation, seed, processes, memory)
    made_here = mark is None and start in STARTS
    if mark is None:
        mark = LearnedMark(grid, l_max, radial, cross) if made_here else load_run(run_folder(start)).mark
    mark = deepcopy(mark).cpu()
    settings = {
        "objective": "information",
        "parameters": list(parameters),
        "recipe": as_json(recipe),
        "kmax": kmax,
        "seed": seed,
        "grid": asdict(grid),
        "simulations": [data.joined.fiducial, data.joined.pairs, data.joined.fingerprint],
        "seeds": data.joined.seeds,
        "mark": mark_settings(mark),
        "start": start if made_here else weights_hash(mark),
    }
    settings = json.loads(json.dumps(settings))  # as it will be read back
    if processes.first:
        claimed_folder(out, settings, fresh)
    processes.wait()
    folder = claimed_folder(out, settings, False)
    if made_here and not (folder / "last.safetensors").exists():  # else a checkpoint has the weights
        mark = start_mark(start, data, l_max, radial, cross, seed, parameters)
    mark.to(processes.device)
    trainer = InformationTrainer(
        data, mark, recipe, parameters, seed, folder, processes, checkpoint_every, stop, on_epoch, progress
    )
    trainer.train()
    processes.wait()
    return load_run(folder, None if isinstance(mark, LearnedMark) else mark, processes.device)


def held_out_losses(simulations, marks, *, kmax=0.3, parameters=WANTED, seed=0, device="auto", memory=None):
    """{label: loss} of marks that do not learn, on the boxes that `train_information` would hold out.

    Parameters
    ----------
    marks : {label: mark}.
    simulations, kmax, parameters, seed, device, memory : as of `train_information`.
    """
    data = Neighbourhood(
        simulations, float(kmax), INFORMATION.validation, seed, Processes(chosen_device(device)), memory
    )
    losses = {}
    for label, mark in marks.items():
        data.centre_on(mark)
        table = data.measured(mark, data.rows(*data.held_out))
        losses[label] = data.loss(table, *data.held_out, wanted_rows(parameters), seed)
    return losses


def start_mark(start, data, l_max=2, radial="fourier", cross=True, seed=0, parameters=WANTED):
    """The LearnedMark to begin with.

    Parameters
    ----------
    start : "unit", M = 1 with a little scatter; "classical", the imitation of the mark with p = 2, delta_s = 0;
        "function", that of the best sum of functions of E0, E1 and E2.
    data : Neighbourhood, of which only the training boxes are looked at.
    l_max, radial, cross : of the LearnedMark.
    seed, parameters : of the weights, and whose errors the best functions make small.
    """
    if start == "unit":
        return unit_mark(data.grid, l_max, radial, cross, seed)
    choices = [channels_of(l_max, R) for R in SCALES]
    target = CLASSICAL if start == "classical" else best_function(data, parameters, choices, seed)
    delta = data.joined[data.training[0][:IMITATED_ON].tolist()]
    return imitation(target, delta, data.grid, l_max, radial, cross, seed)[0]


def unit_mark(grid, l_max=2, radial="fourier", cross=True, seed=0):
    """A LearnedMark with M about 1: output weights of E0, E1, ... are drawn, because at M = 1 there is no way to go."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(generator(seed, WEIGHTS).initial_seed())
        mark = LearnedMark(grid, l_max, radial, cross)
        with torch.no_grad():
            mark.responses.v.normal_(0, UNIT_SCATTER)
    return mark
