"""Figures of the embedded universe: the cosmic web, its P(k) against theory, what each parameter does."""

import matplotlib.pyplot as plt
import numpy as np
import torch

from nbkit.mesh.spectra import spectra
from nbkit.show import BLACK, BLUE, RED, brightness
from nbkit.show.curves import Curves, Explorer, follow, slider
from nbkit.show.maps import Maps
from nbkit.universe.cosmology import FIDUCIAL, linear_power


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
        drawn = ax.imshow(brightness(slab.T, "delta"), cmap="magma", vmin=-0.8, vmax=1.0, extent=(0, grid.box_size) * 2)
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


def universe_explorer(simulator, seed, theta=FIDUCIAL):
    """A slab of a universe and its P(k), simulated anew with the same phases whenever a parameter moves.

    Parameters
    ----------
    simulator : a small box, so that a universe takes a fraction of a second.
    theta : where the sliders start, and what the parameters without a slider keep.
    """
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
