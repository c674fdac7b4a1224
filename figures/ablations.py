"""Ablations of the learned mark: trains what is missing and writes ablations_<preset>.csv, which notebook 08 draws.

The trainings are those of appendix A; every mark is judged by forecast and recovery, all from the same simulations.

Run `python figures/ablations.py 0 1` for training seeds 0 and 1, those of demo's table: twenty minutes a seed
on two free cores. What is trained and measured is kept in runs/: stop it at any time, the next call goes on.
With --list it only prints the commands that train what is missing, one a line; with --list --all those of all.
"""

import argparse
import csv
import math
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import NamedTuple

import nbkit as nb
from nbkit import disk, show
from nbkit.forecast import UNMARKED, Forecasts
from nbkit.mesh.threads import one_thread
from nbkit.recover import Recovery
from nbkit.train import bundled_runs
from nbkit.universe import FIDUCIAL_SETS, PRESETS, QUIJOTE_NAMES

KMAX, L_MAX = (0.1, 0.15, 0.2, 0.25, 0.3), (0, 1, 2)
# Where residualisation and cross term are switched off: the paper's kmax.
OFF_AT = (0.2,)
SETS = ("BSQ", "latin_hypercube", *FIDUCIAL_SETS)
# Weighs dense regions down, as the best of the 48 classical marks do at the paper's kmax; notebook 05 shows it, too.
CLASSICAL, REFERENCE = "p=2 ds=0", nb.ClassicalMark(2.0, 0.0)
FULL = "l_max = 2"
WIDE = ", trained to"  # for marks that are used below the kmax of their training
PARAMETERS = ("Om", "s8")
QUANTITIES = ("sigma_Om", "sigma_s8", "mse_Om", "mse_s8")
ENDS = ("", "_low", "_high")
VARIED = ("l_max", "residual", "cross", "seed")  # beside kmax
COLUMNS = ("mark", "kmax", "trained_kmax", *VARIED, "run", "val_loss")
NUMBERS = tuple(f"{q}{ratio}{end}" for q in QUANTITIES for ratio in ("", "_ratio") for end in ENDS)


def planned(preset="demo", seed=0):
    """All Trainings of a seed: every kmax with every l_max, and the full mark with one thing switched off."""
    trainings = [nb.Training(preset, kmax=kmax, l_max=l_max, seed=seed) for kmax in KMAX for l_max in L_MAX]
    off = [(kmax, name) for kmax in OFF_AT for name in ("residual", "cross")]
    return trainings + [nb.Training(preset, kmax=kmax, seed=seed, **{name: False}) for kmax, name in off]


def mark_label(training):
    """What tables and figures call the mark of a Training."""
    words = [f"l_max = {training.l_max}"]
    words += ["no residual"] * (not training.residual) + ["no cross term"] * (not training.cross)
    return ", ".join(words)


def finished_run(training):
    """The finished Run of a Training, one that comes with the kit or one of runs/train; None if there is none."""
    for name in (*bundled_runs(), training.name):
        with suppress(FileNotFoundError):
            run = nb.load(name)
            same = run.training == training and run.recipe == training.recipe_for(run.grid)
            if same and run.finished and isinstance(run.mark, nb.LearnedMark):
                return run
    return None


def finished_runs(trainings, script="ablations.py"):
    """{Training: Run}; if some are missing, an error that names the command that makes them.

    Parameters
    ----------
    script : of figures/, which makes all of them.
    """
    runs = {training: finished_run(training) for training in trainings}
    if missing := [training for training, run in runs.items() if run is None]:
        raise FileNotFoundError(
            f"{len(missing)} of {len(trainings)} trainings of preset {missing[0].preset!r} are missing or unfinished; "
            f"`{missing[0].papermill()}` makes the first, and `python figures/{script}` all."
        )
    return runs


def train_apart(trainings, jobs=2):
    """Train a few at a time, each in a process of its own with its share of the cores; what is finished stays."""
    threads = {"OMP_NUM_THREADS": str(max(1, os.cpu_count() // jobs))}

    def train(training):
        log = disk.runs() / "train" / training.name / "log.txt"
        log.parent.mkdir(parents=True, exist_ok=True)
        sys.stdout.write(f"{log} tells how it goes\n")
        with log.open("a") as file:
            command = [sys.executable, "-m", "nbkit.train", *training.words()]
            subprocess.run(command, env=os.environ | threads, stdout=file, stderr=file, check=True)

    with ThreadPoolExecutor(jobs) as pool:
        list(pool.map(train, trainings))


class Evaluation(NamedTuple):
    """Forecasts and recovery of several marks from the same simulations."""

    forecasts: Forecasts
    recovered: Recovery

    def values(self, mark):
        """{quantity: (value, low, high)} of sigma and MSE, with 95 % intervals."""
        return by_quantity(self.forecasts[mark].sigma, self.recovered.mse(mark))

    def ratios(self, mark, over):
        """The same of one mark over another, resampled together: above 1 where the other is better."""
        return by_quantity(self.forecasts[mark] / self.forecasts[over], self.recovered.ratio(mark, over))


def by_quantity(sigma, mse):
    """{quantity: (value, low, high)} of an Interval of sigma and the (3, 5) of MSE, each of all five parameters."""
    both = {"sigma": (sigma.value, sigma.low, sigma.high), "mse": mse}
    rows = {name: QUIJOTE_NAMES.index(name) for name in PARAMETERS}
    return {f"{what}_{name}": tuple(float(x[i]) for x in of) for what, of in both.items() for name, i in rows.items()}


def evaluation(power, kmax, repeats=2, resampling=400, seed=0):
    """The Evaluation of marks at one kmax, beside P_dd alone: all five parameters free, regressors tested elsewhere.

    Regressors are trained on the training set and tested on the Latin hypercube, which no regressor or mark has seen.

    Parameters
    ----------
    power : {set: Measurement} for all sets in `SETS`, of the same marks for all but the first two.
    kmax : [h/Mpc].
    repeats, resampling : regressors a mark, and resamples behind an interval of a forecast.
    """
    forecasts = nb.forecast({name: power[name] for name in FIDUCIAL_SETS}, kmax, count=resampling, seed=seed)
    with one_thread():
        recovered = nb.recover(power, power["BSQ"].labels, kmax, train_on="BSQ", repeats=repeats, seed=seed)
    return Evaluation(forecasts, recovered)


def table(runs, preset, also=(), data_root=None, **options):
    """Rows, as dicts of `COLUMNS` and `NUMBERS`: every Training at its own kmax, beside P_dd and a classical mark.

    Marks trained up to the largest kmax are used at smaller ones, too, as in the paper. Ratios are to the full mark
    (l_max = 2, nothing switched off) that was trained at the same kmax with the same seed.

    Parameters
    ----------
    runs : {Training: Run}, as `finished_runs` gives them.
    also : smaller kmax at which no mark was trained, but those of the largest are used [h/Mpc].
    data_root : see `nbkit.suite`.
    options : passed to `evaluation`.
    """
    largest, rows = max(each.kmax for each in runs), []
    own = [(each.kmax, each.seed) for each in runs]
    for kmax, seed in dict.fromkeys([*((k, s) for k in also for s in sorted({s for _, s in own})), *own]):
        mine = {mark_label(each): each for each in runs if (each.kmax, each.seed) == (kmax, seed)}
        if kmax < largest:
            wide = (each for each in runs if (each.kmax, each.seed) == (largest, seed) and each.residual and each.cross)
            mine |= {f"{mark_label(each)}{WIDE} {largest:g}": each for each in wide}
        marks = {CLASSICAL: REFERENCE} | {label: runs[each].mark for label, each in mine.items()}
        result = evaluation(nb.measure(preset, marks, SETS, data_root, progress=False), kmax, **options)
        for label in (UNMARKED, *marks):
            row = dict.fromkeys(COLUMNS) | {"mark": label, "kmax": kmax, "seed": seed}
            if label in mine:
                training, run = mine[label], runs[mine[label]]
                row |= {name: getattr(training, name) for name in VARIED}
                row |= {"trained_kmax": training.kmax, "run": run.name, "val_loss": run.best_loss}
            rows.append(row | numbers(result, label))
    return rows


def numbers(result, label, over=FULL):
    """{column: value} of an Evaluation: each quantity, its ratio to another mark, and both intervals."""
    found = {"": result.values(label)} | ({"_ratio": result.ratios(label, over)} if over in result.forecasts else {})
    return {
        f"{quantity}{ratio}{end}": x
        for ratio, of in found.items()
        for quantity, interval in of.items()
        for end, x in zip(ENDS, interval, strict=True)
    }


def write(rows, path, columns=(*COLUMNS, *NUMBERS)):
    """Keep a table as CSV, four digits a number."""
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, columns, lineterminator="\n")
        writer.writeheader()
        writer.writerows({name: f"{x:.4g}" if isinstance(x, float) else x for name, x in row.items()} for row in rows)


def lines(path):
    """The lines of any CSV file, as dicts of words."""
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def read(path):
    """The rows of a table that `write` wrote."""
    kinds = dict.fromkeys(("mark", "run"), str) | dict.fromkeys(("l_max", "seed"), int)
    kinds |= dict.fromkeys(("residual", "cross"), "True".__eq__)
    return [{name: kinds.get(name, float)(x) if x else None for name, x in row.items()} for row in lines(path)]


def stored_table(preset):
    """The rows of figures/ablations_<preset>.csv; without it, an error that names the command that is missing."""
    path = disk.figures() / f"ablations_{preset}.csv"
    if not path.is_file():
        finished_runs(planned(preset), f"ablations.py --preset {preset}")
        raise FileNotFoundError(
            f"All trainings of preset {preset!r} are there, but not their table, {path.name}: "
            f"`python figures/ablations.py --preset {preset}` measures them and writes it."
        )
    return read(path)


def own_rows(rows):
    """Those of marks that are judged at the kmax of their training."""
    return [row for row in rows if row["trained_kmax"] == row["kmax"]]


def row_of(rows, run, preset):
    """The row of a preset's table that a Run made, or would make."""
    for row in own_rows(rows) if isinstance(run.mark, nb.LearnedMark) else ():
        if run.training == nb.Training(preset, kmax=row["kmax"], **{name: row[name] for name in VARIED}):
            return row
    names = sorted({row["run"] for row in rows if row["run"]}, key=lambda name: (len(name), name))
    raise ValueError(
        f"The table of preset {preset!r} has no row for the run {run.name} ({run.training or 'a mark alone'}); it has "
        f"{len(names)} runs, for instance {', '.join(names[:3])}."
    )


def between_seeds(rows, quantity):
    """{(kmax, mark): (largest over smallest value, whether their intervals are apart)}, over the seeds of a training.

    Intervals resample simulations with the mark as it is; only a second training shows what training adds to them.
    """
    found = {}
    for row in own_rows(rows):
        if math.isfinite(row[quantity]):
            found.setdefault((row["kmax"], row["mark"]), []).append([row[quantity + end] for end in ENDS])
    out = {}
    for key, same in found.items():
        if len(same) > 1:
            values, low, high = zip(*same, strict=True)
            out[key] = max(values) / min(values), max(low) > min(high)
    return out


def in_words(row, quantities):
    """A row's ratios to the full mark that was trained at the same kmax with the same seed, and their intervals."""
    ratios = {quantity: [row[f"{quantity}_ratio{end}"] for end in ENDS] for quantity in quantities}
    return ", ".join(f"{quantity} {x:.2f} ({low:.2f} to {high:.2f})" for quantity, (x, low, high) in ratios.items())


def overview(rows):
    """The table to read: a line a mark and kmax, with sigma, MSE and validation loss of each seed beside each other."""
    seeds, body = sorted({row["seed"] for row in rows}), []
    by_kmax = sorted(rows, key=lambda row: row["kmax"])
    for kmax, mark in dict.fromkeys((row["kmax"], row["mark"]) for row in by_kmax):
        same = {row["seed"]: row for row in rows if (row["kmax"], row["mark"]) == (kmax, mark)}
        # What is not trained is the same for every seed.
        mine = [same.get(seed, {}) if seed == seeds[0] or same[min(same)]["run"] else {} for seed in seeds]
        losses = [f"{row['val_loss']:.2f}" if row.get("val_loss") else "" for row in mine]
        body.append([mark, f"{kmax:.2f}", *(row.get(name, "") for name in QUANTITIES for row in mine), *losses])
    others = [f"seed {seed}" for seed in seeds[1:]]
    columns = ["mark", "kmax", *(word for name in (*QUANTITIES, "loss") for word in (name, *others))]
    return show.table(body, columns, digits="{:.3f}")


def main(seeds, preset, jobs):
    """Train what is missing, measure all of it, write the table."""
    trainings = [training for seed in seeds for training in planned(preset, seed)]
    nb.suite(preset, sets=("BSQ",))  # made once, before several processes ask for it
    train_apart([training for training in trainings if finished_run(training) is None], jobs)
    write(table(finished_runs(trainings), preset), disk.figures() / f"ablations_{preset}.csv")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("seeds", type=int, nargs="*", default=[0])
    parser.add_argument("--preset", choices=PRESETS, default="demo")
    parser.add_argument("--jobs", type=int, default=2, help="trainings at a time, which share the cores")
    parser.add_argument("--list", action="store_true", help="only print the commands that train what is missing")
    parser.add_argument("--all", action="store_true", help="of --list: also what is there already, for job arrays")
    asked = parser.parse_args()
    if asked.list:
        for training in (training for seed in asked.seeds for training in planned(asked.preset, seed)):
            if asked.all or finished_run(training) is None:
                sys.stdout.write(training.papermill() + "\n")
    else:
        main(asked.seeds, asked.preset, asked.jobs)
