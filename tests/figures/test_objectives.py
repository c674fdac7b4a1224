"""Both objectives side by side: the plan, the table, its figures, and marks that stay as they are."""

import matplotlib.pyplot as plt
import numpy as np
import objective_plots
import objective_table
import pytest
import torch
from fake import FakeSet
from frozen import FrozenMark
from nbkit.train.train import train
from objective_table import KMAX, NUMBERS, Training, planned
from training_process import RECIPE

from nbkit import ClassicalMark, LearnedMark, disk
from nbkit.forecast.fisher import UNMARKED
from nbkit.train.run import load_run

ENDS = {"": 1.2, "_low": 1.1, "_high": 1.3}


def test_plan_names_runs_and_the_commands_that_make_them(monkeypatch, tmp_path):
    monkeypatch.setenv("NBKIT_RUNS", str(tmp_path))
    assert len({each.label for each in planned()}) == len(planned()) == 7
    one = Training("information", 0.2, "unit")
    assert one.run("demo") is None
    source = (disk.figures().parent / "notebooks" / "03_train.ipynb").read_text()
    words = one.command("demo").split()
    assert words[:2] == ["papermill", "notebooks/03_train.ipynb"]
    given = dict(zip(words[4::3], words[5::3], strict=True))
    assert given == {"preset": "demo", "objective": "information", "start": "unit", "kmax": "0.2", "compare": "False"}
    assert all(f'"{name}: ' in source for name in given)
    with pytest.raises(FileNotFoundError, match=r"1 of 1 trainings .*-p start unit -p kmax 0\.2"):
        objective_table.table([one], "demo")


def test_heads_are_trained_on_a_mark_that_stays_as_it_is(tmp_path):
    simulations = FakeSet(48, n=8)
    options = {"recipe": RECIPE, "device": "cpu", "progress": False}
    learned = train(simulations, tmp_path / "a", **options)
    mark = FrozenMark(str(learned.folder))
    run = train(simulations, tmp_path / "b", mark=mark, **options)
    assert isinstance(run.mark, FrozenMark) and run.mark == mark
    delta = simulations[[0, 1]]
    assert torch.equal(mark(delta, simulations.grid), load_run(learned.folder).mark(delta, simulations.grid))


def fake_rows():
    """A table with every kind of row."""
    about = [(UNMARKED, None, None, None), ("p=2 ds=0", None, None, None), ("a", "contrast", None, 0.3)]
    about += [("b", "information", "unit", 0.2), ("c", "information", "demo_l2", 0.3)]
    rows = []
    for kmax in KMAX:
        for i, (mark, objective, start, trained_kmax) in enumerate(about):
            row = {"mark": mark, "objective": objective, "start": start, "trained_kmax": trained_kmax, "run": None}
            value = 0.1 / (1 + i)
            numbers = {name: value * (0.9 if "_low" in name else 1.1 if "_high" in name else 1) for name in NUMBERS}
            rows.append(row | {"kmax": kmax, "info_nce": 4.0 + 0.1 * i} | numbers)
    return rows


def test_table_is_read_as_it_was_written(tmp_path):
    rows = fake_rows()
    objective_table.write(rows, tmp_path / "table.csv")
    for before, after in zip(rows, objective_table.read(tmp_path / "table.csv"), strict=True):
        assert {k: v for k, v in after.items() if isinstance(v, str)} == {
            k: v for k, v in before.items() if isinstance(v, str)
        }
        numbers = [name for name in before if isinstance(before[name], float)]
        assert np.allclose([after[name] for name in numbers], [before[name] for name in numbers], rtol=1e-3)


def test_every_mark_is_a_point_in_both_tasks():
    figure = objective_plots.two_tasks(fake_rows())
    for ax in figure.axes:
        assert sorted(text.get_text() for text in ax.texts) == ["0", "1", "2", "3", "4"]
    (legend,) = figure.legends
    assert len(legend.get_texts()) == 5
    plt.close(figure)


def test_every_search_is_a_point_on_the_line_of_its_kind():
    ratios = {f"ratio_{p}_k{k:g}{end}": f"{x}" for p in ("Om", "s8") for k in KMAX for end, x in ENDS.items()}
    rows = [{"mark": mark, "info_nce": f"{3 - i / 10}"} | ratios for i, mark in enumerate(("some", "some", "others"))]
    figure = objective_plots.searches(rows)
    assert [text.get_text() for text in figure.axes[0].get_yticklabels()] == ["some", "others"]
    places = [(line.get_xdata()[0], line.get_ydata()[0]) for line in figure.axes[0].get_lines()]
    assert places == [(3.0, 0), (2.9, 0), (2.8, 1)]
    assert [len(ax.containers) for ax in figure.axes[1:]] == [6, 6]
    plt.close(figure)


@pytest.mark.parametrize("l_max", [0, 2])
def test_marks_stand_side_by_side(lognormal, l_max):
    delta, grid = lognormal(12, dtype=torch.float32)
    learned = LearnedMark(grid, l_max)
    with torch.no_grad():
        learned.responses.v.normal_()
    figure = objective_plots.side_by_side({"learned": learned, "classical": ClassicalMark(2.0, 0.0)}, delta, grid)
    lines = [len([x for x in ax.get_lines() if not x.get_label().startswith("_")]) for ax in figure.axes[:4]]
    assert lines == [l_max + 1, 1, len(learned.responses.names), 1]
    plt.close(figure)
