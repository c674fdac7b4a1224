"""Figures and explorers of filters and invariants: profiles, kernels, the four maps of a universe."""

import matplotlib.pyplot as plt
import numpy as np
import torch

from nbkit.mark.filters import CHANNELS, RadialProfiles, filter_maps
from nbkit.mark.invariants import invariants
from nbkit.mesh.grid import Grid, to_fourier
from nbkit.show import BLUE, L_COLOURS, ORANGE, SIGNED, slice_of
from nbkit.show.curves import Curves, Explorer, follow, png_of, slider
from nbkit.show.maps import Maps


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
    return ax.imshow(picture / np.abs(picture).max(), cmap=SIGNED, vmin=-1, vmax=1, extent=extent)


def kernel_explorer(k_nyq, n=64, width=120.0):
    """Kernel and profile of one (l, m), under sliders for l, m, centre r0, width sigma and a residual bump.

    Parameters
    ----------
    k_nyq : where the taper ends [h/Mpc].
    n, width : cells and side [Mpc/h] of the box in which the kernel is shown.
    """
    l, m = slider("multipole l", 2, 0, 2, 1), slider("component m", 0, -2, 2, 1)
    r0, sigma = slider("centre r0", 0.35, 0.05, 0.60, 0.01), slider("width sigma", 0.15, 0.03, 0.30, 0.01)
    residual = slider("residual at 0.7", 0.0, -1.0, 1.0, 0.05)
    x, grid = torch.linspace(0, 1.1, 200), Grid(n, width)
    taper = Grid(64, 64 * np.pi / k_nyq).taper(x * k_nyq)

    def G(y):
        band = torch.exp(-(((y - r0.value) / sigma.value) ** 2) / 2)
        return band + residual.value * torch.exp(-(((y - 0.7) / 0.08) ** 2) / 2)

    def kernel():
        fields, _ = kernels(lambda k: G(k / k_nyq).expand(l.value + 1, -1), k_nyq, n, width)
        field = fields[CHANNELS.index((l.value, m.value))]
        return {"kernel": field / field.abs().max()}

    look = {"ranges": {"kernel": (-1, 1)}, "labels": {"kernel": "kernel / largest value"}}
    maps = Maps(kernel(), grid, axis=PLANE[2, 0], origin=-(n // 2 + 0.5) * grid.cell_size, **look)
    profile = {"taper × G": (x, taper * G(x)), "G at the start": {"x": x, "y": G(x), "ghost": True}}
    curves = Curves(profile, labels=("k / k_Nyq", "radial profile"), limits=((0, 1.1), (-1.1, 2.1)), rules=(0,))

    def update(change):
        m.min, m.max = -l.value, l.value
        if change["owner"] in (l, m):
            maps.axis, maps.index = PLANE[l.value, m.value], n // 2
        maps.update(kernel())
        curves.update({"taper × G": (x, taper * G(x))})

    follow(update, l, m, r0, sigma, residual)
    return Explorer("Kernel explorer", [l, m, r0, sigma, residual], [maps, curves])


def invariant_explorer(delta, grid):
    """delta and its invariants, under a slider for the scale of all filters.

    Parameters
    ----------
    delta : (n, n, n) density contrast.
    """
    profiles, delta_k = RadialProfiles().requires_grad_(False), to_fourier(delta, grid)
    scale = slider("filter scale", 1.0, 0.5, 2.5, 0.1)

    def fields():
        # Stretching the kernels by s means reading the profiles at s k.
        G = profiles(grid.shells().k * (scale.value / grid.k_nyq))
        return invariants(filter_maps(delta_k, G, grid))

    maps = Maps({"delta": delta} | fields(), grid)
    follow(lambda _: maps.update(fields()), scale)
    return Explorer("Invariant explorer", [scale], [maps])


def kernel_surface(maps, grid, channel=(2, 0), level=0.25):
    """A kernel in three dimensions (plotly): where it reaches +level and -level of its largest value."""
    import plotly.graph_objects as go

    kernel = maps[CHANNELS.index(channel)].numpy()
    kernel = kernel / np.abs(kernel).max()
    at = (np.arange(grid.n) - grid.n / 2) * grid.cell_size
    X, Y, Z = np.meshgrid(at, at, at, indexing="ij")
    surfaces = [
        go.Isosurface(
            x=X.ravel(), y=Y.ravel(), z=Z.ravel(), value=kernel.ravel(), isomin=sign * level, isomax=sign * level,
            surface_count=1, colorscale=[[0, colour], [1, colour]], showscale=False, opacity=0.7,
            caps={"x_show": False, "y_show": False, "z_show": False},
        )
        for sign, colour in ((1, ORANGE), (-1, BLUE))
    ]  # fmt: skip
    titles = {f"{a}axis_title": f"{a} [Mpc/h]" for a in "xyz"}
    figure = go.FigureWidget(
        surfaces, layout={"width": 520, "height": 460, "margin": {"t": 10, "b": 10}, "scene": titles}
    )
    planes, axes = plt.subplots(1, 3, figsize=(8.4, 2.8), layout="constrained")
    for axis, ax in enumerate(axes):
        ax.imshow(slice_of(torch.as_tensor(kernel), axis, grid.n // 2), cmap=SIGNED, vmin=-1, vmax=1)
        ax.set(title=f"across {'xyz'[axis]}", xticks=(), yticks=())
    return Explorer(
        f"Kernel l = {channel[0]}, m = {channel[1]} in 3D (here its three planes)", [], [figure], png_of(planes)
    )
