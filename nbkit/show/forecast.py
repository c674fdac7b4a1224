"""Figures of forecasts and of recoveries: contours, maps over the marks, sigma against kmax, what to believe."""

from contextlib import redirect_stdout
from io import StringIO
from itertools import product

import ipywidgets as w
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.colors import LogNorm
from matplotlib.patches import Patch
from scipy.stats import binom

from nbkit.forecast.bootstrap import Interval, symbol
from nbkit.forecast.fisher import correlation
from nbkit.show.controls import Explorer, follow
from nbkit.show.curves import Ellipses
from nbkit.show.looks import CYCLE, SIGNED, SYMBOLS, band_panels, looks, plain_log, pretty, row_of_panels, table
from nbkit.universe.cosmology import FIDUCIAL, LATEX, PARAMETERS, PRIOR_LATIN_HYPERCUBE, QUIJOTE_NAMES

TITLES = [rf"${name}$" for name in LATEX]
# The parameters that figures with a panel for each are about: Omega_m and sigma_8.
TWO = [0, 4]


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


def mark_map(rows, marks, label, ratio=True):
    """A number for every classical mark in p and delta_s: of ratios to a learned mark, the paper's figure 4.

    Hatched are ratios whose interval includes 1: no difference was shown there.

    Parameters
    ----------
    rows : {title of a row: {label: Interval}}, (P,) each; a map for each parameter.
    marks : {label: ClassicalMark}.
    label : of the colours, in LaTeX.
    """
    ps, saturations = (sorted({getattr(mark, name) for mark in marks.values()}) for name in ("p", "delta_s"))
    figure, axes = row_of_panels(len(TWO), 4.8, 3.2, len(rows), sharex=True, sharey=True)
    every = np.array([[row[x].value[TWO] for x in marks] for row in rows.values()])
    reach = max(1.25, float(np.exp(np.abs(np.log(every)).max())))
    ends = (1 / reach, reach) if ratio else (every.min(), every.max())
    scale = {"cmap": "PuOr" if ratio else "cividis", "norm": LogNorm(*ends)}
    for ax, (title, i) in zip(axes.flat, product(rows, TWO), strict=True):
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


def sigma_against_kmax(scan):
    """Errors of a scan {kmax: Forecasts} against the smallest scale used, with intervals: the paper's figure 5."""
    curves, first = {}, next(iter(scan.values()))
    for label in first:
        sigma = [here[label].sigma for here in scan.values()]
        curves[label] = [[getattr(each, end)[TWO] for each in sigma] for end in ("value", "low", "high")]
    titles = [rf"$\sigma({LATEX[i]})$" for i in TWO]
    figure, axes = band_panels(titles, list(scan), curves, xlabel=r"$k_{\rm max}$ [$h$/Mpc]")
    axes[0].legend(title=f"bands: {next(iter(first.values())).sigma.level:.0%}", title_fontsize=8)
    return figure


def convergence(pairs, fiducial, halves):
    """sigma by number of derivative and fiducial simulations, and of disjoint halves (splits, 2, P)."""
    figure, axes = row_of_panels(3, 3.7, 2.9, len(TWO))
    for row, i in zip(axes, TWO, strict=True):
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
        row[2].plot(halves[:, 0, i], halves[:, 1, i], "o", ms=4, mfc="none")
        row[2].axline((end, end), slope=1, color="0.6", lw=0.8)
        row[2].set(xlabel="one half of all simulations", ylabel="the other half", title=rf"$\sigma({LATEX[i]})$")
        row[2].set_aspect("equal")
    axes[-1, 0].set_xlabel("derivative realisations")
    axes[-1, 1].set_xlabel("fiducial simulations")
    axes[0, 0].legend(fontsize=7)
    return figure


def data_health(covariance, gaussianity, bins):
    """Correlation matrix, its eigenvalues, and how Gaussian the data vector is.

    Parameters
    ----------
    covariance : (n_d, n_d) of the data vector [P_dd, P_dm, P_mm].
    gaussianity : `nbkit.forecast.trust.Gaussianity`.
    bins : of k in each spectrum.
    """
    figure, ((matrix, spectrum, chi2, *moments),) = row_of_panels(5, 3.2, 3.0)
    units, starts = correlation(covariance), range(0, len(covariance), bins)
    names = (r"$P_{\delta\delta}$", r"$P_{\delta M}$", r"$P_{MM}$")[: len(starts)]
    image = matrix.imshow(units, cmap=SIGNED, vmin=-1, vmax=1, origin="lower")
    middles = [start + bins / 2 - 0.5 for start in starts]
    matrix.set(xticks=middles, yticks=middles, xticklabels=names, yticklabels=names)
    figure.colorbar(image, ax=matrix, label="correlation", location="top")
    eigenvalues = np.linalg.eigvalsh(units)[::-1]
    spectrum.semilogy(np.arange(1, len(units) + 1), eigenvalues, "o-", ms=3)
    title = f"condition number {eigenvalues[0] / eigenvalues[-1]:.1e}"
    spectrum.set(xlabel="number", ylabel="eigenvalue of the correlation matrix", title=title)
    chi2.plot(gaussianity.expected, gaussianity.chi2, ".", ms=3)
    chi2.plot(*[[0, gaussianity.expected[-1]]] * 2, color="0.6", lw=0.8)
    chi2.set(xlabel=r"$x^T C^{-1} x$ expected of a Gaussian", ylabel="found")
    for ax, name, scatter in zip(moments, ("skewness", "kurtosis"), gaussianity.scatter, strict=True):
        for start, look, colour, label in zip(starts, ("o-", "s--", "^:"), CYCLE, names, strict=False):
            here = getattr(gaussianity, name)[start : start + bins]
            ax.plot(np.arange(1, bins + 1), here, look, ms=3.5, color=colour, label=label)
        ax.axhspan(-2 * scatter, 2 * scatter, color="0.9", zorder=0, label="Gaussian, 95 %")
        ax.axhline(0, color="0.6", lw=0.6)
        ax.set(xlabel="bin of $k$", ylabel="excess kurtosis" if name == "kurtosis" else name)
    moments[0].legend()
    return figure


def true_against_predicted(recovery, labels):
    """Predictions for unseen simulations against the truth: a row a parameter, a column a mark, the MSE in words."""
    figure, axes = row_of_panels(len(labels), 2.9, 2.85, len(TWO))
    for row, i in zip(axes, TWO, strict=True):
        low, high = PRIOR_LATIN_HYPERCUBE[i]
        for ax, (label, (colour, *_)) in zip(row, looks(labels).items(), strict=True):
            predicted = recovery.predicted[recovery.labels.index(label)].mean(0)[:, i]
            ax.plot([low, high], [low, high], color="0.6", lw=1)
            ax.plot(recovery.theta[:, i], predicted, "o", color=colour, ms=3, mfc="none", mew=0.8)
            said = rf"MSE {recovery.mse(label)[0, i]:.2g} $\times$ prior variance"
            ax.text(0.97, 0.04, said, transform=ax.transAxes, ha="right", fontsize=8)
            ax.set(xlim=(low, high), ylim=(low, high), aspect=1, xlabel=f"true {TITLES[i]}")
        row[0].set_ylabel(f"predicted {TITLES[i]}")
    for ax, label in zip(axes[0], labels, strict=True):
        ax.set_title(pretty(label), fontsize=10)
    return figure


def mse_map(recovery, marks, over=None):
    """MSE of every classical mark over the variance of the prior, or `over` that of a mark: figure 4, bottom."""
    cells = {x: Interval(*(recovery.ratio(x, over) if over else recovery.mse(x))) for x in marks}
    label = (
        r"{\rm MSE}_{\rm classical}\,/\,{\rm MSE}_{\rm learned}" if over else r"{\rm MSE\,/\,variance\ of\ the\ prior}"
    )
    return mark_map({"": cells}, marks, label, ratio=over is not None)


def learning_curves(recoveries, labels):
    """MSE against the number of training simulations, ascending: a Recovery of each, with 95 % intervals."""
    counts = [each.train for each in recoveries]
    curves = {x: np.stack([np.array(each.mse(x))[:, TWO] for each in recoveries], axis=1) for x in labels}
    about = {"xscale": "log", "xlabel": "simulations to train on", "ylabel": "MSE / variance of the prior"}
    figure, axes = band_panels([TITLES[i] for i in TWO], counts, curves, **about)
    for ax in axes:
        ax.set_xticks(counts, map(str, counts))
        ax.set_xticks([], minor=True)
    return figure


def corner(samples, truth, prior):
    """68 and 95 % contours of {label: samples (count, 5)} of one universe, its truth (5,), in a prior (5, 2)."""
    from getdist import MCSamples

    names = list(PARAMETERS)
    ranges = dict(zip(names, np.asarray(prior).tolist(), strict=True))
    # Fixed smoothing: getdist's automatic choice warns about unconstrained parameters that end at the prior.
    settings = {"smooth_scale_1D": 0.35, "smooth_scale_2D": 0.45}
    about = {"names": names, "labels": list(LATEX), "ranges": ranges, "settings": settings}
    with redirect_stdout(StringIO()):  # getdist says how many samples it did not remove
        clouds = {label: MCSamples(samples=x, **about) for label, x in samples.items()}
    return contours(clouds, names, truth, list(clouds)[1:])


def coverage(found, confidence=0.99):
    """Truths inside the credible intervals of {label: Coverage}, by parameter, and for all at once by TARP (right)."""
    figure, (axes,) = row_of_panels(len(found) + 1, 3.4, 3.7, sharey=True)
    levels = np.linspace(0.02, 0.98, 49)
    for ax, (label, each) in zip(axes, found.items(), strict=False):
        _diagonal(ax, len(each.ranks), levels, confidence)
        shares = np.array([each.share(level) for level in levels]).T
        for share, title, colour in zip(shares, TITLES, CYCLE, strict=False):
            ax.plot(levels, share, color=colour, lw=1.4, label=title)
        ax.set(title=pretty(label), xlabel="level of the central interval")
    axes[0].set_ylabel("share of truths inside")
    axes[0].legend(loc="upper left")
    _diagonal(axes[-1], len(each.ranks), levels, confidence)
    for label, (colour, line, _) in looks(found).items():
        axes[-1].plot(found[label].alpha, found[label].expected, line, color=colour, lw=1.4, label=pretty(label))
    axes[-1].set(title="all parameters (TARP)", xlabel="credibility")
    axes[-1].legend(loc="upper left")
    return figure


def _diagonal(ax, count, levels, confidence):
    low, high = (x / count for x in binom.interval(confidence, count, levels))
    ax.fill_between(levels, low, high, color="0.8", lw=0)
    ax.plot([0, 1], [0, 1], color="0.5", lw=0.8)
    ax.set(xlim=(0, 1), ylim=(0, 1))


def fisher_explorer(scan, kmax):
    """Contours of any two parameters and all errors of a scan {kmax: Forecasts}, under a slider that starts at kmax
    [h/Mpc] and boxes for what is held fixed; the label to compare with comes first."""
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
