"""Pictures of universes: the opening one of the README, and boxes of different size to one scale."""

import matplotlib.pyplot as plt
import numpy as np
import torch

from nbkit.show.looks import brightness


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
    size = 9, 9 * max(sizes) / sum(sizes) + 0.3
    figure, axes = plt.subplots(1, len(sizes), figsize=size, width_ratios=sizes, layout="constrained")
    for ax, (label, (delta, grid)) in zip(axes, universes.items(), strict=True):
        slab = brightness(delta[:, :, : max(round(depth / grid.cell_size), 1)].mean(2).T, "delta")
        look = {"cmap": "magma", "vmin": -0.8, "vmax": 1.0, "interpolation": "bicubic"}
        drawn = ax.imshow(slab, extent=(0, grid.box_size) * 2, **look)
        ax.set(title=label, xlabel=r"$x$ [Mpc/$h$]", anchor="S")
        ax.spines[:].set_visible(False)
    axes[0].set_ylabel(r"$y$ [Mpc/$h$]")
    figure.colorbar(drawn, ax=axes, label=r"$\log_{10}(1+\delta)$", shrink=0.6, aspect=30, panchor=False)
    return figure
