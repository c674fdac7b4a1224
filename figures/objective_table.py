"""Both objectives in one table: what marks trained on either, from every start, reach in both tasks.

Contrast asks which cosmology of the whole prior a box belongs to, information how well one point of it is measured.
"""

from dataclasses import dataclass, replace

import ablation_table
from ablation_table import ENDS, QUANTITIES, evaluation
from cases import Case, found
from frozen import FrozenMark
from nbkit.train.launch import run_name
from nbkit.train.train import train

from nbkit import disk
from nbkit.forecast.fisher import UNMARKED, ingredients, standard
from nbkit.mark.classical import UnitMark, classical_marks
from nbkit.measure import measure
from nbkit.train.run import load_run
from nbkit.universe.cosmology import QUIJOTE_NAMES
from nbkit.universe.suite import FIDUCIAL_SETS, PRESETS, suite

KMAX = (0.2, 0.3)
# Fiducial boxes and pairs that judge marks, over those of a preset: some differences are of a few per cent.
JUDGES = 5
RATIOS = ("ratio_Om", "ratio_s8")
COLUMNS = ("mark", "objective", "start", "trained_kmax", "run", "kmax", "info_nce")
NUMBERS = tuple(f"{name}{end}" for name in (*QUANTITIES, *RATIOS) for end in ENDS)


@dataclass(frozen=True)
class Training:
    """One training of the full mark: objective, where it starts (information only), and largest k [h/Mpc]."""

    objective: str
    kmax: float
    start: str = ""

    @property
    def label(self):
        """What tables and figures call it."""
        return f"{self.objective}{', from ' + self.start if self.start else ''}, k < {self.kmax:g}"

    def command(self, preset):
        """The papermill command that trains it."""
        if not self.start:
            return Case(self.kmax).command(preset)
        name = run_name(preset, kmax=self.kmax, objective=self.objective, start=self.start)
        given = f"-p preset {preset} -p objective {self.objective} -p start {self.start} -p kmax {self.kmax:g}"
        return f"papermill notebooks/03_train.ipynb runs/{name}.ipynb {given} -p compare False"

    def run(self, preset):
        """The finished Run; None if there is none."""
        if not self.start:
            return found(Case(self.kmax), preset)
        folder = disk.runs() / "train" / run_name(preset, kmax=self.kmax, objective=self.objective, start=self.start)
        if not (folder / "best.safetensors").is_file():
            return None
        run = load_run(folder)
        return run if run.finished else None


def judges(preset):
    """Realisations around the fiducial point that neither trainings nor other notebooks use, as a Preset."""
    preset = PRESETS[preset]
    near, sizes = preset.near, (JUDGES * preset.fiducial, JUDGES * preset.pairs)
    skipped = tuple(a + b for a, b in zip(near.skipped, (near.fiducial, near.pairs), strict=True))
    return replace(preset, name=f"{preset.name}_judges", fiducial=sizes[0], pairs=sizes[1], skipped=skipped)


def planned(preset="demo"):
    """All trainings of the comparison: every start at the paper's kmax, and the best one to 0.3 h/Mpc."""
    starts = [Training("information", 0.2, start) for start in ("unit", "classical", f"{preset}_l2", "function")]
    return [*(Training("contrast", k) for k in KMAX), *starts, Training("information", 0.3, "function")]


def table(trainings, preset, **options):
    """Rows, as dicts of `COLUMNS` and `NUMBERS`: every mark at every kmax in `KMAX`, beside P_dd and classical marks.

    `info_nce` is the validation loss of heads trained anew on the mark as it is; the ratios are sigma of the best of
    the 48 classical marks, chosen for each parameter on these very simulations, over that of the mark.

    Parameters
    ----------
    preset : of embedded universes; forecasts are made with `judges`.
    options : passed to `ablation_table.evaluation`.
    """
    runs = {each.label: each.run(preset) for each in trainings}
    if missing := [each for each in trainings if runs[each.label] is None]:
        raise FileNotFoundError(
            f"{len(missing)} of {len(trainings)} trainings of preset {preset!r} are missing or unfinished; "
            f"`{missing[0].command(preset)}` makes the first, `python figures/objectives.py` all."
        )
    near, prior = suite(judges(preset), sets=FIDUCIAL_SETS), suite(preset, sets=("BSQ", "latin_hypercube"))
    around = {name: near[name] for name in near}
    simulations, rows = around | {name: prior[name] for name in prior}, []
    for kmax in KMAX:
        best = best_classical(around, kmax)
        classical = {label: classical_marks()[label] for label in dict.fromkeys(best.values())}
        frozen = {label: FrozenMark(str(run.folder)) for label, run in runs.items()}
        marks = classical | {label: run.mark for label, run in runs.items()}
        result = evaluation(measure(simulations, marks, progress=False), kmax, **options)
        for label, mark in ({UNMARKED: UnitMark()} | classical | frozen).items():
            row = dict.fromkeys(COLUMNS) | {"mark": label, "kmax": kmax} | _numbers(result, label, best)
            heads = train(simulations["BSQ"], _folder(preset, label, kmax), mark=mark, kmax=kmax, fresh=True)
            row["info_nce"] = heads.best_loss
            for each in (x for x in trainings if x.label == label):
                row |= {"objective": each.objective, "start": each.start, "trained_kmax": each.kmax}
                row["run"] = runs[label].folder.name
            rows.append(row)
    return rows


def best_classical(simulations, kmax):
    """{"Om": label, "s8": label} of the classical marks with the smallest marginalised errors."""
    spectra = measure(simulations, classical_marks(), progress=False)
    sigma = {label: standard(ingredients(spectra, label, kmax)).sigma() for label in classical_marks()}
    rows = {name: QUIJOTE_NAMES.index(name) for name in ("Om", "s8")}
    return {name: min(sigma, key=lambda label, i=i: sigma[label][i]) for name, i in rows.items()}


def _folder(preset, label, kmax):
    return disk.runs() / "objectives" / preset / f"{label} at {kmax:g}"


def _numbers(result, label, best):
    intervals = result.values(label)
    for name, classical in best.items():
        ratio, i = result.forecasts[label].ratio(result.forecasts[classical]), QUIJOTE_NAMES.index(name)
        intervals[f"ratio_{name}"] = tuple(float(x[i]) for x in (ratio.value, ratio.low, ratio.high))
    return {f"{name}{end}": x for name, of in intervals.items() for end, x in zip(ENDS, of, strict=True)}


def write(rows, path):
    """Keep a table as CSV."""
    ablation_table.write(rows, path, (*COLUMNS, *NUMBERS))


def read(path):
    """The rows of a table that `write` wrote."""
    words = ("mark", "objective", "start", "run")
    return [
        {name: x or None if name in words else float(x) if x else None for name, x in row.items()}
        for row in ablation_table.lines(path)
    ]
