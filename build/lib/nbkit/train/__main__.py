"""`python -m nbkit.train --preset mini --kmax 0.2` trains a mark, in one process or, under `torchrun`, in many."""

import argparse
import sys
from dataclasses import fields

from nbkit.train import Training, train


def parser():
    """The command line: an option for every field of a `Training`, and where and how it runs."""
    documented = (line.split(" : ") for line in Training.__doc__.splitlines() if " : " in line)
    meaning = {name.strip(): words for name, words in documented}
    line = argparse.ArgumentParser("python -m nbkit.train", description="Train a mark, or go on training it.")
    for each in fields(Training):
        flag, kind = f"--{each.name.replace('_', '-')}", type(each.default)
        how = {"action": argparse.BooleanOptionalAction} if kind is bool else {"type": kind}
        line.add_argument(flag, default=each.default, help=meaning[each.name], **how)
    line.add_argument("--folder", help="of the run [named after the training, in runs/train]")
    line.add_argument("--data-root", help="folder with Quijote's files, instead of embedded universes")
    line.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:<number>")
    return line


def main(line=None):
    """Train from a shell; a line an epoch for a log."""
    asked = vars(parser().parse_args(line))
    about = {name: asked.pop(name) for name in ("folder", "data_root", "device")}

    def tell(objective, now):
        row = now.history[-1]
        losses = f"training {row['train_loss']:.4f}, validation {row['val_loss']:.4f}"
        sys.stdout.write(f"{row['stage']} epoch {row['epoch']}: {losses}, {row['seconds']:.1f} s\n")
        sys.stdout.flush()

    train(Training(**asked), on_epoch=tell, **about)


if __name__ == "__main__":
    main()
