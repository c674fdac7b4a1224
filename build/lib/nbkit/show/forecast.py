"""Figures of forecasts: contours, maps of improvement, sigma against kmax, and the page that says what to believe."""

from itertools import product

import ipywidgets as w
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.colors import LogNorm
from matplotlib.patches import Patch

from nbkit.forecast.bootstrap import symbol
from nbkit.forecast.fisher import correlation
from nbkit.show.controls import Explorer, follow
from nbkit.show.curves import Ellipses
from nbkit.show.looks import BLUE, CYCLE, SIGNED, SYMBOLS, band_panels, looks, plain_log, pretty, row_of_panels, table
from nbkit.universe.cosmology import FIDUCIAL, LATEX, QUIJOTE_NAMES

TITLES = [rf"${name}$" for name in LATEX]


def contours(clouds, names, truth, filled):
    """68 and 95 % contours with getdist of {label of a mark: cloud}, those of some labels filled, about the truth."""
    from getdist import plots

    plotter, chosen = plots.get_subplot_plotter(width_inch=6.5), looks(clouds)
    plotter.settings.figure_legend_frame = False
    plotter.settings.alpha_filled_add = 0.55
    plotter.triangle_plot(
        list(clouds.values()), list(names), filled=[label in filled for label in clouds],
        contour_colors=[colour for colour, *_ in chosen.values()], contour_ls=[line for _, line, _ in chosen.values()],
        contour_lws=[1.2] * len(clouds), legend_loc="upper right", legend_labels=list(map(pretty, clouds)),
        markers=dict(zip(names, truth, strict=True)), marker_args={"color": "0.6", "lw": 0.7, "ls": ":"},
    )  # fmt: skip
    return plotter.fig


def triangle(forecasts):
    """68 and 95 % contours of the free parameters of Forecasts, the last of them filled: the paper's figure 3."""
    from getdist.gaussian_mixtures import GaussianND

    fixed = next(iter(forecasts.values())).fixed
    free = [i for i, name in enumerate(QUIJOTE_NAMES) if name not in fixed]
    names, labels = [QUIJOTE_NAMES[i] for i in free], [LATEX[i] for i in free]
    clouds = {
        label: GaussianND(FIDUCIAL[free], each.covariance()[np.ix_(free, free)], names=names, labels=labels)
        for label, each in forecasts.items()
    }
    return contours(clouds, names, FIDUCIAL[free], list(forecasts)[-1:])


def mark_map(rows, marks, label, ratio=True, of=("Om", "s8")):
    """A number for every classical mark in p and delta_s: of ratios to a learned mark, the paper's figure 4.

    Hatched are ratios whose interval includes 1: no difference was shown there.

    Parameters
    ----------
    rows : {title of a row: {label: Interval}}, (P,) each; a map for each parameter.
    marks : {label: ClassicalMark}.
    label : of the colours, in LaTeX.
    """
    ps, saturations = (sorted({getattr(mark, name) for mark in marks.values()}) for name in ("p", "delta_s"))
    figure, axes = row_of_panels(len(of), 4.8, 3.2, len(rows), sharex=True, sharey=True)
    numbers = [QUIJOTE_NAMES.index(name) for name in of]
    every = np.array([[row[x].value[numbers] for x in marks] for row in rows.values()])
    reach = max(1.25, float(np.exp(np.abs(np.log(every)).max())))
    scale = {"cmap": "PuOr", "norm": LogNorm(1 / reach, reach)}
    if not ratio:
        scale = {"cmap": "cividis", "norm": LogNorm(every.min(), every.max())}
    for ax, (title, i) in zip(axes.flat, product(rows, numbers), strict=True):
        cells = {(saturations.index(mark.delta_s), ps.index(mark.p)): rows[title][x] for x, mark in marks.items()}
        values = np.full((len(saturations), len(ps)), np.nan)
        for place, each in cells.items():
            values[place] = each.value[i]
        image = ax.pcolormesh(values, edgecolors="white", lw=1, **scale)
        for (row, column), each in cells.items():
            box, pale = None, np.dot(image.to_rgba(each.value[i])[:3], (0.3, 0.6, 0.1)) > 0.5
            if ratio and each.includes_one[i]:  # a hatch, and a pale box behind the number
                ax.add_patch(plt.Rectangle((column, row), 1, 1, fill=False, hatch="///", edgecolor="0.35", linewidth=0))
                box, pale = {"facecolor": "white", "edgecolor": "none", "pad": 1.0, "alpha": 0.8}, True
            letters = {
                "color": "black" if pale else "white",
                "ha": "center",
                "va": "center",
                "fontsize": 8,
                "bbox": box,
            }
            ax.text(column + 0.5, row + 0.5, f"{each.value[i]:.2g}" if not ratio else f"{each.value[i]:.2f}", **letters)
        ax.set_title(", ".join(filter(None, (TITLES[i], title))), fontsize=10)
        ax.set_xticks(np.arange(len(ps)) + 0.5, [f"{p:g}" for p in ps])
        ax.set_yticks(np.arange(len(saturations)) + 0.5, [f"{s:g}" for s in saturations])
        ax.spines[:].set_visible(False)
        ax.tick_params(length=0)
    plt.setp(axes[:, 0], ylabel=r"saturation $\delta_s$")
    plt.setp(axes[-1], xlabel=r"exponent $p$ of the classical mark")
    bar = figure.colorbar(image, ax=axes, label=f"${label}$", shrink=0.85, aspect=25)
    plain_log(bar.ax.yaxis)
    if ratio:
        words = f"{each.level:.0%} interval includes 1"
        hatch = Patch(facecolor="white", edgecolor="0.35", hatch="///", label=words)
        figure.legend(handles=[hatch], loc="outside lower center", fontsize=9)
    return figure


def ratio_map(rows, marks):
    """sigma_classical / sigma_learned over the classical marks, see `mark_map`."""
    return mark_map(rows, marks, r"\sigma_{\rm classical}\,/\,\sigma_{\rm learned}")


def sigma_against_kmax(scan, of=("Om", "s8")):
    """Errors of a scan {kmax: Forecasts} against the smallest scale used, with intervals: the paper's figure 5."""
    numbers, first = [QUIJOTE_NAMES.index(name) for name in of], next(iter(scan.values()))
    curves = {}
    for label in first:
        sigma = [here[label].sigma for here in scan.values()]
        curves[label] = [[getattr(each, end)[numbers] for each in sigma] for end in ("value", "low", "high")]
    titles = [rf"$\sigma({LATEX[i]})$" for i in numbers]
    figure, axes = band_panels(titles, list(scan), curves, xlabel=r"$k_{\rm max}$ [$h$/Mpc]")
    axes[0].legend(title=f"bands: {next(iter(first.values())).sigma.level:.0%}", title_fontsize=8)
    return figure


def convergence(pairs, fiducial, halves, of=("Om", "s8")):
    """sigma against the number of derivative and fiducial simulations, and from disjoint halves; a row a parameter.

    Parameters
    ----------
    pairs, fiducial : `nbkit.forecast.trust.Convergence`.
    halves : (splits, 2, P) from `nbkit.forecast.trust.half_splits`.
    """
    figure, axes = row_of_panels(3, 3.7, 2.9, len(of))
    for row, name in zip(axes, of, strict=True):
        i = QUIJOTE_NAMES.index(name)
        for ax, curve in zip(row, (pairs, fiducial), strict=False):
            for label, (colour, _, mark) in looks(curve.sigma).items():
                middle = np.median(curve.sigma[label][:, :, i], axis=1)  # infinite ones leave gaps
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
    figure, axes = row_of_panels(3, 3.7, 3.2, 2)
    units, starts = correlation(covariance), range(0, len(covariance), bins)
    names = (r"$P_{\delta\delta}$", r"$P_{\delta M}$", r"$P_{MM}$")[: len(starts)]
    ax = axes[0, 0]
    image = ax.imshow(units, cmap=SIGNED, vmin=-1, vmax=1, origin="lower")
    middles = [start + bins / 2 - 0.5 for start in starts]
    ax.set(xticks=middles, yticks=middles, xticklabels=names, yticklabels=names)
    ax.tick_params(length=0)
    figure.colorbar(image, ax=ax, label="correlation", shrink=0.85)
    eigenvalues = np.linalg.eigvalsh(units)[::-1]
    axes[0, 1].semilogy(np.arange(1, len(units) + 1), eigenvalues, "o-", ms=3, color=BLUE)
    title = f"condition number {eigenvalues[0] / eigenvalues[-1]:.1e}"
    axes[0, 1].set(xlabel="number", ylabel="eigenvalue of the correlation matrix", title=title)
    for j, (label, (colour, *_)) in enumerate(looks(steps).items()):
        at = np.arange(len(QUIJOTE_NAMES)) + 0.8 * ((j + 0.5) / len(steps) - 0.5)
        axes[0, 2].bar(at, 100 * steps[label], 0.8 / len(steps), color=colour, label=pretty(label))
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
        for start, look, colour, label in zip(starts, ("o-", "s--", "^:"), CYCLE, names, strict=False):
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
    start = max((at for at in scan if at <= kmax + 1e-9), default=min(scan))
    look = {"layout": w.Layout(width="340px"), "style": {"description_width": "90px"}}
    options = [(f"{at:.3f}", at) for at in scan]
    at = w.SelectionSlider(options=options, value=start, description="kmax [h/Mpc]", **look)
    names = [symbol(name) for name in QUIJOTE_NAMES]
    symbols, narrow = [SYMBOLS.get(x, x) for x in names], {"indent": False, "layout": w.Layout(width="90px")}
    boxes = [w.Checkbox(False, description=f"{x} fixed", **narrow) for x in symbols]
    said, errors = w.HTML(), w.HTML()

    def covariances(here):
        return {x: each.covariance() for x, each in here.items() if np.isfinite(each.sigma.value).all()}

    def update(_):
        held = [i for i, box in enumerate(boxes) if box.value]
        if len(held) == len(boxes):
            said.value = "<b>All parameters are held fixed</b>: nothing is left to forecast."
            return
        here = scan[at.value].hold(*(QUIJOTE_NAMES[i] for i in held))
        ellipses.update(covariances(here))
        bins, words = list(scan).index(at.value) + len(boxes) + 1, ", ".join(symbols[i] for i in held) or "nothing"
        said.value = f"<b>kmax = {at.value:.3f} h/Mpc</b>: {bins} bins a spectrum; held fixed: {words}"
        (_, first), *others = here.items()
        better = [[f"{label}: better by", *(first / each).words()] for label, each in others]
        rows = table([*(row.values() for row in here.rows()), *better], here.rows()[0])._repr_html_()
        errors.value = f"<div style='font-size: 12px; line-height: 18px'>{rows}</div>"

    ellipses = Ellipses(covariances(scan[start]), FIDUCIAL, names, "Omega_m", "sigma_8", title="Errors")
    update(None)
    follow(update, at, *boxes)
    panels = [ellipses, w.VBox([said, errors], layout=w.Layout(max_width="100%"))]
    return Explorer("Fisher explorer", [at, *boxes], panels)
