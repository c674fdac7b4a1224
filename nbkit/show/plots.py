"""Results -> matplotlib figures: colour-blind-safe, axes with units, one function a figure."""

import io

import matplotlib.pyplot as plt
import numpy as np
import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from PIL import Image

from nbkit.mark.filters import CHANNELS, filter_maps
from nbkit.mesh.grid import Grid, to_fourier

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
        return torch.stack(filter_maps(to_fourier(point, grid), G_l(grid.shells().k), grid, k_cut=k_nyq)), grid


# The planes in which each kernel shows its lobes, and one representative of each l for the publication row.
PLANE = {(1, -1): 2, (1, 1): 2, (2, -2): 2, (2, 2): 2, (2, -1): 0, (2, 1): 1, (1, 0): 1, (2, 0): 1, (0, 0): 2}
SHOWN = ((0, 0), (1, 1), (2, 0))


def kernel_panels(maps, grid):
    """One kernel of each l through its centre: the top row of the paper's figure 2."""
    figure, axes = plt.subplots(1, 3, figsize=(8.4, 2.9), layout="constrained")
    for ax, channel in zip(axes, SHOWN, strict=True):
        drawn = kernel_panel(ax, maps, grid, channel)
    figure.colorbar(drawn, ax=axes, label="kernel / largest value", shrink=0.8, aspect=20)
    return figure


def kernel_pyramid(maps, grid):
    """All nine kernels, a row for each l, m from left to right."""
    figure, axes = plt.subplots(3, 5, figsize=(11, 6.4), layout="constrained")
    for ax in axes.flat:
        ax.set_axis_off()
    for l, m in CHANNELS:
        axes[l, m + 2].set_axis_on()
        drawn = kernel_panel(axes[l, m + 2], maps, grid, (l, m))
    figure.colorbar(drawn, ax=axes, label="kernel / largest value", shrink=0.5, aspect=25)
    return figure


def kernel_panel(ax, maps, grid, channel):
    """Draw one kernel (l, m) through its centre, over its largest value, on some axes; the image that was drawn."""
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
