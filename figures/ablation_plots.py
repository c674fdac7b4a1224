"""The table of ablations -> two figures: what marks reach against kmax, and what switching something off costs."""

from itertools import cycle

import matplotlib.pyplot as plt
import numpy as np
from ablations import CLASSICAL, ENDS, FULL, QUANTITIES, WIDE

from nbkit.forecast import UNMARKED
from nbkit.show.looks import BLACK, BLUE, GREEN, ORANGE, RED

LABELS = {
    "sigma_Om": r"$\sigma(\Omega_{\rm m})$",
    "sigma_s8": r"$\sigma(\sigma_8)$",
    "mse_Om": r"MSE$(\Omega_{\rm m})$ / prior variance",
    "mse_s8": r"MSE$(\sigma_8)$ / prior variance",
}
LOOKS = {
    UNMARKED: (BLACK, "o", r"$P_{\delta\delta}$"),
    CLASSICAL: (ORANGE, "s", "classical, $p=2$"),
    "l_max = 0": (BLUE, "v", r"$\ell_{\max}=0$"),
    "l_max = 1": (GREEN, "D", r"$\ell_{\max}=1$"),
    FULL: (RED, "^", r"$\ell_{\max}=2$"),
}


def against_kmax(rows):
    """sigma (top) and MSE (bottom) of Omega_m and sigma_8 against kmax: the paper's figure 7, with recovery below.

    Every training is a point with its 95 % interval; lines join their means: full if trained at that kmax, dashed
    for those trained up to the largest. Marks that constrain nothing (fewer numbers than parameters) have no point.
    """
    figure, axes = plt.subplots(2, 2, figsize=(10.0, 7.2), layout="constrained", sharex=True)
    wide = next((row["mark"].partition(WIDE)[1:] for row in rows if WIDE in row["mark"]), None)
    for ax, quantity in zip(axes.flat, QUANTITIES, strict=True):
        for i, (mark, look) in enumerate(LOOKS.items()):
            shift = 0.005 * (i - 2)
            _line(ax, rows, mark, quantity, look, shift)
            if wide and mark in ("l_max = 0", FULL):
                _line(ax, rows, mark + "".join(wide), quantity, look, shift + 0.0025, "".join(wide))
        ax.set(yscale="log", ylabel=LABELS[quantity])
        _round_ticks(ax.yaxis, ax.get_ylim())
    for ax in axes[1]:
        ax.set_xlabel(r"$k_{\max}$ [$h$/Mpc]")
    handles, labels = axes[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, ncols=4, loc="outside upper center", fontsize=9)
    return figure


def switched_off(rows):
    """Each row's sigma and MSE over those of the full mark, resampled together, where something was switched off.

    Every training is compared with the full mark of its own seed.
    """
    kmaxes = {row["kmax"] for row in rows if row["residual"] is False or row["cross"] is False}
    shown = [row for row in rows if row["kmax"] in kmaxes and row["mark"] != FULL]
    marks = list(dict.fromkeys(row["mark"] for row in shown))
    series = sorted({(row["kmax"], row["seed"]) for row in shown})
    figure, axes = plt.subplots(1, 4, figsize=(11.0, 0.42 * len(marks) + 1.6), layout="constrained", sharey=True)
    for ax, quantity in zip(axes, QUANTITIES, strict=True):
        ax.axvline(1, color="0.5", lw=1)
        for i, (one, colour, marker) in enumerate(zip(series, cycle((BLUE, RED, GREEN)), cycle("osD"), strict=False)):
            for row in shown:
                if (row["kmax"], row["seed"]) == one and np.isfinite(row[f"{quantity}_ratio"]):
                    y = marks.index(row["mark"]) + 0.5 * ((i + 0.5) / len(series) - 0.5)
                    _point(ax, y, row, f"{quantity}_ratio", colour, marker, across=True)
            ax.plot([], [], marker, color=colour, ms=5, label=rf"$k_{{\max}}={one[0]:g}$, seed {one[1]}")
        ax.set(xscale="log", xlabel=LABELS[quantity].replace(" / prior variance", "") + "\nover that of the full mark")
        _round_ticks(ax.xaxis, ax.get_xlim())
    labels = [LOOKS[mark][2] if mark in LOOKS else mark.replace("l_max = 2, no", "no") for mark in marks]
    labels = [label.replace("l_max = ", r"$\ell_{\max}=$") for label in labels]
    axes[0].set_yticks(range(len(marks)), labels)
    axes[0].invert_yaxis()
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, ncols=len(labels), loc="outside upper center", fontsize=9)
    return figure


def _line(ax, rows, mark, quantity, look, shift, wide=""):
    colour, marker, label = look
    first = min(row["seed"] for row in rows)  # marks that are not trained are in the table once a seed
    mine = [row for row in rows if row["mark"] == mark and np.isfinite(row[quantity])]
    mine = [row for row in mine if row["run"] or row["seed"] == first]
    kmaxes = sorted({row["kmax"] for row in mine})
    means = [np.exp(np.mean([np.log(row[quantity]) for row in mine if row["kmax"] == k])) for k in kmaxes]
    face = {"mfc": "white"} if wide else {}
    ax.plot(np.array(kmaxes) + shift, means, "--" if wide else "-", color=colour, lw=1)
    for row in mine:
        _point(ax, row["kmax"] + shift + 0.001 * row["seed"], row, quantity, colour, marker, **face)
    ax.plot([], [], marker, color=colour, ls="--" if wide else "-", ms=5, label=label + wide, **face)


def _point(ax, at, row, name, colour, marker, across=False, **look):
    value, low, high = (row[name + end] for end in ENDS)
    reach = [[value - low], [high - value]]
    where = {"x": [value], "y": [at], "xerr": reach} if across else {"x": [at], "y": [value], "yerr": reach}
    ax.errorbar(**where, fmt=marker, color=colour, ms=5, lw=1.2, capsize=2, **look)


def _round_ticks(axis, limits):
    """Ticks of a logarithmic axis at round numbers, as many as leave room for their labels."""
    low, high = limits
    for digits in ((1,), (1, 3), (1, 2, 5), (1, 1.4, 2, 3, 4, 5, 7), (1, 1.1, 1.2, 1.4, 2, 2.5, 3, 3.5, 4, 5, 7, 8, 9)):
        ticks = [x * 10.0**n for n in range(-5, 3) for x in digits if low <= x * 10.0**n <= high]
        if len(ticks) >= 3:
            break
    axis.set_ticks(ticks, [f"{x:g}" for x in ticks])
    axis.set_ticks([], minor=True)
