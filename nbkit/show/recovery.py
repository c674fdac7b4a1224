"""Figures of parameter recovery: true against predicted, maps over the marks, learning curves, posteriors, coverage."""

from contextlib import redirect_stdout
from io import StringIO

import matplotlib.pyplot as plt
import numpy as np
from scipy.stats import binom

from nbkit.forecast.bootstrap import Interval
from nbkit.show import BLACK, BLUE, GREEN, ORANGE, PINK, RED, SKY
from nbkit.show.forecast import COLOURS, LINES, TITLES, mark_maps, pretty, ratio_map
from nbkit.universe.cosmology import LATEX, PARAMETERS, PRIOR_LATIN_HYPERCUBE, QUIJOTE_NAMES

# Beside the colours and lines of forecasts: first the unmarked spectrum, then a classical mark, then learned ones.
SYMBOLS = "os^DvX"


def true_against_predicted(recovery, labels, of=("Om", "s8")):
    """Predictions for unseen simulations against the truth: a row a parameter, a column a mark, the MSE in words."""
    size = (2.8 * len(labels) + 0.4, 2.7 * len(of) + 0.3)
    figure, axes = plt.subplots(len(of), len(labels), figsize=size, layout="constrained", squeeze=False)
    for row, i in zip(axes, map(QUIJOTE_NAMES.index, of), strict=True):
        low, high = PRIOR_LATIN_HYPERCUBE[i]
        for ax, label, colour in zip(row, labels, COLOURS, strict=False):
            predicted = recovery.predicted[recovery.labels.index(label)].mean(0)[:, i]
            ax.plot([low, high], [low, high], color="0.6", lw=1)
            ax.plot(recovery.theta[:, i], predicted, "o", color=colour, ms=3, mfc="none", mew=0.8)
            said = rf"MSE {recovery.mse(label)[0, i]:.2g} $\times$ prior variance"
            ax.text(0.97, 0.04, said, transform=ax.transAxes, ha="right", fontsize=8)
            ax.set(xlim=(low, high), ylim=(low, high), aspect=1, xlabel=f"true {TITLES[i]}")
        row[0].set_ylabel(f"predicted {TITLES[i]}")
    for ax, label in zip(axes[0], labels, strict=False):
        ax.set_title(pretty(label), fontsize=10)
    return figure


def errors(recovery, labels):
    """MSE of every parameter in units of the variance of the prior, with 95 % intervals."""
    figure, ax = plt.subplots(figsize=(7.0, 3.5), layout="constrained")
    for j, (label, colour, symbol) in enumerate(zip(labels, COLOURS, SYMBOLS, strict=False)):
        value, low, high = recovery.mse(label)
        x = np.arange(len(PARAMETERS)) + 0.13 * (j - (len(labels) - 1) / 2)
        ax.errorbar(x, value, [value - low, high - value], fmt=symbol, color=colour, ms=5, lw=1.2, label=pretty(label))
    ax.axhline(1, color="0.5", lw=0.8, ls="--")
    ax.text(-0.45, 1.04, "nothing known", fontsize=8, color="0.35", va="bottom")
    ax.set_xticks(range(len(PARAMETERS)), TITLES, fontsize=12)
    ax.set(yscale="log", ylabel="MSE / variance of the prior", xlim=(-0.5, len(PARAMETERS) - 0.5))
    ax.set_yticks([0.03, 0.1, 0.3, 1.0], ["0.03", "0.1", "0.3", "1"])
    ax.legend(fontsize=8, loc="lower center")
    return figure


def mse_map(recovery, marks, of=("Om", "s8")):
    """MSE of every classical mark in p and delta_s, over the variance of the prior, with half its 95 % interval below.

    Parameters
    ----------
    marks : {label: ClassicalMark} of the recovery.
    """
    cells = {label: Interval(*recovery.mse(label)) for label in marks}
    digits = 2 if min(each.value[QUIJOTE_NAMES.index(name)] for each in cells.values() for name in of) > 0.1 else 3

    def words(each, i):
        return f"{each.value[i]:.{digits}f}\n±{(each.high - each.low)[i] / 2:.{digits}f}"

    figure, axes, images = mark_maps({"": cells}, marks, of, words, size=7, cmap="cividis")
    for ax, image in zip(axes.flat, images, strict=True):
        figure.colorbar(image, ax=ax, location="right", label="MSE / variance of the prior", shrink=0.85, aspect=25)
    return figure


def mse_ratio_map(recovery, marks, over, of=("Om", "s8")):
    """MSE_classical / MSE_learned over the classical marks in p and delta_s: the paper's figure 4, bottom.

    Parameters
    ----------
    marks : {label: ClassicalMark} of the recovery.
    over : label of the learned mark.
    """
    cells = {label: Interval(*recovery.ratio(label, over)) for label in marks}
    return ratio_map({"": cells}, marks, of, quantity=r"{\rm MSE}")


def learning_curves(recoveries, labels, of=("Om", "s8")):
    """MSE against the number of training simulations, with 95 % intervals.

    Parameters
    ----------
    recoveries : Recovery of every number of simulations, ascending.
    """
    figure, axes = plt.subplots(1, len(of), figsize=(4.3 * len(of), 3.5), layout="constrained", squeeze=False)
    counts = np.array([each.train for each in recoveries])
    for ax, i in zip(axes[0], map(QUIJOTE_NAMES.index, of), strict=True):
        for j, (label, colour) in enumerate(zip(labels, COLOURS, strict=False)):
            value, low, high = np.array([each.mse(label)[:, i] for each in recoveries]).T
            look = {"color": colour, "ls": LINES[j], "marker": SYMBOLS[j], "ms": 5, "lw": 1.4, "capsize": 2}
            ax.errorbar(counts * 1.03 ** (j - 1), value, [value - low, high - value], label=pretty(label), **look)
        ax.set(xscale="log", yscale="log", title=TITLES[i], xlabel="simulations to train on")
        ax.set_xticks(counts, [str(count) for count in counts])
        ax.set_xticks([], minor=True)
        low, high = ax.get_ylim()
        ticks = [t for t in (0.005, 0.01, 0.02, 0.03, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.7, 1.0) if low < t < high]
        ax.set_yticks(ticks, [f"{t:g}" for t in ticks])
        ax.set_yticks([], minor=True)
    axes[0, 0].set_ylabel("MSE / variance of the prior")
    axes[0, -1].legend(fontsize=8)
    return figure


def corner(samples, truth, prior):
    """68 and 95 % contours of posteriors of one universe, with getdist.

    Parameters
    ----------
    samples : {label: (count, 5)}.
    truth : (5,).
    prior : (5, 2), the edges of the densities.
    """
    from getdist import MCSamples
    from getdist import plots as getdist_plots

    names = list(PARAMETERS)
    ranges = dict(zip(names, np.asarray(prior).tolist(), strict=True))
    # Fixed smoothing: getdist's automatic choice warns about unconstrained parameters that end at the prior.
    settings = {"smooth_scale_1D": 0.35, "smooth_scale_2D": 0.45}
    about = {"names": names, "labels": list(LATEX), "ranges": ranges, "settings": settings}
    with redirect_stdout(StringIO()):  # getdist says how many samples it did not remove
        clouds = [MCSamples(samples=x, label=pretty(label), **about) for label, x in samples.items()]
    plotter = getdist_plots.get_subplot_plotter(width_inch=6.6)
    plotter.settings.figure_legend_frame = False
    plotter.settings.alpha_filled_add = 0.6
    looks = (BLACK, BLUE, PINK)[: len(clouds)]
    plotter.triangle_plot(
        clouds, names, filled=[i > 0 for i in range(len(clouds))], contour_colors=list(looks),
        contour_ls=list(LINES[: len(clouds)]), contour_lws=[1.2] * len(clouds), legend_loc="upper right",
        markers=dict(zip(names, truth, strict=True)), marker_args={"color": RED, "lw": 0.9, "ls": ":"},
    )  # fmt: skip
    return plotter.fig


def coverage(found, confidence=0.99):
    """Truths inside credible intervals against their level, by parameter (left) and for all at once by TARP (right).

    Parameters
    ----------
    found : {label: Coverage}.
    """
    figure, axes = plt.subplots(
        1, len(found) + 1, figsize=(3.4 * (len(found) + 1), 3.7), layout="constrained", sharey=True
    )
    levels = np.linspace(0.02, 0.98, 49)
    for ax, (label, each) in zip(axes, found.items(), strict=False):
        _diagonal(ax, len(each.ranks), levels, confidence)
        shares = np.array([each.share(level) for level in levels]).T
        for share, title, colour, line in zip(shares, TITLES, (BLUE, ORANGE, GREEN, PINK, RED), LINES, strict=False):
            ax.plot(levels, share, line, color=colour, lw=1.4, label=title)
        ax.set(title=pretty(label), xlabel="level of the central interval")
    axes[0].set_ylabel("share of truths inside")
    axes[0].legend(fontsize=8, loc="upper left")
    _diagonal(axes[-1], len(each.ranks), levels, confidence)
    for (label, each), colour, line in zip(found.items(), (BLACK, BLUE, PINK), LINES, strict=False):
        axes[-1].plot(each.alpha, each.expected, line, color=colour, lw=1.4, label=pretty(label))
    axes[-1].set(title="all parameters (TARP)", xlabel="credibility")
    axes[-1].legend(fontsize=8, loc="upper left")
    return figure


def _diagonal(ax, count, levels, confidence):
    low, high = (x / count for x in binom.interval(confidence, count, levels))
    ax.fill_between(levels, low, high, color=SKY, alpha=0.3, lw=0)
    ax.plot([0, 1], [0, 1], color="0.5", lw=0.8)
    ax.set(xlim=(0, 1), ylim=(0, 1))
