"""Latent geometry -> figures: the paper's figure 6, tables of alignment, retrieval, and a map of the learned metric."""

from itertools import product

import ipywidgets as w
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.patches import Ellipse

from nbkit.look.latent import effective_rank, stretches, theta_metric
from nbkit.show import BLACK, BLUE, GREEN, ORANGE, RED, SYMBOLS
from nbkit.show.curves import Explorer, follow, png_of
from nbkit.universe.cosmology import FIDUCIAL, LATEX, PARAMETERS, PRIOR_BSQ

# R@1, R@5 of 2,000 candidates in the paper's boxes of 1000 Mpc/h.
PAPER = {1: 0.665, 5: 0.961}
COLOURS = (BLUE, ORANGE, GREEN, RED)
# Grid of cosmologies at which the metric is drawn, and the share of a unit ellipse that is drawn there.
PLACES, SHARE = ((0.14, 0.22, 0.30, 0.38, 0.46), (0.64, 0.72, 0.80, 0.88, 0.96)), 0.5


def projection(pca, theta, names=("sigma_8", "Omega_m")):
    """The first two principal components, coloured by one parameter a panel: the paper's figure 6."""
    figure, axes = _panels(len(names), 4.6, 3.8)
    for ax, name in zip(axes, names, strict=True):
        i = PARAMETERS.index(name)
        look = {"s": 26, "cmap": "viridis", "edgecolor": "white", "linewidth": 0.3}
        drawn = ax.scatter(pca.scores[:, 0], pca.scores[:, 1], c=theta[:, i], **look)
        figure.colorbar(drawn, ax=ax, label=f"${LATEX[i]}$")
        ax.set_xlabel(_component(pca, 0))
    axes[0].set_ylabel(_component(pca, 1))
    return figure


def variance_shares(clouds):
    """Shares of the variance along eight components of {label: PrincipalComponents}, with effective ranks."""
    figure, ax = plt.subplots(figsize=(6.4, 3.2), layout="constrained")
    first, width = np.arange(1, 9), 0.8 / len(clouds)
    for i, (label, pca) in enumerate(clouds.items()):
        rank = f"{label}, effective rank {effective_rank(pca.explained):.1f}"
        ax.bar(first + (i - (len(clouds) - 1) / 2) * width, pca.explained[:8], width, color=COLOURS[i], label=rank)
    ax.set(xlabel="principal component", ylabel="share of the variance", xticks=first)
    ax.legend(fontsize=8)
    return figure


def alignments(tables):
    """R^2 (top) and angle (bottom) of components with parameters, as tables one can read: {label: Alignment}."""
    figure, axes = plt.subplots(2, len(tables), figsize=(3.5 * len(tables), 4.4), layout="constrained", squeeze=False)
    for column, (label, alignment) in zip(axes.T, tables.items(), strict=True):
        _number_table(column[0], alignment.R2, "cividis", 0, 1, "{:.2f}")
        _number_table(column[1], alignment.angle, "cividis_r", 0, 90, "{:.0f}°")
        column[0].set_title(label, fontsize=10)
    axes[0, 0].set_ylabel("$R^2$")
    axes[1, 0].set_ylabel("angle")
    return figure


def retrieval(sizes, curves):
    """R@k against the number of candidates, a panel for each k, with chance and the paper's numbers.

    Parameters
    ----------
    sizes : numbers of candidates.
    curves : {label: {k: (len(sizes), 3)}} share, low, high from `recall_against_candidates`; the same k for all.
    """
    every_k = next(iter(curves.values()))
    figure, axes = _panels(len(every_k), 3.4, 3.4)
    for ax, k in zip(axes, every_k, strict=True):
        for i, (label, of_k) in enumerate(curves.items()):
            share, low, high = of_k[k].T
            ax.plot(sizes, share, color=COLOURS[i], ls=("-", "--", "-.", ":")[i], label=label)
            ax.fill_between(sizes, low, high, color=COLOURS[i], alpha=0.2, lw=0)
        ax.plot(sizes, np.minimum(k / np.asarray(sizes), 1), color="0.5", lw=1, label="chance, $k/N$")
        if k in PAPER:
            ax.plot(2000, PAPER[k], "*", color=BLACK, ms=10, label="paper, boxes 64 times as large as demo's")
        ax.set(xscale="log", xlabel="candidates $N$", ylim=(0, 1.03), title=f"R@{k}")
    axes[0].set_ylabel("share of boxes found")
    figure.legend(*axes[0].get_legend_handles_labels(), fontsize=8, ncols=3, loc="outside lower center")
    return figure


def metric_map(heads, temperature):
    """Directions of theta that the learned metric stretches (left), and its unit ellipses over the prior (right)."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(10.0, 4.0), layout="constrained")
    values, directions = stretches(theta_metric(heads, FIDUCIAL, temperature))
    _number_table(left, directions, "PuOr_r", -1, 1, "{:+.2f}")
    left.set_yticks(range(5), [f"{1 / np.sqrt(value):.2f}" for value in values])
    left.set(ylabel="step that costs one unit of score\n[width of the prior]", title="at the fiducial cosmology")
    plane = [PARAMETERS.index(name) for name in ("Omega_m", "sigma_8")]
    looks = {False: {"color": ORANGE, "ls": "--"}, True: {"color": BLUE, "ls": "-"}}
    for place in product(*PLACES):
        theta = FIDUCIAL.copy()
        theta[plane] = place
        for learned, look in looks.items():
            G = theta_metric(heads, theta, temperature, learned)
            right.add_patch(_ellipse(theta, G, plane, fill=False, lw=1.2, **look))
    handles = [plt.Line2D([], [], label=("Euclidean", "learned metric")[i], **looks[i]) for i in (True, False)]
    right.legend(handles=handles, fontsize=8, loc="lower center", ncols=2, bbox_to_anchor=(0.5, 1.0))
    (x, y), (low, high) = plane, PRIOR_BSQ.T
    right.set(xlim=(low[x], high[x]), ylim=(low[y], high[y]), xlabel=f"${LATEX[x]}$", ylabel=f"${LATEX[y]}$")
    return figure


def latent_explorer(clouds, theta, rank, colour="sigma_8"):
    """The first two components under the mouse (plotly): hover for theta and rank, choose cloud and colour.

    Parameters
    ----------
    clouds : {label: PrincipalComponents} of the same N simulations.
    theta : (N, 5).
    rank : {label: (N,)} how many cosmologies are nearer than the true one.
    """
    import plotly.graph_objects as go

    colours = (*PARAMETERS, "retrieval rank")
    which = w.Dropdown(options=list(clouds), description="embedding")
    by = w.Dropdown(options=[(SYMBOLS.get(name, name), name) for name in colours], value=colour, description="colour")
    lines = [f"{SYMBOLS.get(name, name)} = %{{customdata[{i}]:.3f}}" for i, name in enumerate(PARAMETERS)]
    lines.append("%{customdata[5]:.0f} cosmologies nearer than the true one<extra></extra>")

    def points():
        xy, about = clouds[which.value].scores.T[:2], np.column_stack([theta, rank[which.value]])
        title = {"marker_colorbar_title_text": SYMBOLS.get(by.value, by.value)}
        return {"x": xy[0], "y": xy[1], "customdata": about, "marker_color": about[:, colours.index(by.value)]} | title

    def titles():
        return {f"{axis}axis_title_text": _component(clouds[which.value], i) for i, axis in enumerate("xy")}

    def update(_):
        with figure.batch_update():
            figure.update_traces(**points())
            figure.update_layout(**titles())

    # A figure that changes before it is shown is shown empty, so it starts with the points it is going to show.
    look = {"width": 640, "height": 480, "margin": {"t": 20, "r": 20}, "font_color": "#888", "template": "simple_white"}
    look |= dict.fromkeys(("paper_bgcolor", "plot_bgcolor"), "rgba(0, 0, 0, 0)")
    dots = go.Scatter(mode="markers", hovertemplate="<br>".join(lines), marker_colorscale="Viridis", **points())
    figure = go.FigureWidget(dots.update(marker_size=8), layout=go.Layout(**look, **titles()))
    follow(update, which, by)
    still = png_of(projection(clouds[which.value], theta, (by.value,)))
    return Explorer("Latent explorer", [which, by], [figure], still)


def _panels(count, width, height):
    figure, axes = plt.subplots(1, count, figsize=(count * width, height), layout="constrained", sharey=True)
    return figure, np.atleast_1d(axes)


def _component(pca, i):
    return f"PC {i + 1} ({pca.explained[i]:.0%} of the variance)"


def _number_table(ax, values, cmap, low, high, form):
    """Numbers on their colours, a row for each component, a column for each parameter."""
    ax.imshow(values, cmap=cmap, vmin=low, vmax=high, aspect="auto", origin="upper")
    shades = plt.get_cmap(cmap)((values - low) / (high - low))[..., :3] @ (0.299, 0.587, 0.114)
    for (i, j), value in np.ndenumerate(values):
        ax.text(j, i, form.format(value), ha="center", va="center", fontsize=8, color="kw"[int(shades[i, j] < 0.5)])
    ax.set_xticks(range(len(LATEX)), [f"${name}$" for name in LATEX])
    ax.set_yticks(range(len(values)), [f"PC {i + 1}" for i in range(len(values))])
    ax.tick_params(length=0)
    ax.spines[:].set_visible(False)


def _ellipse(theta, G, plane, **look):
    """Half the steps that cost one unit of score as two parameters move and the others stay, in their own units."""
    width = np.diff(PRIOR_BSQ, axis=1)[plane, 0]
    values, vectors = np.linalg.eigh(G[np.ix_(plane, plane)] / np.outer(width, width))
    axes = 2 * SHARE / np.sqrt(values)
    return Ellipse(theta[plane], *axes, angle=np.degrees(np.arctan2(vectors[1, 0], vectors[0, 0])), **look)
