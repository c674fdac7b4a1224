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
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, replace
from importlib.metadata import version
from multiprocessing import get_context

import ablations
import bundle
import losses
import papermill
import results
import torch
from info_nce import CPU
from results import PRESET, TAKEN_APART, TRAININGS, all_marks, bundled_trainings

import nbkit as nb
from nbkit import disk, look, show
from nbkit.disk import read_tensors, write_json
from nbkit.look import latent
from nbkit.mark import UnitMark
from nbkit.train.data import Prior
from nbkit.train.search import FALLING, RISING, best_function
from nbkit.universe import FIDUCIAL_SETS, PRESETS

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


def search_losses(name, length, slope):
    """{what: validation loss} of the first search for a training's start, so many times as long, with this slope.

    With the range of all searches: as in the training there are several, others are made once.
    """
    torch.set_num_threads(1)
    training, grid = TRAININGS[name], PRESETS[TRAININGS[name].preset].grid
    epochs = round(length * training.recipe_for(grid).head_epochs)
    folder = disk.runs() / "train" / training.name / "start"
    if (length, slope) != (1, FALLING):
        folder = LOG.parent / "searches" / f"{name}_{epochs}_{slope:g}"
        other, simulations = replace(training, head_epochs=epochs), training.simulations()
        data = Prior(simulations, other.recipe_for(grid), training.kmax, training.seed, CPU)
        data.load_summaries()
        best_function(data, other, folder, slopes=[slope], checkpoint_every=60.0, show=False)
    found = [read_tensors(each)[1]["best_loss"] for each in sorted(folder.glob("*/marked.safetensors"))]
    what = f"{name}_{epochs}" if slope == FALLING else f"{name}_{epochs}_rising"
    return {what: {"value": found[0], "low": min(found), "high": max(found)}}


def searches():
    """What `search_losses` finds: does the loss fall with the length of a search, or with the mark it begins with?"""
    asked = [(name, length, FALLING) for name in ("mini_c2", "mini_l2") for length in LENGTHS]
    with ProcessPoolExecutor(JOBS, get_context("spawn")) as pool:
        found = pool.map(search_losses, *zip(*asked, ("mini_l2", 1, RISING), strict=True))
        return {what: entry for each in found for what, entry in each.items()}


def suites():
    """Make all simulations."""
    nb.suite("mini_more", sets=("BSQ",))
    nb.suite(PRESET)
    nb.suite(PRESETS[PRESET].near, sets=FIDUCIAL_SETS)


def training():
    """Train the marks, heads on M = 1, and searches of other lengths; put the runs into the kit."""
    ablations.train_apart(TRAININGS.values(), JOBS)
    say("searches of other lengths")
    write_json(disk.figures() / f"search_{PRESET}.json", searches())
    folders = {name: disk.runs() / "train" / each.name for name, each in TRAININGS.items()}
    unit = latent.unit_run(nb.load(folders["mini_l2"]), nb.suite(PRESET, sets=("BSQ",))["BSQ"])
    for name, folder in (folders | {"mini_unit": unit.folder}).items():
        bundle.bundle_run(folder, name)


def spectra():
    """Measure the marks on the suite and write the bundle."""
    simulations, runs = nb.suite(PRESET), bundled_trainings()
    marks = all_marks(runs) | {"M = 1": UnitMark()}
    power = nb.measure({name: simulations[name] for name in (*FIDUCIAL_SETS, "latin_hypercube")}, marks)
    # All 48 are compared where regressors are tested on the same set they are trained on; over BSQ the best are enough.
    few = {label: marks[label] for label in ("M = 1", *results.OVER_BSQ)}
    power |= nb.measure({"BSQ": simulations["BSQ"]}, few)
    means = {name: look.term_means(runs[name].mark, simulations["fiducial"]) for name in TAKEN_APART}
    parts = {
        f"{name} {label}": mark
        for name in TAKEN_APART
        for label, mark in look.variants(runs[name].mark, means[name]).items()
        if label != "all"
    }
    for each, of in nb.measure({name: simulations[name] for name in FIDUCIAL_SETS}, parts).items():
        power[each] = replace(power[each], marked=power[each].marked | of.marked)
    cut = {name: each.cut(bundle.KMAX) for name, each in power.items()}
    bundle.write(cut, marks | parts, PRESET, disk.BUNDLED / f"{PRESET}_spectra.npz", means)


def figures():
    """results.json, the curves of the losses, and the table of notebook 08."""
    runs = bundled_trainings()
    write_json(disk.figures() / "results.json", results.results(runs))
    show.style()
    by_contrast = {name: run for name, run in runs.items() if run.heads}
    show.save(losses.curves(by_contrast, results.lengths()), f"losses_{PRESET}", publish=True)
    compared = {runs[name].training: runs[name] for name in ("mini_l2", "mini_l0")}
    ablations.write(ablations.table(compared, PRESET, also=(0.2,)), disk.figures() / f"ablations_{PRESET}.csv")


def notebooks():
    """Run the notebooks that look at results; what notebook 07 has trained comes with the kit from then on."""
    for path in sorted((disk.figures().parent / "notebooks").glob("0[4-8]_*.ipynb")):
        say(path.name)
        papermill.execute_notebook(path, LOG.parent / path.name, {"preset": PRESET, "save_figures": True})
    bundle.bundle_recoveries(all_marks(bundled_trainings()), PRESETS[PRESET].latin_hypercube)


def provenance(log):
    """Where the numbers come from: settings, seeds and versions; machine and durations of the stages."""
    packages = ("torch", "numpy", "camb")
    commit = subprocess.run(["git", "rev-parse", "HEAD"], cwd=disk.figures(), capture_output=True, text=True)
    preset = PRESETS[PRESET]
    sizes = {name: getattr(preset, name) for name in ("BSQ", "latin_hypercube", "fiducial", "pairs")}
    return {
        "commit": commit.stdout.strip(),
        "suite": sizes | {"BSQ_more": PRESETS["mini_more"].BSQ, "near": preset.near_sizes},
        "trainings": {name: asdict(each) for name, each in TRAININGS.items()},
        "machine": {"cores": os.cpu_count(), "processor": platform.machine(), "system": platform.system()},
        "versions": {name: version(name) for name in packages} | {"python": platform.python_version()},
        "stages": {name: log[name] for name in STAGES},
    }


def main(*asked):
    """All stages, or those that are named."""
    stages = dict(zip(STAGES, (suites, training, spectra, figures, notebooks), strict=True))
    if unknown := set(asked) - set(STAGES):
        sys.exit(f"There is no stage {', '.join(sorted(unknown))}; there are {', '.join(STAGES)}.")
    for name, do in stages.items():
        if not asked or name in asked:
            with stage(name):
                do()
    log = json.loads(LOG.read_text())
    if set(STAGES) <= set(log):  # a part of it, made elsewhere, does not speak for the whole
        write_json(disk.figures() / "provenance.json", provenance(log))
    page = disk.figures() / "RESULTS.md"
    page.write_text(results.with_table(page.read_text()))


def end_in_order(*_):
    """Leave so that the time of a stage is logged; once, because `make` passes the signal on as well."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    sys.exit(1)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, end_in_order)
    main(*sys.argv[1:])
