"""The paper on the boxes of any preset, Quijote's own among them: suites, trainings, spectra, a table, notebooks.

`make experiment PRESET=quijote DATA_ROOT=/data/Quijote DEVICE=cuda` runs it, in one process on one card. What is made
is kept: stop it at any time, the next call goes on, and marks that were trained elsewhere (figures/paper.slurm) are
found. Nothing is put into the kit: table.csv and the executed notebooks go to `experiment/<preset>` in runs/.
"""

import argparse
import sys

import ablations
import papermill
from ablations import CLASSICAL, ENDS, QUANTITIES, by_quantity
from experiment import say
from results import KMAX

import nbkit as nb
from nbkit import disk
from nbkit.forecast import BEST, UNMARKED, unseen
from nbkit.look import latent
from nbkit.mesh.threads import choose_device, one_thread
from nbkit.train.data import require_memory
from nbkit.universe import FIDUCIAL_SETS, PRESETS

AROUND = (*FIDUCIAL_SETS, "latin_hypercube")
COLUMNS = ("mark", "kmax", "what", *(quantity + end for quantity in QUANTITIES for end in ENDS))


def trainings(preset):
    """{label: Training}: contrast with all multipoles and with the density alone, and information."""
    like_paper = {"recipe": "paper"} if PRESETS[preset].grid.n >= 128 else {}
    contrast = {f"l{l_max}": nb.Training(preset, l_max=l_max, **like_paper) for l_max in (2, 0)}
    return contrast | {"i2": nb.Training(preset, objective="information", kmax=0.2)}


def train(preset, device):
    """{label: Run} of all trainings, and heads on M = 1, which notebook 06 compares with."""
    runs = {}
    for label, training in trainings(preset).items():
        say(training.name)
        runs[label] = nb.train(training, training.simulations(), device=device)
    say("heads on M = 1")
    latent.unit_run(runs["l2"], device=device)
    return runs


def spectra(preset, runs, device):
    """{set: Measurement} of all marks, and over the training set of the few that notebook 07 learns from."""
    classical, trained = nb.classical_marks(), {label: run.mark for label, run in runs.items()}
    power = nb.measure(preset, classical | trained, AROUND, device=device)
    return power | nb.measure(preset, {CLASSICAL: classical[CLASSICAL]} | trained, ("BSQ",), device=device)


def table(power, runs):
    """Rows, as dicts of COLUMNS: sigma and MSE of every trained mark, and of rivals over those: above 1 it is better.

    Regressors are trained on four fifths of the Latin hypercube and tested on the last, in turn. All marks are judged
    on the same boxes around the fiducial point: those that no training on information has seen.
    """
    around, rows = {name: power[name] for name in FIDUCIAL_SETS}, []
    for run in runs.values():
        around = unseen(around, run)
    for kmax in KMAX:
        forecasts = nb.forecast(around, kmax)
        with one_thread():
            recovered = nb.recover(power, power["latin_hypercube"].labels, kmax)
        rivals = {UNMARKED: UNMARKED, BEST: recovered.chosen(nb.classical_marks())}
        for label in runs:
            found = {"itself": by_quantity(forecasts[label].sigma, recovered.mse(label))}
            for rival, regressed in rivals.items():
                ratio = forecasts[rival] / forecasts[label], recovered.ratio(regressed, over=label)
                found[f"{rival} over it"] = by_quantity(*ratio)
            for what, of in found.items():
                values = {f"{q}{end}": x for q, of_q in of.items() for end, x in zip(ENDS, of_q, strict=True)}
                rows.append({"mark": label, "kmax": kmax, "what": what} | values)
    return rows


def notebooks(preset, runs, folder):
    """Notebooks 04 to 07 on these marks; 08 shows a table that figures/ablations.py makes."""
    names = {label: run.name for label, run in runs.items()}
    pairs = {"04": ("i2", "l2"), "05": ("i2", "l2"), "06": ("l2", "l0"), "07": ("i2", "l2")}
    for path in sorted((disk.figures().parent / "notebooks").glob("0[4-7]_*.ipynb")):
        say(path.name)
        run, versus = pairs[path.name[:2]]
        given = {"preset": preset, "run": names[run], "versus": names[versus]}
        given |= {"silenced": names["l2"]} if path.name.startswith("04") else {}
        papermill.execute_notebook(path, folder / path.name, given)


def main(line=None):
    """All of it; what cannot work is refused before anything is made."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--preset", choices=PRESETS, default="quijote")
    parser.add_argument("--data-root", help="folder with Quijote's files, instead of embedded universes")
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:<number>")
    asked = parser.parse_args(line)
    preset, folder = PRESETS[asked.preset], disk.runs() / "experiment" / asked.preset
    if asked.data_root and preset.particles:
        sys.exit(f"Preset {preset.name!r} makes its own boxes; Quijote's files are for a preset of real data, quijote.")
    try:
        require_memory(preset.grid, choose_device(asked.device))
        say("suites")
        nb.suite(asked.preset, data_root=asked.data_root)
        nb.suite(preset.near, FIDUCIAL_SETS, data_root=asked.data_root)
    except (ValueError, OSError) as problem:
        sys.exit(str(problem))
    folder.mkdir(parents=True, exist_ok=True)
    runs = train(asked.preset, asked.device)
    say("spectra")
    power = spectra(asked.preset, runs, asked.device)
    say("table.csv")
    ablations.write(table(power, runs), folder / "table.csv", COLUMNS)
    notebooks(asked.preset, runs, folder)
    say(f"{folder} has table.csv and the notebooks")


if __name__ == "__main__":
    main()
