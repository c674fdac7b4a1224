"""M over delta in three dimensions: a surface of equal density, coloured by the mark, to turn in plotly."""

import io

import ipywidgets as w
import numpy as np
from matplotlib import colormaps
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.cm import ScalarMappable
from matplotlib.colors import LightSource, Normalize
from matplotlib.figure import Figure
from mpl_toolkits.mplot3d.art3d import Poly3DCollection

from nbkit.mark.classical import smoothing_kernel
from nbkit.mesh.grid import to_fourier, to_real
from nbkit.show import plots
from nbkit.show.surface import isosurface
from nbkit.show.widgets import Explorer, slider


def surface_explorer(parts, R=8.0, level=1.6, cells=32):
    """The surface 1 + delta_R = level in a corner of the box, coloured by M, under a slider for the level.

    Parameters
    ----------
    R : Gaussian smoothing of the density [Mpc/h].
    cells : side of the corner that is shown.
    """
    import plotly.graph_objects as go

    grid = parts.grid
    cells, corner = min(cells, grid.n), (slice(min(cells, grid.n)),) * 3
    delta_k = to_fourier(parts.delta, grid)
    density = 1 + to_real(delta_k * smoothing_kernel(R, grid, delta_k), grid)[corner].numpy()
    M = (parts.M() / parts.M().mean())[corner].numpy()
    bottom, top = np.quantile(density, (0.02, 0.995))
    height = slider("1 + delta", min(max(level, round(bottom, 1)), round(top, 1)), round(bottom, 1), round(top, 1), 0.1)
    side = cells * grid.cell_size
    look = {"colorscale": "Cividis", "colorbar": {"title": "M / mean"}}
    scene = {f"{a}axis": {"title": f"{a} [Mpc/h]", "range": (0, side)} for a in "xyz"} | {"aspectmode": "cube"}
    scene["camera"] = {"eye": {"x": 1.5, "y": -1.7, "z": 0.9}}
    layout = {"width": 620, "height": 520, "margin": {"t": 10, "b": 10, "l": 10, "r": 10}, "scene": scene}
    caption = w.HTML()

    def mesh():
        surface = isosurface(density, height.value, M)
        low, high = np.quantile(surface.values, (0.02, 0.98))
        caption.value = (
            f"<b>1 + delta = {height.value:.1f}</b>, over {R:g} Mpc/h: {len(surface.faces)} triangles, on which "
            f"M over its mean is {low:.2f} to {high:.2f}, in this corner of the box {M.min():.2f} to {M.max():.2f}"
        )
        corners = zip("xyz", ((surface.points + 0.5) * grid.cell_size).T.astype(np.float32), strict=True)
        sides = zip("ijk", surface.faces.T.astype(np.int32), strict=True)
        return {
            **dict(corners),
            **dict(sides),
            "intensity": surface.values.astype(np.float32),
            "cmin": low,
            "cmax": high,
        }

    # A figure that changes before it is shown is shown empty, so it starts with the surface it is going to show.
    figure = go.FigureWidget([go.Mesh3d(**look, **mesh())], layout=layout)
    height.observe(lambda _: figure.data[0].update(mesh()), names="value")
    static = drawn(isosurface(density, height.value, M), grid.cell_size, side)
    return Explorer("M on a surface of equal density, in 3D", [height], [w.VBox([caption, figure])], static)


def drawn(surface, cell_size, side):
    """PNG bytes of a Surface seen from one side, coloured by its values and lit: the static picture."""
    figure = Figure(figsize=(6.2, 4.6), dpi=90)
    canvas, ax = FigureCanvasAgg(figure), figure.add_subplot(projection="3d")
    corners = (surface.points + 0.5)[surface.faces] * cell_size
    scale = ScalarMappable(Normalize(*np.quantile(surface.values, (0.02, 0.98))), colormaps[plots.MAPS["M"]])
    colours = scale.to_rgba(surface.values[surface.faces].mean(1))[:, :3]
    light = 0.7 + 0.3 * LightSource(azdeg=300, altdeg=45).shade_normals(smooth_normals(surface))
    ax.add_collection3d(Poly3DCollection(corners, facecolors=np.clip(colours * light[:, None], 0, 1), lw=0))
    ax.set(xlim=(0, side), ylim=(0, side), zlim=(0, side))
    ax.set(xlabel="x [Mpc/h]", ylabel="y [Mpc/h]", zlabel="z [Mpc/h]")
    ax.view_init(22, -60)
    figure.subplots_adjust(left=0, right=0.92, bottom=0.06, top=1.06)
    figure.colorbar(scale, ax=ax, label=r"$M/\langle M\rangle$", shrink=0.6, pad=0.1)
    out = io.BytesIO()
    canvas.print_png(out)
    return out.getvalue()


def smooth_normals(surface):
    """(f, 3) unit normals of the faces, averaged with those around each corner: single faces are too rough to light."""
    a, b, c = (surface.points[surface.faces[:, i]] for i in range(3))
    normal = np.cross(b - a, c - a)
    around = np.zeros_like(surface.points)
    for i in range(3):
        np.add.at(around, surface.faces[:, i], normal)
    normal = around[surface.faces].sum(1)
    return normal / np.maximum(np.linalg.norm(normal, axis=1, keepdims=True), 1e-12)
