"""Recipes compared at equal cost on the demo suite: writes recipes_demo.csv, which notebook 03 draws.

Run `python figures/recipes.py` (about ten minutes on two free cores); name recipes to run only those.
"""

import csv
import sys
from dataclasses import replace

import torch

from nbkit import ClassicalMark, LearnedMark
from nbkit.paths import figures, runs
from nbkit.recipe import RECIPES
from nbkit.run import load_run
from nbkit.suite import suite
from nbkit.train import train

EPOCHS = 25
TUNED = replace(RECIPES["tuned"], epochs=EPOCHS)
COMPARED = {
    "paper": replace(RECIPES["paper"], epochs=EPOCHS),
    "tuned": TUNED,
    "tuned, decay 0.0001": replace(TUNED, weight_decay=1e-4),
    "tuned, decay 1": replace(TUNED, weight_decay=1.0),
    "tuned, decay 1, warm start": replace(TUNED, weight_decay=1.0),
}


def warm_mark(simulations):
    """A LearnedMark that imitates M = ((1 + 0.2) / (1 + 0.2 + delta_R))^-1 on sixteen simulations."""
    torch.manual_seed(0)
    mark, delta = LearnedMark(simulations.grid), simulations[list(range(0, 64, 4))]
    goal = ClassicalMark(-1.0, 0.2)(delta, simulations.grid)
    optimizer = torch.optim.Adam(mark.parameters(), lr=1e-2)
    for _ in range(60):
        optimizer.zero_grad()
        ((mark(delta, simulations.grid) - goal) ** 2).mean().backward()
        optimizer.step()
    return mark


def main(names):
    simulations = suite("demo", sets=("BSQ",))["BSQ"]
    for name in names or COMPARED:
        mark = warm_mark(simulations) if "warm" in name else None
        train(simulations, runs() / "recipes" / name, recipe=COMPARED[name], mark=mark)
    with (figures() / "recipes_demo.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["recipe", "passes", "train_loss", "val_loss"])
        for name in COMPARED:
            if (runs() / "recipes" / name / "best.safetensors").exists():
                run = load_run(runs() / "recipes" / name)
                columns = zip(*(run.column(c) for c in ("passes", "train_loss", "val_loss")), strict=True)
                writer.writerows([name, p, f"{t:.4f}", f"{v:.4f}"] for p, t, v in columns)


if __name__ == "__main__":
    main(sys.argv[1:])
