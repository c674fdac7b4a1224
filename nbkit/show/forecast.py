"""Figures of forecasts: contours, maps of improvement, sigma against kmax, and the page that says what to believe."""

import re

import ipywidgets as w
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.colors import LogNorm
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from nbkit.forecast import BEST, UNMARKED
from nbkit.forecast.bootstrap import symbol
from nbkit.forecast.fisher import correlation
from nbkit.show import BLACK, BLUE, GREEN, ORANGE, PINK, RED, SKY, SYMBOLS, table
from nbkit.show.curves import Ellipses, Explorer, follow
from nbkit.universe.cosmology import FIDUCIAL, LATEX, QUIJOTE_NAMES

# One look for the same thing in every figure: first the unmarked spectrum, then a classical mark, then learned ones.
COLOURS, LINES = (BLACK, ORANGE, BLUE, GREEN, RED, PINK), ("-", "--", "-.", "-", ":", "--")
TITLES = [rf"${name}$" for name in LATEX]
ESTIMATOR_LOOK = {
    "standard": (SKY, "v", "standard"),
    "corrected": (BLUE, "o", "standard, noise taken off"),
    "compressed": (RED, "^", "compressed"),
    "combined": (GREEN, "s", "combined"),
}


def pretty(label):
    """A label as a figure shows it: symbols for P_dd and for the classical marks, others as they are."""
    if classical := re.fullmatch(r"p=(\S+) ds=(\S+)", label):
        return rf"classical, $p={classical[1]}$, $\delta_s={classical[2]}$"
    named = {UNMARKED: r"$P_{\delta\delta}$ alone", BEST: "best of 48 classical"}
    return named.get(label) or re.sub(r"l_max = (\d)", r"$\\ell_{\\rm max}=\1$", label)


def triangle(forecasts):
    """68 and 95 % contours of all free parameters with getdist: the paper's figure 3.

    Parameters
    ----------
    forecasts : {label: Forecast}, all with the same parameters fixed; the last is drawn filled, those before as lines.
    """
    from getdist import plots as getdist_plots
    from getdist.gaussian_mixtures import GaussianND

    fixed = next(iter(forecasts.values())).fixed
    free = [i for i, name in enumerate(QUIJOTE_NAMES) if name not in fixed]
    names, labels, last = [QUIJOTE_NAMES[i] for i in free], [LATEX[i] for i in free], len(forecasts) - 1
    clouds = [
        GaussianND(FIDUCIAL[free], each.covariance()[np.ix_(free, free)], names=names, labels=labels, label=pretty(x))
        for x, each in forecasts.items()
    ]
    plotter = getdist_plots.get_subplot_plotter(width_inch=6.4)
    plotter.settings.figure_legend_frame = False
    plotter.settings.alpha_filled_add = 0.55
    plotter.triangle_plot(
        clouds, names, filled=[i == last for i in range(len(clouds))], contour_colors=[*COLOURS[:last], GREEN],
        contour_ls=[*LINES[:last], "-"], contour_lws=[1.2] * len(clouds), legend_loc="upper right",
        markers=dict(zip(names, FIDUCIAL[free], strict=True)), marker_args={"color": "0.6", "lw": 0.7, "ls": ":"},
    )  # fmt: skip
    return plotter.fig


def ratio_map(rows, marks, of=("Om", "s8"), quantity=r"\sigma"):
    """sigma_classical / sigma_learned over the classical marks in p and delta_s: the paper's figure 4.

    Hatched cells are those whose interval includes 1: no difference was shown there.

    Parameters
    ----------
    rows : {title of a row: {label: Interval}}, (P,) each.
    marks : {label: ClassicalMark}.
    quantity : what the ratio is of, in LaTeX.
    """
    some = [row[label] for row in rows.values() for label in marks]
    logs = np.log([[each.value[QUIJOTE_NAMES.index(name)] for name in of] for each in some])
    reach = max(1.25, float(np.exp(np.abs(logs).max())))
    figure, axes, images = mark_maps(
        rows, marks, of, lambda each, i: f"{each.value[i]:.2f}", lambda each, i: each.includes_one[i],
        cmap="PuOr", norm=LogNorm(1 / reach, reach),
    )  # fmt: skip
    label = rf"${quantity}_{{\rm classical}}\,/\,{quantity}_{{\rm learned}}$"
    ticks = [t for t in (0.2, 0.25, 0.33, 0.5, 0.67, 0.8, 1, 1.25, 1.5, 2, 3, 4, 5) if 1 / reach <= t <= reach]
    look = {"label": label, "shrink": 0.85, "aspect": 25, "ticks": ticks, "format": "%g"}
    figure.colorbar(images[-1], ax=axes, **look).minorticks_off()
    hatch = Patch(facecolor="white", edgecolor="0.35", hatch="///", label=f"{some[0].level:.0%} interval includes 1")
    figure.legend(handles=[hatch], loc="outside lower center", fontsize=9)
    return figure


def mark_maps(rows, marks, of, words, unsure=lambda each, i: False, size=8, **look):
    """Figure, axes and images: p and delta_s across, a row of maps for each title, a map for each parameter.

    Parameters
    ----------
    rows, marks, of : as for `ratio_map`.
    words, unsure : Interval, number of a parameter -> what a cell says, and whether it is hatched.
    size, look : of the letters; for `pcolormesh`.
    """
    ps, saturations = (sorted({getattr(mark, name) for mark in marks.values()}) for name in ("p", "delta_s"))
    figure, axes = plt.subplots(
        len(rows), len(of), figsize=(4.4 * len(of) + 0.8, 2.9 * len(rows) + 0.8), layout="constrained",
        sharex=True, sharey=True, squeeze=False,
    )  # fmt: skip
    places = {label: (saturations.index(mark.delta_s), ps.index(mark.p)) for label, mark in marks.items()}
    images = []
    for ax, (i, title) in zip(axes.flat, ((QUIJOTE_NAMES.index(x), title) for title in rows for x in of), strict=True):
        values = np.full((len(saturations), len(ps)), np.nan)
        for label, place in places.items():
            values[place] = rows[title][label].value[i]
        image = ax.pcolormesh(values, edgecolors="white", lw=1, **look)
        for label, (row, column) in places.items():
            each, box = rows[title][label], None
            luminance = np.dot(image.to_rgba(values[row, column])[:3], (0.3, 0.6, 0.1))
            colour = "black" if luminance > 0.5 else "white"
            if unsure(each, i):  # a hatch, and a pale box behind the number
                ax.add_patch(plt.Rectangle((column, row), 1, 1, fill=False, hatch="///", edgecolor="0.35", linewidth=0))
                box, colour = {"facecolor": "white", "edgecolor": "none", "pad": 1.0, "alpha": 0.8}, "black"
            letters = {"color": colour, "ha": "center", "va": "center", "fontsize": size, "bbox": box}
            ax.text(column + 0.5, row + 0.5, words(each, i), **letters)
        ax.set_title(", ".join(filter(None, (TITLES[i], title))), fontsize=10)
        ax.set_xticks(np.arange(len(ps)) + 0.5, [f"{p:g}" for p in ps])
        ax.set_yticks(np.arange(len(saturations)) + 0.5, [f"{s:g}" for s in saturations])
        ax.spines[:].set_visible(False)
        ax.tick_params(length=0)
        images.append(image)
    plt.setp(axes[:, 0], ylabel=r"saturation $\delta_s$")
    plt.setp(axes[-1], xlabel=r"exponent $p$ of the classical mark")
    return figure, axes, images


def sigma_against_kmax(scan, of=("Om", "s8")):
    """Errors against the smallest scale used, with their intervals: the paper's figure 5.

    Parameters
    ----------
    scan : {kmax: Forecasts}, from `nbkit.forecast.by_kmax`.
    """
    figure, axes = plt.subplots(1, len(of), figsize=(4.4 * len(of), 3.6), layout="constrained", squeeze=False)
    for ax, name in zip(axes[0], of, strict=True):
        i = QUIJOTE_NAMES.index(name)
        for label, colour, line in zip(next(iter(scan.values())), COLOURS, LINES, strict=False):
            intervals = [here[label].sigma for here in scan.values()]
            value, low, high = ([getattr(x, end)[i] for x in intervals] for end in ("value", "low", "high"))
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
                middle = np.median(sigma[:, :, i], axis=1)  # infinite ones leave gaps
                ax.plot(curve.counts, middle, marker=mark, ms=4, lw=1.2, color=colour, label=label)
            end = np.median(curve.sigma["corrected"][-1, :, i])
            ax.axhspan(0.95 * end, 1.05 * end, color="0.92", zorder=0, label="5 % about the end")
            low, high = ax.get_ylim()
            ax.set(ylabel=rf"$\sigma({LATEX[i]})$", xscale="log", ylim=(min(low, 0.85 * end), max(high, 1.25 * end)))
            ax.set_xticks(curve.counts, [str(n) for n in curve.counts])
            ax.minorticks_off()
        row[2].plot(halves[:, 0, i], halves[:, 1, i], "o", ms=4, color=BLUE, mfc="none")
        row[2].axline((end, end), slope=1, color="0.6", lw=0.8)
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
    units, starts = correlation(covariance), range(0, len(covariance), bins)
    names = (r"$P_{\delta\delta}$", r"$P_{\delta M}$", r"$P_{MM}$")[: len(starts)]
    ax = axes[0, 0]
    image = ax.imshow(units, cmap="PuOr_r", vmin=-1, vmax=1, origin="lower")
    middles = [start + bins / 2 - 0.5 for start in starts]
    ax.set(xticks=middles, yticks=middles, xticklabels=names, yticklabels=names)
    ax.tick_params(length=0)
    figure.colorbar(image, ax=ax, label="correlation", shrink=0.85)
    eigenvalues = np.linalg.eigvalsh(units)[::-1]
    axes[0, 1].semilogy(np.arange(1, len(units) + 1), eigenvalues, "o-", ms=3, color=BLUE)
    title = f"condition number {eigenvalues[0] / eigenvalues[-1]:.1e}"
    axes[0, 1].set(xlabel="number", ylabel="eigenvalue of the correlation matrix", title=title)
    for j, (label, change) in enumerate(steps.items()):
        at = np.arange(len(QUIJOTE_NAMES)) + 0.8 * ((j + 0.5) / len(steps) - 0.5)
        axes[0, 2].bar(at, 100 * change, 0.8 / len(steps), color=COLOURS[j], label=pretty(label))
    axes[0, 2].axhline(0, color="0.6", lw=0.6)
    axes[0, 2].set_xticks(range(len(QUIJOTE_NAMES)), TITLES)
    axes[0, 2].set_ylabel(r"change of $\sigma$ at half the step [%]")
    if steps:
        axes[0, 2].legend(fontsize=8, ncols=2, loc="lower center", bbox_to_anchor=(0.5, 1.0))
    else:
        axes[0, 2].text(0.5, 0.5, "needs a simulator", transform=axes[0, 2].transAxes, ha="center")
    axes[1, 0].plot(gaussianity.expected, gaussianity.chi2, ".", ms=3, color=BLUE)
    axes[1, 0].plot(*[[0, gaussianity.expected[-1]]] * 2, color="0.6", lw=0.8)
    axes[1, 0].set(xlabel=r"$x^T C^{-1} x$ expected of a Gaussian", ylabel="found")
    for ax, name, scatter in zip(axes[1, 1:], ("skewness", "kurtosis"), gaussianity.scatter, strict=True):
        for start, look, colour, label in zip(starts, ("o-", "s--", "^:"), COLOURS, names, strict=False):
            here = getattr(gaussianity, name)[start : start + bins]
            ax.plot(np.arange(1, bins + 1), here, look, ms=3.5, color=colour, label=label)
        ax.axhspan(-2 * scatter, 2 * scatter, color="0.9", zorder=0, label="Gaussian, 95 %")
        ax.axhline(0, color="0.6", lw=0.6)
        ax.set(xlabel="bin of $k$", ylabel="excess kurtosis" if name == "kurtosis" else name)
    axes[1, 1].legend(fontsize=8)
    return figure


def fisher_explorer(scan, kmax):
    """Contours of any two parameters and all errors, under a slider for kmax and boxes for what is held fixed.

    Parameters
    ----------
    scan : {kmax: Forecasts}, from `nbkit.forecast.by_kmax`; the label to compare with comes first.
    kmax : where the slider starts [h/Mpc].
    """
    options = [(f"{at:.3f}", at) for at in scan]
    start = max((at for at in scan if at <= kmax + 1e-9), default=min(scan))
    look = {"layout": w.Layout(width="340px"), "style": {"description_width": "90px"}}
    at = w.SelectionSlider(options=options, value=start, description="kmax [h/Mpc]", **look)
    names, narrow = [symbol(name) for name in QUIJOTE_NAMES], {"indent": False, "layout": w.Layout(width="90px")}
    boxes = [w.Checkbox(False, description=f"{SYMBOLS.get(name, name)} fixed", **narrow) for name in names]
    said, errors = w.HTML(), w.HTML()

    def covariances(here):
        return {x: each.covariance() for x, each in here.items() if np.isfinite(each.sigma.value).all()}

    def update(_):
        fixed = [name for name, box in zip(QUIJOTE_NAMES, boxes, strict=True) if box.value]
        if len(fixed) == len(boxes):
            said.value = "<b>All parameters are held fixed</b>: nothing is left to forecast."
            return
        here, held = scan[at.value].hold(*fixed), ", ".join(SYMBOLS.get(symbol(name), symbol(name)) for name in fixed)
        ellipses.update(covariances(here))
        bins = list(scan).index(at.value) + len(QUIJOTE_NAMES) + 1
        said.value = f"<b>kmax = {at.value:.3f} h/Mpc</b>: {bins} bins a spectrum; held fixed: {held or 'nothing'}"
        (_, first), *others = here.items()
        better = [[f"{label}: better by", *(first / each).words()] for label, each in others]
        rows = table([*(row.values() for row in here.rows()), *better], here.rows()[0])._repr_html_()
        errors.value = f"<div style='font-size: 12px; line-height: 18px; white-space: nowrap'>{rows}</div>"

    ellipses = Ellipses(covariances(scan[start]), FIDUCIAL, names, "Omega_m", "sigma_8", title="Errors")
    update(None)
    follow(update, at, *boxes)
    panels = [ellipses, w.VBox([said, errors], layout=w.Layout(max_width="100%"))]
    return Explorer("Fisher explorer", [at, *boxes], panels)
