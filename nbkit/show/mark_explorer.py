"""Explorers of a trained mark: its maps, terms, spectra and single voxels in one; and M in three dimensions."""

import io
from itertools import accumulate, pairwise

import ipywidgets as w
import numpy as np
import torch
from matplotlib import colormaps
from matplotlib.cm import ScalarMappable
from matplotlib.colors import LightSource, Normalize
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from mpl_toolkits.mplot3d.art3d import Poly3DCollection
from scipy.ndimage import map_coordinates
from skimage.measure import marching_cubes

from nbkit.look import r_squared
from nbkit.mark.classical import smoothing_kernel
from nbkit.mesh.grid import to_fourier, to_real
from nbkit.mesh.spectra import marked_field, spectra_of_modes
from nbkit.show import BLUE, MAPS, RED, SYMBOLS
from nbkit.show.curves import Curves, Explorer, follow, side_by_side, slider
from nbkit.show.maps import Maps
from nbkit.show.mark import TERM_COLOURS, panels, ranges

CLEAR = "rgba(0, 0, 0, 0)"


def anatomy_explorer(parts, kmax=0.3, at=None):
    """Every map of a mark, its terms on or off, what that does to its spectra, and why M is what it is in one voxel.

    A term that is off is replaced by its mean. For spectra M is divided by its mean: an affine map of the mark changes
    its scale but not what it tells.

    Parameters
    ----------
    kmax : of the spectra [h/Mpc].
    at : (x, y, z) indices of the voxel that is pinned at the start; default the densest.
    """
    grid, delta, full = parts.grid, parts.delta, parts.M()
    delta_k, fields = to_fourier(delta, grid), panels(parts)
    at = [int(i) for i in (np.unravel_index(int(delta.argmax()), grid.shape) if at is None else at)]
    shared = {name: ends for name, ends in ranges(fields).items() if name in parts.terms}
    said, bars = w.HTML(), w.HTML()

    def weighed(on):
        """The marked field, {"Delta": field}, and {label: curve} of its spectra over P_dd, of the terms that are on."""
        M = parts.M([name for name in parts.terms if name not in on])
        Delta = marked_field(M / M.mean(), delta)
        P = spectra_of_modes(delta_k, to_fourier(Delta, grid), grid=grid, kmax=kmax)
        names, last = ", ".join(SYMBOLS[name] for name in on) or "none", float(P.P_mm[-1] / P.P_dd[-1])
        said.value = (
            f"<div style='line-height: 18px'><b>on: {names}</b>. M explains {r_squared(M, full) if on else 0:.0%} of "
            f"the variance of the full mark; P_ΔΔ / P_δδ = {last:.2f} at k = {float(P.k[-1]):.2f} h/Mpc.</div>"
        )
        return {"Delta": Delta}, {"P_δΔ / P_δδ": (P.k, P.P_dm / P.P_dd), "P_ΔΔ / P_δδ": (P.k, P.P_mm / P.P_dd)}

    def switch(_):
        field, lines = weighed(maps.on)
        maps.fixed = maps.ranges  # colours stay as they were, so that maps can be compared
        maps.update(field)
        curves.update(lines)

    def explain(_):
        bars.value = voxel_bars(parts, tuple(maps.pinned), [name for name in parts.terms if name not in maps.on])

    field, lines = weighed(parts.terms)
    maps = Maps(fields | field, grid, parts.terms, parts.mean_eta, index=at[2], ranges=shared, title="Anatomy")
    looks = zip(lines.items(), (BLUE, RED), strict=True)
    lines = {label: {"x": k, "y": ratio, "colour": colour} for (label, (k, ratio)), colour in looks}
    ghosts = {f"{label.split()[0]}, all on": line | {"ghost": True, "dash": ":"} for label, line in lines.items()}
    curves = Curves(lines | ghosts, labels=("k [h/Mpc]", "marked spectrum over P_δδ"), log="x", rules=(1,))
    maps.pinned = at
    explain(None)
    maps.observe(switch, names="on")
    maps.observe(explain, names=["on", "pinned"])
    panel = w.VBox([said, bars], layout=w.Layout(flex="1 1 380px", min_width="280px", padding="0 0 0 12px"))
    static = side_by_side(maps.png(side=176, columns=6), curves.png())
    explorer = Explorer("Anatomy explorer", [], [maps, curves, panel], static)
    maps.layout = w.Layout(width="100%")  # a row of its own
    return explorer


def voxel_bars(parts, voxel, off=()):
    """HTML that says why M is what it is in a voxel: from the mean of eta, term by term, to its eta and M.

    Parameters
    ----------
    voxel : (x, y, z) indices, or () for none.
    off : names of the terms that are replaced by their means.
    """
    if not voxel:
        return "<b>Why is M high here?</b> Click on a map, or press Enter at the cursor, to pin a voxel."
    whole, eta, M = parts.eta(), float(parts.eta(off)[voxel]), parts.M(off)
    low, high = torch.lerp(whole.min(), whole.max(), torch.tensor([-0.25, 1.1])).tolist()
    steps = {name: float(h[voxel]) - parts.means[name] for name, h in parts.terms.items() if name not in off}
    ends = list(accumulate(steps.values(), initial=parts.mean_eta))
    rows = [("mean of η", "#888", (low, ends[0]), f"{ends[0]:.2f}")]
    for (name, step), span in zip(steps.items(), pairwise(ends), strict=True):
        rows.append((SYMBOLS[name], TERM_COLOURS[name], sorted(span), f"{step:+z.2f}"))
    rows.append(("η", "currentColor", (low, eta), f"{eta:.2f}"))

    def share(x):
        return f"{100 * (x - low) / (high - low):.2f}%"

    cells = "<span>{}</span><div style='overflow: hidden; position: relative; height: 18px'>{}</div><span>{}</span>"
    bar = "<div style='height: 14px; margin: 2px 0 0 {}; width: max({}, 1px); background: {}'></div>"
    drawn = [cells.format(name, bar.format(share(a), share(low + b - a), c), x) for name, c, (a, b), x in rows]
    tick = "<span style='position: absolute; transform: translateX(-50%); left: {}'>{:g}</span>"
    ticks = "".join(tick.format(share(np.log(np.expm1(x))), x) for x in mark_ticks(low, high))
    drawn.append(cells.format("M = softplus(η)", ticks, ""))
    total = " ".join(f"{x} {name}" for name, _, _, x in rows[1:-1])
    return (
        f"<div style='line-height: 18px'><b>voxel {', '.join(map(str, voxel))}</b>: "
        f"1 + δ = {float(1 + parts.delta[voxel]):.2f}<div style='display: grid; grid-template-columns: auto 1fr auto; "
        f"gap: 0 8px; margin: 6px 0'>{''.join(drawn)}</div>η = {ends[0]:.2f} {total} = <b>{eta:.2f}</b>, "
        f"M = <b>{float(M[voxel]):.3g}</b>, {float(M[voxel] / M.mean()):.2f} of its mean</div>"
    )


def mark_ticks(low, high):
    """Values of M = softplus(eta) to write beside an axis of eta from low to high: even steps, or 1, 2, 5, 10, ..."""
    first, last = np.logaddexp(0, low), np.logaddexp(0, high)
    decades = np.outer(10.0 ** np.arange(-30, 3), (1, 2, 5)).ravel()
    ticks = MaxNLocator(6).tick_values(first, last) if last < 20 * first else decades
    ticks = ticks[(ticks > first) & (ticks < last)]
    return ticks[:: len(ticks) // 8 + 1]


def isosurface(field, level, other):
    """Triangles where a field (n, m, o) equals a level within its range, facing lower values; it is not periodic.

    Gives points (v, 3) in cells, (1, 0, 0) the centre of the second cell along x; faces (f, 3), indices of points; and
    the values (v,) of another field.
    """
    points, faces, *_ = marching_cubes(field, level, gradient_direction="ascent")
    return points, faces, map_coordinates(other, points.T, order=1)


def surface_explorer(parts, R=8.0):
    """The surface 1 + delta_R = level in a corner of the box, coloured by M, under a slider for the level (plotly).

    Parameters
    ----------
    R : Gaussian smoothing of the density [Mpc/h].
    """
    import plotly.graph_objects as go

    grid, cells = parts.grid, min(32, parts.grid.n)  # the side of the corner
    corner, side, delta_k = (slice(cells),) * 3, cells * grid.cell_size, to_fourier(parts.delta, grid)
    density = 1 + to_real(delta_k * smoothing_kernel(R, grid, delta_k), grid)[corner].numpy()
    M = (parts.M() / parts.M().mean())[corner].numpy()
    bottom, top = (round(float(x), 1) for x in np.quantile(density, (0.02, 0.995)))
    level, said = slider("1 + delta", min(max(1.6, bottom), top), bottom, top, 0.1), w.HTML()

    def mesh():
        points, faces, values = isosurface(density, level.value, M)
        low, high = np.quantile(values, (0.02, 0.98))
        said.value = (
            f"<b>1 + delta = {level.value:.1f}</b>, over {R:g} Mpc/h: {len(faces)} triangles, on which "
            f"M over its mean is {low:.2f} to {high:.2f}, in this corner of the box {M.min():.2f} to {M.max():.2f}"
        )
        corners = dict(zip("xyz", ((points + 0.5) * grid.cell_size).T.astype(np.float32), strict=True))
        sides = dict(zip("ijk", faces.T.astype(np.int32), strict=True))
        return corners | sides | {"intensity": values.astype(np.float32), "cmin": low, "cmax": high}

    # A figure that changes before it is shown is shown empty, so it starts with the surface it is going to show.
    first = mesh()
    walls = {"range": (0, side), "backgroundcolor": CLEAR, "gridcolor": "#888"}
    scene = {f"{a}axis": walls | {"title": f"{a} [Mpc/h]"} for a in "xyz"}
    scene |= {"aspectmode": "cube", "camera": {"eye": {"x": 1.5, "y": -1.7, "z": 0.9}}}
    look = {"width": 620, "height": 520, "paper_bgcolor": CLEAR, "font": {"color": "#888"}}
    drawn = go.Mesh3d(colorscale="Cividis", colorbar={"title": "M / mean"}, **first)
    figure = go.FigureWidget([drawn], layout=look | {"scene": scene, "margin": dict.fromkeys("tblr", 10)})
    follow(lambda _: figure.data[0].update(mesh()), level)
    panels = [w.VBox([said, figure])]
    return Explorer("M on a surface of equal density, in 3D", [level], panels, surface_picture(first, side))


def surface_picture(mesh, side):
    """PNG bytes of a mesh of `surface_explorer` in a cube of some side, lit: what a rendering without widgets shows."""
    figure, out = Figure(figsize=(6.2, 4.6)), io.BytesIO()
    ax = figure.add_subplot(projection="3d")
    points, faces = np.stack([mesh[a] for a in "xyz"], 1), np.stack([mesh[a] for a in "ijk"], 1)
    scale = ScalarMappable(Normalize(mesh["cmin"], mesh["cmax"]), colormaps[MAPS["M"]])
    look = {"facecolors": scale.to_rgba(mesh["intensity"][faces].mean(1)), "lw": 0, "antialiased": False}
    ax.add_collection3d(Poly3DCollection(points[faces], shade=True, lightsource=LightSource(300, 45), **look))
    ax.set(**{f"{a}lim": (0, side) for a in "xyz"}, **{f"{a}label": f"{a} [Mpc/h]" for a in "xyz"})
    ax.view_init(22, -60)
    figure.subplots_adjust(left=0, right=0.92, bottom=0.06, top=1.06)
    figure.colorbar(scale, ax=ax, label=r"$M/\langle M\rangle$", shrink=0.6, pad=0.1)
    figure.savefig(out, format="png", dpi=90)
    return out.getvalue()
