"""Latent geometry -> the paper's figure 6, its explorer, retrieval, and a map of the learned metric."""

from itertools import product

import ipywidgets as w
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.patches import Ellipse

from nbkit.look.latent import theta_metric
from nbkit.show.controls import Explorer, follow, picture_bytes
from nbkit.show.looks import BLACK, BLUE, ORANGE, SYMBOLS, band_panels, row_of_panels
from nbkit.universe.cosmology import FIDUCIAL, LATEX, PARAMETERS, PRIOR_BSQ

# R@1, R@5 of 2,000 candidates in the paper's boxes of 1000 Mpc/h.
PAPER = {1: 0.665, 5: 0.961}
# Grid of cosmologies at which the metric is drawn, and the share of a unit ellipse that is drawn there.
PLACES, SHARE = ((0.14, 0.22, 0.30, 0.38, 0.46), (0.64, 0.72, 0.80, 0.88, 0.96)), 0.5


def projection(pca, theta, names=("sigma_8", "Omega_m")):
    """The first two principal components, coloured by one parameter a panel: the paper's figure 6."""
    figure, (axes,) = row_of_panels(len(names), 4.6, 3.8, sharey=True)
    for ax, name in zip(axes, names, strict=True):
        i = PARAMETERS.index(name)
        look = {"s": 26, "cmap": "viridis", "edgecolor": "white", "linewidth": 0.3}
        drawn = ax.scatter(pca.scores[:, 0], pca.scores[:, 1], c=theta[:, i], **look)
        figure.colorbar(drawn, ax=ax, label=f"${LATEX[i]}$")
        ax.set_xlabel(_component(pca, 0))
    axes[0].set_ylabel(_component(pca, 1))
    return figure


def retrieval(sizes, curves):
    """R@k against numbers of candidates: {label: {k: (len(sizes), 3)}}, shares with their intervals, a panel a k."""
    every_k = list(next(iter(curves.values())))
    bands = {label: np.stack([of_k[k].T for k in every_k], axis=-1) for label, of_k in curves.items()}
    about = {"xscale": "log", "xlabel": "candidates $N$", "ylabel": "share of boxes found", "ylim": (0, 1.03)}
    figure, axes = band_panels([f"R@{k}" for k in every_k], sizes, bands, "linear", **about)
    for ax, k in zip(axes, every_k, strict=True):
        ax.plot(sizes, np.minimum(k / np.asarray(sizes), 1), color="0.5", lw=1, label="chance, $k/N$")
        if k in PAPER:
            ax.plot(2000, PAPER[k], "*", color=BLACK, ms=10, label="paper, boxes 64 times as large as demo's")
    axes[0].get_legend().remove()
    figure.legend(*axes[0].get_legend_handles_labels(), ncols=3, loc="outside lower center")
    return figure


def metric_map(heads, temperature):
    """Ellipses of theta that cost half a unit of score, learned and Euclidean, over the prior."""
    figure, ((ax,),) = row_of_panels(1, 5.0, 4.0)
    plane = [PARAMETERS.index(name) for name in ("Omega_m", "sigma_8")]
    looks = {False: {"color": ORANGE, "ls": "--"}, True: {"color": BLUE, "ls": "-"}}
    for place in product(*PLACES):
        theta = FIDUCIAL.copy()
        theta[plane] = place
        for learned, look in looks.items():
            G = theta_metric(heads, theta, temperature, learned)
            ax.add_patch(_ellipse(theta, G, plane, fill=False, lw=1.2, **look))
    handles = [plt.Line2D([], [], label=("Euclidean", "learned metric")[i], **looks[i]) for i in (True, False)]
    ax.legend(handles=handles, fontsize=8, loc="lower center", ncols=2, bbox_to_anchor=(0.5, 1.0))
    (x, y), (low, high) = plane, PRIOR_BSQ.T
    ax.set(xlim=(low[x], high[x]), ylim=(low[y], high[y]), xlabel=f"${LATEX[x]}$", ylabel=f"${LATEX[y]}$")
    return figure


def latent_explorer(clouds, theta, rank, colour="sigma_8"):
    """The first two components under the mouse (plotly): hover for theta and rank, choose cloud and colour.

    Parameters
    ----------
    clouds : {label: PrincipalComponents} of the same N simulations, with their theta (N, 5).
    rank : {label: (N,)} how many cosmologies are nearer than the true one.
    """
    import plotly.graph_objects as go

    colours = {SYMBOLS.get(name, name): i for i, name in enumerate((*PARAMETERS, "retrieval rank"))}
    which = w.Dropdown(options=list(clouds), description="embedding")
    by = w.Dropdown(options=list(colours), value=SYMBOLS.get(colour, colour), description="colour")
    lines = [f"{name} = %{{customdata[{i}]:.3f}}" for name, i in list(colours.items())[:5]]
    lines.append("%{customdata[5]:.0f} cosmologies nearer than the true one<extra></extra>")

    def points():
        pca, about = clouds[which.value], np.column_stack([theta, rank[which.value]])
        marker = {"color": about[:, colours[by.value]], "colorbar_title_text": by.value}
        return {"x": pca.scores[:, 0], "y": pca.scores[:, 1], "customdata": about, "marker": marker}

    def titles():
        return {f"{axis}axis_title_text": _component(clouds[which.value], i) for i, axis in enumerate("xy")}

    def update(_):
        with figure.batch_update():
            figure.update_traces(**points())
            figure.update_layout(**titles())

    # A figure that changes before it is shown is shown empty, so it starts with the points it is going to show.
    look = {"height": 480, "margin": {"t": 20, "r": 20}, "font_color": "#888", "template": "simple_white"}
    look |= dict.fromkeys(("paper_bgcolor", "plot_bgcolor"), "rgba(0, 0, 0, 0)")
    dots = go.Scatter(mode="markers", hovertemplate="<br>".join(lines), **points())
    figure = go.FigureWidget(dots.update(marker={"size": 8, "colorscale": "Viridis"}), go.Layout(**look, **titles()))
    follow(update, which, by)
    still = picture_bytes(projection(clouds[which.value], theta, (colour,)))
    return Explorer("Latent explorer", [which, by], [figure], still)


def _component(pca, i):
    return f"PC {i + 1} ({pca.explained[i]:.0%} of the variance)"


def _ellipse(theta, G, plane, **look):
    """Half the steps that cost one unit of score as two parameters move and the others stay, in their own units."""
    width = np.diff(PRIOR_BSQ, axis=1)[plane, 0]
    values, vectors = np.linalg.eigh(G[np.ix_(plane, plane)] / np.outer(width, width))
    axes = 2 * SHARE / np.sqrt(values)
    return Ellipse(theta[plane], *axes, angle=np.degrees(np.arctan2(vectors[1, 0], vectors[0, 0])), **look)
