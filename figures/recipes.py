"""Recipes compared at equal cost: writes recipes_<preset>.csv, which notebook 03 draws.

Run `python figures/recipes.py demo` (ten minutes on two free cores) or `mini` (half an hour); name recipes to run only
those. Runs that are finished are read, those that were stopped go on.
"""

import csv
import sys
from dataclasses import replace

import torch

import nbkit as nb
from nbkit.disk import figures, runs
from nbkit.train import RECIPES

TUNED = RECIPES["tuned"]
SHORT = 3  # epochs at mini, where a simulation costs eight times as much
DEMO, MINI = nb.Training("demo", recipe="tuned"), nb.Training("mini", recipe="tuned", epochs=SHORT)
COMPARED = {
    "demo": {
        "paper": replace(DEMO, recipe="released", epochs=TUNED.epochs),
        "tuned": DEMO,
        "tuned, M = 1 at the start": replace(DEMO, recipe=replace(TUNED, kick=0.0)),
        "tuned, p = -1 at the start": DEMO,
        "tuned, decay 0.02": replace(DEMO, recipe=replace(TUNED, weight_decay=0.02)),
        "tuned, half the rate": replace(DEMO, recipe=replace(TUNED, learning_rate=TUNED.learning_rate / 2)),
        "tuned, batch 32": replace(DEMO, recipe=replace(TUNED, batch=32)),
    },
    "mini": {
        "paper": replace(MINI, recipe="released"),
        "tuned": MINI,
        "warm": replace(MINI, recipe="warm", epochs=0),
        "warm, p = 2 at the start": replace(MINI, recipe="warm", start="classical"),
    },
}


def start(name, simulations):
    """The mark a training starts from, where it is not one of those that a Training names."""
    if "p = -1" not in name:
        return None
    torch.manual_seed(0)
    mark, delta = nb.LearnedMark(simulations.grid), simulations[list(range(0, 64, 4))]
    goal = nb.ClassicalMark(-1.0, 0.2)(delta, simulations.grid)
    optimizer = torch.optim.Adam(mark.parameters(), lr=1e-2)
    for _ in range(60):
        optimizer.zero_grad()
        ((mark(delta, simulations.grid) - goal) ** 2).mean().backward()
        optimizer.step()
    return mark


def rows_of(run):
    """[passes, training loss, validation loss] of every epoch of the mark, and where heads had read it before."""
    rows = list(zip(*(run.column(name) for name in ("passes", "train_loss", "val_loss")), strict=True))
    if heads := run.column("val_loss", "heads"):
        best = heads.index(min(heads))
        rows.insert(0, (0, run.column("train_loss", "heads")[best], heads[best]))
    return [[passes, f"{train:.4f}", f"{validation:.4f}"] for passes, train, validation in rows]


def main(preset="demo", *names):
    """Train, and write what is finished."""
    simulations = nb.suite(preset, sets=("BSQ",))["BSQ"]
    folder, compared = runs() / "recipes" / preset, COMPARED[preset]
    for name in names or compared:
        nb.train(compared[name], simulations, folder / name, mark=start(name, simulations))
    with (figures() / f"recipes_{preset}.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["recipe", "passes", "train_loss", "val_loss"])
        for name in compared:
            if (folder / name / "marked.safetensors").exists():
                writer.writerows([name, *row] for row in rows_of(nb.load(folder / name)))


if __name__ == "__main__":
    main(*sys.argv[1:])
