"""Training from a shell, in one process or, under `torchrun`, in many: `python -m nbkit.train.launch --help`."""

import argparse
import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

from nbkit.train.recipe import RECIPES, default_recipe, recipe_named
from nbkit.train.train import train
from nbkit.train.train_information import INFORMATION, STARTS, train_information
from nbkit.universe.suite import FIDUCIAL_SETS, PRESETS, suite

OBJECTIVES = ("contrast", "information")


def run_name(
    preset="demo",
    recipe="default",
    kmax=0.3,
    l_max=2,
    radial="fourier",
    residual=True,
    cross=True,
    seed=0,
    objective="contrast",
    start="function",
):
    """Name of the folder in which notebook 03 trains with these parameters."""
    how = [recipe] if objective == "contrast" else [objective, *Path(start).parts[-1:]]
    tail = [] if objective != "contrast" else ["residual" if residual else "plain"]
    words = preset, *how, f"k{kmax:g}", f"l{l_max}", radial, *tail
    return "_".join([*words, *["nocross"] * (not cross), f"seed{seed}"])


def arguments(line=None):
    """The settings of a training, from the words of a command line."""
    parser = argparse.ArgumentParser("python -m nbkit.train.launch", description="Train a mark, or go on training it.")
    parser.add_argument("out", help="folder for checkpoints and history")
    parser.add_argument("--preset", choices=PRESETS, default="demo")
    parser.add_argument("--data-root", help="folder with Quijote's files, instead of embedded universes")
    parser.add_argument("--objective", choices=OBJECTIVES, default="contrast")
    parser.add_argument("--start", default="function", help=f"of information: {', '.join(STARTS)}, or a run by name")
    parser.add_argument("--recipe", choices=RECIPES, help="of contrast")
    parser.add_argument("--epochs", type=int, help="most epochs of the mark's training; default that of the recipe")
    parser.add_argument("--head-epochs", type=int, help="epochs of heads and searches; default that of the recipe")
    parser.add_argument("--kmax", type=float, default=0.3)
    parser.add_argument("--l-max", type=int, default=2)
    parser.add_argument("--radial", default="fourier")
    parser.add_argument("--no-residual", dest="residual", action="store_false")
    parser.add_argument("--no-cross", dest="cross", action="store_false")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="auto")
    return parser.parse_args(line)


def say(trainer):
    """A line an epoch, from the first process, for a log."""
    if trainer.processes.first:
        row = trainer.progress.history[-1]
        losses = f"training {row['train_loss']:.4f}, validation {row['val_loss']:.4f}"
        sys.stdout.write(f"{row['stage']} epoch {row['epoch']}: {losses}, {row['seconds']:.1f} s\n")
        sys.stdout.flush()


def words(residual=True, cross=True, **asked):
    """The command line of settings given by name; those that are None or empty are left to their defaults."""
    given = {name: value for name, value in asked.items() if value not in (None, "")}
    pairs = [(f"--{name.replace('_', '-')}", str(value)) for name, value in given.items()]
    flags = ["--no-residual"] * (not residual) + ["--no-cross"] * (not cross)
    return [word for pair in pairs for word in pair] + flags


def follow(out, processes, **asked):
    """Train with `torchrun` in several processes of this machine; yield the lines of their log as they come.

    Parameters
    ----------
    out : folder of the run.
    processes : how many: GPUs, or CPUs to share each batch.
    asked : settings of the training by name, for instance preset="mini", kmax=0.2.
    """
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
    command += ["-m", "nbkit.train.launch", str(out), *words(**asked)]
    Path(out).mkdir(parents=True, exist_ok=True)
    log = Path(out) / "log.txt"
    with log.open("w") as file, subprocess.Popen(command, stdout=subprocess.PIPE, stderr=file, text=True) as started:
        for line in started.stdout:
            file.write(line)
            yield line.rstrip()
    if started.returncode:
        last = log.read_text().strip().splitlines()[-15:]
        raise RuntimeError(f"The training ended with code {started.returncode}; the end of {log}:\n" + "\n".join(last))


def main(line=None):
    """Make or find the suite, and train."""
    asked = vars(arguments(line))
    contrast = asked.pop("objective") == "contrast"
    preset = PRESETS[asked.pop("preset")]
    source = {"sets": ("BSQ",) if contrast else FIDUCIAL_SETS, "data_root": asked.pop("data_root")}
    sets = suite(preset if contrast else preset.near, **source)
    if contrast:
        recipe = recipe_named(asked.pop("recipe") or default_recipe(preset.grid))
        trained, options = partial(train, sets["BSQ"]), {"residual": asked.pop("residual")}
    else:
        recipe, trained, options = INFORMATION, partial(train_information, sets), {"start": asked["start"]}
    changed = {name: asked.pop(name) or getattr(recipe, name) for name in ("epochs", "head_epochs")}
    for unused in ("start", "recipe", "residual"):
        asked.pop(unused, None)
    trained(asked.pop("out"), recipe=replace(recipe, **changed), on_epoch=say, **options, **asked)


if __name__ == "__main__":
    main()
