"""Maps that live in the browser: given all fields once, they are sliced, coloured and read out without a kernel."""

from pathlib import Path

import ipywidgets as w
import matplotlib
import matplotlib.pyplot as plt
import numpy as np
import torch
import traitlets as t
from matplotlib.cm import ScalarMappable
from matplotlib.colors import LightSource, Normalize
from matplotlib.ticker import MaxNLocator
from mpl_toolkits.axes_grid1 import ImageGrid
from mpl_toolkits.mplot3d.art3d import Poly3DCollection
from scipy.ndimage import map_coordinates
from skimage.measure import marching_cubes

from nbkit.show.controls import Picture
from nbkit.show.looks import LABELS, MAPS, SIGNED, SYMBOLS, brightness, colour_range, palette_hex, slice_of

HERE = Path(__file__).parent
LARGEST_HALF = 32768.0
# What Reset brings back.
STATE = ("axis", "index", "slab", "on", "view", "solid", "level", "turn")


class Axis(t.Int):
    """0, 1 or 2; "x", "y" and "z" are understood."""

    def validate(self, obj, value):
        if value not in ("x", "y", "z", 0, 1, 2):
            raise t.TraitError(f"axis is {value!r}; allowed are x, y, z.")
        return "xyz".index(value) if isinstance(value, str) else int(value)


class Maps(Picture):
    """Named fields of one periodic cube side by side, with one cursor; of terms, also M = softplus(bias + their sum).

    State that Python may read and set, the same in all views: `axis` (0, 1, 2), `index` and `slab` (first slice is 0;
    a slab is a mean over slices around it), `cursor` and `pinned` voxel [i, j, k] or [], `on` (terms; the others are
    replaced by their means), `ranges` {name: [low, high]} of what is drawn, `view` [x, y, zoom], `playing`; in three
    dimensions `solid` (0 for none, or which map is shown), its `level` (None for one chosen by its range), and `turn`
    [azimuth, elevation] in degrees.

    Parameters
    ----------
    fields : dict name -> (n, n, n) tensor or array.
    grid : the Grid they live on.
    terms : names of the fields that add up to eta; `M` is then computed in the browser.
    bias : the constant of eta.
    ranges : dict name -> (low, high) of the colours; default the central 99 %, about 0 for signed fields.
    labels, units, colours : dict name -> symbol, unit, name of a colour map of matplotlib.
    means : dict term -> what it is replaced by when it is off; default its mean over the box.
    origin : coordinate of the first face of the box [Mpc/h].
    solid, level : name of the field whose surface of equal value is shown in 3D, and that value; of signed fields also
        minus that.
    skin : name of the field that colours the surface; default itself.
    """

    _esm = "\n".join((HERE / name).read_text() for name in ("browser.js", "panels.js", "solid.js", "maps.js"))
    _css = (HERE / "maps.css").read_text()
    about, voxels = t.Dict().tag(sync=True), t.Dict().tag(sync=True)
    axis, index, slab = Axis(2).tag(sync=True), t.Int().tag(sync=True), t.Int(1).tag(sync=True)
    cursor, pinned = t.List().tag(sync=True), t.List().tag(sync=True)
    on, ranges = t.List().tag(sync=True), t.Dict().tag(sync=True)
    view, playing = t.List([0.5, 0.5, 1.0]).tag(sync=True), t.Bool().tag(sync=True)
    solid, level = t.Int().tag(sync=True), t.Float(None, allow_none=True).tag(sync=True)
    turn = t.List([-60.0, 25.0]).tag(sync=True)

    def __init__(
        self, fields, grid, terms=(), bias=0.0, axis="z", index=None, slab=1, ranges=None, labels=None, units=None,
        colours=None, means=None, origin=0.0, solid=None, level=None, skin=None, title="Maps",
    ):  # fmt: skip
        self.grid, self.title, self.terms, self.bias, self.fixed = grid, title, list(terms), float(bias), ranges or {}
        self.labels, self.units = SYMBOLS | (labels or {}), units or {}
        self.colours, self.known, self.fields = MAPS | (colours or {}), means or {}, {}
        names = [*fields, *["M"] * bool(terms)]
        if not fields:
            raise ValueError("There is no field to show; pass {name: field}.")
        for name in (*self.terms, *filter(None, (solid, skin))):
            if name not in names:
                raise ValueError(f"{name} is asked for but no field; there are {', '.join(names)}.")
        start = {"origin": float(origin), "n": grid.n, "cell": grid.cell_size, "terms": self.terms, "bias": self.bias}
        state = {"axis": axis, "index": grid.n // 2 if index is None else int(index), "slab": slab, "on": self.terms}
        state |= {"solid": names.index(solid) + 1 if solid else 0, "level": level}
        super().__init__(about=start | {"skin": skin}, layout=w.Layout(width="100%"), **state)
        self.update(fields)
        self.controls, self.flex = self._controls(), "2 1 540px" if solid else self.flex

    @t.validate("index")
    def _inside(self, proposal):
        if not 0 <= proposal["value"] < self.grid.n:
            raise t.TraitError(f"index is {proposal['value']}; it must be 0 ... {self.grid.n - 1}.")
        return proposal["value"]

    def update(self, fields):
        """Replace fields, of all names or of some; cursor, slice and colours' fixed ranges stay."""
        fields = {name: self._checked(name, field) for name, field in fields.items() if name != "M" or not self.terms}
        self.fields |= fields
        self.means = {name: float(self.fields[name].double().mean()) for name in self.terms} | self.known
        shown = self.shown()
        ends = {x: self.fixed.get(x) or colour_range(field, x, self._palette(x)) for x, field in shown.items()}
        bounds = {x: [low, high] if low < high else [low, low + 1e-6] for x, (low, high) in ends.items()}
        panels, voxels = [], dict(self.voxels)
        for name, field in shown.items():
            scale = 2.0 ** np.floor(np.log2(LARGEST_HALF / max(float(field.abs().max()), 1e-30)))
            if name in fields:
                voxels[name] = (field.double() * scale).half().numpy().tobytes()
            panel = {"name": name, "label": self.labels.get(name, name), "unit": self.units.get(name, "")}
            panel |= {"scale": float(1 / scale), "palette": self._palette(name), "log": name == "delta"}
            panel |= {"term": name in self.terms, "mean": self.means.get(name, 0.0)}
            panels.append(panel | {"signed": self._palette(name) == SIGNED})
        palettes = {panel["palette"]: palette_hex(panel["palette"]) for panel in panels}
        with self.hold_sync():
            self.voxels, self.ranges = voxels, bounds
            start = {name: getattr(self, name) for name in STATE} | self.about.get("start", {}) | {"ranges": bounds}
            self.about = self.about | {"panels": panels, "palettes": palettes, "start": start}

    def shown(self):
        """{name: field} of all maps, with M of the terms that are on."""
        return self.fields | ({"M": self.mark()} if self.terms else {})

    def mark(self):
        """M of the terms that are on, (n, n, n)."""
        eta = [self.fields[name] if name in self.on else self.means[name] for name in self.terms]
        return torch.nn.functional.softplus(self.bias + sum(eta) + torch.zeros(self.grid.shape))

    def figure(self, columns=4, above=0.0):
        """The maps as they are now by matplotlib: ticks in Mpc/h, colour bars with units, the pinned voxel.

        Parameters
        ----------
        columns : at most so many in a row.
        above : room that is left free above them [inches].
        """
        shown, box_size, origin = self.shown(), self.grid.box_size, self.about["origin"]
        rows = -(-len(shown) // columns)
        columns = -(-len(shown) // rows)
        beside = 3.0 if self.solid else 0.0  # inches
        width, height = 0.7 + 2.05 * columns + beside, 0.5 + 2.45 * rows + above
        figure, across = plt.figure(figsize=(width, height)), [i for i in range(3) if i != self.axis]
        place = 0.6 / width, 0.5 / height, 1 - (0.7 + beside) / width, 1 - (0.95 + above) / height
        look = {"axes_pad": (0.15, 0.5), "cbar_location": "top", "cbar_size": 0.07, "cbar_pad": 0.05}
        panels = ImageGrid(figure, place, (rows, columns), cbar_mode="each", share_all=True, label_mode="L", **look)
        # The box is periodic: a view beyond its edge begins with these cells.
        first = [int(np.floor((centre - 0.5 / self.view[2]) * self.grid.n)) for centre in self.view[:2]]
        extent = [origin + start * self.grid.cell_size + end for start in first for end in (0, box_size)]
        ends = [origin + box_size * (c + s / self.view[2]) for c in self.view[:2] for s in (-0.5, 0.5)]
        for ax, (name, field) in zip(panels, shown.items(), strict=False):
            low, high = self.ranges[name]
            picture = np.roll(brightness(self._cut(field), name), (-first[1], -first[0]), (0, 1))
            look = {"cmap": self._palette(name), "vmin": low, "vmax": high, "extent": extent, "origin": "lower"}
            image = ax.imshow(picture, alpha=0.25 if name in self.terms and name not in self.on else None, **look)
            bar, unit = ax.cax.colorbar(image, ticks=MaxNLocator(4, min_n_ticks=3)), self.units.get(name)
            bar.set_label(f"{self._label(name)} [{unit}]" if unit else self._label(name), fontsize=9)
            bar.ax.tick_params(labelsize=7, length=2)
            names = [f"{'xyz'[i]} [Mpc/h]" for i in across]
            ax.set(xlim=ends[:2], ylim=ends[2:], xlabel=names[0], ylabel=names[1])
            if self.pinned:
                at = [origin + (self.pinned[i] + 0.5) * self.grid.cell_size for i in across]
                ax.plot(*at, "o", mfc="none", mec="white", ms=8, mew=2.5)
                ax.plot(*at, "o", mfc="none", mec="black", ms=8, mew=1)
        for ax in panels[len(shown) :]:
            ax.set_visible(False)
            ax.cax.set_visible(False)
        if self.solid:
            self._draw_solid(figure.add_axes((1 - beside / width, 0.05, beside / width - 0.02, 0.85), projection="3d"))
        first, last = (origin + x * self.grid.cell_size for x in (self.index - (self.slab - 1) // 2, self.slab))
        words = (
            f"{first:.0f} … {first + last - origin:.0f}" if self.slab > 1 else f"{first + self.grid.cell_size / 2:.0f}"
        )
        figure.text(0.05 / width, 0.08 / height, f"{'xyz'[self.axis]} = {words} Mpc/h", fontsize=9)
        return figure

    def surface(self):
        """Corners (f, 3, 3) [Mpc/h] of the triangles where the solid field equals its level, and their skin (f,)."""
        names = list(self.shown())
        name, skin = names[self.solid - 1], self.about["skin"] or names[self.solid - 1]
        field, paint = (brightness(self.shown()[each], each) for each in (name, skin))
        low, high = self.ranges[name]
        level = self.level if self.level is not None else low + 0.75 * (high - low)
        triangles, values = [np.zeros((0, 3, 3))], [np.zeros(0)]
        for each in (level, -level) if self._palette(name) == SIGNED else (level,):
            if field.min() < each < field.max():
                points, faces, *_ = marching_cubes(field, each)
                triangles.append(self.about["origin"] + (points[faces] + 0.5) * self.grid.cell_size)
                values.append(map_coordinates(paint, points.T, order=1)[faces].mean(1))
        return np.concatenate(triangles), np.concatenate(values), skin

    def _draw_solid(self, ax):
        (triangles, values, skin), name = self.surface(), list(self.shown())[self.solid - 1]
        scale = ScalarMappable(Normalize(*self.ranges[skin]), matplotlib.colormaps[self._palette(skin)])
        look = {"facecolors": scale.to_rgba(values), "lw": 0, "antialiased": False}
        if len(triangles):
            ax.add_collection3d(Poly3DCollection(triangles, shade=True, lightsource=LightSource(300, 45), **look))
        ends = self.about["origin"], self.about["origin"] + self.grid.box_size
        ax.set(**{f"{a}lim": ends for a in "xyz"}, **{f"{a}label": f"{a} [Mpc/h]" for a in "xyz"})
        ax.locator_params(nbins=4)
        ax.tick_params(labelsize=7, pad=0)
        ax.set_box_aspect((1, 1, 1), zoom=0.85)
        ax.view_init(self.turn[1], self.turn[0])
        ax.set_title(f"surfaces of {self._label(name)}", fontsize=9)
        ax.figure.colorbar(scale, ax=ax, label=self._label(skin), shrink=0.6, pad=0.16)

    def _cut(self, field):
        """The mean over the slab, (n, n), as `slice_of`."""
        first = self.index - (self.slab - 1) // 2
        return np.mean([slice_of(field, self.axis, (first + s) % self.grid.n) for s in range(self.slab)], axis=0)

    def _label(self, name):
        if name == "delta":
            return r"$\log_{10}(1+\delta)$"
        return LABELS[name] if self.labels.get(name) == SYMBOLS.get(name, "") else self.labels.get(name, name)

    def _palette(self, name):
        return self.colours.get(name, SIGNED)

    def _checked(self, name, field):
        field = torch.as_tensor(field).detach().cpu()
        if tuple(field.shape) != self.grid.shape:
            raise ValueError(f"{name} has shape {tuple(field.shape)}; the grid has {self.grid.shape}.")
        if count := int((~torch.isfinite(field)).sum()):
            raise ValueError(f"{name} has {count} voxels that are not numbers (nan or infinite); a map cannot show it.")
        palette_hex(self._palette(name))
        return field.float()

    def _controls(self):
        """Axis, play, slice, slab and 3D, joined in the browser: they move the maps where there is no kernel, too."""
        last, narrow = self.grid.n - 1, {"description_width": "36px"}
        axis = w.ToggleButtons(options=["x", "y", "z"], index=self.axis, description="axis")
        row = w.Layout(display="flex", flex_flow="row nowrap", align_items="center", width="200px")
        axis.style, axis.layout = narrow | {"button_width": "36px"}, row
        play = w.ToggleButton(description="▶ play", tooltip="move through the box", layout=w.Layout(width="80px"))
        index = w.IntSlider(self.index, 0, last, description="slice", style=narrow, layout=w.Layout(width="300px"))
        slab = w.IntSlider(self.slab, 1, max(last // 2, 1), description="slab", style=narrow)
        names = ["none", *(panel["label"] for panel in self.about["panels"])]
        solid = w.Dropdown(options=names, index=self.solid, description="3D", style=narrow)
        slab.layout.width, solid.layout.width = "200px", "150px"
        for control, name in ((axis, "axis"), (solid, "solid")):
            w.jslink((control, "index"), (self, name))
        for control, name in ((play, "playing"), (index, "index"), (slab, "slab")):
            w.jslink((control, "value"), (self, name))
        return [axis, play, index, slab, solid]
