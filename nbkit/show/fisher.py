"""Figures of forecasts: contours, maps of improvement, sigma against kmax, and the page that says what to believe."""

import re

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.colors import LogNorm
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from nbkit.forecast.covariance import correlation
from nbkit.forecast.fisher import UNMARKED
from nbkit.show.plots import BLACK, BLUE, GREEN, ORANGE, PINK, RED, SKY
from nbkit.universe.cosmology import FIDUCIAL, LATEX, QUIJOTE_NAMES

# One look for the same thing in every figure: first the unmarked spectrum, then a classical mark, then learned ones.
COLOURS = (BLACK, ORANGE, BLUE, GREEN, RED, PINK)
LINES = ("-", "--", "-.", "-", ":", "--")
ESTIMATOR_LOOK = {
    "standard": (SKY, "v", "standard"),
    "corrected": (BLUE, "o", "standard, noise taken off"),
    "compressed": (RED, "^", "compressed"),
    "combined": (GREEN, "s", "combined"),
}


def pretty(label):
    """A label as a figure shows it: symbols for P_dd and for the classical marks, others as they are."""
    classical = re.fullmatch(r"p=(\S+) ds=(\S+)", label)
    if classical:
        return rf"classical, $p={classical[1]}$, $\delta_s={classical[2]}$"
    if label == UNMARKED:
        return r"$P_{\delta\delta}$ alone"
    return re.sub(r"l_max = (\d)", r"$\\ell_{\\rm max}=\1$", label)


def triangle(forecasts, fixed=()):
    """68 and 95 % contours of all free parameters with getdist: the paper's figure 3.

    Parameters
    ----------
    forecasts : {label: Forecast}; the last is drawn filled, those before it as lines.
    fixed : names of parameters held fixed.
    """
    from getdist import plots as getdist_plots
    from getdist.gaussian_mixtures import GaussianND

    free = [i for i, name in enumerate(QUIJOTE_NAMES) if name not in fixed]
    names, labels = [QUIJOTE_NAMES[i] for i in free], [LATEX[i] for i in free]
    clouds = []
    for label, forecast in forecasts.items():
        covariance = forecast.covariance(fixed)[np.ix_(free, free)]
        clouds.append(GaussianND(FIDUCIAL[free], covariance, names=names, labels=labels, label=pretty(label)))
    plotter = getdist_plots.get_subplot_plotter(width_inch=6.4)
    plotter.settings.figure_legend_frame = False
    plotter.settings.alpha_filled_add = 0.55
    last = len(clouds) - 1
    plotter.triangle_plot(
        clouds, names, filled=[i == last for i in range(len(clouds))], contour_colors=[*COLOURS[:last], GREEN],
        contour_ls=[*LINES[:last], "-"], contour_lws=[1.2] * len(clouds), legend_loc="upper right",
        markers=dict(zip(names, FIDUCIAL[free], strict=True)), marker_args={"color": "0.6", "lw": 0.7, "ls": ":"},
    )  # fmt: skip
    return plotter.fig


def ratio_map(ratios, of=("Om", "s8")):
    """sigma_classical / sigma_learned over the classical marks in p and delta_s: the paper's figure 4, top.

    Hatched cells are those whose interval includes 1: no difference was shown there.

    Parameters
    ----------
    ratios : {title of a row: {(p, delta_s): Interval}}, (P,) each.
    """
    first = next(iter(ratios.values()))
    ps, saturations = (sorted({key[i] for key in first}) for i in (0, 1))
    kept = [QUIJOTE_NAMES.index(name) for name in of]
    finite = [each.value[kept] for row in ratios.values() for each in row.values()]
    reach = max(1.25, float(np.exp(np.abs(np.log(finite)).max())))
    size = (4.4 * len(of) + 0.8, 2.9 * len(ratios) + 0.6)
    figure, axes = plt.subplots(len(ratios), len(of), figsize=size, layout="constrained", sharex=True, sharey=True)
    axes = np.reshape(axes, (len(ratios), len(of)))
    for row, (title, here) in zip(axes, ratios.items(), strict=True):
        for ax, i in zip(row, kept, strict=True):
            values = np.array([[here[p, s].value[i] for p in ps] for s in saturations])
            unsure = np.array([[here[p, s].includes_one[i] for p in ps] for s in saturations])
            drawn = ax.pcolormesh(values, cmap="PuOr", norm=LogNorm(1 / reach, reach), edgecolors="white", lw=1)
            for at, x in np.ndenumerate(values):
                _cell(ax, at, x, unsure[at], abs(np.log(x)) > 0.6 * np.log(reach))
            ax.set_title(rf"${LATEX[i]}$, {title}", fontsize=10)
            ax.set_xticks(np.arange(len(ps)) + 0.5, [f"{p:g}" for p in ps])
            ax.set_yticks(np.arange(len(saturations)) + 0.5, [f"{s:g}" for s in saturations])
            ax.spines[:].set_visible(False)
            ax.tick_params(length=0)
        row[0].set_ylabel(r"saturation $\delta_s$")
    for ax in axes[-1]:
        ax.set_xlabel(r"exponent $p$ of the classical mark")
    label = r"$\sigma_{\rm classical}\,/\,\sigma_{\rm learned}$"
    bar = figure.colorbar(drawn, ax=axes, label=label, shrink=0.85, aspect=25)
    ticks = [t for t in (0.2, 0.33, 0.5, 0.67, 0.8, 1, 1.25, 1.5, 2, 3, 5) if 1 / reach <= t <= reach]
    bar.set_ticks(ticks, labels=[f"{t:g}" for t in ticks])
    bar.minorticks_off()
    level = next(iter(first.values())).level
    shown = Patch(facecolor="white", edgecolor="0.35", hatch="///", label=f"{level:.0%} interval includes 1")
    figure.legend(handles=[shown], loc="outside lower center", fontsize=9)
    return figure


def _cell(ax, at, value, unsure, dark):
    """The number of a cell of a map; a hatch, and a pale box behind the number, where it is unsure."""
    row, column = at
    box = None
    if unsure:
        ax.add_patch(plt.Rectangle((column, row), 1, 1, fill=False, hatch="///", edgecolor="0.35", linewidth=0))
        box = {"facecolor": "white", "edgecolor": "none", "pad": 1.0, "alpha": 0.8}
    look = {"ha": "center", "va": "center", "fontsize": 8, "bbox": box}
    ax.text(column + 0.5, row + 0.5, f"{value:.2f}", color="white" if dark and not unsure else "black", **look)


def sigma_against_kmax(scan, of=("Om", "s8"), fixed=()):
    """Errors against the smallest scale used, with their intervals: the paper's figure 5.

    Parameters
    ----------
    scan : from `nbkit.forecast.bootstrap.by_kmax`.
    """
    figure, axes = plt.subplots(1, len(of), figsize=(4.4 * len(of), 3.6), layout="constrained", squeeze=False)
    for ax, name in zip(axes[0], of, strict=True):
        i = QUIJOTE_NAMES.index(name)
        for label, colour, line in zip(next(iter(scan.values())), COLOURS, LINES, strict=False):
            intervals = [here[label].sigma(fixed) for here in scan.values()]
            value, low, high = (np.array([getattr(x, what)[i] for x in intervals]) for what in ("value", "low", "high"))
            ax.plot(list(scan), value, line, color=colour, label=pretty(label), lw=1.6)
            ax.fill_between(list(scan), low, high, color=colour, alpha=0.15, lw=0)
        ax.set(xlabel=r"$k_{\rm max}$ [$h$/Mpc]", ylabel=rf"$\sigma({LATEX[i]})$", yscale="log")
        ax.yaxis.set_major_locator(LogLocator(subs=(1, 2, 3, 5)))
        ax.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{y:g}"))
        ax.yaxis.set_minor_formatter(NullFormatter())
    axes[0, 0].legend(fontsize=8, title=f"bands: {intervals[0].level:.0%}", title_fontsize=8)
    return figure


def convergence(pairs, fiducial, halves, of=("Om", "s8")):
    """sigma against the number of derivative and fiducial simulations, and from disjoint halves; a row a parameter.

    Parameters
    ----------
    pairs, fiducial : `nbkit.forecast.trust.Convergence`.
    halves : (splits, 2, P) from `nbkit.forecast.trust.half_splits`.
    """
    figure, axes = plt.subplots(len(of), 3, figsize=(11, 2.9 * len(of)), layout="constrained", squeeze=False)
    for row, name in zip(axes, of, strict=True):
        i = QUIJOTE_NAMES.index(name)
        for ax, curve in zip(row, (pairs, fiducial), strict=False):
            for estimator, sigma in curve.sigma.items():
                colour, mark, label = ESTIMATOR_LOOK[estimator]
                middle = np.median(sigma[:, :, i], axis=1)
                shown = np.isfinite(middle)
                ax.plot(curve.counts[shown], middle[shown], marker=mark, ms=4, lw=1.2, color=colour, label=label)
            end = np.median(curve.sigma["corrected"][-1, :, i])
            ax.axhspan(0.95 * end, 1.05 * end, color="0.92", zorder=0, label="5 % about the end")
            low, high = ax.get_ylim()
            ax.set(ylabel=rf"$\sigma({LATEX[i]})$", xscale="log", ylim=(min(low, 0.85 * end), max(high, 1.25 * end)))
            ax.set_xticks(curve.counts, [str(n) for n in curve.counts])
            ax.minorticks_off()
        a, b = halves[:, 0, i], halves[:, 1, i]
        fine = np.isfinite(a) & np.isfinite(b)
        row[2].plot(a[fine], b[fine], "o", ms=4, color=BLUE, mfc="none")
        both = np.concatenate([a[fine], b[fine]])
        ends = (both.min() * 0.95, both.max() * 1.05) if len(both) else (0, 1)
        row[2].plot(ends, ends, color="0.6", lw=0.8)
        row[2].set(xlabel="one half of all simulations", ylabel="the other half", title=rf"$\sigma({LATEX[i]})$")
        row[2].set_aspect("equal")
    axes[-1, 0].set_xlabel("derivative realisations")
    axes[-1, 1].set_xlabel("fiducial simulations")
    axes[0, 0].legend(fontsize=7)
    return figure


def data_health(covariance, gaussianity, steps, bins):
    """Correlation matrix, its eigenvalues, the step of the derivatives, and how Gaussian the data vector is.

    Parameters
    ----------
    covariance : (n_d, n_d) of the data vector [P_dd, P_dm, P_mm].
    gaussianity : `nbkit.forecast.trust.Gaussianity`.
    steps : {label: (P,)} relative change of sigma at half the step; empty without a simulator.
    bins : bins of k in each spectrum.
    """
    figure, axes = plt.subplots(2, 3, figsize=(11, 6.4), layout="constrained")
    units = correlation(covariance)
    ax = axes[0, 0]
    drawn = ax.imshow(units, cmap="PuOr_r", vmin=-1, vmax=1, origin="lower")
    middles = np.arange(len(units) // bins) * bins + bins / 2 - 0.5
    names = (r"$P_{\delta\delta}$", r"$P_{\delta M}$", r"$P_{MM}$")[: len(middles)]
    ax.set_xticks(middles, names)
    ax.set_yticks(middles, names)
    ax.tick_params(length=0)
    figure.colorbar(drawn, ax=ax, label="correlation", shrink=0.85)
    ax = axes[0, 1]
    eigenvalues = np.linalg.eigvalsh(units)[::-1]
    ax.semilogy(np.arange(1, len(units) + 1), eigenvalues, "o-", ms=3, color=BLUE)
    ax.set(xlabel="number", ylabel="eigenvalue of the correlation matrix")
    ax.set_title(f"condition number {eigenvalues[0] / eigenvalues[-1]:.1e}", fontsize=10)
    _step_bars(axes[0, 2], steps)
    ax = axes[1, 0]
    ax.plot(gaussianity.expected, gaussianity.chi2, ".", ms=3, color=BLUE)
    ax.plot(*[[0, gaussianity.expected[-1]]] * 2, color="0.6", lw=0.8)
    ax.set(xlabel=r"$x^T C^{-1} x$ expected of a Gaussian", ylabel="found")
    for ax, name, scatter in zip(axes[1, 1:], ("skewness", "kurtosis"), gaussianity.scatter, strict=True):
        values = getattr(gaussianity, name)
        for j, (start, look) in enumerate(zip(range(0, len(values), bins), ("o-", "s--", "^:"), strict=False)):
            here = values[start : start + bins]
            ax.plot(np.arange(1, len(here) + 1), here, look, ms=3.5, color=COLOURS[j], label=names[j])
        ax.axhspan(-2 * scatter, 2 * scatter, color="0.9", zorder=0, label="Gaussian, 95 %")
        ax.axhline(0, color="0.6", lw=0.6)
        ax.set(xlabel="bin of $k$", ylabel="excess kurtosis" if name == "kurtosis" else name)
    axes[1, 1].legend(fontsize=8)
    return figure


def _step_bars(ax, steps):
    width = 0.8 / max(len(steps), 1)
    for j, (label, change) in enumerate(steps.items()):
        at = np.arange(len(QUIJOTE_NAMES)) + (j - (len(steps) - 1) / 2) * width
        ax.bar(at, 100 * change, width, color=COLOURS[j], label=pretty(label))
    ax.axhline(0, color="0.6", lw=0.6)
    ax.set_xticks(range(len(QUIJOTE_NAMES)), [rf"${name}$" for name in LATEX])
    ax.set(ylabel=r"change of $\sigma$ at half the step [%]")
    if steps:
        ax.legend(fontsize=8, ncols=2, loc="lower center", bbox_to_anchor=(0.5, 1.0))
    else:
        ax.text(0.5, 0.5, "needs a simulator", transform=ax.transAxes, ha="center")
