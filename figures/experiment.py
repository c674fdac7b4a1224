"""The whole paper on the preset `mini`: suites, trainings, spectra, results, notebooks; `make experiment` runs it.

Hours on two cores. Every stage is kept as it goes: stop it at any time, the next call goes on. What it ships goes to
nbkit/trained/, its figures to results.json and to PNG files. `python figures/experiment.py results notebooks` makes the
last two alone, from the spectra that come with the kit.
"""

import json
import os
import platform
import signal
import subprocess
import sys
import time
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, replace
from importlib.metadata import version
from multiprocessing import get_context

import bundle
import losses
import papermill
import torch
import trainings
from ablation_table import table, write
from cases import case_of
from nbkit.train.contrast_function import FALLING, RISING, contrastive_function
from nbkit.train.shipped import ship
from results_table import with_table
from trainings import PRESET, TAKEN_APART, TRAININGS

from nbkit import disk
from nbkit.disk import read_tensors, write_json
from nbkit.look import latent, term_means, variants
from nbkit.mark.classical import UnitMark, classical_marks
from nbkit.measure import measure
from nbkit.recover.recovered import ship_recoveries
from nbkit.show import style
from nbkit.train.processes import Processes, choose_device
from nbkit.train.run import load_run
from nbkit.universe.suite import FIDUCIAL_SETS, PRESETS, suite

JOBS = 2  # trainings at a time, which share the cores
LENGTHS = (0.5, 1, 2)  # of searches, in units of the training's
LOG = disk.runs() / "experiment" / "stages.json"
STAGES = ("suites", "training", "spectra", "results", "notebooks")


def say(line):
    """One line of what is going on, with the time of day."""
    sys.stdout.write(f"{time.strftime('%H:%M:%S')}  {line}\n")
    sys.stdout.flush()


@contextmanager
def stage(name):
    """Add the time of what is done inside to the log: core seconds, because stages differ in how many they use."""
    say(name)
    before = os.times()
    try:
        yield
    finally:
        used = sum(os.times()[:4]) - sum(before[:4])
        log = json.loads(LOG.read_text()) if LOG.exists() else {}
        write_json(LOG, log | {name: {"core_seconds": log.get(name, {"core_seconds": 0.0})["core_seconds"] + used}})


def train(name):
    """Train in a process of its own, unless it is finished."""
    training = TRAININGS[name]
    threads = {"OMP_NUM_THREADS": str(max(1, os.cpu_count() // JOBS))}
    training.folder.mkdir(parents=True, exist_ok=True)
    say(f"{name}: {training.folder / 'log.txt'} tells how it goes")
    with (training.folder / "log.txt").open("a") as log:
        command = [sys.executable, "-m", "nbkit.train.launch", *training.words]
        subprocess.run(command, env=os.environ | threads, stdout=log, stderr=log, check=True)
    say(f"{name}: done")


def searched(name, length, slope):
    """{what: validation loss} of the first search for a training's start, so many times as long, with this slope.

    With the range of all searches: as in the training there are several, others are made once.
    """
    torch.set_num_threads(1)
    training = TRAININGS[name]
    run, simulations = load_run(training.folder), suite(training.preset, sets=("BSQ",))["BSQ"]
    epochs, folder = round(length * run.recipe.head_epochs), run.folder / "function"
    if (length, slope) != (1, FALLING):
        folder = LOG.parent / "searches" / f"{name}_{epochs}_{slope:g}"
        asked = {"kmax": run.kmax, "l_max": 2, "residual": True, "seed": 0, "slope": slope, "searches": 1}
        quiet = {"checkpoint_every": 60.0, "stop": None, "on_epoch": None, "show": False}
        recipe, cpu = replace(run.recipe, head_epochs=epochs), Processes(choose_device("cpu"))
        contrastive_function(simulations, folder, recipe, processes=cpu, memory=None, fresh=False, **asked, **quiet)
    losses = [read_tensors(each)[1]["best_loss"] for each in sorted(folder.glob("*/best.safetensors"))]
    what = f"{name}_{epochs}" if slope == FALLING else f"{name}_{epochs}_rising"
    return {what: {"value": losses[0], "low": min(losses), "high": max(losses)}}


def searches():
    """What `searched` finds: does the loss still fall with the length of a search, or with the mark it begins with?"""
    asked = [(name, length, FALLING) for name in ("mini_c2", "mini_l2") for length in LENGTHS]
    with ProcessPoolExecutor(JOBS, get_context("spawn")) as pool:
        found = pool.map(searched, *zip(*asked, ("mini_l2", 1, RISING), strict=True))
        return {what: entry for each in found for what, entry in each.items()}


def spectra():
    """Measure the marks on the suite and write the bundle."""
    simulations, runs = suite(PRESET), trainings.shipped()
    trained = {name: run.mark for name, run in runs.items()}
    marks = classical_marks() | {"M = 1": UnitMark()} | trained
    power = measure({name: simulations[name] for name in (*FIDUCIAL_SETS, "latin_hypercube")}, marks)
    # All 48 are compared where regressors are tested on the same set they are trained on; over BSQ the best are enough.
    few = {label: marks[label] for label in ("M = 1", *trainings.OVER_BSQ)}
    power |= measure({"BSQ": simulations["BSQ"]}, few)
    means = {name: term_means(runs[name].mark, simulations["fiducial"]) for name in TAKEN_APART}
    parts = {
        f"{name} {label}": mark
        for name in TAKEN_APART
        for label, mark in variants(runs[name].mark, means[name]).items()
        if label != "all"
    }
    for each, of in measure({name: simulations[name] for name in FIDUCIAL_SETS}, parts).items():
        power[each] = replace(power[each], marked=power[each].marked | of.marked)
    cut = {name: each.cut(bundle.KMAX) for name, each in power.items()}
    return bundle.write(cut, marks | parts, PRESET, disk.BUNDLED / f"{PRESET}_spectra.npz", means)


def notebooks():
    """Run the notebooks that look at results; what notebook 07 has trained comes with the kit from then on."""
    for path in sorted((disk.figures().parent / "notebooks").glob("0[4-8]_*.ipynb")):
        say(path.name)
        papermill.execute_notebook(path, LOG.parent / path.name, {"preset": PRESET, "save_figures": True})
    ship_recoveries(trainings.all_marks(trainings.shipped()), PRESETS[PRESET].latin_hypercube)


def provenance(log):
    """Where the numbers come from: settings, seeds and versions; machine and durations of the stages."""
    packages = ("torch", "numpy", "camb")
    commit = subprocess.run(["git", "rev-parse", "HEAD"], cwd=disk.figures(), capture_output=True, text=True)
    preset = PRESETS[PRESET]
    sizes = {
        "BSQ": preset.BSQ,
        "BSQ_more": PRESETS["mini_more"].BSQ,
        "latin_hypercube": preset.latin_hypercube,
        "fiducial": preset.fiducial,
    }
    return {
        "commit": commit.stdout.strip(),
        "suite": sizes | {"pairs": preset.pairs, "near": preset.near_sizes},
        "trainings": {name: asdict(each) for name, each in TRAININGS.items()},
        "machine": {"cores": os.cpu_count(), "processor": platform.machine(), "system": platform.system()},
        "versions": {name: version(name) for name in packages} | {"python": platform.python_version()},
        "stages": {name: log[name] for name in STAGES},
    }


def main(*asked):
    """All stages, or those that are named."""
    if not asked or "suites" in asked:
        with stage("suites"):
            suite("mini_more", sets=("BSQ",))
            suite(PRESET)
            suite(PRESETS[PRESET].near, sets=FIDUCIAL_SETS)
    if not asked or "training" in asked:
        with stage("training"), ThreadPoolExecutor(JOBS) as pool:
            list(pool.map(train, TRAININGS))
            say("searches of other lengths")
            write_json(disk.figures() / f"search_{PRESET}.json", searches())
            unit = latent.unit_run(load_run(TRAININGS["mini_l2"].folder), suite(PRESET, sets=("BSQ",))["BSQ"])
        folders = {name: each.folder for name, each in TRAININGS.items()} | {"mini_unit": unit.folder}
        for name, folder in folders.items():
            ship(folder, name)
    if not asked or "spectra" in asked:
        with stage("spectra"):
            spectra()
    if not asked or "results" in asked:
        with stage("results"):
            runs = trainings.shipped()
            write_json(disk.figures() / "results.json", trainings.results(runs))
            style()
            curves = losses.curves(trainings.by_contrast(runs), trainings.lengths())
            curves.savefig(disk.figures() / f"losses_{PRESET}.png", dpi=100)
            cases = {case_of(runs[name]): runs[name] for name in ("mini_l2", "mini_l0")}
            write(table(cases, PRESET, also=(0.2,)), disk.figures() / f"ablations_{PRESET}.csv")
    if not asked or "notebooks" in asked:
        with stage("notebooks"):
            notebooks()
    log = json.loads(LOG.read_text())
    if set(STAGES) <= set(log):  # a part of it, made elsewhere, does not speak for the whole
        write_json(disk.figures() / "provenance.json", provenance(log))
    page = disk.figures() / "RESULTS.md"
    page.write_text(with_table(page.read_text()))


def stopped(*_):
    """End in order, so that the time of a stage is logged; once, because `make` passes the signal on as well."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    sys.exit(1)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, stopped)
    main(*sys.argv[1:])
