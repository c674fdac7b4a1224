"""Figures of parameter recovery: true against predicted, maps over the marks, learning curves, posteriors, coverage."""

from contextlib import redirect_stdout
from io import StringIO

import numpy as np
from scipy.stats import binom

from nbkit.forecast.bootstrap import Interval
from nbkit.show.forecast import TITLES, contours, mark_map
from nbkit.show.looks import CYCLE, LINES, SKY, band_panels, looks, pretty, row_of_panels
from nbkit.universe.cosmology import LATEX, PARAMETERS, PRIOR_LATIN_HYPERCUBE, QUIJOTE_NAMES


def true_against_predicted(recovery, labels, of=("Om", "s8")):
    """Predictions for unseen simulations against the truth: a row a parameter, a column a mark, the MSE in words."""
    figure, axes = row_of_panels(len(labels), 2.9, 2.85, len(of))
    for row, i in zip(axes, map(QUIJOTE_NAMES.index, of), strict=True):
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


def learning_curves(recoveries, labels, of=("Om", "s8")):
    """MSE against the number of training simulations, ascending: a Recovery of each, with 95 % intervals."""
    numbers, counts = [QUIJOTE_NAMES.index(name) for name in of], [each.train for each in recoveries]
    curves = {x: np.stack([np.array(each.mse(x))[:, numbers] for each in recoveries], axis=1) for x in labels}
    about = {"xscale": "log", "xlabel": "simulations to train on", "ylabel": "MSE / variance of the prior"}
    figure, axes = band_panels([TITLES[i] for i in numbers], counts, curves, **about)
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
        for share, title, colour, line in zip(shares, TITLES, CYCLE, LINES, strict=False):
            ax.plot(levels, share, line, color=colour, lw=1.4, label=title)
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
    ax.fill_between(levels, low, high, color=SKY, alpha=0.3, lw=0)
    ax.plot([0, 1], [0, 1], color="0.5", lw=0.8)
    ax.set(xlim=(0, 1), ylim=(0, 1))
