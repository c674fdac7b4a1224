"""Figures of a mark taken apart: the paper's figure 2, responses, the cross term, what matters, what it is like."""

import matplotlib.pyplot as plt
import numpy as np
import torch
from matplotlib.ticker import PercentFormatter

from nbkit import show
from nbkit.look import cross_response, response_curves
from nbkit.mark.learned import LearnedMark
from nbkit.mesh.spectra import marked_field
from nbkit.show import BLUE, GREEN, L_COLOURS, MAPS, ORANGE, PINK, RED, SIGNED, brightness, limits, slice_of
from nbkit.show.filters import SHOWN, kernel_panel, kernels

TERM_COLOURS = {"h_E0": BLUE, "h_E1": RED, "h_E2": GREEN, "h_I3": PINK, "h_x": ORANGE}
TERM_LABELS = {"h_x": r"$h_\times(E_0,E_2,I_3)$"} | {
    f"h_{name}": rf"$h({name[0]}_{name[1]})$" for name in ("E0", "E1", "E2", "I3")
}
LABELS = show.LABELS | {
    "M": r"$M/\langle M\rangle$",
    "delta": r"$\log_{10}(1+\delta)$",
    "Delta": r"$\Delta/\sigma_\Delta$, marked field",
}
TOP = [["l0", "l1", "l2", "G"]]
ROWS = [["delta", "E0", "E1", "E2", "I3", "Delta"], ["M", "h_E0", "h_E1", "h_E2", "h_I3", "h_x"]]


def start_of(mark):
    """The mark with the profiles and responses its training began with: G_l of the band-passes, M = 1."""
    return LearnedMark(mark.grid, **mark.settings).requires_grad_(False)


def panels(parts):
    """{name: (n, n, n)} that figure and explorers draw: delta, invariants, Delta, M over and terms less their means."""
    M = parts.M()
    Delta = marked_field(M, parts.delta)
    away = {name: h - parts.means[name] for name, h in parts.terms.items()}
    return {"delta": parts.delta} | parts.invariants | {"Delta": Delta / Delta.std(), "M": M / M.mean()} | away


def ranges(fields):
    """{name: (low, high)} of the colours of `panels`: all terms share one, so that the strong ones look strong."""
    each = {name: limits(field, name) for name, field in fields.items()}
    top = max(high for name, (_, high) in each.items() if name in TERM_LABELS)
    return each | {name: (-top, top) for name in each if name in TERM_LABELS}


def anatomy(parts, axis=2, index=0):
    """The paper's figure 2: kernels and profiles; delta, invariants and marked field; M and the terms that make it.

    Parameters
    ----------
    axis, index : the slice that is shown.
    """
    figure = plt.figure(figsize=(12.4, 7.6), layout="constrained")
    above, below = figure.subfigures(2, 1, height_ratios=(1.1, 2))
    axes = above.subplot_mosaic(TOP, width_ratios=(1, 1, 1, 2.6)) | below.subplot_mosaic(ROWS)
    mark = parts.mark
    maps, grid = kernels(mark.G_l, mark.grid.k_nyq)
    for l, channel in enumerate(SHOWN[: mark.profiles.l_max + 1]):
        drawn = kernel_panel(axes[f"l{l}"], maps, grid, channel)
        axes[f"l{l}"].set(title="", xlabel="", ylabel=r"Mpc/$h$" if l == 0 else "")
        _bar(above, drawn, axes[f"l{l}"], rf"kernel $\ell={channel[0]},\ m={channel[1]}$")
    _profiles(axes["G"], mark)
    fields = panels(parts)
    colours = ranges(fields)
    for name, field in fields.items():
        ax, (low, high) = axes[name], colours[name]
        picture = brightness(slice_of(field, axis, index), name)
        extent = (0, parts.grid.box_size) * 2
        drawn = ax.imshow(picture, cmap=MAPS.get(name, SIGNED), vmin=low, vmax=high, extent=extent)
        _bar(below, drawn, ax, TERM_LABELS.get(name) or LABELS[name])
        ax.tick_params(labelleft=name in ("delta", "M"), labelbottom=name in ROWS[1])
        ax.set_ylabel(r"Mpc/$h$" if name in ("delta", "M") else "")
    for name, ax in axes.items():
        ax.spines[["left", "bottom"]].set_visible(name == "G")
        # A mark of a lower l_max has no such panel.
        ax.set_visible(name == "G" or bool(ax.images))
    return figure


def _bar(figure, drawn, ax, label):
    bar = figure.colorbar(drawn, ax=ax, location="top", shrink=0.9, aspect=16, pad=0.02)
    bar.set_label(label, fontsize=9)
    bar.ax.tick_params(labelsize=7)
    bar.locator = plt.MaxNLocator(4)
    bar.update_ticks()
    ax.tick_params(labelsize=7)


def _tapered(mark):
    """k [h/Mpc], T_tap G_l as trained, and as training found it, both (l_max + 1, len(k))."""
    k = torch.linspace(0, mark.grid.k_nyq, 300)
    return k.numpy(), *((each.G_l(k).detach() * mark.grid.taper(k)).numpy() for each in (mark, start_of(mark)))


def _profiles(ax, mark):
    """T_tap G_l(k) / k_Nyq as trained, and dashed as training found it, each over its largest value."""
    k, trained, start = _tapered(mark)
    for l, (G, G_start) in enumerate(zip(trained, start, strict=True)):
        ax.plot(k, G_start / np.abs(G_start).max(), "--", color=L_COLOURS[l], lw=1, label=None if l else "start")
        ax.plot(k, G / np.abs(G).max(), color=L_COLOURS[l], lw=1.8, label=rf"$G_{l}$ trained")
    ax.axhline(0, color="0.5", lw=0.6)
    ax.set(xlim=(0, k[-1]), ylim=(-1.1, 1.1), xlabel=r"$k$ [$h$/Mpc]")
    ax.set_ylabel(r"$T_{\rm tap}G_\ell$ / largest", fontsize=9)
    ax.legend(fontsize=9, ncols=4, loc="lower left", bbox_to_anchor=(0, 1.02), borderaxespad=0)


def profiles(mark):
    """G_l(k) of a mark against those its training began with, a panel for each l, with the taper."""
    k, trained, start = _tapered(mark)
    figure, axes = plt.subplots(1, 3, figsize=(10, 2.9), layout="constrained", sharex=True)
    for ax in axes[len(trained) :]:
        ax.set_visible(False)
    for l, (ax, G, G_start) in enumerate(zip(axes, trained, start, strict=False)):
        ax.plot(k, G, color=L_COLOURS[l], label="trained")
        ax.plot(k, G_start, "--", color=L_COLOURS[l], label="start")
        ax.axhline(0, color="0.5", lw=0.6)
        ax.set(title=rf"$T_{{\rm tap}}\,G_{l}(k)$", xlabel=r"$k$ [$h$/Mpc]", xlim=(0, k[-1]))
        ax.legend(fontsize=8)
    return figure


def responses(parts):
    """h_a(f) less its mean, over the distribution of f in the box: drawn where all but a thousandth of voxels are."""
    curves = response_curves(parts)
    figure, axes = plt.subplots(
        1, len(curves), figsize=(2.9 * len(curves), 3.2), sharey=True, layout="constrained", squeeze=False
    )
    for ax, (name, (f, h)) in zip(axes[0], curves.items(), strict=True):
        voxels = parts.invariants[name].numpy().ravel()
        beside = ax.twinx()
        beside.hist(voxels, bins=60, range=(f[0], f[-1]), color="0.85", density=True)
        beside.set(yticks=[], ylim=(0, None))
        beside.spines[:].set_visible(False)
        ax.set(zorder=2, facecolor="none")
        middle = (f >= np.quantile(voxels, 0.16)) & (f <= np.quantile(voxels, 0.84))
        colour = TERM_COLOURS[f"h_{name}"]
        ax.plot(f, h, color=colour, lw=1.4)
        ax.plot(f[middle], h[middle], color=colour, lw=4, solid_capstyle="butt")
        ax.axhline(0, color="0.5", lw=0.6)
        ax.set(xlabel=show.LABELS[name], title=TERM_LABELS[f"h_{name}"])
    axes[0][0].set_ylabel(r"$h_a - \langle h_a\rangle$")
    return figure


def cross_maps(parts, I3=(-0.3, 0.0, 0.3)):
    """h_x(E0, E2) less its mean at chosen I3, white where the box has no such voxels."""
    figure, axes = plt.subplots(1, len(I3), figsize=(10, 3.2), sharey=True, layout="constrained")
    maps = [cross_response(parts, value) for value in I3]
    top = max(np.nanmax(np.abs(h)) for *_, h in maps)
    for ax, value, (E0, E2, h) in zip(axes, I3, maps, strict=True):
        drawn = ax.pcolormesh(E0, E2, h, cmap=SIGNED, vmin=-top, vmax=top, rasterized=True)
        kind = "pancakes" if value < -0.1 else "cigars" if value > 0.1 else "neither"
        ax.set(title=rf"$I_3 = {value:g}$ ({kind})", xlabel=show.LABELS["E0"])
    axes[0].set_ylabel(show.LABELS["E2"])
    figure.colorbar(drawn, ax=axes, label=r"$h_\times - \langle h_\times\rangle$", aspect=25)
    return figure


def importance(ways):
    """Bars for every term (hatched: an invariant wherever it enters), a panel for each way of asking how it matters.

    Parameters
    ----------
    ways : {title: {term or invariant: number}}, or {title: {...: (number, low, high)}} with intervals;
        NaN where a way has no number.
    """
    figure, axes = plt.subplots(1, len(ways), figsize=(3.1 * len(ways), 2.9), sharey=True, layout="constrained")
    for ax, (title, numbers) in zip(np.atleast_1d(axes), ways.items(), strict=True):
        names = list(numbers)[::-1]
        value, low, high = np.array([np.broadcast_to(numbers[name], 3) for name in names]).T
        labels = [TERM_LABELS.get(name, f"{LABELS.get(name)} everywhere").split("(E_0,")[0] for name in names]
        labels = [label + "$" * (label.count("$") % 2) for label in labels]
        bars = ax.barh(labels, value, color=[TERM_COLOURS.get(name) or TERM_COLOURS[f"h_{name}"] for name in names])
        for bar, name in zip(bars, names, strict=True):
            bar.set_hatch(None if name in TERM_LABELS else "////")
            bar.set_edgecolor("white")
        if (high > low).any():
            ax.errorbar(value, range(len(names)), xerr=(value - low, high - value), fmt="none", ecolor="0.3", capsize=3)
        else:
            ax.bar_label(
                bars, ["" if np.isnan(x) else f"{x:.0%}".replace("-0%", "0%") for x in value], padding=3, fontsize=8
            )
        ax.axvline(0, color="0.5", lw=0.6)
        ax.xaxis.set_major_formatter(PercentFormatter(1, decimals=0))
        ax.margins(x=0.18)
        ax.set_title(title, fontsize=9)
    return figure


def likeness(M, imitation, grid, R2, axis=2, index=0):
    """A slice of M, of the nearest classical mark on its scale, and voxel against voxel, over the mean of M.

    Parameters
    ----------
    M, imitation : (n, n, n).
    R2 : share of the variance explained, for the title.
    """
    figure, axes = plt.subplots(1, 3, figsize=(10.5, 3.4), layout="constrained")
    M, imitation = M / M.mean(), imitation / M.mean()
    low, high = limits(M, "M")
    for ax, field, title in zip(axes, (M, imitation), ("learned $M$", "nearest classical, $a M_c + b$"), strict=False):
        picture = slice_of(field, axis, index)
        drawn = ax.imshow(picture, cmap="cividis", vmin=low, vmax=high, extent=(0, grid.box_size) * 2)
        ax.set(title=title, xlabel=r"Mpc/$h$")
        ax.spines[:].set_visible(False)
    figure.colorbar(drawn, ax=axes[:2], aspect=25, label=LABELS["M"])
    axes[2].hexbin(imitation.flatten(), M.flatten(), bins="log", gridsize=50, cmap="Greys", extent=(low, high) * 2)
    axes[2].plot([low, high], [low, high], color=RED, lw=1)
    axes[2].set(title=rf"$R^2 = {R2:.2f}$", xlabel="$a M_c + b$", ylabel="learned $M$", xlim=(low, high))
    axes[2].set_ylim(low, high)
    return figure
