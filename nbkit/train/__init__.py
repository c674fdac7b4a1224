# ruff: noqa: F401
"""Simulations -> a trained mark: the stages of section 2.3, or information at the fiducial point, in one call that may
be killed and called again."""

import json
import subprocess
import sys
import warnings
from contextlib import ExitStack
from copy import deepcopy
from dataclasses import asdict
from pathlib import Path

import torch
from torch import nn

from nbkit.disk import read_tensors, runs, write_tensors
from nbkit.mark import identity, mark_settings, weights_hash
from nbkit.mark.learned import LearnedMark
from nbkit.mesh.threads import choose_device, seeded
from nbkit.train.contrast import Heads
from nbkit.train.data import WEIGHTS, Prior
from nbkit.train.fit import Processes, TrainingDiverged, fit_stages
from nbkit.train.information import Neighbourhood
from nbkit.train.objectives import Contrast, Information, MarkedHeads, UnmarkedHeads, heads_for
from nbkit.train.run import FORMAT, Run, bundled_runs, claim, load, own_runs, part, read
from nbkit.train.search import start_mark
from nbkit.train.training import OBJECTIVES, RECIPES, STARTS, Recipe, Training

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
    simulations : what to train on [the suite of its preset]: over the prior anything with len(), `theta` (N, 5), `grid`
        and simulations[list] -> fields; on information a dict with "fiducial" and the ten derivative sets.
    folder : of run.json, checkpoints and history.csv [named after the training, in `train` of `nbkit.disk.runs()`].
    mark, fixed : a module to start from instead; or a mark that stays as it is, which heads alone learn to read.
    data_root, device : folder with Quijote's files, see `suite`; "auto", "cpu", "cuda", "cuda:1".
    memory : most bytes of fields to keep in memory [half of what is free]; 0 streams them.
    checkpoint_every, stop, on_epoch, progress : see `fit`.
    fresh : throw away what the folder holds of another run.
    """
    contrast = training.objective == "contrast"
    if fixed is not None and not contrast:
        raise ValueError("objective is 'information', which trains no heads to read a fixed mark; see fixed_losses.")
    if mark is not None and not isinstance(mark, nn.Module):
        raise TypeError(f"mark is a {type(mark).__name__}, which has nothing to train; give a module, or use `fixed`.")
    data = _data(training, simulations, data_root, device, memory)
    processes, recipe = data.processes, data.recipe
    if training.kmax > TAPER_BEGINS * data.grid.k_nyq:
        warnings.warn(
            f"kmax is {training.kmax:.4g} h/Mpc, but the mark's filters fade from {TAPER_BEGINS * data.grid.k_nyq:.4g} "
            "h/Mpc on: spectra beyond that hold little of what the mark could see.",
            stacklevel=2,
        )
    if mark is None and training.start not in ("default", *STARTS):
        mark = load(training.start).mark
    start = weights_hash(mark) if mark is not None else identity(fixed) if fixed is not None else recipe.start
    # A copy: the caller's mark keeps its weights, and a second call starts where the first did.
    mark = deepcopy(fixed or mark) or LearnedMark(data.grid, **training.mark_settings(data.grid))
    settings = {"format": FORMAT, "training": asdict(training), "recipe": asdict(recipe), "grid": asdict(data.grid)}
    settings = json.loads(json.dumps(settings | {"mark": mark_settings(mark), "start": start} | data.about()))
    name = training.name if fixed is None else f"{training.name}_fixed-{start[:8]}"
    folder = runs() / "train" / name if folder is None else Path(folder).expanduser()
    # Only now, when nothing impossible has been asked for.
    with ExitStack() as held:
        processes.in_turn(lambda: claim(folder, settings, fresh, held if processes.first else None))
        if (folder / "marked.safetensors").exists() and (run := read(folder, mark, processes.device)).finished:
            return run
        asked = []

        def stopping():
            """A request to stop: once made it stands."""
            if stop and stop():
                asked.append(True)
            return bool(asked)

        how = {"checkpoint_every": checkpoint_every, "stop": stopping, "on_epoch": on_epoch, "show": progress}
        if contrast:
            data.load_summaries()
        with seeded(training.seed, WEIGHTS):
            heads = heads_for(data, training.residual) if contrast else None
            if start == "unit":
                mark = LearnedMark(data.grid, **training.mark_settings(data.grid))
                v = mark.responses.v
                nn.init.normal_(v[0] if contrast else v, 0, recipe.kick if contrast else UNIT_SCATTER)
        if not _begin(mark, training, start, data, folder, asked, how, write=isinstance(fixed, nn.Module)):
            stages = _over_prior(data, heads, mark, fixed) if contrast else [Information(data, mark, training.wanted)]
            fit_stages(stages, folder, processes, **how)
        processes.wait()
        return read(folder, mark, processes.device)


def _data(training, simulations, data_root, device, memory):
    """What a training has of its simulations."""
    processes, contrast = Processes(choose_device(device)), training.objective == "contrast"
    simulations = training.simulations(data_root) if simulations is None else simulations
    if isinstance(simulations, dict) == contrast:
        wanted = "one set over the prior" if contrast else "a suite of the sets around the fiducial point"
        what = type(simulations).__name__
        raise TypeError(f"objective is {training.objective!r}, but simulations is a {what}; give {wanted}.")
    kind, grid = (Prior, simulations.grid) if contrast else (Neighbourhood, simulations["fiducial"].grid)
    return kind(simulations, training.recipe_for(grid), training.kmax, training.seed, processes, memory)


def _begin(mark, training, start, data, folder, asked, how, write):
    """Put the weights it starts with into a mark, from start.safetensors once they are known; and it on its device.

    Gives whether the search for them was stopped; then the file has what was best so far.
    """
    path, processes, stopped = folder / "start.safetensors", data.processes, False
    known = path.exists() and not read_tensors(path)[1].get("stopped")
    if start in ("classical", "function") and not known:
        mark.load_state_dict(start_mark(training, start, data, folder / "start", **how).state_dict())
        write, stopped = True, processes.total(bool(asked)) > 0
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


def _over_prior(data, heads, mark, fixed):
    """The stages of a training by contrast, in turn; each holds its best weights when the next one is asked for."""
    learning = mark if fixed is None else None
    if fixed is not None or data.recipe.head_epochs:
        data.load_summaries(mark)
    if data.recipe.standardise:
        # Where the mark will move, of S_M as it is at M = 1.
        unit = torch.cat([torch.zeros_like(data.S_delta[:2]), torch.ones_like(data.S_delta[:2])], dim=1)
        heads.standardise("marked", unit if data.S_M is None else data.S_M[data.training])
    yield UnmarkedHeads(data, heads)
    reading = MarkedHeads(data, heads, learning)
    if fixed is None and data.recipe.head_epochs:
        yield reading
    yield Contrast(data, heads, learning, reading.best_loss)


def fixed_losses(training, marks, simulations=None, folder=None, *, data_root=None, device="auto", memory=None):
    """{label: loss} of {label: mark} that do not learn, on the boxes that a training would hold out.

    By contrast heads are trained on each of them, in a folder of its name; one pass over the fields is for all.
    """
    data = _data(training, simulations, data_root, device, memory)
    if training.objective == "contrast":
        there = [mark.to(data.device) if isinstance(mark, nn.Module) else mark for mark in deepcopy(marks).values()]
        data.load_summaries(others=there)

    def loss(label, mark):
        if training.objective == "contrast":
            place = folder and Path(folder) / label
            return train(training, data.simulations, place, fixed=mark, device=device, memory=memory).best_loss
        data.centre_on(mark)
        return data.loss(data.table(mark, data.rows(*data.held_out)), data.held_out, training.wanted)

    return {label: loss(label, mark) for label, mark in marks.items()}


def follow(words, processes, folder):
    """Train with `torchrun` in several processes of this machine, a GPU each, or CPUs that share each batch: yield the
    lines of their log as they come, which log.txt in the folder keeps. For the words see `Training.words`."""
    folder.mkdir(parents=True, exist_ok=True)
    log, torchrun = folder / "log.txt", ["torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
    command = [sys.executable, "-m", *torchrun, "-m", "nbkit.train", *words, f"--folder={folder}"]
    with log.open("w") as file, subprocess.Popen(command, stdout=subprocess.PIPE, stderr=file, text=True) as started:
        for line in started.stdout:
            file.write(line)
            yield line.rstrip()
    if started.returncode:
        last = log.read_text().strip().splitlines()[-15:]
        raise RuntimeError(f"The training ended with code {started.returncode}; the end of {log}:\n" + "\n".join(last))
