"""Trained marks that come with the kit, and how a notebook finds the run it is asked for."""

import shutil
import sys
from pathlib import Path

from nbkit import disk

FOLDER = disk.BUNDLED
# What `load_run` reads; recipes, settings and the history of the training are in them.
FILES = ("run.json", "best.safetensors", "last.safetensors", "history.csv")


def shipped_runs():
    """Names of the runs that come with the kit."""
    return tuple(sorted(path.parent.name for path in FOLDER.glob("*/run.json")))


def run_folder(run, preset=None):
    """Folder of a run, for `load_run`, from whatever names it.

    Parameters
    ----------
    run : the name of a shipped run, the name of a folder in `train` of `nbkit.disk.runs()`, or a path.
    preset : with it, "l2" is short for the shipped run "demo_l2", or whatever the preset is.
    """
    short = [FOLDER / f"{preset}_{run}"] if preset else []
    for folder in (*short, FOLDER / str(run), disk.runs() / "train" / str(run), Path(run).expanduser()):
        if str(run) and (folder / "run.json").is_file():
            return folder
    of_preset = f" for preset {preset!r}" if preset else ""
    raise FileNotFoundError(
        f"There is no run {str(run)!r}{of_preset}: give one of {', '.join(shipped_runs())}, the name of a folder in "
        f"{disk.runs() / 'train'}, or a path; `papermill 03_train.ipynb out.ipynb` makes one."
    )


def ship(run, name):
    """Copy what is needed of a finished run into the package: `python -m nbkit.train.shipped <run> <name>`."""
    folder, target = run_folder(run), FOLDER / name
    target.mkdir(parents=True, exist_ok=True)
    for file in FILES:
        shutil.copyfile(folder / file, target / file)
    return target


if __name__ == "__main__":
    print(ship(*sys.argv[1:]))
