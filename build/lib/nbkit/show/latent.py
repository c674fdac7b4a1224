"""Latent geometry -> the paper's figure 6, its explorer, retrieval, and a map of the learned metric."""

from itertools import product

import ipywidgets as w
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.patches import Ellipse

from nbkit.look.latent import theta_metric
from nbkit.show.controls import Explorer, follow
from nbkit.show.curves import Curves
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
    """R@k against the number of candidates, a panel for each k, with chance and the paper's numbers.

    Parameters
    ----------
    sizes : numbers of candidates.
    curves : {label: {k: (len(sizes), 3)}} share, low, high from `recall_against_candidates`; the same k for all.
    """
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
    """The first two components under the pointer: theta and rank of a simulation, choice of cloud and colour.

    Parameters
    ----------
    clouds : {label: PrincipalComponents} of the same N simulations.
    theta : (N, 5).
    rank : {label: (N,)} how many cosmologies are nearer than the true one.
    """
    symbols, colours = [SYMBOLS.get(name, name) for name in PARAMETERS], (*PARAMETERS, "retrieval rank")
    which = w.Dropdown(options=list(clouds), description="embedding")
    by = w.Dropdown(options=[(SYMBOLS.get(name, name), name) for name in colours], value=colour, description="colour")

    def about():
        pca, ranks = clouds[which.value], rank[which.value]
        values = np.column_stack([theta, ranks])[:, colours.index(by.value)]
        each = [[f"{name} = {x:.3f}" for name, x in zip(symbols, row, strict=True)] for row in theta]
        words = ["\n".join([*of, f"{n:.0f} nearer than the true one"]) for of, n in zip(each, ranks, strict=True)]
        label = SYMBOLS.get(by.value, by.value)
        return {"x": pca.scores[:, 0], "y": pca.scores[:, 1], "values": values, "words": words, "unit": label}

    def update(_):
        curves.update({"simulations": about()})
        curves.about = curves.about | {"labels": [_component(clouds[which.value], i) for i in (0, 1)]}

    labels = [_component(clouds[which.value], i) for i in (0, 1)]
    curves = Curves({"simulations": about()}, labels=labels, title="Embeddings")
    follow(update, which, by)
    return Explorer("Latent explorer", [which, by], [curves])


def _component(pca, i):
    return f"PC {i + 1} ({pca.explained[i]:.0%} of the variance)"


def _ellipse(theta, G, plane, **look):
    """Half the steps that cost one unit of score as two parameters move and the others stay, in their own units."""
    width = np.diff(PRIOR_BSQ, axis=1)[plane, 0]
    values, vectors = np.linalg.eigh(G[np.ix_(plane, plane)] / np.outer(width, width))
    axes = 2 * SHARE / np.sqrt(values)
    return Ellipse(theta[plane], *axes, angle=np.degrees(np.arctan2(vectors[1, 0], vectors[0, 0])), **look)
