"""Explorers of a trained mark: its maps slice by slice, its channels on and off, its voxels one by one, and in 3D."""

import io
from itertools import pairwise

import ipywidgets as w
import numpy as np
import torch
from matplotlib import colormaps
from matplotlib.cm import ScalarMappable
from matplotlib.colors import LightSource, Normalize
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from mpl_toolkits.mplot3d.art3d import Poly3DCollection
from PIL import Image, ImageDraw, ImageFont
from scipy.ndimage import map_coordinates
from skimage.measure import marching_cubes
from torch.nn.functional import softplus

from nbkit.look import r_squared
from nbkit.mark.classical import smoothing_kernel
from nbkit.mesh.grid import to_fourier, to_real
from nbkit.mesh.spectra import marked_field, spectra_of_modes
from nbkit.show import plots
from nbkit.show.mark import ROWS, TERM_COLOURS, panels, ranges
from nbkit.show.widgets import Explorer, choice, observed, picture, slider

TITLES = {"delta": "δ (log)", "Delta": "marked field", "h_x": "h×(E0, E2, I3)"}
TITLES |= {f"h_{name}": f"h({name})" for name in ("E0", "E1", "E2", "I3")}


def montage(*rows):
    """PNG bytes of rows of (title, PNG bytes or image) on white: what a rendering without widgets shows."""
    opened = [[(t, x if isinstance(x, Image.Image) else Image.open(io.BytesIO(x))) for t, x in row] for row in rows]
    heights = [max(image.height for _, image in row) + 24 for row in opened]
    width = max(sum(image.width + 12 for _, image in row) for row in opened)
    joined, bottom = Image.new("RGB", (width, sum(heights)), "white"), 0
    pen, font = ImageDraw.Draw(joined), ImageFont.load_default(13)
    for row, height in zip(opened, heights, strict=True):
        left, bottom = 0, bottom + height
        for title, image in row:
            top = bottom - image.height - 6
            joined.paste(image.convert("RGB"), (left, top))
            # The built-in font lacks these letters.
            pen.text((left + 2, top - 17), title.replace("δ", "delta").replace("×", "x"), fill="black", font=font)
            left += image.width + 12
    out = io.BytesIO()
    joined.save(out, "png", optimize=True)
    return out.getvalue()


def anatomy_explorer(parts):
    """delta, the invariants, the terms and M of an Anatomy in one slice, under sliders for the slice and the axis."""
    grid, fields = parts.grid, panels(parts)
    colours = ranges(fields)
    axis, index = choice("axis", ["x", "y", "z"], "z"), slider("slice", grid.n // 2, 0, grid.n - 1, 1)
    images, caption = {name: w.Image(format="png") for name in fields}, w.HTML()

    def draw():
        for name, image in images.items():
            cut = plots.slice_of(fields[name], "xyz".index(axis.value), index.value)
            image.value = picture(plots.shown(cut, name), plots.MAPS.get(name, "PuOr_r"), *colours[name], 192)
        top, (low, high) = next(colours[name][1] for name in parts.terms), colours["M"]
        caption.value = (
            f"<b>{axis.value} = {(index.value + 0.5) * grid.cell_size:.0f} Mpc/h</b>; terms less their means, "
            f"purple {-top:.2f} to orange {top:.2f}; M over its mean, blue {low:.2f} to yellow {high:.2f}"
        )

    observed(draw, (axis, index))
    rows = [[(TITLES.get(name, name), images[name]) for name in row if name in fields] for row in ROWS]
    boxes = [w.HBox([w.VBox([w.HTML(title), image]) for title, image in row]) for row in rows]
    static = montage(*([(title, image.value) for title, image in row] for row in rows))
    return Explorer("Anatomy explorer", [axis, index], [w.VBox([caption, *boxes])], static)


def switch_explorer(parts, kmax=0.3):
    """M, the marked field and its spectra with each channel on or off; off, a term is replaced by its mean.

    M is divided by its mean: an affine map of the mark changes its scale but not what it tells.

    Parameters
    ----------
    kmax : of the spectra [h/Mpc].
    """
    grid, delta = parts.grid, parts.delta
    delta_k, full = to_fourier(delta, grid), parts.M()
    switches = {name: w.Checkbox(value=True, description=TITLES[name], indent=False) for name in parts.terms}
    left, right, curve, caption = *(w.Image(format="png") for _ in range(3)), w.HTML()

    def power(Delta):
        return spectra_of_modes(delta_k, to_fourier(Delta, grid), grid=grid, kmax=kmax)

    start = power(marked_field(full / full.mean(), delta))
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
        P = power(Delta := marked_field(M, delta))
        dm.set_ydata(P.P_dm.abs())
        mm.set_ydata(P.P_mm)
        curve.value = plot.png()
        for image, name, field in ((left, "M", M), (right, "Delta", Delta)):
            cut = plots.slice_of(field, 2, grid.n // 2)
            image.value = picture(cut, plots.MAPS.get(name, "PuOr_r"), *plots.limits(field, name), 256)
        same = r_squared(M, full) if len(off) < len(switches) else 0.0
        on = ", ".join(TITLES[name] for name in switches if name not in off) or "none"
        caption.value = (
            f"<b>on: {on}</b>. M explains {same:.0%} of the variance of the full mark; P_mm / P_dd = "
            f"{float(P.P_mm[-1] / P.P_dd[-1]):.2f} at k = {k[-1]:.2f} h/Mpc. Left M, right the marked field."
        )

    observed(update, switches.values())
    panel = w.VBox([caption, w.HBox([left, right, curve])])
    static = montage([("M / mean", left.value), ("marked field", right.value), ("", curve.value)])
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
    marker = {"symbol": "circle-open", "size": 14, "color": plots.SKY, "line": {"width": 3}}
    axes = {f"{a}axis": {"title": f"{a} [cells]", "constrain": "domain"} for a in "xy"}
    axes["yaxis"]["scaleanchor"] = "x"
    layout = {"width": 430, "height": 370, "margin": {"t": 10, "b": 40, "l": 50, "r": 10}, "showlegend": False, **axes}

    def cut():
        return plots.shown(plots.slice_of(parts.delta, 2, z.value), "delta")

    traces = [go.Heatmap(z=cut(), **look), go.Scatter(x=[x.value], y=[y.value], mode="markers", marker=marker)]
    map = go.FigureWidget(traces, layout=layout)
    fall, image, caption = Waterfall(parts), w.Image(format="png"), w.HTML()
    base, mean = parts.mean_eta, float(parts.M().mean())

    def update():
        voxel = x.value, y.value, z.value
        steps = [float(h[voxel]) - parts.means[name] for name, h in parts.terms.items()]
        image.value = fall.show(base, steps)
        eta = base + sum(steps)
        sum_of_steps = " ".join(f"{step:+.2f} {TITLES[name]}" for name, step in zip(parts.terms, steps, strict=True))
        M = float(softplus(torch.tensor(eta)))
        caption.value = (
            f"<b>voxel {voxel[0]}, {voxel[1]}, {voxel[2]}</b>: 1 + δ = {float(1 + parts.delta[voxel]):.2f}<br>"
            f"η = {base:.2f} {sum_of_steps} = <b>{eta:.2f}</b>, M = <b>{M:.3g}</b>, {M / mean:.2f} of its mean"
        )
        # A figure that changes before it is shown is shown empty, so the first call must leave it alone.
        if (map.data[1].x[0], map.data[1].y[0]) != voxel[:2]:
            with map.batch_update():
                map.data[1].x, map.data[1].y = [voxel[0]], [voxel[1]]

    def clicked(_, points, state):
        if points.xs:
            x.value, y.value = round(points.xs[0]), round(points.ys[0])

    z.observe(lambda _: map.data[0].update(z=cut()), names="value")
    map.data[0].on_click(clicked)
    observed(update, (x, y, z))
    still = Image.open(io.BytesIO(picture(cut(), "magma", low, high, 288))).convert("RGB")
    middle = (np.array([x.value, grid.n - 1 - y.value]) + 0.5) * (still.width // grid.n)
    ImageDraw.Draw(still).circle(tuple(middle), 9, outline=plots.SKY, width=3)
    static = montage([(f"delta (log) at z = {z.value}, and the voxel", still), ("", image.value)])
    return Explorer("Voxel picker", [x, y, z], [map, w.VBox([caption, image])], static)


def isosurface(field, level, other):
    """Triangles where a field (n, m, o) equals a level within its range, facing lower values; it is not periodic.

    Gives points (v, 3) in cells, (1, 0, 0) the centre of the second cell along x; faces (f, 3), indices of points;
    normals (v, 3); and the values (v,) of another field.
    """
    points, faces, normals, _ = marching_cubes(field, level, gradient_direction="ascent")
    return points, faces, normals, map_coordinates(other, points.T, order=1)


def surface_explorer(parts, R=8.0):
    """The surface 1 + delta_R = level in a corner of the box, coloured by M, under a slider for the level (plotly).

    Parameters
    ----------
    R : Gaussian smoothing of the density [Mpc/h].
    """
    import plotly.graph_objects as go

    grid = parts.grid
    cells = min(32, grid.n)  # the side of the corner
    corner, side = (slice(cells),) * 3, cells * grid.cell_size
    delta_k = to_fourier(parts.delta, grid)
    density = 1 + to_real(delta_k * smoothing_kernel(R, grid, delta_k), grid)[corner].numpy()
    M = (parts.M() / parts.M().mean())[corner].numpy()
    bottom, top = (round(float(x), 1) for x in np.quantile(density, (0.02, 0.995)))
    height, caption = slider("1 + delta", min(max(1.6, bottom), top), bottom, top, 0.1), w.HTML()
    scene = {"aspectmode": "cube", "camera": {"eye": {"x": 1.5, "y": -1.7, "z": 0.9}}}
    scene |= {f"{a}axis": {"title": f"{a} [Mpc/h]", "range": (0, side)} for a in "xyz"}
    layout = {"width": 620, "height": 520, "margin": {"t": 10, "b": 10, "l": 10, "r": 10}, "scene": scene}

    def mesh():
        points, faces, _, values = isosurface(density, height.value, M)
        low, high = np.quantile(values, (0.02, 0.98))
        caption.value = (
            f"<b>1 + delta = {height.value:.1f}</b>, over {R:g} Mpc/h: {len(faces)} triangles, on which "
            f"M over its mean is {low:.2f} to {high:.2f}, in this corner of the box {M.min():.2f} to {M.max():.2f}"
        )
        corners = dict(zip("xyz", ((points + 0.5) * grid.cell_size).T.astype(np.float32), strict=True))
        sides = dict(zip("ijk", faces.T.astype(np.int32), strict=True))
        return corners | sides | {"intensity": values.astype(np.float32), "cmin": low, "cmax": high}

    # A figure that changes before it is shown is shown empty, so it starts with the surface it is going to show.
    first = go.Mesh3d(colorscale="Cividis", colorbar={"title": "M / mean"}, **mesh())
    figure = go.FigureWidget([first], layout=layout)
    height.observe(lambda _: figure.data[0].update(mesh()), names="value")
    static = surface_picture(*isosurface(density, height.value, M), grid.cell_size, side)
    return Explorer("M on a surface of equal density, in 3D", [height], [w.VBox([caption, figure])], static)


def surface_picture(points, faces, normals, values, cell_size, side):
    """PNG bytes of what `isosurface` gives seen from one side, coloured by its values and lit: the static picture."""
    figure, out = Figure(figsize=(6.2, 4.6)), io.BytesIO()
    ax = figure.add_subplot(projection="3d")
    scale = ScalarMappable(Normalize(*np.quantile(values, (0.02, 0.98))), colormaps[plots.MAPS["M"]])
    colours = scale.to_rgba(values[faces].mean(1))[:, :3]
    light = 0.7 + 0.3 * LightSource(azdeg=300, altdeg=45).shade_normals(normals[faces].mean(1))
    lit, corners = np.clip(colours * light[:, None], 0, 1), (points + 0.5)[faces] * cell_size
    ax.add_collection3d(Poly3DCollection(corners, facecolors=lit, lw=0, antialiased=False))
    ax.set(**{f"{a}lim": (0, side) for a in "xyz"}, **{f"{a}label": f"{a} [Mpc/h]" for a in "xyz"})
    ax.view_init(22, -60)
    figure.subplots_adjust(left=0, right=0.92, bottom=0.06, top=1.06)
    figure.colorbar(scale, ax=ax, label=r"$M/\langle M\rangle$", shrink=0.6, pad=0.1)
    figure.savefig(out, format="png", dpi=90)
    return out.getvalue()
