"""Both objectives, from every start: trains what is missing and writes objectives_demo.csv, which notebook 08 draws.

Contrast asks which cosmology of the whole prior a box belongs to, information how well one point of it is measured:
what do marks trained on either, from every start, reach in both tasks?

Run `python figures/objectives.py` (an hour on two free cores). What is trained and measured is kept in runs/: stop it
at any time, the next call goes on.
"""

from dataclasses import replace

import ablations
from ablations import ENDS, PARAMETERS, QUANTITIES, Evaluation, finished_run, finished_runs, train_apart

import nbkit as nb
from nbkit import disk, show
from nbkit.forecast import BEST, UNMARKED
from nbkit.mark import UnitMark
from nbkit.mesh.threads import one_thread
from nbkit.universe import FIDUCIAL_SETS, PRESETS, QUIJOTE_NAMES

KMAX = (0.2, 0.3)
# Fiducial boxes and pairs that judge marks, over those of a preset: some differences are of a few per cent.
JUDGES = 5
RATIOS = ("ratio_Om", "ratio_s8")
COLUMNS = ("mark", "objective", "start", "trained_kmax", "run", "kmax", "info_nce")
NUMBERS = tuple(f"{name}{end}" for name in (*QUANTITIES, *RATIOS) for end in ENDS)


def planned(preset="demo"):
    """All Trainings of the comparison: every start at the paper's kmax, and the best one to 0.3 h/Mpc."""
    information = nb.Training(preset, "information", kmax=KMAX[0])  # whose usual start is the best sum of functions
    others = [replace(information, start=start) for start in ("unit", "classical", f"{preset}_l2")]
    contrast = [nb.Training(preset, kmax=kmax) for kmax in KMAX]
    return [*contrast, *others, information, replace(information, kmax=KMAX[1])]


def start_of(training):
    """Where a Training on information starts; None of contrast."""
    named = "function" if training.start == "default" else training.start
    return named if training.objective == "information" else None


def mark_label(training):
    """What tables and figures call the mark of a Training."""
    start = start_of(training)
    return f"{training.objective}{f', from {start}' if start else ''}, k < {training.kmax:g}"


def judges(preset):
    """Realisations around the fiducial point that neither trainings nor other notebooks use, as a Preset."""
    preset = PRESETS[preset]
    near, sizes = preset.near, (JUDGES * preset.fiducial, JUDGES * preset.pairs)
    skipped = tuple(a + b for a, b in zip(near.skipped, (near.fiducial, near.pairs), strict=True))
    return replace(preset, name=f"{preset.name}_judges", fiducial=sizes[0], pairs=sizes[1], skipped=skipped)


def table(trainings, preset, repeats=2, resampling=400):
    """Rows, as dicts of `COLUMNS` and `NUMBERS`: every mark at every kmax in `KMAX`, beside P_dd and classical marks.

    `info_nce` is the validation loss of heads trained anew on the mark as it is; the ratios are sigma of the best of
    the 48 classical marks, chosen for each parameter on these very simulations, over that of the mark.

    Parameters
    ----------
    preset : of embedded universes; forecasts are made with `judges`.
    repeats, resampling : see `ablations.evaluation`.
    """
    runs, rows = finished_runs(trainings, "objectives.py"), []
    trained, simulations = {mark_label(each): run.mark for each, run in runs.items()}, nb.suite(preset, sets=("BSQ",))
    around = nb.measure(judges(preset), nb.classical_marks() | trained, FIDUCIAL_SETS, progress=False)
    for kmax in KMAX:
        forecasts = nb.forecast(around, kmax, count=resampling)
        rivals = {label: nb.classical_marks()[label] for label in map(forecasts[BEST].labels.get, PARAMETERS)}
        power = nb.measure(preset, rivals | trained, ("BSQ", "latin_hypercube"), progress=False)
        with one_thread():
            recovered = nb.recover(power, (*rivals, *trained), kmax, train_on="BSQ", repeats=repeats)
        result = Evaluation(forecasts, recovered)
        by_label = {mark_label(each): each for each in trainings}
        for label, mark in ({UNMARKED: UnitMark()} | rivals | trained).items():
            row = dict.fromkeys(COLUMNS) | {"mark": label, "kmax": kmax} | _numbers(result, label)
            row["info_nce"] = nb.train(nb.Training(preset, kmax=kmax), simulations["BSQ"], fixed=mark).best_loss
            if each := by_label.get(label):
                row |= {"objective": each.objective, "start": start_of(each), "trained_kmax": each.kmax}
                row["run"] = runs[each].name
            rows.append(row)
    return rows


def _numbers(result, label):
    intervals, ratio = result.values(label), result.forecasts[BEST] / result.forecasts[label]
    for name in PARAMETERS:
        i = QUIJOTE_NAMES.index(name)
        intervals[f"ratio_{name}"] = tuple(float(x[i]) for x in (ratio.value, ratio.low, ratio.high))
    return {f"{name}{end}": x for name, of in intervals.items() for end, x in zip(ENDS, of, strict=True)}


def write(rows, path):
    """Keep a table as CSV."""
    ablations.write(rows, path, (*COLUMNS, *NUMBERS))


def read(path):
    """The rows of a table that `write` wrote."""
    words = ("mark", "objective", "start", "run")
    return [
        {name: x or None if name in words else float(x) if x else None for name, x in row.items()}
        for row in ablations.lines(path)
    ]


def overview(rows):
    """The table to read: a line a mark and kmax; the ratios are the best classical sigma over that of the mark."""
    body = []
    for row in rows:
        ratios = ["{:.2f} ({:.2f} to {:.2f})".format(*(row[name + end] for end in ENDS)) for name in RATIOS]
        numbers = [f"{row['kmax']:.1f}", f"{row['info_nce']:.2f}", *ratios, f"{row['mse_Om']:.2f}"]
        body.append([row["mark"], *numbers, f"{row['mse_s8']:.3f}"])
    return show.table(body, ["mark", "kmax", "InfoNCE", *RATIOS, "mse_Om", "mse_s8"])


if __name__ == "__main__":
    nb.suite(PRESETS["demo"].near, sets=FIDUCIAL_SETS)  # made once, before several processes ask for it
    train_apart([training for training in planned() if finished_run(training) is None])
    write(table(planned(), "demo"), disk.figures() / "objectives_demo.csv")
