"""What stands around pictures: sliders, the explorer that joins both, and the drop-downs that choose marks."""

import base64
import io
from functools import cache, partial

import anywidget
import ipywidgets as w
import matplotlib.pyplot as plt
import numpy as np
from anywidget.experimental import command
from IPython.display import clear_output, display
from matplotlib.figure import Figure
from PIL import Image

from nbkit.disk import OneSentence
from nbkit.mark.classical import classical_marks
from nbkit.train import bundled_runs, load, own_runs
from nbkit.universe.farm import is_watched

WRAPPED = {"flex_flow": "row wrap", "align_items": "flex-start", "width": "100%"}


class Explorer(w.VBox):
    """Controls above, those of the pictures in a row of their own, pictures below; where nobody is there, one picture.

    Parameters
    ----------
    title : what the stored text says it is.
    controls, panels : widgets.
    static : PNG bytes of the state it starts in; default those of the panels that have some, side by side.
    """

    def __init__(self, title, controls, panels, static=None):
        rows = [controls, [control for panel in panels for control in getattr(panel, "controls", ())]]
        above, below = ([w.Box(row, layout=w.Layout(**WRAPPED)) for row in part if row] for part in (rows, [panels]))
        super().__init__([w.VBox(above), *below])
        self.add_class("nbkit-explorer")
        pictures = [panel for panel in panels if isinstance(panel, Picture)]
        for panel in pictures if len(panels) > 1 else ():
            panel.layout = w.Layout(flex=panel.flex, width="auto", min_width="280px")
        self.title, self.controls, self.panels = title, controls, panels
        self.static = static or side_by_side(*(panel.png() for panel in pictures))

    def __repr__(self):
        return f"<{self.title}: open in JupyterLab to move it>"

    def _repr_mimebundle_(self, **kwargs):
        bundle = super()._repr_mimebundle_(**kwargs)
        return bundle | {"text/plain": repr(self), "image/png": base64.b64encode(self.static).decode()}


class Picture(anywidget.AnyWidget):
    """A picture that lives in the browser; its `figure()` is the same state by matplotlib, to keep or to print."""

    controls, flex = (), "1 1 380px"

    def __repr__(self):
        return f"<{self.title}: open in JupyterLab to move it>"

    def _repr_mimebundle_(self, **kwargs):
        return Explorer(self.title, [], [self])._repr_mimebundle_(**kwargs)

    def png(self, **look):
        """PNG bytes of the picture as it is now."""
        return picture_bytes(self.figure(**look))

    @command
    def _save(self, kind, buffers):
        """What the browser asks for when a picture is to be saved; at first, without a kind, whether anyone is here."""
        return kind, [picture_bytes(self.figure(), kind, dpi=200)] if kind else []


def picture_bytes(figure, kind="png", dpi=80):
    """A figure, which is closed, as bytes of a PNG or a PDF."""
    out = io.BytesIO()
    figure.savefig(out, format=kind, dpi=dpi, facecolor="white")
    plt.close(figure)
    return out.getvalue()


def side_by_side(*pngs):
    """PNG pictures joined into one, bottom-aligned on white: what a rendering without widgets shows."""
    images, out = [np.asarray(Image.open(io.BytesIO(x)).convert("RGB")) for x in pngs], io.BytesIO()
    height = max(len(x) for x in images)
    room = [((height - len(x), 0), (0, 12), (0, 0)) for x in images]
    joined = np.concatenate([np.pad(x, r, constant_values=255) for x, r in zip(images, room, strict=True)], axis=1)
    Image.fromarray(joined).save(out, "png", optimize=True)
    return out.getvalue()


def follow(update, *controls):
    """Call update(change) whenever one of the controls has a new value."""
    for control in controls:
        control.observe(update, names="value")


def slider(description, value, low, high, step):
    """A slider that reports while it is dragged; whole numbers if its step is one."""
    kind = w.IntSlider if isinstance(step, int) else w.FloatSlider
    look = {"layout": w.Layout(width="400px"), "style": {"description_width": "130px"}}
    return kind(value=value, min=low, max=high, step=step, description=description, **look)


class WrongMark(OneSentence, ValueError):
    """A mark of another kind than the notebook is about."""


class Picker(w.HBox):
    """A mark and its rival, chosen by a person or by the notebook's parameters; what it shows follows them.

    Parameters
    ----------
    run, versus : names for `nbkit.load`; as attributes the Runs.
    preset : the marks to choose from were trained on its boxes.
    accept : Run -> whether it can be the first of the two [any can].
    kind : what such a run is, in words.
    own : preset of the own runs to choose from; "" for those of all presets.
    """

    def __init__(self, run, versus, preset, accept=lambda run: True, kind="a trained mark", own=None):
        self._load, self._redraw = cache(partial(load, preset=preset)), []
        self.run, self.versus = self._load(run), self._load(versus)
        if not accept(self.run):
            raise WrongMark(f"run is {run!r}; this notebook looks at {kind}.")
        chosen, mine = (self.run.name, self.versus.name), own_runs(preset if own is None else own)
        names = dict.fromkeys([*mine, *bundled_runs(preset), *classical_marks(), *chosen])
        look = {"layout": w.Layout(width="360px"), "style": {"description_width": "90px"}}
        first = [name for name in names if name == chosen[0] or _fits(name, preset, accept)]
        self._first = w.Dropdown(options=first, value=chosen[0], description="mark", **look)
        self._second = w.Dropdown(options=list(names), value=chosen[1], description="beside", **look)
        super().__init__([self._first, self._second], layout=w.Layout(flex_flow="row wrap"))
        self.add_class("nbkit-picker")
        follow(self._choose, self._first, self._second)

    def __repr__(self):
        return f"<{self.run.name} beside {self.versus.name}: choose others in JupyterLab>"

    def _repr_mimebundle_(self, **kwargs):
        return super()._repr_mimebundle_(**kwargs) | {"text/plain": repr(self)}

    def show(self, draw):
        """What draw(run, versus) gives: a figure, a table or an explorer, made anew whenever another mark is chosen."""
        if not is_watched():
            drawn = draw(self.run, self.versus)
            return None if isinstance(drawn, Figure) else drawn  # the notebook shows open figures by itself
        place = w.Output()

        def redraw():
            with place:
                clear_output(wait=True)
                try:
                    display(draw(self.run, self.versus))
                except ValueError as problem:
                    display(w.HTML(f"<b>{problem}</b>"))
                plt.close("all")

        redraw()
        self._redraw.append(redraw)
        return place

    def _choose(self, _):
        self.run, self.versus = self._load(self._first.value), self._load(self._second.value)
        for redraw in self._redraw:
            redraw()


def _fits(name, preset, accept):
    try:
        return accept(load(name, preset))
    except (FileNotFoundError, ValueError):  # a training without a checkpoint yet, or of another version
        return False
