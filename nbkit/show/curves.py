"""Curves, nodes and error ellipses that live in the browser; and the explorer that joins pictures and their controls."""

import base64
import io
from pathlib import Path

import anywidget
import ipywidgets as w
import matplotlib.pyplot as plt
import numpy as np
import traitlets as t
from PIL import Image

from nbkit.show import CYCLE, SYMBOLS

HERE = Path(__file__).parent


class Explorer(w.VBox):
    """Controls above, pictures below, and a static picture for renderings without a kernel.

    Parameters
    ----------
    title : what the stored text says it is.
    controls, panels : widgets.
    static : PNG bytes of the state it starts in; default those of the panels that have some, side by side.
    """

    def __init__(self, title, controls, panels, static=None):
        wrapped = {"flex_flow": "row wrap", "align_items": "flex-start", "width": "100%"}
        super().__init__([w.Box(controls, layout=w.Layout(**wrapped)), w.Box(panels, layout=w.Layout(**wrapped))])
        self.add_class("nbkit-explorer")
        self.title, self.controls, self.panels = title, controls, panels
        self.static = static or side_by_side(*(panel.png() for panel in panels if hasattr(panel, "png")))

    def __repr__(self):
        return f"<{self.title}: open in JupyterLab to move it>"

    def _repr_mimebundle_(self, **kwargs):
        bundle = super()._repr_mimebundle_(**kwargs)
        return bundle | {"text/plain": repr(self), "image/png": base64.b64encode(self.static).decode()}


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


def slider(description, value, low, high, step):
    """A slider that reports while it is dragged; whole numbers if its step is one."""
    kind = w.IntSlider if isinstance(step, int) else w.FloatSlider
    look = {"layout": w.Layout(width="400px"), "style": {"description_width": "130px"}}
    return kind(value=value, min=low, max=high, step=step, description=description, **look)
