"""Pictures drawn in the kernel, for explorers that are not yet on `nbkit.show.maps` and `nbkit.show.curves`."""

import io

import ipywidgets as w
import matplotlib
import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from PIL import Image

from nbkit.show.curves import Explorer, side_by_side, slider
from nbkit.show.filters import invariant_explorer, kernel_explorer, kernel_surface
from nbkit.show.universe import universe_explorer

__all__ = [
    "LAYOUT",
    "STYLE",
    "Explorer",
    "LiveLines",
    "choice",
    "invariant_explorer",
    "kernel_explorer",
    "kernel_surface",
    "observed",
    "picture",
    "side_by_side",
    "slider",
    "universe_explorer",
    "w",
]
LAYOUT = w.Layout(width="420px")
STYLE = {"description_width": "130px"}


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


class LiveLines:
    """Axes drawn once and lines drawn again whenever they change: what a slider needs, in milliseconds.

    Parameters
    ----------
    settings : passed to `ax.set`: labels, limits.
    """

    def __init__(self, figsize=(4.2, 3.2), dpi=80, **settings):
        self.figure = Figure(figsize=figsize, dpi=dpi)
        self.canvas = FigureCanvasAgg(self.figure)
        self.figure.subplots_adjust(left=0.17, right=0.97, bottom=0.2, top=0.95)
        self.ax = self.figure.subplots()
        self.ax.set(**settings)
        self.lines, self.background = [], None

    def line(self, x, y, **look):
        """A line that is going to change; its `set_data` is how."""
        (line,) = self.ax.plot(x, y, animated=True, **look)
        self.lines.append(line)
        return line

    def png(self):
        """The axes with the lines as they are now, as PNG bytes."""
        if self.background is None:
            self.canvas.draw()
            self.background = self.canvas.copy_from_bbox(self.figure.bbox)
        self.canvas.restore_region(self.background)
        for line in self.lines:
            self.ax.draw_artist(line)
        out = io.BytesIO()
        Image.fromarray(np.asarray(self.canvas.buffer_rgba())[..., :3]).save(out, "png", compress_level=1)
        return out.getvalue()
