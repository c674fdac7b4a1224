"""Figures of a training, and the monitor before a person and without one."""

import asyncio
import csv
from dataclasses import replace
from math import log

import losses
import matplotlib.pyplot as plt
import pytest
from training_process import CONTRAST, RECIPE, trained

from nbkit import LearnedMark, disk, load
from nbkit.mark.classical import UnitMark
from nbkit.show import training as monitor

QUICK = replace(CONTRAST, recipe=replace(RECIPE, pretrain_epochs=1, epochs=2))


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder, view = tmp_path_factory.mktemp("runs"), monitor.Monitor()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NBKIT_RUNS", str(folder))
        learned = asyncio.run(view.during(trained, QUICK, folder / "a"))
        unit = trained(QUICK, folder / "b", fixed=UnitMark())
    return learned, unit, view


def test_losses_show_chance_perfection_and_references(runs):
    learned, unit, _ = runs
    figure = monitor.losses(learned, {"M = 1": unit.best_loss})
    lines = {line.get_label(): line.get_ydata() for line in figure.axes[0].get_lines()}
    assert list(lines["validation"]) == learned.column("val_loss")
    assert lines["M = 1, best validation"][0] == unit.best_loss
    levels = [line.get_ydata()[0] for line in figure.axes[0].get_lines()]
    assert log(RECIPE.negatives.total(8)) in levels
    assert 0 in levels
    plt.close(figure)


def test_curves_show_searches_the_heads_and_then_the_mark_from_its_start_on():
    run, of = load("mini_c2"), ("value", "low", "high")
    searched = {40: dict.fromkeys(of, 2.7), 120: dict(zip(of, (2.6, 2.5, 2.65), strict=True))}
    figure = losses.curves({"other": run, "one": run}, {"one": searched})
    ends, heads, own = (ax.get_lines()[-1] for ax in figure.axes)
    assert ends.get_xydata().tolist() == [[40, 2.7], [120, 2.6]] and ends.get_color() == own.get_color()
    heads, own = heads.get_ydata(), own.get_ydata()
    assert list(heads) == run.column("val_loss", "heads")
    assert list(own) == [min(heads), *run.column("val_loss", "marked")]
    plt.close(figure)


@pytest.mark.parametrize("l_max", [0, 1, 2])
def test_mark_figure_has_a_line_for_every_profile_and_term(runs, l_max):
    learned, _, _ = runs
    mark = LearnedMark(learned.grid, l_max)
    figure, axes = plt.subplots(1, 2)
    monitor._draw_mark(axes, mark, LearnedMark(learned.grid, l_max))
    assert len(axes[0].get_lines()) == 2 * (l_max + 1) + 1
    assert len(axes[1].get_lines()) == 2 * len(mark.responses.names)
    names = [text.get_text() for text in axes[0].get_legend().get_texts()]
    assert names == ["start", *(f"$G_{l}$" for l in range(l_max + 1))]
    assert len(axes[1].get_legend().get_texts()) == len(mark.responses.names)
    plt.close(figure)


def test_monitor_is_still_where_nobody_watches(runs):
    learned, _, view = runs
    assert learned.finished and view._image.value == b""


@pytest.mark.parametrize("name", ["demo_l2", "demo_i2"])
def test_losses_of_either_objective_are_drawn_against_their_own_reference(name):
    figure = monitor.losses(load(name))
    ax = figure.axes[0]
    assert ("InfoNCE" in ax.get_ylabel()) == (name == "demo_l2") != (r"\sigma" in ax.get_ylabel())
    assert list(ax.get_lines()[1].get_ydata()) == load(name).column("val_loss")
    plt.close(figure)


@pytest.mark.parametrize("head_epochs", [0, 1])
def test_button_is_heard_while_the_training_runs_and_not_the_next_time(head_epochs, tmp_path, monkeypatch):
    """Also where a stage begins with the loss of its start, before it has trained."""
    monkeypatch.setenv("NBKIT_RUNS", str(tmp_path))
    monkeypatch.setattr(monitor, "is_watched", lambda: True)
    view, seen = monitor.Monitor(), []

    def on_epoch(objective, progress):
        draw(objective, progress)
        seen.append((progress.stage, bytes(view._image.value)))
        if progress.stage == "marked":
            view._button.click()

    draw, training = view.on_epoch, replace(QUICK, recipe=replace(QUICK.recipe, epochs=3, head_epochs=head_epochs))
    monkeypatch.setattr(view, "on_epoch", on_epoch)
    stopped = asyncio.run(view.during(trained, training, tmp_path / "run"))
    assert not stopped.finished and len({image for _, image in seen}) == len(seen)
    assert [stage for stage, _ in seen] == ["unmarked", *["heads"] * head_epochs, "marked"]
    assert all(image.startswith(b"\x89PNG") for _, image in seen)
    monkeypatch.setattr(view, "on_epoch", draw)
    assert asyncio.run(view.during(trained, training, tmp_path / "run")).finished


def test_stored_comparison_of_recipes_is_drawn_whole():
    path = disk.figures() / "recipes_demo.csv"
    with path.open(newline="") as file:
        names = {row["recipe"] for row in csv.DictReader(file)}
    assert {"paper", "tuned"} <= names
    figure = losses.recipes(path)
    assert {line.get_label() for line in figure.axes[0].get_lines()} == names
    plt.close(figure)
