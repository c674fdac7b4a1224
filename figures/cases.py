"""Ablations of the learned mark, appendix A: which trainings there are, and where each is found.

`python figures/cases.py --preset mini` lists the commands that train what is missing, one a line.
"""

import argparse
import sys
from dataclasses import asdict, dataclass

from nbkit.train.launch import run_name
from nbkit.train.recipe import default_recipe, recipe_named
from nbkit.train.shipped import run_folder, shipped_runs

from nbkit import disk
from nbkit.mark.learned import LearnedMark
from nbkit.train.run import load_run
from nbkit.universe.suite import PRESETS

KMAX, L_MAX = (0.1, 0.15, 0.2, 0.25, 0.3), (0, 1, 2)
# Where residualisation and cross term are switched off: the paper's kmax.
OFF_AT = (0.2,)


@dataclass(frozen=True)
class Case:
    """One training: largest k [h/Mpc], multipoles, and what is switched off."""

    kmax: float
    l_max: int = 2
    residual: bool = True
    cross: bool = True
    seed: int = 0

    @property
    def mark(self):
        """What tables and figures call it."""
        words = [f"l_max = {self.l_max}"] + ["no residual"] * (not self.residual) + ["no cross term"] * (not self.cross)
        return ", ".join(words)

    def command(self, preset):
        """The papermill command that trains it."""
        given = {name: value for name, value in asdict(self).items() if value is not True}
        values = " ".join(
            f"-p {name} {value}" for name, value in ({"preset": preset, "compare": False} | given).items()
        )
        return f"papermill notebooks/03_train.ipynb runs/{run_name(preset, **asdict(self))}.ipynb {values}"


def planned(seed=0, kmaxes=KMAX, l_maxes=L_MAX, off_at=OFF_AT):
    """All Cases of a seed: every kmax with every l_max, and the full mark with one thing switched off."""
    cases = [Case(kmax, l_max, seed=seed) for kmax in kmaxes for l_max in l_maxes]
    for kmax in off_at:
        cases += [Case(kmax, residual=False, seed=seed), Case(kmax, cross=False, seed=seed)]
    return cases


def case_of(run):
    """The Case that a Run is, or None if it is no LearnedMark trained by contrast."""
    if not isinstance(run.mark, LearnedMark) or run.heads is None:
        return None
    mark = run.mark.settings
    return Case(run.kmax, mark["l_max"], run.settings["residual"], mark["cross"], run.settings["seed"])


def found(case, preset):
    """The finished Run of a Case, shipped or in runs/train; None if there is none."""
    recipe = recipe_named(default_recipe(PRESETS[preset].grid))
    for name in shipped_runs():
        run = load_run(run_folder(name))
        if case_of(run) == case and run.grid == PRESETS[preset].grid and run.recipe == recipe:
            return run
    folder = disk.runs() / "train" / run_name(preset, **asdict(case))
    if not (folder / "best.safetensors").is_file():
        return None
    run = load_run(folder)
    if case_of(run) != case or run.grid != PRESETS[preset].grid:
        raise ValueError(
            f"The run in {folder} is {case_of(run)} on {run.grid.n}^3 cells, not the {case} its name promises; "
            f"delete it and run `{case.command(preset)}`."
        )
    return run if run.finished else None


def trained(cases, preset):
    """{Case: Run}; if some are missing, an error that names the command that makes them."""
    runs = {case: found(case, preset) for case in cases}
    missing = [case for case, run in runs.items() if run is None]
    if missing:
        raise FileNotFoundError(
            f"{len(missing)} of {len(cases)} trainings of preset {preset!r} are missing or unfinished; "
            f"`{missing[0].command(preset)}` makes the first, and `python figures/cases.py --preset {preset}` lists "
            "the commands for all."
        )
    return runs


def main(line=None):
    """Print the commands that train what is missing."""
    parser = argparse.ArgumentParser("python figures/cases.py", description="Commands that train what is missing.")
    parser.add_argument("--preset", choices=PRESETS, default="demo")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--all", action="store_true", help="also what is there already, for job arrays")
    asked = parser.parse_args(line)
    for case in planned(asked.seed):
        if asked.all or found(case, asked.preset) is None:
            sys.stdout.write(case.command(asked.preset) + "\n")


if __name__ == "__main__":
    main()
