"""A training as it goes: the loss figure, and a live view with a stop button for JupyterLab."""

import csv
from pathlib import Path

import matplotlib.pyplot as plt

from nbkit.show.looks import BLUE, GREEN, ORANGE, PINK, RED, SKY

CURVES = (BLUE, ORANGE, GREEN, RED, PINK, SKY)


def recipes(*paths):
    """Validation loss against passes of several recipes, a panel for each CSV that figures/recipes.py wrote."""
    figure, axes = plt.subplots(1, len(paths), figsize=(6.0 * len(paths), 4.0), layout="constrained", squeeze=False)
    for ax, path in zip(axes[0], map(Path, paths), strict=True):
        with path.open(newline="") as file:
            rows = list(csv.DictReader(file))
        for recipe, marker in zip(dict.fromkeys(row["recipe"] for row in rows), "os^Dv<>", strict=False):
            mine = [row for row in rows if row["recipe"] == recipe]
            passes, loss = ([float(row[name]) for row in mine] for name in ("passes", "val_loss"))
            ax.plot(passes, loss, marker=marker, ms=4, label=recipe)
        ax.set(xlabel="simulation passes", ylabel="InfoNCE, validation", title=path.stem.removeprefix("recipes_"))
        ax.legend(fontsize=8)
    return figure


def curves(runs, lengths):
    """Validation loss of several trainings: searches by their length, heads that read the start, the mark that moves.

    Parameters
    ----------
    runs : {label: Run} of trainings by contrast whose recipe has `head_epochs`.
    lengths : {label: {epochs: {"value", "low", "high"}}} of searches for the start of some of them.
    """
    figure, axes = plt.subplots(1, 3, figsize=(12.0, 3.6), layout="constrained", sharey=True)
    looks = {label: look for label, *look in zip(runs, CURVES, "os^Dv<", strict=False)}
    for label, found in lengths.items():
        colour, marker = looks[label]
        value, low, high = ([each[end] for each in found.values()] for end in ("value", "low", "high"))
        axes[0].vlines(list(found), low, high, color=colour)
        axes[0].plot(list(found), value, color=colour, marker=marker, ms=4)
    top = 0.0
    for label, run in runs.items():
        colour, marker = looks[label]
        heads, own = (run.column("val_loss", stage) for stage in ("heads", "marked"))
        top = max(top, *heads[len(heads) // 10 :], *own)  # the first epochs are far above what follows
        axes[1].plot(range(1, len(heads) + 1), heads, color=colour)
        axes[2].plot(range(len(own) + 1), [min(heads), *own], color=colour, marker=marker, ms=4, label=label)
    epochs = sorted({epochs for found in lengths.values() for epochs in found})
    axes[0].set(
        xscale="log",
        xlabel="epochs of the search",
        ylabel="InfoNCE, validation",
        title="where searches end; bar: other searches",
    )
    axes[0].set_xticks(epochs, epochs)
    axes[0].set_ylim(top=top + 0.05)
    axes[0].minorticks_off()
    axes[1].set(xlabel="epoch", title="heads learn to read the start")
    axes[2].set(xlabel="epoch (0: the start)", title="the mark moves")
    axes[2].legend(fontsize=8)
    return figure
