"""Maps that live in the browser: given all fields once, they are sliced, coloured and read out without a kernel."""

import io
from pathlib import Path

import anywidget
import ipywidgets as w
import matplotlib
import numpy as np
import torch
import traitlets as t
from PIL import Image, ImageDraw, ImageFont

from nbkit.show import MAPS, SIGNED, SYMBOLS, brightness, limits, slice_of
from nbkit.show.curves import Explorer

HERE = Path(__file__).parent
LARGEST_HALF = 32768.0
# What Reset brings back.
STATE = ("axis", "index", "slab", "on", "view")


class Axis(t.Int):
    """0, 1 or 2; "x", "y" and "z" are understood."""

    def validate(self, obj, value):
        if value not in ("x", "y", "z", 0, 1, 2):
            raise t.TraitError(f"axis is {value!r}; allowed are x, y, z.")
        return "xyz".index(value) if isinstance(value, str) else int(value)


class Maps(anywidget.AnyWidget):
    """Named fields of one periodic cube side by side, with one cursor; of terms, also M = softplus(bias + their sum).

    State that Python may read and set, the same in all views: `axis` (0, 1, 2), `index` and `slab` (first slice is 0;
    a slab is a mean over slices around it), `cursor` and `pinned` voxel [i, j, k] or [], `on` (terms; the others are
    replaced by their means), `ranges` {name: [low, high]} of what is drawn, `view` [x, y, zoom], `playing`.

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
    """

    _esm = "\n".join((HERE / name).read_text() for name in ("browser.js", "panels.js", "maps.js"))
    _css = (HERE / "maps.css").read_text()
    about, voxels = t.Dict().tag(sync=True), t.Dict().tag(sync=True)
    axis, index, slab = Axis(2).tag(sync=True), t.Int().tag(sync=True), t.Int(1).tag(sync=True)
    cursor, pinned = t.List().tag(sync=True), t.List().tag(sync=True)
    on, ranges = t.List().tag(sync=True), t.Dict().tag(sync=True)
    view, playing = t.List([0.5, 0.5, 1.0]).tag(sync=True), t.Bool().tag(sync=True)

    def __init__(
        self, fields, grid, terms=(), bias=0.0, axis="z", index=None, slab=1, ranges=None, labels=None, units=None,
        colours=None, means=None, origin=0.0, title="Maps",
    ):  # fmt: skip
        self.grid, self.title, self.terms, self.bias, self.fixed = grid, title, list(terms), float(bias), ranges or {}
        self.labels, self.units = SYMBOLS | (labels or {}), units or {}
        self.colours, self.known, self.fields = MAPS | (colours or {}), means or {}, {}
        if missing := [name for name in self.terms if name not in fields]:
            raise ValueError(f"{', '.join(missing)} is a term but no field; there are {', '.join(fields)}.")
        if not fields:
            raise ValueError("There is no field to show; pass {name: field}.")
        index = grid.n // 2 if index is None else int(index)
        start = {"origin": float(origin), "n": grid.n, "cell": grid.cell_size, "terms": self.terms, "bias": self.bias}
        super().__init__(about=start, axis=axis, index=index, slab=slab, on=self.terms, layout=w.Layout(width="100%"))
        self.update(fields)
        self.controls = self._controls()

    def __repr__(self):
        return f"<{self.title}: open in JupyterLab to move it>"

    def _repr_mimebundle_(self, **kwargs):
        return Explorer(self.title, [], [self])._repr_mimebundle_(**kwargs)

    def png(self, side=224, columns=4):
        """PNG bytes of the maps as they are now, for renderings without a browser."""
        font = ImageFont.truetype(Path(matplotlib.get_data_path()) / "fonts" / "ttf" / "DejaVuSans.ttf", 12)
        seen = self.fields | ({"M": self.mark()} if self.terms else {})
        rows = -(-len(seen) // columns)
        columns = -(-len(seen) // rows)
        image = Image.new("RGB", (columns * (side + 8), rows * (side + 22) + 18), "white")
        write = ImageDraw.Draw(image).text
        for i, (name, field) in enumerate(seen.items()):
            left, top = i % columns * (side + 8), i // columns * (side + 22)
            low, high = self.ranges[name]
            share = np.clip((brightness(self._cut(field), name) - low) / (high - low), 0, 1)
            colours = matplotlib.colormaps[self._palette(name)](share[::-1], bytes=True)[..., :3]
            image.paste(Image.fromarray(colours).resize((side, side), Image.Resampling.NEAREST), (left, top + 18))
            label = f"log(1+{self.labels[name]})" if name == "delta" else self.labels.get(name, name)
            words = f"{label}: {low:.2g} … {high:.2g} {self.units.get(name, '')}"
            write((left, top + 1), words, fill="black", font=font)
        at = self.about["origin"] + (self.index + 0.5) * self.grid.cell_size
        write((0, image.height - 17), f"{'xyz'[self.axis]} = {at:.0f} Mpc/h", fill="black", font=font)
        out = io.BytesIO()
        image.save(out, "png", optimize=True)
        return out.getvalue()

    def _cut(self, field):
        """The mean over the slab, (n, n), as `slice_of`."""
        first = self.index - (self.slab - 1) // 2
        return np.mean([slice_of(field, self.axis, (first + s) % self.grid.n) for s in range(self.slab)], axis=0)

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
        seen = self.fields | ({"M": self.mark()} if self.terms else {})
        bounds = {name: list(self.fixed.get(name) or limits(seen[name], name, self._palette(name))) for name in seen}
        bounds = {name: ends if ends[0] < ends[1] else [ends[0], ends[0] + 1e-6] for name, ends in bounds.items()}
        panels, voxels = [], dict(self.voxels)
        for name, field in seen.items():
            scale = 2.0 ** np.floor(np.log2(LARGEST_HALF / max(float(field.abs().max()), 1e-30)))
            if name in fields:
                voxels[name] = (field.double() * scale).half().numpy().tobytes()
            panel = {"name": name, "label": self.labels.get(name, name), "unit": self.units.get(name, "")}
            panel |= {"scale": float(1 / scale), "palette": self._palette(name), "log": name == "delta"}
            panels.append(panel | {"term": name in self.terms, "mean": self.means.get(name, 0.0)})
        palettes = {panel["palette"]: self._colours(panel["palette"]) for panel in panels}
        with self.hold_sync():
            self.voxels, self.ranges = voxels, bounds
            start = {name: getattr(self, name) for name in STATE} | self.about.get("start", {}) | {"ranges": bounds}
            self.about = self.about | {"panels": panels, "palettes": palettes, "start": start}

    def mark(self):
        """M of the terms that are on, (n, n, n)."""
        eta = [self.fields[name] if name in self.on else self.means[name] for name in self.terms]
        return torch.nn.functional.softplus(self.bias + sum(eta) + torch.zeros(self.grid.shape))

    def _palette(self, name):
        return self.colours.get(name, SIGNED)

    def _colours(self, palette):
        if palette not in matplotlib.colormaps:
            raise ValueError(f"There is no colour map {palette!r}; matplotlib has magma, viridis, PuOr_r and others.")
        return (255 * matplotlib.colormaps[palette](np.arange(256))[:, :3]).astype(np.uint8).tobytes().hex()

    def _checked(self, name, field):
        field = torch.as_tensor(field).detach().cpu()
        if tuple(field.shape) != self.grid.shape:
            raise ValueError(f"{name} has shape {tuple(field.shape)}; the grid has {self.grid.shape}.")
        if count := int((~torch.isfinite(field)).sum()):
            raise ValueError(f"{name} has {count} voxels that are not numbers (nan or infinite); a map cannot show it.")
        self._colours(self._palette(name))
        return field.float()

    def _controls(self):
        """Axis, play, slice and slab, joined to the maps in the browser: they move where there is no kernel, too."""
        last, narrow = self.grid.n - 1, {"description_width": "36px"}
        axis = w.ToggleButtons(options=["x", "y", "z"], index=self.axis, description="axis")
        row = w.Layout(display="flex", flex_flow="row nowrap", align_items="center", width="200px")
        axis.style, axis.layout = narrow | {"button_width": "36px"}, row
        play = w.ToggleButton(description="▶ play", tooltip="move through the box", layout=w.Layout(width="80px"))
        index = w.IntSlider(self.index, 0, last, description="slice", style=narrow, layout=w.Layout(width="300px"))
        slab = w.IntSlider(self.slab, 1, max(last // 2, 1), description="slab", style=narrow)
        slab.layout.width = "200px"
        w.jslink((axis, "index"), (self, "axis"))
        for control, name in ((play, "playing"), (index, "index"), (slab, "slab")):
            w.jslink((control, "value"), (self, name))
        return [axis, play, index, slab]
