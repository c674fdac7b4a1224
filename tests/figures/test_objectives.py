"""Both objectives side by side: the plan, the table, its figures."""

from types import SimpleNamespace

import matplotlib.pyplot as plt
import numpy as np
import objective_plots
import objectives
import pytest
import torch
from ablations import ENDS, PARAMETERS
from objectives import KMAX, NUMBERS, planned

import nbkit as nb
from nbkit import disk
from nbkit.forecast import UNMARKED

FACTORS = dict(zip(ENDS, (1.2, 1.1, 1.3), strict=True))


def test_plan_has_every_start_and_names_what_is_missing(monkeypatch, tmp_path):
    monkeypatch.setenv("NBKIT_RUNS", str(tmp_path))
    labels = [objectives.mark_label(each) for each in planned()]
    assert len(set(labels)) == len({each.name for each in planned()}) == 7
    stored = {row["mark"] for row in objectives.read(disk.figures() / "objectives_demo.csv") if row["objective"]}
    assert set(labels) == stored
    source = (disk.figures().parent / "notebooks" / "03_train.ipynb").read_text()
    for each in planned():
        words = each.papermill().split()
        assert all(f'"{name}: ' in source for name in words[4::3])
    with pytest.raises(FileNotFoundError, match=r"4 of 7 trainings .*-p kmax 0\.2.*figures/objectives\.py` all"):
        objectives.table(planned(), "demo")


def test_runs_of_the_kit_are_those_of_the_plan(monkeypatch, tmp_path):
    monkeypatch.setenv("NBKIT_RUNS", str(tmp_path))
    found = {objectives.mark_label(each): objectives.finished_run(each) for each in planned()}
    assert {label: run.name for label, run in found.items() if run} == {
        "contrast, k < 0.3": "demo_l2",
        "information, from function, k < 0.2": "demo_i2",
        "information, from function, k < 0.3": "demo_i3",
    }


def test_judges_are_boxes_that_nothing_else_uses():
    judges, preset = objectives.judges("demo"), nb.universe.PRESETS["demo"]
    for name in ("fiducial", "Om_p"):
        seeds = [set(each.contents(name).seeds.tolist()) for each in (judges, preset, preset.near)]
        assert len(seeds[0]) == objectives.JUDGES * len(seeds[1])
        assert not seeds[0] & (seeds[1] | seeds[2])


def test_table_has_a_row_a_mark_and_kmax(monkeypatch):
    """Each mark with the loss of heads that read it, and the best of 48 over it."""
    values, label = {f"{what}_{name}": (1.0, 0.9, 1.1) for what in ("sigma", "mse") for name in PARAMETERS}, "p=2 ds=0"
    runs = {each: SimpleNamespace(mark=objectives.mark_label(each), name=each.name) for each in planned()}
    rows = np.arange(5)

    class Sigma:
        def __init__(self):
            self.labels = {"Om": label, "s8": label}

        def __truediv__(self, other):
            return SimpleNamespace(value=2.0 + rows, low=1.0 + rows, high=3.0 + rows)

    trained, asked = [run.mark for run in runs.values()], []
    labels = (UNMARKED, objectives.BEST, *trained)
    monkeypatch.setattr(objectives, "finished_runs", lambda trainings, script: runs)
    monkeypatch.setattr(nb, "suite", lambda *_, **__: {"BSQ": "boxes"})
    monkeypatch.setattr(nb, "measure", lambda simulations, marks, *_, **__: asked.append(tuple(marks)))
    monkeypatch.setattr(nb, "forecast", lambda *_, **__: dict.fromkeys((*nb.classical_marks(), *labels), Sigma()))
    monkeypatch.setattr(nb, "recover", lambda power, marks, *_, **__: asked.append(marks))
    monkeypatch.setattr(nb, "train", lambda training, boxes, fixed: SimpleNamespace(best_loss=(training.kmax, fixed)))
    monkeypatch.setattr(objectives.Evaluation, "values", lambda self, mark: dict(values))
    table = objectives.table(planned(), "demo")
    assert [row["mark"] for row in table] == [UNMARKED, label, *trained] * 2
    assert asked == [(*nb.classical_marks(), *trained)] + [(label, *trained)] * 4
    last = table[-1]
    assert (last["objective"], last["start"], last["trained_kmax"]) == ("information", "function", 0.3)
    assert last["run"] == planned()[-1].name and last["info_nce"] == (0.3, trained[-1])
    assert [last[f"ratio_s8{end}"] for end in ENDS] == [6.0, 5.0, 7.0]
    assert set(NUMBERS) <= set(last) and table[0]["objective"] is None


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
    objectives.write(rows, tmp_path / "table.csv")
    for before, after in zip(rows, objectives.read(tmp_path / "table.csv"), strict=True):
        words = {name for name, x in before.items() if not isinstance(x, float)}
        assert {name: after[name] for name in words} == {name: before[name] for name in words}
        numbers = [name for name in before if isinstance(before[name], float)]
        assert np.allclose([after[name] for name in numbers], [before[name] for name in numbers], rtol=1e-3)


def test_table_to_read_has_ratios_with_their_intervals():
    table = objectives.overview(fake_rows())
    assert len(table.rows) == 10 and table.rows[0][:4] == [UNMARKED, "0.2", "4.00", "0.10 (0.09 to 0.11)"]


def test_every_mark_is_a_point_in_both_tasks():
    figure = objective_plots.two_tasks(fake_rows())
    for ax in figure.axes:
        assert sorted(text.get_text() for text in ax.texts) == ["0", "1", "2", "3", "4"]
    (legend,) = figure.legends
    assert len(legend.get_texts()) == 5
    plt.close(figure)


def test_every_search_is_a_point_on_the_line_of_its_kind():
    ratios = {f"ratio_{p}_k{k:g}{end}": f"{x}" for p in PARAMETERS for k in KMAX for end, x in FACTORS.items()}
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
    learned = nb.LearnedMark(grid, l_max)
    with torch.no_grad():
        learned.responses.v.normal_()
    figure = objective_plots.side_by_side({"learned": learned, "classical": nb.ClassicalMark(2.0, 0.0)}, delta, grid)
    lines = [len([x for x in ax.get_lines() if not x.get_label().startswith("_")]) for ax in figure.axes[:4]]
    assert lines == [l_max + 1, 1, len(learned.responses.names), 1]
    plt.close(figure)
