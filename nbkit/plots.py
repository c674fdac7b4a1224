"""Results -> matplotlib figures: colour-blind-safe, axes with units, one function a figure."""

import io

import matplotlib.pyplot as plt
import numpy as np
import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from PIL import Image

from nbkit.filters import CHANNELS, filtered
from nbkit.grid import Grid, to_fourier

# Okabe & Ito: told apart under every common colour blindness.
BLACK, ORANGE, SKY, GREEN, YELLOW, BLUE, RED, PINK = (
    "#000000", "#E69F00", "#56B4E9", "#009E73", "#F0E442", "#0072B2", "#D55E00", "#CC79A7",
)  # fmt: skip
L_COLOURS = (BLUE, RED, GREEN)
# Sequential maps for positive fields, a diverging one for signed ones.
MAPS = {"delta": "magma", "E0": "PuOr_r", "E1": "viridis", "E2": "viridis", "I3": "PuOr_r", "M": "cividis"}
LABELS = {"delta": r"$\delta$", "E0": r"$E_0$", "E1": r"$E_1$", "E2": r"$E_2$", "I3": r"$I_3$", "M": r"$M$"}


def style():
    """The look of every figure of the kit; call once at the top of a notebook."""
    plt.rcParams.update(
        {
            "figure.dpi": 100,
            "savefig.dpi": 200,
            "font.size": 10,
            "axes.prop_cycle": plt.cycler(color=[BLUE, ORANGE, GREEN, RED, PINK, SKY, BLACK]),
            "axes.spines.top": False,
            "axes.spines.right": False,
            "image.origin": "lower",
            "image.interpolation": "nearest",
            "legend.frameon": False,
        }
    )


def slice_of(field, axis, index):
    """(n, n) numpy slice of a field across axis 0, 1 or 2, transposed so that the first remaining axis runs right."""
    return field.detach().select(axis, index).T.numpy()


def limits(field, name):
    """Colour range: the central 99 % (of every fifth voxel), about 0 where the map diverges, of what `shown` draws."""
    values = shown(field.flatten()[::5], name)
    low, high = np.quantile(values, [0.005, 0.995])
    if MAPS.get(name, "PuOr_r") == "PuOr_r":
        high = max(abs(low), abs(high))
        low = -high
    return float(low), float(high) if high > low else float(low) + 1e-6


def shown(field, name):
    """What a panel draws: log10(1 + delta) for the density (empty cells at -2), the values themselves otherwise."""
    values = field.detach().numpy() if isinstance(field, torch.Tensor) else field
    return np.log10(np.maximum(1 + values, 0.01)) if name == "delta" else values


def slices(fields, grid, axis=2, index=0):
    """A row of slices through several fields, each with its own colour bar.

    Parameters
    ----------
    fields : dict name -> (n, n, n) tensor; a name in `MAPS` chooses colours and label, others are signed fields.
    """
    figure, axes = plt.subplots(1, len(fields), figsize=(2.9 * len(fields), 3.3), layout="constrained")
    across = [x for i, x in enumerate("xyz") if i != axis]
    for ax, (name, field) in zip(np.atleast_1d(axes), fields.items(), strict=True):
        low, high = limits(field, name)
        picture = shown(slice_of(field, axis, index), name)
        drawn = ax.imshow(picture, cmap=MAPS.get(name, "PuOr_r"), vmin=low, vmax=high, extent=(0, grid.box_size) * 2)
        label = r"$\log_{10}(1+\delta)$" if name == "delta" else LABELS.get(name, name)
        figure.colorbar(drawn, ax=ax, location="top", label=label, shrink=0.9, aspect=18)
        ax.set(
            xlabel=rf"${across[0]}$ [Mpc/$h$]",
            ylabel=rf"${across[1]}$ [Mpc/$h$]" if ax is np.atleast_1d(axes)[0] else "",
        )
        ax.spines[:].set_visible(False)
    return figure


def profiles(curves, k_nyq, grid=None):
    """G_l(k) against k / k_Nyq for several sets of profiles, over the taper (and the window of a grid's scheme).

    Parameters
    ----------
    curves : dict label -> callable k -> (l_max + 1, len(k)); the first is drawn full, the next dashed, dotted.
    """
    figure, ax = plt.subplots(figsize=(6.4, 3.4), layout="constrained")
    k = torch.linspace(0, 1.1 * k_nyq, 400)
    for line, (label, curve) in zip(("-", "--", ":"), curves.items(), strict=False):
        for l, G in enumerate(curve(k).detach()):
            ax.plot(k / k_nyq, G, line, color=L_COLOURS[l], label=rf"$G_{l}$ {label}")
    taper = Grid(64, 64 * np.pi / k_nyq).taper(k)
    ax.fill_between(k / k_nyq, 0, taper, color="0.9", label=r"taper $T_{\rm tap}$", zorder=0)
    if grid is not None:
        n = grid.n
        window = grid.window()[: n // 2 + 1, 0, 0]
        ax.plot(
            np.arange(n // 2 + 1) / (n / 2), window, color="0.4", lw=1, label=rf"window $W$ ({grid.mas}), along an axis"
        )
    ax.set(xlabel=r"$k / k_{\rm Nyq}$", ylabel=r"radial profile", xlim=(0, 1.1))
    ax.axhline(0, color="0.5", lw=0.6)
    ax.legend(fontsize=8, ncols=2)
    return figure


def kernels(G_l, k_nyq, n=96, width=120.0):
    """Real-space kernels: what the filters make of a unit point mass, (maps, n, n, n) with the mass at the centre.

    Parameters
    ----------
    G_l : callable k -> (l_max + 1, len(k)).
    k_nyq : where the taper ends [h/Mpc]; the kernels are sampled more finely than that.
    width : side of the box that is shown [Mpc/h].
    """
    grid = Grid(n, width)
    point = torch.zeros(grid.shape)
    point[n // 2, n // 2, n // 2] = 1 / grid.cell_size**3
    with torch.no_grad():
        return torch.stack(filtered(to_fourier(point, grid), G_l(grid.shells().k), grid, k_cut=k_nyq)), grid


# The planes in which each kernel shows its lobes, and one representative of each l for the publication row.
PLANE = {(1, -1): 2, (1, 1): 2, (2, -2): 2, (2, 2): 2, (2, -1): 0, (2, 1): 1, (1, 0): 1, (2, 0): 1, (0, 0): 2}
SHOWN = ((0, 0), (1, 1), (2, 0))


def kernel_panels(maps, grid):
    """One kernel of each l through its centre: the top row of the paper's figure 2."""
    figure, axes = plt.subplots(1, 3, figsize=(8.4, 2.9), layout="constrained")
    for ax, channel in zip(axes, SHOWN, strict=True):
        drawn = _kernel_panel(ax, maps, grid, channel)
    figure.colorbar(drawn, ax=axes, label="kernel / largest value", shrink=0.8, aspect=20)
    return figure


def kernel_pyramid(maps, grid):
    """All nine kernels, a row for each l, m from left to right."""
    figure, axes = plt.subplots(3, 5, figsize=(11, 6.4), layout="constrained")
    for ax in axes.flat:
        ax.set_axis_off()
    for l, m in CHANNELS:
        axes[l, m + 2].set_axis_on()
        drawn = _kernel_panel(axes[l, m + 2], maps, grid, (l, m))
    figure.colorbar(drawn, ax=axes, label="kernel / largest value", shrink=0.5, aspect=25)
    return figure


def _kernel_panel(ax, maps, grid, channel):
    axis, half = PLANE[channel], grid.box_size / 2
    picture = slice_of(maps[CHANNELS.index(channel)], axis, grid.n // 2)
    across = [x for i, x in enumerate("xyz") if i != axis]
    ax.set(xlabel=rf"${across[0]}$ [Mpc/$h$]", ylabel=rf"${across[1]}$ [Mpc/$h$]")
    ax.set_title(rf"$\ell={channel[0]},\ m={channel[1]}$")
    extent = (-half, half, -half, half)
    return ax.imshow(picture / np.abs(picture).max(), cmap="PuOr_r", vmin=-1, vmax=1, extent=extent)


class LiveLines:
    """Axes drawn once and lines drawn again whenever they change: what a slider needs, in milliseconds.

    Parameters
    ----------
    settings : passed to `ax.set`: labels, limits.
    """

    def __init__(self, figsize=(4.2, 3.2), dpi=80, **settings):
        self.figure = Figure(figsize=figsize, dpi=dpi)
        self.canvas = FigureCanvasAgg(self.figure)
        self.figure.subplots_adjust(left=0.17, right=0.97, bottom=0.2, top=0.95)
        self.ax = self.figure.subplots()
        self.ax.set(**settings)
        self.lines, self.background = [], None

    def line(self, x, y, **look):
        """A line that is going to change; its `set_data` is how."""
        (line,) = self.ax.plot(x, y, animated=True, **look)
        self.lines.append(line)
        return line

    def png(self):
        """The axes with the lines as they are now, as PNG bytes."""
        if self.background is None:
            self.canvas.draw()
            self.background = self.canvas.copy_from_bbox(self.figure.bbox)
        self.canvas.restore_region(self.background)
        for line in self.lines:
            self.ax.draw_artist(line)
        out = io.BytesIO()
        Image.fromarray(np.asarray(self.canvas.buffer_rgba())[..., :3]).save(out, "png", compress_level=1)
        return out.getvalue()


def sheet_density(positions, box_size, depth, pixels, refine=6):
    """Projected density over its mean, (pixels, pixels), of the slab 0 <= z < depth, far smoother than its particles.

    Matter fills the sheet between neighbours of the initial lattice, so each particle stands for many points whose
    displacements are interpolated between its neighbours': refine x refine across the slab, half that along it.

    Parameters
    ----------
    positions : (p^3, 3), in the order of the lattice [Mpc/h].
    """
    p = round(len(positions) ** (1 / 3))
    q = torch.arange(p, dtype=torch.float32) * (box_size / p)
    lattice = torch.stack(torch.meshgrid(q, q, q, indexing="ij"), -1)
    moved = (positions.reshape(p, p, p, 3) - lattice + box_size / 2).remainder(box_size) - box_size / 2
    far = float(moved[..., 2].abs().max()) + box_size / p
    image = torch.zeros(pixels, pixels)
    fine = refine, refine, (refine + 1) // 2
    for offset in np.ndindex(fine):
        part = torch.tensor(offset) / torch.tensor(fine)
        at = moved
        for axis in range(3):
            at = at if part[axis] == 0 else torch.lerp(at, at.roll(-1, axis), part[axis])
        at = (at + lattice + part * (box_size / p))[:, :, (q < depth + far) | (q > box_size - far)].reshape(-1, 3)
        at = at.remainder(box_size)
        image += counts_2d(at[at[:, 2] < depth, :2] * (pixels / box_size), pixels)
    return image / image.mean()


def counts_2d(x, n):
    """Points (p, 2), in pixels, shared between the four pixels around them: (n, n), periodic."""
    first = x.floor()
    d, (i, j) = x - first, first.long().T
    image = torch.zeros(n * n)
    for a, b in np.ndindex(2, 2):
        weight = (d[:, 0] if a else 1 - d[:, 0]) * (d[:, 1] if b else 1 - d[:, 1])
        image += torch.bincount((i + a) % n * n + (j + b) % n, weight, minlength=n * n)
    return image.reshape(n, n)


def web(image, box_size, height):
    """A wide strip, `height` [Mpc/h] tall, of a projected density on a logarithmic scale."""
    rows = round(height / box_size * len(image))
    figure, ax = plt.subplots(figsize=(9, 9 * height / box_size + 0.2), layout="constrained")
    strip = np.log10(np.maximum(image.numpy()[:, :rows].T, 0.03))
    ax.imshow(strip, cmap="magma", vmin=-1.1, vmax=1.5, extent=(0, box_size, 0, height), interpolation="bilinear")
    ax.set(xlabel=r"$x$ [Mpc/$h$]", ylabel=r"$y$ [Mpc/$h$]")
    ax.spines[:].set_visible(False)
    return figure


def webs(universes, depth=16.0):
    """Slabs through boxes of different size, drawn to one scale.

    Parameters
    ----------
    universes : dict label -> (delta, grid).
    depth : thickness of the slabs [Mpc/h].
    """
    sizes = [grid.box_size for _, grid in universes.values()]
    figure, axes = plt.subplots(
        1, len(sizes), figsize=(9, 9 * max(sizes) / sum(sizes) + 0.3), width_ratios=sizes, layout="constrained"
    )
    for ax, (label, (delta, grid)) in zip(axes, universes.items(), strict=True):
        slab = delta[:, :, : max(round(depth / grid.cell_size), 1)].mean(2)
        drawn = ax.imshow(shown(slab.T, "delta"), cmap="magma", vmin=-0.8, vmax=1.0, extent=(0, grid.box_size) * 2)
        drawn.set_interpolation("bicubic")
        ax.set(title=label, xlabel=r"$x$ [Mpc/$h$]", anchor="S")
        ax.spines[:].set_visible(False)
    axes[0].set_ylabel(r"$y$ [Mpc/$h$]")
    figure.colorbar(drawn, ax=axes, label=r"$\log_{10}(1+\delta)$", shrink=0.6, aspect=30, panchor=False)
    return figure


def power_ratio(measured, theory, reference, bands=(0.03, 0.12), k_range=(0.05, 0.3)):
    """P(k) of simulations and of theory above, their ratios to one theory, with bands of tolerance, below.

    Parameters
    ----------
    measured : dict label -> (k, P).
    theory : dict label -> callable k -> P; `reference` is the label of the one to divide by.
    """
    figure, (top, low) = plt.subplots(2, 1, figsize=(6.8, 5.6), sharex=True, height_ratios=(3, 2), layout="constrained")
    k = np.geomspace(0.01, 0.4, 200)
    for (label, P), line in zip(theory.items(), ("-", "--", ":"), strict=False):
        top.loglog(k, P(k), line, color=BLACK, lw=1, label=label)
        low.semilogx(k, P(k) / theory[reference](k), line, color=BLACK, lw=1)
    for (label, (k, P)), mark in zip(measured.items(), "os^D", strict=False):
        look = {"marker": mark, "ms": 3.5, "lw": 0.8}
        top.plot(k, P, label=label, **look)
        low.plot(k, P / theory[reference](k), **look)
    for band in bands:
        low.fill_between(k_range, 1 - band, 1 + band, color="0.5", alpha=0.2, lw=0, zorder=0)
        low.text(k_range[0], 1 + band, f" ±{band:.0%}", fontsize=7, va="bottom")
    top.set(ylabel=r"$P(k)$ [(Mpc/$h$)$^3$]")
    low.set(xlabel=r"$k$ [$h$/Mpc]", ylabel=f"ratio to {reference}", ylim=(0.75, 1.25))
    top.legend(fontsize=8)
    return figure


def parameter_effects(k, ratios, labels):
    """One panel a parameter: P(k) of the universes above and below the fiducial over the fiducial's, same phases.

    Parameters
    ----------
    ratios : (parameters, 2, b), the plus and minus universes.
    labels : (name of the parameter, step) for each.
    """
    figure, axes = plt.subplots(1, len(ratios), figsize=(12, 2.9), sharey=True, layout="constrained")
    for ax, (plus, minus), (name, step) in zip(axes, ratios, labels, strict=True):
        ax.semilogx(k, plus, color=RED, label=rf"$+{step:g}$")
        ax.semilogx(k, minus, color=BLUE, ls="--", label=rf"$-{step:g}$")
        ax.axhline(1, color="0.5", lw=0.6)
        ax.set(title=rf"${name}$", xlabel=r"$k$ [$h$/Mpc]")
        ax.set_xticks([0.02, 0.05, 0.1, 0.3], ["0.02", "0.05", "0.1", "0.3"])
        ax.set_xticks([], minor=True)
        ax.legend(fontsize=8)
    axes[0].set_ylabel(r"$P(k)\,/\,P_{\rm fiducial}(k)$")
    return figure
