"""Ablations in one table: forecast and recovery of every trained mark, from the same simulations, with intervals."""

import csv
import math
from dataclasses import asdict, dataclass

from cases import case_of, planned, trained

from nbkit import disk
from nbkit.forecast.bootstrap import Resampled, resampled, resamples
from nbkit.forecast.fisher import UNMARKED, ingredients
from nbkit.mark.classical import ClassicalMark
from nbkit.measure import measure
from nbkit.mesh.threads import one_thread
from nbkit.recover.regression import Recovery, recovery_elsewhere, unmarked
from nbkit.universe.cosmology import QUIJOTE_NAMES
from nbkit.universe.suite import FIDUCIAL_SETS, PRESETS

SETS = ("BSQ", "latin_hypercube", *FIDUCIAL_SETS)
# Weighs dense regions down, as the best of the 48 classical marks do at the paper's kmax; notebook 05 shows it, too.
CLASSICAL, REFERENCE = "p=2 ds=0", ClassicalMark(2.0, 0.0)
FULL = "l_max = 2"
WIDE = ", trained to"  # for marks that are used below the kmax of their training
QUANTITIES = ("sigma_Om", "sigma_s8", "mse_Om", "mse_s8")
ENDS = ("", "_low", "_high")
COLUMNS = ("mark", "kmax", "trained_kmax", "l_max", "residual", "cross", "seed", "run", "val_loss")
NUMBERS = tuple(f"{q}{ratio}{end}" for q in QUANTITIES for ratio in ("", "_ratio") for end in ENDS)


@dataclass(frozen=True, eq=False)
class Evaluation:
    """Forecasts and recovery of several marks from the same simulations."""

    forecasts: dict[str, Resampled]
    recovered: Recovery

    def values(self, mark):
        """{quantity: (value, low, high)} of sigma and MSE, with 95 % intervals."""
        return self._named(self.forecasts[mark].sigma(), self.recovered.mse(mark))

    def ratios(self, mark, over):
        """The same of one mark over another, resampled together: above 1 where the other is better."""
        return self._named(self.forecasts[over].ratio(self.forecasts[mark]), self.recovered.ratio(mark, over))

    @staticmethod
    def _named(interval, mse):
        out = {}
        for name in ("Om", "s8"):
            i = QUIJOTE_NAMES.index(name)
            out[f"sigma_{name}"] = tuple(float(x[i]) for x in (interval.value, interval.low, interval.high))
            out[f"mse_{name}"] = tuple(float(x) for x in mse[:, i])
        return out


def evaluation(power, kmax, repeats=2, resampling=400, seed=0):
    """The Evaluation of marks at one kmax, beside P_dd alone: all five parameters free, regressors tested elsewhere.

    Regressors are trained on the training set and tested on the Latin hypercube, which no regressor or mark has seen.

    Parameters
    ----------
    power : {set: Measurement} of the same marks for all sets in `SETS`.
    kmax : [h/Mpc].
    repeats, resampling : regressors a mark, and resamples behind an interval of a forecast.
    """
    power, marks = {name: power[name].cut(kmax) for name in SETS}, power[SETS[0]].labels
    given = {label: ingredients(power, label) for label in (UNMARKED, *marks)}
    weights = resamples(given[UNMARKED].n_s, given[UNMARKED].pairs, resampling, seed)
    forecasts = {label: resampled(each, weights) for label, each in given.items()}
    spectra = [
        {UNMARKED: unmarked(power[name].P_dd)} | {label: power[name][label] for label in marks} for name in SETS[:2]
    ]
    train, test = (power[name].theta for name in SETS[:2])
    with one_thread():
        recovered = recovery_elsewhere(spectra[0], train, spectra[1], test, repeats=repeats, seed=seed)
    return Evaluation(forecasts, recovered)


def table(runs, preset, also=(), data_root=None, **options):
    """Rows, as dicts of `COLUMNS` and `NUMBERS`: every Case at its own kmax, beside P_dd and a classical mark.

    Marks trained up to the largest kmax are used at smaller ones, too, as in the paper. Ratios are to the full mark
    (l_max = 2, nothing switched off) that was trained at the same kmax with the same seed.

    Parameters
    ----------
    runs : {Case: Run}, as `cases.trained` gives them.
    also : smaller kmax at which no mark was trained, but those of the largest are used [h/Mpc].
    data_root : see `nbkit.universe.suite.suite`.
    options : passed to `evaluation`.
    """
    largest, rows = max(case.kmax for case in runs), []
    own = [(case.kmax, case.seed) for case in runs]
    for kmax, seed in dict.fromkeys([*((k, s) for k in also for s in sorted({s for _, s in own})), *own]):
        mine = {case.mark: case for case in runs if (case.kmax, case.seed) == (kmax, seed)}
        if kmax < largest:
            wide = (case for case in runs if (case.kmax, case.seed) == (largest, seed) and case.residual and case.cross)
            mine |= {f"{case.mark}{WIDE} {largest:g}": case for case in wide}
        marks = {CLASSICAL: REFERENCE} | {label: runs[case].mark for label, case in mine.items()}
        result = evaluation(measure(preset, marks, SETS, data_root, progress=False), kmax, **options)
        for label in (UNMARKED, *marks):
            row = dict.fromkeys(COLUMNS) | {"mark": label, "seed": seed}
            if label in mine:
                case, run = mine[label], runs[mine[label]]
                row |= asdict(case) | {"trained_kmax": case.kmax, "run": run.folder.name, "val_loss": run.best_loss}
                row["mark"] = label
            rows.append(row | {"kmax": kmax} | numbers(result, label))
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
    flags = {"True": True, "False": False, "": None}
    rows = []
    for row in lines(path):
        about = {name: flags.get(row[name], row[name]) for name in COLUMNS}
        about |= {name: None if row[name] == "" else int(row[name]) for name in ("l_max", "seed")}
        about |= {
            name: None if row[name] == "" else float(row[name])
            for name in ("kmax", "trained_kmax", "val_loss", *NUMBERS)
        }
        rows.append(about)
    return rows


def finished(preset):
    """The rows of figures/ablations_<preset>.csv; without it, an error that names the command that is missing."""
    path = disk.figures() / f"ablations_{preset}.csv"
    if not path.is_file():
        trained(planned(), preset)
        raise FileNotFoundError(
            f"All trainings of preset {preset!r} are there, but not their table, {path.name}: "
            f"`python figures/ablations.py --preset {preset}` measures them and writes it."
        )
    return read(path)


def row_of(rows, run, preset):
    """The row of a preset's table that a Run made, or would make."""
    case = case_of(run) if run.grid == PRESETS[preset].grid else None
    own = (row for row in rows if row["trained_kmax"] == row["kmax"])
    mine = [row for row in own if case and all(row[name] == value for name, value in asdict(case).items())]
    if not mine:
        names = sorted({row["run"] for row in rows if row["run"]}, key=lambda name: (len(name), name))
        raise ValueError(
            f"The table of preset {preset!r} has no row for the run {run.folder.name} ({run.grid.n}^3 cells, "
            f"{case_of(run) or 'no learned mark trained by contrast'}); it has {len(names)} runs, for instance "
            f"{', '.join(names[:3])}."
        )
    return mine[0]


def between_seeds(rows, quantity):
    """{(kmax, mark): (largest over smallest value, whether their intervals are apart)}, over the seeds of a training.

    Intervals resample simulations with the mark as it is; only a second training shows what training adds to them.
    """
    found = {}
    for row in rows:
        if row["run"] is not None and row["trained_kmax"] == row["kmax"] and math.isfinite(row[quantity]):
            found.setdefault((row["kmax"], row["mark"]), []).append(row)
    out = {}
    for key, same in found.items():
        if len(same) > 1:
            values, low, high = ([row[quantity + end] for row in same] for end in ENDS)
            out[key] = max(values) / min(values), max(low) > min(high)
    return out


def in_words(row, quantities):
    """A row's ratios to the full mark that was trained at the same kmax with the same seed, and their intervals."""
    ratios = ([row[f"{quantity}_ratio{end}"] for end in ENDS] for quantity in quantities)
    said = zip(quantities, ratios, strict=True)
    return ", ".join(f"{quantity} {value:.2f} ({low:.2f} to {high:.2f})" for quantity, (value, low, high) in said)


def text(rows):
    """The table to read: a line a mark and kmax, with sigma, MSE and validation loss of each seed beside each other."""
    seeds = sorted({row["seed"] for row in rows})
    lines = [f"{'kmax  mark':34s}" + "".join(f"{name:>9s}{'':{7 * len(seeds) - 7}s}" for name in (*QUANTITIES, "loss"))]
    for kmax, mark in dict.fromkeys((row["kmax"], row["mark"]) for row in sorted(rows, key=lambda row: row["kmax"])):
        same = {row["seed"]: row for row in rows if (row["kmax"], row["mark"]) == (kmax, mark)}
        # What is not trained is the same for every seed.
        mine = [same.get(seed) if seed == seeds[0] or same[min(same)]["run"] else None for seed in seeds]
        lines.append(f"{kmax:4.2f}  {mark:28s}")
        for name, digits in (*((quantity, 3) for quantity in QUANTITIES), ("val_loss", 2)):
            values = (row and row[name] for row in mine)
            lines[-1] += "  " + "".join(f"{'':7s}" if x is None else f"{x:7.{digits}f}" for x in values)
    return "\n".join(line.rstrip() for line in lines)
