"""Figures of parameter recovery: true against predicted, maps over the marks, learning curves, posteriors, coverage."""

from contextlib import redirect_stdout
from io import StringIO

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.colors import LogNorm
from matplotlib.patches import Patch
from scipy.stats import binom

from nbkit.show.plots import BLACK, BLUE, GREEN, ORANGE, PINK, RED, SKY
from nbkit.universe.cosmology import LATEX, PARAMETERS

# One look for the same thing in every figure: first the unmarked spectrum, then a classical mark, then learned ones.
COLOURS, LINES, SYMBOLS = (BLACK, ORANGE, BLUE, RED, GREEN), ("-", "--", "-.", ":", "-"), "os^Dv"
TITLES = [rf"${name}$" for name in LATEX]


def true_against_predicted(recovery, labels, of=("Omega_m", "sigma_8")):
    """Predictions for unseen simulations against the truth: a row a parameter, a column a mark, the MSE in words."""
    size = (2.8 * len(labels) + 0.4, 2.7 * len(of) + 0.3)
    figure, axes = plt.subplots(len(of), len(labels), figsize=size, layout="constrained", squeeze=False)
    for row, i in zip(axes, map(PARAMETERS.index, of), strict=True):
        low, high = recovery.prior[i]
        for ax, label, colour in zip(row, labels, COLOURS, strict=False):
            predicted = recovery.predicted[recovery.labels.index(label)].mean(0)[:, i]
            ax.plot([low, high], [low, high], color="0.6", lw=1)
            ax.plot(recovery.theta[:, i], predicted, "o", color=colour, ms=3, mfc="none", mew=0.8)
            said = rf"MSE {recovery.mse(label)[0, i]:.2g} $\times$ prior variance"
            ax.text(0.97, 0.04, said, transform=ax.transAxes, ha="right", fontsize=8)
            ax.set(xlim=(low, high), ylim=(low, high), aspect=1, xlabel=f"true {TITLES[i]}")
        row[0].set_ylabel(f"predicted {TITLES[i]}")
    for ax, label in zip(axes[0], labels, strict=False):
        ax.set_title(label, fontsize=10)
    return figure


def errors(recovery, labels):
    """MSE of every parameter in units of the variance of the prior, with 95 % intervals."""
    figure, ax = plt.subplots(figsize=(7.0, 3.5), layout="constrained")
    for j, (label, colour, symbol) in enumerate(zip(labels, COLOURS, SYMBOLS, strict=False)):
        value, low, high = recovery.mse(label)
        x = np.arange(len(PARAMETERS)) + 0.13 * (j - (len(labels) - 1) / 2)
        ax.errorbar(x, value, [value - low, high - value], fmt=symbol, color=colour, ms=5, lw=1.2, label=label)
    ax.axhline(1, color="0.5", lw=0.8, ls="--")
    ax.text(-0.45, 1.04, "nothing known", fontsize=8, color="0.35", va="bottom")
    ax.set_xticks(range(len(PARAMETERS)), TITLES, fontsize=12)
    ax.set(yscale="log", ylabel="MSE / variance of the prior", xlim=(-0.5, len(PARAMETERS) - 0.5))
    ax.set_yticks([0.03, 0.1, 0.3, 1.0], ["0.03", "0.1", "0.3", "1"])
    ax.legend(fontsize=8, loc="lower center")
    return figure


def mse_maps(recovery, marks, of=("Omega_m", "sigma_8")):
    """MSE of every classical mark in p and delta_s, over the variance of the prior, with half its 95 % interval below.

    Parameters
    ----------
    marks : {label: ClassicalMark} of the recovery.
    """
    figure, axes, values = _maps(recovery.mse, marks, of)
    for ax, i in zip(axes, map(PARAMETERS.index, of), strict=True):
        value, low, high = values[:, i]
        drawn = ax.pcolormesh(value, cmap="cividis", edgecolors="white", linewidth=1)
        middle, digits = (value.min() + value.max()) / 2, 2 if value.min() > 0.1 else 3
        for row, column in np.ndindex(*value.shape):
            said = f"{value[row, column]:.{digits}f}\n±{(high - low)[row, column] / 2:.{digits}f}"
            _cell(ax, column, row, said, dark=value[row, column] < middle, size=7)
        figure.colorbar(drawn, ax=ax, location="right", label="MSE / variance of the prior", shrink=0.85, aspect=25)
    return figure


def ratio_maps(recovery, marks, over, of=("Omega_m", "sigma_8")):
    """MSE_classical / MSE_learned over the classical marks in p and delta_s: the paper's figure 4, bottom.

    Hatched cells are those whose 95 % interval includes 1: no difference was shown there.

    Parameters
    ----------
    marks : {label: ClassicalMark} of the recovery.
    over : label of the learned mark.
    """
    figure, axes, values = _maps(lambda label: recovery.ratio(label, over), marks, of)
    kept = list(map(PARAMETERS.index, of))
    reach = max(1.25, float(np.exp(np.abs(np.log(values[0, kept])).max())))
    for ax, i in zip(axes, kept, strict=True):
        value, low, high = values[:, i]
        drawn = ax.pcolormesh(value, cmap="PuOr", norm=LogNorm(1 / reach, reach), edgecolors="white", linewidth=1)
        for row, column in np.ndindex(*value.shape):
            unsure = low[row, column] <= 1 <= high[row, column]
            dark = abs(np.log(value[row, column])) > 0.7 * np.log(reach)
            _cell(ax, column, row, f"{value[row, column]:.2f}", dark, unsure)
    bar = figure.colorbar(
        drawn, ax=axes, label=r"MSE$_{\rm classical}\,/\,$MSE$_{\rm learned}$", shrink=0.85, aspect=25
    )
    ticks = [t for t in (0.25, 0.33, 0.5, 0.67, 0.8, 1, 1.25, 1.5, 2, 3, 4) if 1 / reach <= t <= reach]
    bar.set_ticks(ticks, labels=[f"{t:g}" for t in ticks])
    bar.minorticks_off()
    shown = Patch(facecolor="white", edgecolor="0.35", hatch="///", label="95 % interval includes 1")
    figure.legend(handles=[shown], loc="outside lower center", fontsize=9)
    return figure


def learning_curves(recoveries, labels, of=("Omega_m", "sigma_8")):
    """MSE against the number of training simulations, with 95 % intervals.

    Parameters
    ----------
    recoveries : Recovery of every number of simulations, ascending.
    """
    figure, axes = plt.subplots(1, len(of), figsize=(4.3 * len(of), 3.5), layout="constrained", squeeze=False)
    counts = np.array([each.train for each in recoveries])
    for ax, i in zip(axes[0], map(PARAMETERS.index, of), strict=True):
        for j, (label, colour) in enumerate(zip(labels, COLOURS, strict=False)):
            value, low, high = np.array([each.mse(label)[:, i] for each in recoveries]).T
            look = {"color": colour, "ls": LINES[j], "marker": SYMBOLS[j], "ms": 5, "lw": 1.4, "capsize": 2}
            ax.errorbar(counts * 1.03 ** (j - 1), value, [value - low, high - value], label=label, **look)
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
        clouds = [MCSamples(samples=x, label=label, **about) for label, x in samples.items()]
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
        for share, title, colour, line in zip(shares, TITLES, (BLUE, ORANGE, GREEN, PINK, RED), LINES, strict=True):
            ax.plot(levels, share, line, color=colour, lw=1.4, label=title)
        ax.set(title=label, xlabel="level of the central interval")
    axes[0].set_ylabel("share of truths inside")
    axes[0].legend(fontsize=8, loc="upper left")
    _diagonal(axes[-1], len(each.ranks), levels, confidence)
    for (label, each), colour, line in zip(found.items(), (BLACK, BLUE, PINK), LINES, strict=False):
        axes[-1].plot(each.alpha, each.expected, line, color=colour, lw=1.4, label=label)
    axes[-1].set(title="all parameters (TARP)", xlabel="credibility")
    axes[-1].legend(fontsize=8, loc="upper left")
    return figure


def _diagonal(ax, count, levels, confidence):
    low, high = (x / count for x in binom.interval(confidence, count, levels))
    ax.fill_between(levels, low, high, color=SKY, alpha=0.3, lw=0)
    ax.plot([0, 1], [0, 1], color="0.5", lw=0.8)
    ax.set(xlim=(0, 1), ylim=(0, 1))


def _maps(quantity, marks, of):
    """A figure with axes in p and delta_s for each parameter, and quantity(label) (3, 5) of all marks on that grid."""
    ps, saturations = sorted({m.p for m in marks.values()}), sorted({m.delta_s for m in marks.values()})
    values = np.full((3, len(PARAMETERS), len(saturations), len(ps)), np.nan)
    for label, mark in marks.items():
        values[:, :, saturations.index(mark.delta_s), ps.index(mark.p)] = quantity(label)
    size = (4.5 * len(of) + 0.9, 4.1)
    figure, axes = plt.subplots(1, len(of), figsize=size, layout="constrained", sharey=True, squeeze=False)
    for ax, i in zip(axes[0], map(PARAMETERS.index, of), strict=True):
        ax.set_xticks(np.arange(len(ps)) + 0.5, [f"{p:g}" for p in ps])
        ax.set_yticks(np.arange(len(saturations)) + 0.5, [f"{s:g}" for s in saturations])
        ax.set(title=TITLES[i], xlabel=r"exponent $p$ of the classical mark")
        ax.spines[:].set_visible(False)
        ax.tick_params(length=0)
    axes[0, 0].set_ylabel(r"saturation $\delta_s$")
    return figure, axes[0], values


def _cell(ax, column, row, said, dark, unsure=False, size=8):
    """Write into a cell of a map, hatched if `unsure`."""
    if unsure:
        ax.add_patch(plt.Rectangle((column, row), 1, 1, fill=False, hatch="///", edgecolor="0.35", linewidth=0))
    box = {"facecolor": "white", "edgecolor": "none", "pad": 1.0, "alpha": 0.8} if unsure else None
    colour = "white" if dark and not unsure else "black"
    ax.text(column + 0.5, row + 0.5, said, ha="center", va="center", fontsize=size, color=colour, bbox=box)
