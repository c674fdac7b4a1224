"""The two drop-downs above a notebook: the mark that is looked at, and the one it is compared with."""

import ipywidgets as w
import matplotlib.pyplot as plt
from IPython.display import clear_output, display
from matplotlib.figure import Figure

from nbkit.disk import OneSentence
from nbkit.mark.classical import classical_marks
from nbkit.show.curves import follow
from nbkit.train import bundled_runs, load, own_runs
from nbkit.universe.farm import is_watched


class WrongMark(OneSentence, ValueError):
    """A mark of another kind than the notebook is about."""


class Picker(w.HBox):
    """A mark and its rival, chosen by a person or by the notebook's parameters; what it shows follows them.

    Attributes
    ----------
    run, versus : the Runs, as `nbkit.load` gives them.

    Parameters
    ----------
    run, versus : names, for `nbkit.load`.
    preset : the marks to choose from were trained on its boxes.
    accept : Run -> whether it can be the first of the two [any can].
    kind : what such a run is, in words.
    """

    def __init__(self, run, versus, preset, accept=lambda run: True, kind="a trained mark"):
        self.run, self.versus = load(run, preset), load(versus, preset)
        if not accept(self.run):
            raise WrongMark(f"run is {run!r}; this notebook looks at {kind}.")
        names = [*own_runs(preset), *bundled_runs(preset), *classical_marks()]
        chosen = self.run.name, self.versus.name
        names = dict.fromkeys([*names, *chosen])
        look = {"layout": w.Layout(width="360px"), "style": {"description_width": "90px"}}
        first = [name for name in names if name == chosen[0] or accept(load(name, preset))]
        self._first = w.Dropdown(options=first, value=chosen[0], description="mark", **look)
        self._second = w.Dropdown(options=list(names), value=chosen[1], description="beside", **look)
        super().__init__([self._first, self._second], layout=w.Layout(flex_flow="row wrap"))
        self._known = dict(zip(chosen, (self.run, self.versus), strict=True))
        self._preset, self._redraw = preset, []
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
        for name in (self._first.value, self._second.value):
            if name not in self._known:
                self._known[name] = load(name, self._preset)
        self.run, self.versus = self._known[self._first.value], self._known[self._second.value]
        for redraw in self._redraw:
            redraw()
