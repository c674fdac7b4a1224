"""Explorers of a trained mark: its maps slice by slice, its channels switched on and off, its voxels one by one."""

import io
from itertools import pairwise

import ipywidgets as w
import numpy as np
import torch
from matplotlib.ticker import MaxNLocator
from PIL import Image, ImageDraw, ImageFont
from torch.nn.functional import softplus

from nbkit.look.nearest import r_squared
from nbkit.mesh.grid import to_fourier
from nbkit.mesh.spectra import marked_field, spectra_of_modes
from nbkit.show import plots
from nbkit.show.introspection import ROWS, TERM_COLOURS, panels, ranges
from nbkit.show.widgets import Explorer, choice, observed, picture, side_by_side, slider

TITLES = {"delta": "δ (log)", "Delta": "marked field", "h_x": "h×(E0, E2, I3)"}
TITLES |= {f"h_{name}": f"h({name})" for name in ("E0", "E1", "E2", "I3")}


def png_of(image):
    """PNG bytes of a PIL image."""
    out = io.BytesIO()
    image.save(out, "png", optimize=True)
    return out.getvalue()


def titled(png, title):
    """A picture under a line of text, for renderings without widgets."""
    image = Image.open(io.BytesIO(png)).convert("RGB")
    taller = Image.new("RGB", (image.width, image.height + 18), "white")
    taller.paste(image, (0, 18))
    ImageDraw.Draw(taller).text((2, 1), title, fill="black", font=ImageFont.load_default(13))
    return png_of(taller)


def _plain(title):
    """Without the letters that the built-in font lacks."""
    return title.replace("δ", "delta").replace("×", "x")


def above(*pngs):
    """Pictures one above the other, on white."""
    images = [Image.open(io.BytesIO(png)).convert("RGB") for png in pngs]
    joined = Image.new("RGB", (max(x.width for x in images), sum(x.height + 6 for x in images)), "white")
    top = 0
    for image in images:
        joined.paste(image, (0, top))
        top += image.height + 6
    return png_of(joined)


def anatomy_explorer(parts, side=192):
    """delta, the invariants, the terms and M in one slice, under sliders for the slice and the axis.

    Parameters
    ----------
    parts : the Anatomy to look at.
    side : of each picture [pixels].
    """
    grid, fields = parts.grid, panels(parts)
    colours = ranges(fields)
    axis, index = choice("axis", ["x", "y", "z"], "z"), slider("slice", grid.n // 2, 0, grid.n - 1, 1)
    images, caption = {name: w.Image(format="png") for name in fields}, w.HTML()

    def draw():
        for name, image in images.items():
            cut = plots.slice_of(fields[name], "xyz".index(axis.value), index.value)
            image.value = picture(plots.shown(cut, name), plots.MAPS.get(name, "PuOr_r"), *colours[name], side)
        top, (low, high) = next(colours[name][1] for name in parts.terms), colours["M"]
        caption.value = (
            f"<b>{axis.value} = {(index.value + 0.5) * grid.cell_size:.0f} Mpc/h</b>; terms less their means, "
            f"purple {-top:.2f} to orange {top:.2f}; M over its mean, blue {low:.2f} to yellow {high:.2f}"
        )

    observed(draw, (axis, index))
    shown = [[name for name in row if name in fields] for row in ROWS]
    rows = [w.HBox([w.VBox([w.HTML(TITLES.get(name, name)), images[name]]) for name in row]) for row in shown]
    static = [
        side_by_side(*(titled(images[name].value, _plain(TITLES.get(name, name))) for name in row)) for row in shown
    ]
    return Explorer("Anatomy explorer", [axis, index], [w.VBox([caption, *rows])], above(*static))


def switch_explorer(parts, kmax=0.3, index=None):
    """M, the marked field and its spectra with each channel on or off; off, a term is replaced by its mean.

    M is divided by its mean: an affine map of the mark changes its scale but not what it tells.

    Parameters
    ----------
    kmax : of the spectra [h/Mpc].
    index : the z slice that is shown; default the middle.
    """
    grid, delta = parts.grid, parts.delta
    index = grid.n // 2 if index is None else index
    delta_k, full = to_fourier(delta, grid), parts.M()
    switches = {name: w.Checkbox(value=True, description=TITLES[name], indent=False) for name in parts.terms}
    left, right, curve, caption = *(w.Image(format="png") for _ in range(3)), w.HTML()

    def measured(Delta):
        return spectra_of_modes(delta_k, to_fourier(Delta, grid), grid=grid, kmax=kmax)

    start = measured(marked_field(full / full.mean(), delta))
    k = start.k.numpy()
    powers = torch.stack([start.P_dd, start.P_dm.abs(), start.P_mm])
    labels = {"xlabel": r"$k$ [$h$/Mpc]", "ylabel": r"$P(k)$ [(Mpc/$h$)$^3$]", "xscale": "log", "yscale": "log"}
    plot = plots.LiveLines(xlim=(k[0], k[-1]), ylim=(0.3 * float(powers.min()), 2 * float(powers.max())), **labels)
    for values, colour in ((start.P_dm.abs(), plots.BLUE), (start.P_mm, plots.RED)):
        plot.ax.loglog(k, values, color=colour, lw=0.8, ls=":")
    (dd,) = plot.ax.loglog(k, start.P_dd, color="0.5")
    dm, mm = plot.line(k, k, color=plots.BLUE), plot.line(k, k, color=plots.RED, ls="--")
    plot.ax.set_xticks([0.02, 0.05, 0.1, 0.2], ["0.02", "0.05", "0.1", "0.2"])
    plot.ax.set_xticks([], minor=True)
    names = [r"$P_{\delta\delta}$", r"$|P_{\delta\Delta}|$", r"$P_{\Delta\Delta}$ (dotted: all on)"]
    plot.ax.legend([dd, dm, mm], names, fontsize=8)

    def update():
        off = [name for name, switch in switches.items() if not switch.value]
        M = parts.M(off)
        M = M / M.mean()
        Delta = marked_field(M, delta)
        P = measured(Delta)
        dm.set_ydata(P.P_dm.abs())
        mm.set_ydata(P.P_mm)
        curve.value = plot.png()
        for image, name, field in ((left, "M", M), (right, "Delta", Delta)):
            cut = plots.slice_of(field, 2, index)
            image.value = picture(cut, plots.MAPS.get(name, "PuOr_r"), *plots.limits(field, name), 256)
        same = r_squared(M, full) if len(off) < len(switches) else 0.0
        on = ", ".join(TITLES[name] for name in switches if name not in off) or "none"
        caption.value = (
            f"<b>on: {on}</b>. M explains {same:.0%} of the variance of the full mark; P_mm / P_dd = "
            f"{float(P.P_mm[-1] / P.P_dd[-1]):.2f} at k = {k[-1]:.2f} h/Mpc. Left M, right the marked field."
        )

    observed(update, switches.values())
    panel = w.VBox([caption, w.HBox([left, right, curve])])
    static = side_by_side(titled(left.value, "M / mean"), titled(right.value, "marked field"), curve.value)
    return Explorer("Channel switches", [w.HBox(list(switches.values()))], [panel], static)


class Waterfall(plots.LiveLines):
    """From the mean of eta, term by term, to the eta of one voxel; M = softplus(eta) on the right."""

    def __init__(self, parts):
        eta = parts.eta()
        low, high = float(eta.min()), float(eta.max())
        super().__init__(figsize=(5.6, 3.6), ylabel=r"$\eta$", xlim=(-0.6, len(parts.terms) + 1.6))
        self.figure.subplots_adjust(right=0.79, left=0.16, bottom=0.14)
        self.ax.set_ylim(low - 0.25 * (high - low), high + 0.1 * (high - low))
        names = [TITLES[name].split("(E0, ")[0] for name in parts.terms]
        self.ax.set_xticks(range(len(names) + 2), ["mean", *names, r"$\eta$"], fontsize=8)
        self.ax.axhline(parts.mean_eta, color="0.6", lw=0.7, ls=":")
        right = self.ax.secondary_yaxis("right")
        right.set_ylabel(r"$M = {\rm softplus}(\eta)$")
        ticks = mark_ticks(*self.ax.get_ylim())
        right.set_yticks(np.log(np.expm1(ticks)), [f"{tick:g}" for tick in ticks])
        colours = ["0.7", *(TERM_COLOURS[name] for name in parts.terms), "0.3"]
        self.bars = [self.line([i, i], [0, 1], color=c, lw=20, solid_capstyle="butt") for i, c in enumerate(colours)]

    def show(self, base, steps):
        """Bars from the axis to `base`, over the steps (t,), to their sum; PNG bytes."""
        ends = base + np.cumsum([0.0, *steps])
        floor = self.ax.get_ylim()[0]
        spans = [(floor, base), *pairwise(ends), (floor, ends[-1])]
        for i, (bar, span) in enumerate(zip(self.bars, spans, strict=True)):
            bar.set_data([i, i], span)
        return self.png()


def mark_ticks(low, high):
    """Values of M = softplus(eta) to write beside an axis of eta from low to high: even steps, or 1, 2, 5, 10, ..."""
    first, last = np.logaddexp(0, low), np.logaddexp(0, high)
    decades = np.outer(10.0 ** np.arange(-30, 3), (1, 2, 5)).ravel()
    ticks = MaxNLocator(6).tick_values(first, last) if last < 20 * first else decades
    ticks = ticks[(ticks > first) & (ticks < last)]
    return ticks[:: len(ticks) // 8 + 1]


def voxel_explorer(parts, at=None):
    """Pick a voxel, by sliders or by a click on the map, and see its terms add up to eta and M.

    Parameters
    ----------
    at : (x, y, z) indices of the voxel it starts with; default the densest.
    """
    import plotly.graph_objects as go

    grid = parts.grid
    start = np.unravel_index(int(parts.delta.argmax()), grid.shape) if at is None else at
    x, y, z = (slider(f"voxel {a}", int(i), 0, grid.n - 1, 1) for a, i in zip("xyz", start, strict=True))
    low, high = plots.limits(parts.delta, "delta")
    look = {"colorscale": "Magma", "zmin": low, "zmax": high, "hoverinfo": "x+y", "colorbar": {"title": "log(1+δ)"}}
    ring = {
        "mode": "markers",
        "marker": {"symbol": "circle-open", "size": 14, "color": "#56B4E9", "line": {"width": 3}},
    }
    axes = {f"{a}axis": {"title": f"{a} [cells]", "constrain": "domain"} for a in "xy"}
    axes["yaxis"]["scaleanchor"] = "x"
    margin = {"t": 10, "b": 40, "l": 50, "r": 10}
    layout = {"width": 430, "height": 370, "margin": margin, "showlegend": False, **axes}
    first = plots.shown(plots.slice_of(parts.delta, 2, z.value), "delta")
    map = go.FigureWidget([go.Heatmap(z=first, **look), go.Scatter(x=[x.value], y=[y.value], **ring)], layout=layout)
    fall, image, caption = Waterfall(parts), w.Image(format="png"), w.HTML()
    base, mean = parts.mean_eta, float(parts.M().mean())

    def update():
        voxel = x.value, y.value, z.value
        steps = [float(h[voxel]) - parts.means[name] for name, h in parts.terms.items()]
        image.value = fall.show(base, steps)
        eta = base + sum(steps)
        said = " ".join(f"{step:+.2f} {TITLES[name]}" for name, step in zip(parts.terms, steps, strict=True))
        M = float(softplus(torch.tensor(eta)))
        caption.value = (
            f"<b>voxel {voxel[0]}, {voxel[1]}, {voxel[2]}</b>: 1 + δ = {float(1 + parts.delta[voxel]):.2f}<br>"
            f"η = {base:.2f} {said} = <b>{eta:.2f}</b>, M = <b>{M:.3g}</b>, {M / mean:.2f} of its mean"
        )
        # A figure that changes before it is shown is shown empty, so the first call must leave it alone.
        if (map.data[1].x[0], map.data[1].y[0]) != voxel[:2]:
            with map.batch_update():
                map.data[1].x, map.data[1].y = [voxel[0]], [voxel[1]]

    def slice_again(_):
        map.data[0].z = plots.shown(plots.slice_of(parts.delta, 2, z.value), "delta")

    def clicked(_, points, state):
        if points.xs:
            x.value, y.value = round(points.xs[0]), round(points.ys[0])

    z.observe(slice_again, names="value")
    map.data[0].on_click(clicked)
    observed(update, (x, y, z))
    static = Image.open(io.BytesIO(picture(first, "magma", low, high, 288))).convert("RGB")
    zoom = static.width // grid.n
    middle = (x.value + 0.5) * zoom, static.height - (y.value + 0.5) * zoom
    ImageDraw.Draw(static).circle(middle, 9, outline="#56B4E9", width=3)
    joined = side_by_side(titled(png_of(static), f"delta (log) at z = {z.value}, and the voxel"), image.value)
    return Explorer("Voxel picker", [x, y, z], [map, w.VBox([caption, image])], joined)
