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
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, replace
from importlib.metadata import version

import numpy as np
import papermill

from nbkit import archive, experiment, latent, monitor, paths, plots
from nbkit.ablation_table import table, write
from nbkit.ablations import case_of
from nbkit.archive import FOLDER
from nbkit.checkpoint import read_tensors, write_atomically, write_json
from nbkit.contrast_function import FALLING, RISING, contrastive_function
from nbkit.experiment import PRESET, TAKEN_APART, TRAININGS
from nbkit.fisher import SETS as FISHER_SETS
from nbkit.introspection import term_means, variants
from nbkit.measured import labelled_classical, measured
from nbkit.neighbourhood import SETS as NEAR
from nbkit.processes import Processes, chosen_device
from nbkit.recovered import SHIPPED
from nbkit.results_table import with_table
from nbkit.run import UnitMark, load_run
from nbkit.shipped import ship
from nbkit.suite import PRESETS, suite

JOBS = 2  # trainings at a time, which share the cores
LOG = paths.runs() / "experiment" / "stages.json"
STAGES = ("suites", "training", "spectra", "results", "notebooks")


@contextmanager
def stage(name):
    """Add the time of what is done inside to the log: core seconds, because stages differ in how many they use."""
    since, before = time.monotonic(), os.times()
    try:
        yield
    finally:
        after = os.times()
        used = sum(after[:4]) - sum(before[:4])
        log = json.loads(LOG.read_text()) if LOG.exists() else {}
        row = log.get(name, {"seconds": 0.0, "core_seconds": 0.0})
        log[name] = {"seconds": row["seconds"] + time.monotonic() - since, "core_seconds": row["core_seconds"] + used}
        write_json(LOG, log)


def train(training):
    """Train in a process of its own, unless it is finished."""
    threads = {"OMP_NUM_THREADS": str(max(1, os.cpu_count() // JOBS))}
    training.folder.mkdir(parents=True, exist_ok=True)
    with (training.folder / "log.txt").open("a") as log:
        command = [sys.executable, "-m", "nbkit.launch", *training.words]
        subprocess.run(command, env=os.environ | threads, stdout=log, stderr=log, check=True)


def searches():
    """Where the search for functions ends when it begins with a mark that falls with density, and with one that rises.

    Gives {what: lowest validation loss, and the range of all searches}.
    """
    training, run = suite(PRESET, sets=("BSQ",))["BSQ"], load_run(TRAININGS["mini_l2"].folder)
    asked = {"kmax": run.kmax, "l_max": 2, "residual": True, "seed": 0, "processes": Processes(chosen_device("cpu"))}
    quiet = {"checkpoint_every": 60.0, "stop": None, "on_epoch": None, "show": None}
    found = {}
    for name, slope in (("falling", FALLING), ("rising", RISING)):
        folder = run.folder / "function" if slope == FALLING else LOG.parent / "rising"
        contrastive_function(training, folder, run.recipe, memory=None, fresh=False, slope=slope, **asked, **quiet)
        losses = [read_tensors(each)[1]["best_loss"] for each in folder.glob("*/best.safetensors")]
        found[name] = {"value": min(losses), "low": min(losses), "high": max(losses)}
    return found


def spectra():
    """Measure the marks on the suite and write the archive."""
    simulations, runs = suite(PRESET), experiment.shipped()
    trained = {name: run.mark for name, run in runs.items()}
    marks = labelled_classical() | {"M = 1": UnitMark()} | trained
    power = measured({name: simulations[name] for name in (*FISHER_SETS, "latin_hypercube")}, marks)
    # All 48 are compared where regressors are tested on the same set they are trained on; over BSQ the best are enough.
    few = {label: marks[label] for label in ("M = 1", *experiment.OVER_BSQ)}
    power |= measured({"BSQ": simulations["BSQ"]}, few)
    means = {name: term_means(runs[name].mark, simulations["fiducial"]) for name in TAKEN_APART}
    parts = {
        f"{name} {label}": mark
        for name in TAKEN_APART
        for label, mark in variants(runs[name].mark, means[name]).items()
        if label != "all"
    }
    for each, of in measured({name: simulations[name] for name in FISHER_SETS}, parts).items():
        power[each] = replace(power[each], marked=power[each].marked | of.marked)
    cut = {name: each.cut(archive.KMAX) for name, each in power.items()}
    return archive.write(cut, marks | parts, PRESET, FOLDER / f"{PRESET}_spectra.npz", means)


def notebooks():
    """Run the notebooks that look at results; what notebook 07 has trained comes with the kit from then on."""
    for path in sorted((paths.figures().parent / "notebooks").glob("0[4-8]_*.ipynb")):
        papermill.execute_notebook(path, LOG.parent / path.name, {"preset": PRESET, "save_figures": True})
    for path in (paths.runs() / "recovery").glob("*.npz"):
        with np.load(path, allow_pickle=False) as kept:
            if kept["predicted"].shape[2] == PRESETS[PRESET].latin_hypercube:
                write_atomically(SHIPPED / path.name, path.read_bytes())


def provenance(log):
    """Where the numbers come from: settings, seeds and versions; machine and durations of the stages."""
    packages = ("torch", "numpy", "camb")
    commit = subprocess.run(["git", "rev-parse", "HEAD"], cwd=paths.figures(), capture_output=True, text=True)
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
            suite(PRESETS[PRESET].near, sets=NEAR)
    if not asked or "training" in asked:
        with stage("training"), ThreadPoolExecutor(JOBS) as pool:
            list(pool.map(train, TRAININGS.values()))
            unit = latent.unit_run(load_run(TRAININGS["mini_l2"].folder), suite(PRESET, sets=("BSQ",))["BSQ"])
        folders = {name: each.folder for name, each in TRAININGS.items()} | {"mini_unit": unit.folder}
        for name, folder in folders.items():
            ship(folder, name)
        write_json(paths.figures() / f"search_{PRESET}.json", searches())
    if not asked or "spectra" in asked:
        with stage("spectra"):
            spectra()
    if not asked or "results" in asked:
        with stage("results"):
            runs = experiment.shipped()
            write_json(paths.figures() / "results.json", experiment.results(runs))
            plots.style()
            monitor.curves(experiment.by_contrast(runs)).savefig(paths.figures() / f"losses_{PRESET}.png", dpi=100)
            cases = {case_of(runs[name]): runs[name] for name in ("mini_l2", "mini_l0")}
            write(table(cases, PRESET, also=(0.2,)), paths.figures() / f"ablations_{PRESET}.csv")
    if not asked or "notebooks" in asked:
        with stage("notebooks"):
            notebooks()
    log = json.loads(LOG.read_text())
    if set(STAGES) <= set(log):  # a part of it, made elsewhere, does not speak for the whole
        write_json(paths.figures() / "provenance.json", provenance(log))
    readme = paths.figures().parent / "README.md"
    readme.write_text(with_table(readme.read_text()))


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that the time of a stage is logged however it is stopped
    main(*sys.argv[1:])
