"""Figures and explorers of fields: the embedded universe and its P(k), the filters' kernels, invariants."""

import numpy as np
import torch

from nbkit.mark.filters import CHANNELS, RadialProfiles, filter_maps
from nbkit.mark.invariants import invariants
from nbkit.mesh.grid import Grid, to_fourier
from nbkit.mesh.spectra import spectra
from nbkit.show.controls import Explorer, follow, slider
from nbkit.show.curves import Curves
from nbkit.show.looks import SIGNED, row_of_panels, slice_of
from nbkit.show.maps import Maps
from nbkit.universe.cosmology import FIDUCIAL, linear_power


def slices(fields, grid, axis=2, index=None):
    """One slice of several fields, {name: (n, n, n)}, each with its own colour bar."""
    return Maps(fields, grid, axis=axis, index=index).figure()


def universe_explorer(simulator, seed, theta=FIDUCIAL):
    """A slab of a universe and its P(k), simulated anew with the same phases as theta moves from where it starts."""
    Omega_m = slider("matter Ωm", float(theta[0]), 0.1, 0.5, 0.01)
    sigma_8 = slider("clustering σ₈", float(theta[4]), 0.6, 1.0, 0.01)
    grid, k = simulator.grid, simulator.grid.bins().k

    def universe():
        moved = np.array([Omega_m.value, *theta[1:4], sigma_8.value])
        delta = simulator(moved, seed)
        P = {"simulated": (k, spectra(delta, grid=grid).P_dd), "linear theory": (k, linear_power(moved)(k.numpy()))}
        return {"delta": delta}, P

    fields, P = universe()
    maps = Maps(fields, grid, index=0, slab=max(round(16 / grid.cell_size), 1), ranges={"delta": (-0.8, 1.0)})
    start = {"at the start": {"x": P["simulated"][0], "y": P["simulated"][1], "ghost": True}}
    names = "k [h/Mpc]", "P(k) [(Mpc/h)³]"
    curves = Curves(start | P, labels=names, log="xy", limits=((float(k[0]), float(k[-1])), (100, 60_000)))

    def update(_):
        fields, P = universe()
        maps.update(fields)
        curves.update(P)

    follow(update, Omega_m, sigma_8)
    return Explorer("Universe explorer", [Omega_m, sigma_8], [maps, curves])


def kernels(G_l, k_nyq, n=96, width=120.0):
    """What filters make of a unit point mass at the centre of a box: (maps, n, n, n), and the Grid of that box.

    Parameters
    ----------
    G_l : callable k -> (l_max + 1, len(k)).
    k_nyq : where the taper ends [h/Mpc]; the kernels are sampled more finely than that.
    width : side of the box [Mpc/h].
    """
    grid = Grid(n, width)
    point = torch.zeros(grid.shape)
    point[n // 2, n // 2, n // 2] = 1 / grid.cell_size**3
    with torch.no_grad():
        return torch.stack(filter_maps(to_fourier(point, grid), G_l(grid.shells().k), grid, k_cut=k_nyq)), grid


# The planes in which each kernel shows its lobes, and one representative of each l for the publication row.
PLANE = {(1, -1): 2, (1, 1): 2, (2, -2): 2, (2, 2): 2, (2, -1): 0, (2, 1): 1, (1, 0): 1, (2, 0): 1, (0, 0): 2}
SHOWN = ((0, 0), (1, 1), (2, 0))


def kernel_panels(maps, grid, channels=SHOWN):
    """`kernels` through their centre: the channels (l, m) of the paper's figure 2, or all, with a row for each l."""
    places = {(l, m): (l, m + 2) for l, m in channels} if len(channels) > 3 else {c: (0, c[0]) for c in channels}
    rows, columns = (max(each) + 1 for each in zip(*places.values(), strict=True))
    figure, axes = row_of_panels(columns, 11 / max(columns, 4), 11 / max(columns, 4), rows)
    for ax in axes.flat:
        ax.set_axis_off()
    for channel, place in places.items():
        axes[place].set_axis_on()
        drawn = kernel_panel(axes[place], maps, grid, channel)
    figure.colorbar(drawn, ax=axes, label="kernel / largest value", shrink=0.6, aspect=25)
    return figure


def kernel_panel(ax, maps, grid, channel):
    """Draw one kernel (l, m) through its centre, over its largest value; the image that was drawn."""
    axis, half = PLANE[channel], grid.box_size / 2
    picture = slice_of(maps[CHANNELS.index(channel)], axis, grid.n // 2)
    across = [x for i, x in enumerate("xyz") if i != axis]
    ax.set(xlabel=rf"${across[0]}$ [Mpc/$h$]", ylabel=rf"${across[1]}$ [Mpc/$h$]")
    ax.set_title(rf"$\ell={channel[0]},\ m={channel[1]}$")
    extent = (-half, half, -half, half)
    return ax.imshow(picture / np.abs(picture).max(), cmap=SIGNED, vmin=-1, vmax=1, extent=extent)


def kernel_explorer(k_nyq, n=64, width=120.0):
    """Kernel, in 2D and 3D, and profile of one (l, m) whose taper ends at k_nyq [h/Mpc]; width of the box [Mpc/h]."""
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
    start = {"axis": PLANE[2, 0], "origin": -(n // 2 + 0.5) * grid.cell_size, "solid": "kernel", "level": 0.25}
    maps = Maps(kernel(), grid, **start, **look)
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
    """A density contrast delta (n, n, n) and its invariants, under a slider for the scale of all filters."""
    profiles, delta_k = RadialProfiles().requires_grad_(False), to_fourier(delta, grid)
    scale = slider("filter scale", 1.0, 0.5, 2.5, 0.1)

    def fields():
        # Stretching the kernels by s means reading the profiles at s k.
        G = profiles(grid.shells().k * (scale.value / grid.k_nyq))
        return invariants(filter_maps(delta_k, G, grid))

    maps = Maps({"delta": delta} | fields(), grid)
    follow(lambda _: maps.update(fields()), scale)
    return Explorer("Invariant explorer", [scale], [maps])
