"""A training as it goes: the loss figure, and a live view with a stop button for JupyterLab."""

import asyncio
from copy import deepcopy
from functools import partial
from math import log

import ipywidgets as w
import torch
from matplotlib.figure import Figure

from nbkit.mark.learned import LearnedMark
from nbkit.show.controls import picture_bytes
from nbkit.show.looks import BLACK, BLUE, COLOURS, LABELS, ORANGE, row_of_panels
from nbkit.show.mark import draw_profiles
from nbkit.universe.farm import is_watched

COLUMNS = ("passes", "train_loss", "val_loss")


def chance(recipe):
    """InfoNCE of embeddings that cannot tell the candidates apart: log of their number."""
    return log(recipe.negatives.total(recipe.batch))


def losses(run, references=None):
    """Loss against simulation passes, between chance and perfection, beside what fixed marks reach.

    Parameters
    ----------
    run : the Run to show.
    references : {label: best validation loss} of other marks, each a line.
    """
    figure, axes = row_of_panels(1, 7.0, 4.0)
    _draw_losses(axes[0, 0], *map(run.column, COLUMNS), None if run.heads is None else chance(run.recipe))
    for (label, loss), style in zip((references or {}).items(), ("--", "-.", ":"), strict=False):
        axes[0, 0].axhline(loss, color=BLACK, ls=style, lw=1.2, label=f"{label}, best validation")
    axes[0, 0].legend(**({} if run.heads is None else {"loc": "lower right", "bbox_to_anchor": (1, 0.08)}))
    return figure


def responses(run, start=None):
    """Radial profiles G_l and the terms h_a of the mark, as trained and, dashed, as they were at `start`."""
    figure, axes = row_of_panels(2, 4.5, 3.4)
    _draw_mark(axes[0], run.mark, start)
    return figure


def _draw_losses(ax, passes, train_loss, val_loss, at_chance):
    """Both losses against passes: InfoNCE between chance and perfection, or information where chance is None."""
    ax.plot(passes, train_loss, ".-", color=ORANGE, label="training")
    ax.plot(passes, val_loss, ".-", color=BLUE, label="validation")
    ax.set_xlabel("simulation passes")
    if at_chance is None:
        _level(ax, 0, r"$P_{\delta\delta}$ alone", -12)
        ax.set_ylabel(r"mean log($\sigma$ / $\sigma$ of $P_{\delta\delta}$ alone)")
        ax.set_ylim(top=0.05)
        return
    _level(ax, at_chance, "chance: log(candidates)", -12)
    _level(ax, 0, "perfection", 4)
    told = [loss for loss in (*train_loss, *val_loss) if loss is not None]
    ax.set(ylabel="InfoNCE", ylim=(-0.2, min(max([at_chance, *told]), 2 * at_chance) * 1.05))


def _level(ax, y, what, above):
    """A grey line across, with its name at the left, some points above it."""
    ax.axhline(y, color="0.6", lw=1)
    place = {"xycoords": ax.get_yaxis_transform(), "textcoords": "offset points"}
    ax.annotate(what, (0, y), (4, above), color="0.4", fontsize=8, **place)


@torch.no_grad()
def _draw_mark(axes, mark, start=None):
    mark, start = (None if each is None else deepcopy(each).to("cpu") for each in (mark, start))  # it is being trained
    draw_profiles(axes[0], mark, start)
    x = torch.linspace(-2, 2, 201)
    strong = torch.expm1(x.abs())
    # Shape only: what a term adds to a zero of its invariant is one with the bias.
    seen = {"E0": torch.sign(x) * strong, "E1": strong, "E2": strong, "I3": 0.2 * x}
    for each, line in ((start, "--"), (mark, "-")):
        terms = {} if each is None else each.responses.terms(seen)
        for name in () if each is None else each.responses.names:
            h = terms[f"h_{name}"]
            right = x >= 0 if name in ("E1", "E2") else x > -9
            label = LABELS[f"h_{name}"] if each is mark else None
            at = seen["I3"] if name == "I3" else x
            axes[1].plot(at[right], (h - h[x.abs().argmin()])[right], line, color=COLOURS[name], label=label)
    axes[1].set(xlabel=r"sgn(x) log(1 + |x|) of the invariant ($I_3$: itself)", ylabel=r"added to $\eta$, 0 at 0")
    axes[1].legend()


class Monitor(w.VBox):
    """Live loss curve, profiles and responses, and a stop button: `run = await view.during(nb.train, training)`.

    Without a person to look at it (papermill, nbval) it draws nothing and never asks to stop.
    """

    def __init__(self):
        self._button = w.Button(description="Stop, keep the best", icon="stop", layout={"width": "13em"})
        self._button.on_click(lambda _: setattr(self, "_asked", True))
        self._image, self._asked, self._live = w.Image(format="png"), False, is_watched()
        super().__init__([self._button, self._image])

    def __repr__(self):
        return "<training monitor: live in JupyterLab>"

    async def during(self, train, *arguments, **options):
        """What train(*arguments, **options) returns, followed here until it ends or the button is pressed.

        Before a person it runs in a thread, because a kernel hears of a button only while its own is free. Interrupting
        the kernel does the same as the button.
        """
        self._asked = False
        call = partial(train, *arguments, stop=lambda: self._asked, on_epoch=self.on_epoch, **options)
        if not self._live:
            return call()
        try:
            return await asyncio.to_thread(call)
        finally:
            self._asked = True

    def on_epoch(self, objective, progress):
        """Draw the training as it is now."""
        if not self._live:
            return
        rows = [row for row in progress.history if row["stage"] == progress.stage]
        figure = Figure(figsize=(12, 3.4), layout="constrained")
        axes = figure.subplots(1, 3)
        _draw_losses(axes[0], *([row[name] for row in rows] for name in COLUMNS), objective.chance)
        axes[0].set_title(f"stage {progress.stage}, epoch {progress.epoch}", fontsize=9)
        if isinstance(mark := getattr(objective, "mark", None), LearnedMark):
            _draw_mark(axes[1:], mark)
        self._image.value = picture_bytes(figure)
