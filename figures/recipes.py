"""Recipes compared at equal cost: writes recipes_<preset>.csv, which notebook 03 draws.

Run `python figures/recipes.py demo` (ten minutes on two free cores) or `mini` (half an hour); name recipes to run only
those. Runs that are finished are read, those that were stopped go on.
"""

import csv
import sys
from dataclasses import replace

import torch
from nbkit.train.recipe import RECIPES
from nbkit.train.train import train

from nbkit import ClassicalMark, LearnedMark
from nbkit.disk import figures, runs
from nbkit.train.run import load_run
from nbkit.universe.suite import suite

TUNED = RECIPES["tuned"]
PAPER = replace(RECIPES["paper"], epochs=TUNED.epochs)
SHORT = 3  # epochs at mini, where a simulation costs eight times as much
COMPARED = {
    "demo": {
        "paper": PAPER,
        "tuned": TUNED,
        "tuned, M = 1 at the start": replace(TUNED, kick=0.0),
        "tuned, p = -1 at the start": TUNED,
        "tuned, decay 0.02": replace(TUNED, weight_decay=0.02),
        "tuned, half the rate": replace(TUNED, learning_rate=TUNED.learning_rate / 2),
        "tuned, batch 32": replace(TUNED, batch=32),
    },
    "mini": {
        "paper": replace(PAPER, epochs=SHORT),
        "tuned": replace(TUNED, epochs=SHORT),
        "warm": RECIPES["warm"],
        "warm, p = 2 at the start": replace(RECIPES["warm"], epochs=SHORT, start="classical"),
    },
}


def start(name, simulations):
    """The mark a recipe starts from, where it is not its own."""
    if "p = -1" not in name:
        return None
    torch.manual_seed(0)
    mark, delta = LearnedMark(simulations.grid), simulations[list(range(0, 64, 4))]
    goal = ClassicalMark(-1.0, 0.2)(delta, simulations.grid)
    optimizer = torch.optim.Adam(mark.parameters(), lr=1e-2)
    for _ in range(60):
        optimizer.zero_grad()
        ((mark(delta, simulations.grid) - goal) ** 2).mean().backward()
        optimizer.step()
    return mark


def main(preset="demo", *names):
    simulations = suite(preset, sets=("BSQ",))["BSQ"]
    folder, compared = runs() / "recipes" / preset, COMPARED[preset]
    for name in names or compared:
        train(simulations, folder / name, recipe=compared[name], mark=start(name, simulations))
    with (figures() / f"recipes_{preset}.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["recipe", "passes", "train_loss", "val_loss"])
        for name in compared:
            if (folder / name / "best.safetensors").exists():
                run = load_run(folder / name)
                columns = [run.column(c) for c in ("passes", "train_loss", "val_loss")]
                if heads := run.column("val_loss", "heads"):  # before the mark moves
                    best = heads.index(min(heads))
                    columns = [[first, *rest] for first, rest in zip(
                        (0, run.column("train_loss", "heads")[best], heads[best]), columns, strict=True
                    )]  # fmt: skip
                writer.writerows([name, p, f"{t:.4f}", f"{v:.4f}"] for p, t, v in zip(*columns, strict=True))


if __name__ == "__main__":
    main(*sys.argv[1:])
