"""Figures of a training, the monitor without a person, and training from a shell."""

import asyncio
import csv
from dataclasses import replace
from math import log

import losses
import matplotlib.pyplot as plt
import pytest
import trainings
from fake import FakeSet
from nbkit.train.train import train
from training_process import RECIPE

from nbkit import LearnedMark, disk
from nbkit.mark.classical import UnitMark
from nbkit.show import training as monitor
from nbkit.train import launch


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    simulations, folder = FakeSet(40), tmp_path_factory.mktemp("runs")
    view = monitor.Monitor()
    quick = replace(RECIPE, pretrain_epochs=1, epochs=2)
    learned = asyncio.run(view.during(train, simulations, folder / "a", recipe=quick, device="cpu"))
    unit = train(simulations, folder / "b", recipe=quick, mark=UnitMark(), device="cpu")
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
    run, of = trainings.shipped()["mini_c2"], ("value", "low", "high")
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
    assert len(axes[0].get_lines()) == 2 * (l_max + 1)
    assert len(axes[1].get_lines()) == 2 * len(mark.responses.names)
    plt.close(figure)


def test_monitor_is_still_where_nobody_watches(runs):
    learned, _, view = runs
    assert learned.finished and view._image.value == b""


def test_button_is_heard_while_the_training_runs_and_not_the_next_time(tmp_path, monkeypatch):
    monkeypatch.setattr(monitor, "is_watched", lambda: True)
    view, seen = monitor.Monitor(), []

    def on_epoch(trainer):
        seen.append(bytes(view._image.value))
        view._button.click()

    monkeypatch.setattr(view, "on_epoch", lambda t, draw=view.on_epoch: (draw(t), on_epoch(t)))
    options = {"recipe": replace(RECIPE, pretrain_epochs=1, epochs=3), "device": "cpu"}
    stopped = asyncio.run(view.during(train, FakeSet(40), tmp_path, **options))
    assert not stopped.finished and seen[0].startswith(b"\x89PNG")
    monkeypatch.setattr(view, "on_epoch", lambda trainer: None)
    assert asyncio.run(view.during(train, FakeSet(40), tmp_path, **options)).finished


def test_stored_comparison_of_recipes_is_drawn_whole():
    path = disk.figures() / "recipes_demo.csv"
    with path.open(newline="") as file:
        names = {row["recipe"] for row in csv.DictReader(file)}
    assert {"paper", "tuned"} <= names
    figure = losses.recipes(path)
    assert {line.get_label() for line in figure.axes[0].get_lines()} == names
    plt.close(figure)


def test_words_of_the_command_line():
    asked = launch.arguments(["out", "--preset", "mini", "--kmax", "0.2", "--no-residual", "--recipe", "paper"])
    assert (asked.preset, asked.kmax, asked.residual, asked.recipe) == ("mini", 0.2, False, "paper")
    words = launch.words(residual=False, preset="mini", kmax=0.2, recipe=None, data_root="", l_max=1)
    assert words == ["--preset", "mini", "--kmax", "0.2", "--l-max", "1", "--no-residual"]
    assert launch.arguments(["out", *words]).l_max == 1
    assert not launch.arguments(["out", *launch.words(cross=False)]).cross
    assert launch.run_name(kmax=0.2, l_max=1) == "demo_default_k0.2_l1_fourier_residual_seed0"
    assert launch.run_name("mini", residual=False, cross=False) == "mini_default_k0.3_l2_fourier_plain_nocross_seed0"


def test_a_failing_process_is_reported_with_its_log(tmp_path):
    with pytest.raises(RuntimeError, match=r"(?s)The training ended with code \d+; the end of .*log.txt"):
        list(launch.follow(tmp_path / "run", 1, preset="nothing"))
    assert "invalid choice: 'nothing'" in (tmp_path / "run" / "log.txt").read_text()
