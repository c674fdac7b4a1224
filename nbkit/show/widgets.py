"""Sliders over `plots`: every explorer observes its controls and updates images in place.

In JupyterLab an explorer is live. Where nobody is there to move it (papermill, nbval, GitHub), its stored output is the
picture it starts with.
"""

import base64
import io

import ipywidgets as w
import matplotlib
import numpy as np
import torch
from PIL import Image

from nbkit.mark.filters import CHANNELS, RadialProfiles, filter_maps
from nbkit.mark.invariants import invariants
from nbkit.mesh.grid import to_fourier
from nbkit.mesh.spectra import spectra
from nbkit.show import plots
from nbkit.universe.cosmology import FIDUCIAL, linear_power

LAYOUT = w.Layout(width="420px")
STYLE = {"description_width": "130px"}


class Explorer(w.VBox):
    """Controls above, panels below, and a static picture for renderings without a kernel.

    Parameters
    ----------
    title : what the stored text says it is.
    controls, panels : widgets.
    static : PNG bytes of the state it starts in.
    """

    def __init__(self, title, controls, panels, static):
        super().__init__([w.VBox(controls), w.HBox(panels, layout=w.Layout(align_items="flex-start"))])
        self.title, self.controls, self.static = title, controls, static

    def __repr__(self):
        return f"<{self.title}: open in JupyterLab to move it>"

    def _repr_mimebundle_(self, **kwargs):
        bundle = super()._repr_mimebundle_(**kwargs)
        return bundle | {"text/plain": repr(self), "image/png": base64.b64encode(self.static).decode()}


def picture(values, cmap, low, high, side=360):
    """PNG bytes of a 2D array, first row at the bottom, through a palette: milliseconds where a figure takes tenths.

    Values outside [low, high] take the end colours.
    """
    scaled = np.clip((values - low) / (high - low), 0, 1)
    image = Image.fromarray((255 * scaled[::-1]).astype(np.uint8), mode="P")
    palette = (255 * matplotlib.colormaps[cmap](np.arange(256))[:, :3]).astype(np.uint8)
    image.putpalette(palette.tobytes())
    zoom = max(1, round(side / len(values)))
    out = io.BytesIO()
    image.resize((values.shape[1] * zoom, values.shape[0] * zoom), Image.Resampling.NEAREST).save(
        out, "png", compress_level=1
    )
    return out.getvalue()


def slider(description, value, low, high, step):
    """A slider that reports while it is dragged; whole numbers if its step is one."""
    kind = w.IntSlider if isinstance(step, int) else w.FloatSlider
    return kind(value=value, min=low, max=high, step=step, description=description, layout=LAYOUT, style=STYLE)


def choice(description, options, value):
    """A row of buttons."""
    row = w.Layout(width="520px", flex_flow="row", align_items="center")
    style = STYLE | {"button_width": "56px"}
    return w.ToggleButtons(options=options, value=value, description=description, layout=row, style=style)


def observed(update, controls):
    """Call update() whenever a control changes, and once now."""
    for control in controls:
        control.observe(lambda _: update(), names="value")
    update()


def side_by_side(*pngs):
    """PNG pictures joined into one, bottom-aligned on white: what a rendering without widgets shows."""
    images = [Image.open(io.BytesIO(x)).convert("RGB") for x in pngs]
    height = max(x.height for x in images)
    joined = Image.new("RGB", (sum(x.width + 12 for x in images), height), "white")
    left = 0
    for x in images:
        joined.paste(x, (left, height - x.height))
        left += x.width + 12
    out = io.BytesIO()
    joined.save(out, "png", optimize=True)
    return out.getvalue()


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
    image, curve, caption = w.Image(format="png"), w.Image(format="png"), w.HTML()
    x = torch.linspace(0, 1.1, 200)
    labels = {"xlabel": r"$k / k_{\rm Nyq}$", "ylabel": r"$T_{\rm tap}\,G_\ell$"}
    plot = plots.LiveLines(xlim=(0, 1.1), ylim=(-1.1, 2.1), **labels)
    plot.ax.axhline(0, color="0.5", lw=0.6)
    line = plot.line(x, x, color=plots.BLUE)

    def G(k):
        y = k / k_nyq
        band = torch.exp(-(((y - r0.value) / sigma.value) ** 2) / 2)
        return band + residual.value * torch.exp(-(((y - 0.7) / 0.08) ** 2) / 2)

    def update():
        m.min, m.max = -l.value, l.value
        channel = l.value, m.value
        maps, grid = plots.kernels(lambda k: G(k).expand(l.value + 1, -1), k_nyq, n, width)
        cut = plots.slice_of(maps[CHANNELS.index(channel)], plots.PLANE[channel], n // 2)
        image.value = picture(cut, "PuOr_r", -np.abs(cut).max(), np.abs(cut).max())
        line.set_ydata(G(x * k_nyq) * grid.taper(x * grid.k_nyq))
        curve.value = plot.png()
        plane = "".join(a for i, a in enumerate("xyz") if i != plots.PLANE[channel])
        caption.value = f"<b>l = {l.value}, m = {m.value}</b>: {plane} plane, {width:g} Mpc/h wide, orange positive"

    observed(update, (l, m, r0, sigma, residual))
    panels = [w.VBox([caption, image]), curve]
    controls = [l, m, r0, sigma, residual]
    return Explorer("Kernel explorer", controls, panels, side_by_side(image.value, curve.value))


def invariant_explorer(delta, grid):
    """delta beside one invariant, under sliders for the slice, the axis, the channel and the scale of the filters.

    Parameters
    ----------
    delta : (n, n, n) density contrast.
    """
    profiles, delta_k = RadialProfiles().requires_grad_(False), to_fourier(delta, grid)
    axis, channel = choice("axis", ["x", "y", "z"], "z"), choice("channel", ["E0", "E1", "E2", "I3"], "E1")
    index = slider("slice", grid.n // 2, 0, grid.n - 1, 1)
    scale = slider("filter scale", 1.0, 0.5, 2.5, 0.1)
    left, right, caption = w.Image(format="png"), w.Image(format="png"), w.HTML()
    state = {}

    def filter_again():
        # Stretching the kernels by s means reading the profiles at s k.
        G = profiles(grid.shells().k * (scale.value / grid.k_nyq))
        state["maps"] = {"delta": delta} | invariants(filter_maps(delta_k, G, grid))
        state["limits"] = {name: plots.limits(field, name) for name, field in state["maps"].items()}
        draw()

    def draw():
        for image, name in ((left, "delta"), (right, channel.value)):
            cut = plots.slice_of(state["maps"][name], "xyz".index(axis.value), index.value)
            image.value = picture(plots.shown(cut, name), plots.MAPS[name], *state["limits"][name])
        low, high = state["limits"][channel.value]
        caption.value = (
            f"<b>{axis.value} = {(index.value + 0.5) * grid.cell_size:.0f} Mpc/h</b>: delta (left, log scale) and "
            f"<b>{channel.value}</b> (right, {low:.2f} to {high:.2f}), kernels stretched by {scale.value:.1f}"
        )

    scale.observe(lambda _: filter_again(), names="value")
    filter_again()
    observed(draw, (axis, channel, index))
    panels = [w.VBox([caption, w.HBox([left, right])])]
    return Explorer("Invariant explorer", [axis, channel, index, scale], panels, side_by_side(left.value, right.value))


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
        for sign, colour in ((1, plots.ORANGE), (-1, plots.BLUE))
    ]  # fmt: skip
    titles = {f"{a}axis_title": f"{a} [Mpc/h]" for a in "xyz"}
    figure = go.FigureWidget(
        surfaces, layout={"width": 520, "height": 460, "margin": {"t": 10, "b": 10}, "scene": titles}
    )
    cuts = [plots.slice_of(maps[CHANNELS.index(channel)], axis, grid.n // 2) for axis in range(3)]
    top = max(np.abs(cut).max() for cut in cuts)
    static = side_by_side(*(picture(cut, "PuOr_r", -top, top, side=220) for cut in cuts))
    return Explorer(f"Kernel l = {channel[0]}, m = {channel[1]} in 3D (here its three planes)", [], [figure], static)


def universe_explorer(simulator, seed, theta=FIDUCIAL):
    """A slab of a universe and its P(k), simulated anew with the same phases whenever a parameter moves.

    Parameters
    ----------
    simulator : a small box, so that a universe takes a fraction of a second.
    theta : where the sliders start, and what the parameters without a slider keep.
    """
    Omega_m = slider("matter Omega_m", float(theta[0]), 0.1, 0.5, 0.01)
    sigma_8 = slider("clustering sigma_8", float(theta[4]), 0.6, 1.0, 0.01)
    image, curve, caption = w.Image(format="png"), w.Image(format="png"), w.HTML()
    grid = simulator.grid
    k = grid.bins().k.numpy()
    labels = {"xlabel": r"$k$ [$h$/Mpc]", "ylabel": r"$P(k)$ [(Mpc/$h$)$^3$]"}
    plot = plots.LiveLines(xscale="log", yscale="log", xlim=(k[0], k[-1]), ylim=(100, 60_000), **labels)
    plot.ax.loglog(k, spectra(simulator(theta, seed), grid=grid).P_dd, color="0.6")
    plot.ax.set_xticks([0.05, 0.1, 0.2, 0.3], ["0.05", "0.1", "0.2", "0.3"])
    plot.ax.set_xticks([], minor=True)
    simulated = plot.line(k, k, color=plots.RED)
    linear = plot.line(k, k, color=plots.BLUE, ls="--")
    plot.ax.legend([simulated, linear, plot.ax.lines[0]], ["simulated", "linear theory", "at the start"], fontsize=8)

    def update():
        moved = np.array([Omega_m.value, *theta[1:4], sigma_8.value])
        delta = simulator(moved, seed)
        slab = plots.shown(delta[:, :, : max(round(16 / grid.cell_size), 1)].mean(2).T, "delta")
        image.value = picture(slab, "magma", -0.8, 1.0)
        simulated.set_ydata(spectra(delta, grid=grid).P_dd)
        linear.set_ydata(linear_power(moved)(k))
        curve.value = plot.png()
        caption.value = f"<b>{grid.box_size:g} Mpc/h</b> across, rms of delta {float(delta.std()):.2f}, seed {seed}"

    observed(update, (Omega_m, sigma_8))
    panels = [w.VBox([caption, image]), curve]
    return Explorer("Universe explorer", [Omega_m, sigma_8], panels, side_by_side(image.value, curve.value))
