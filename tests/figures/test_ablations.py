"""Ablations: the plan, its commands, what is missing, an evaluation with a known answer, the table and its figures."""

import shlex
import subprocess
import sys
from dataclasses import replace
from types import SimpleNamespace

import ablation_plots
import ablations
import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch
from ablations import CLASSICAL, COLUMNS, FULL, NUMBERS, QUANTITIES, VARIED, WIDE, planned
from fake import FakeSet

import nbkit as nb
from nbkit import disk
from nbkit.forecast import UNMARKED
from nbkit.mark import UnitMark
from nbkit.measure import Measurement
from nbkit.mesh.threads import one_thread
from nbkit.train import RECIPES
from nbkit.universe import FIDUCIAL, PRIOR_LATIN_HYPERCUBE, STEPS

FAST = replace(
    RECIPES["tuned"],
    epochs=1,
    pretrain_epochs=1,
    negatives=replace(RECIPES["tuned"].negatives, n_real=8, n_global=8, n_local=2),
)


def test_plan_has_every_combination_once():
    trainings = planned("mini", 3)
    assert len(trainings) == len(set(trainings)) == len({each.name for each in trainings}) == 17
    wide = {(k, l) for k in (0.1, 0.15, 0.2, 0.25, 0.3) for l in (0, 1, 2)}
    assert {(each.kmax, each.l_max) for each in trainings} == wide
    off = nb.Training("mini", kmax=0.2, seed=3)
    assert {replace(off, residual=False), replace(off, cross=False)} < set(trainings)
    array = (disk.figures() / "ablations.slurm").read_text()
    assert f"--array=1-{len(trainings)}\n" in array


def test_commands_are_those_that_notebook_03_understands():
    source = (disk.figures().parent / "notebooks" / "03_train.ipynb").read_text()
    for training in planned("mini", 3):
        words = shlex.split(training.papermill())
        given = dict(zip(words[4::3], words[5::3], strict=True))
        assert all(f'"{name}: ' in source for name in given)


def test_runs_of_the_kit_are_those_of_the_plan(monkeypatch, tmp_path):
    monkeypatch.setenv("NBKIT_RUNS", str(tmp_path))
    for preset in ("demo", "mini"):
        found = {each: run.name for each in planned(preset) if (run := ablations.finished_run(each))}
        named = {(each.kmax, each.l_max): name for each, name in found.items()}
        assert named == {(0.3, 0): f"{preset}_l0", (0.3, 2): f"{preset}_l2"}


def test_own_runs_count_when_they_are_finished_and_of_this_recipe(monkeypatch, tmp_path):
    monkeypatch.setenv("NBKIT_RUNS", str(tmp_path))
    training = nb.Training("mini", l_max=0, recipe=FAST, seed=9)
    given = {"simulations": FakeSet(48, n=8), "device": "cpu", "progress": False}
    nb.train(training, **given, stop=lambda: True)
    assert ablations.finished_run(training) is None
    run = nb.train(training, **given)
    assert ablations.finished_run(training).name == run.name == training.name
    assert ablations.finished_runs([training])[training].best_loss == run.best_loss
    assert ablations.finished_run(replace(training, seed=8)) is None
    (tmp_path / "train" / training.name).rename(tmp_path / "train" / replace(training, seed=8).name)
    assert ablations.finished_run(replace(training, seed=8)) is None  # its name is not what it is


def script(*words, **environment):
    """Output of figures/ablations.py."""
    command = [sys.executable, disk.figures() / "ablations.py", *words]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def test_commands_are_listed(monkeypatch, tmp_path):
    monkeypatch.setenv("NBKIT_RUNS", str(tmp_path))
    listed = script("--preset", "mini", "--list", "0", "5").splitlines()
    there = {nb.load(name).training for name in ("mini_l0", "mini_l2")}
    assert listed == [each.papermill() for each in planned("mini") + planned("mini", 5) if each not in there]
    assert script("--preset", "mini", "--list", "--all").splitlines() == [each.papermill() for each in planned("mini")]
    subprocess.run(["bash", "-n", disk.figures() / "ablations.slurm"], check=True)


def test_what_is_missing_is_named_with_its_command(monkeypatch, tmp_path):
    monkeypatch.setattr(disk, "figures", lambda: tmp_path)
    monkeypatch.setenv("NBKIT_RUNS", str(tmp_path))
    missing = r"15 of 17 trainings of preset 'mini' .*03_train\.ipynb .*-p kmax 0\.1 .*ablations\.py --preset mini` all"
    with pytest.raises(FileNotFoundError, match=missing):
        ablations.stored_table("mini")
    monkeypatch.setattr(ablations, "finished_run", lambda training: training)
    with pytest.raises(FileNotFoundError, match=r"`python figures/ablations\.py --preset mini` measures them"):
        ablations.stored_table("mini")


class Line:
    """Spectra P_dd = P_mm = P_dm = 1000 + slopes (theta - fiducial) + noise, so that sigma is known in closed form."""

    def __init__(self, name, count, theta):
        # All derivative sets share their noise, as they share their phases.
        self.noise = np.random.default_rng(len(name)).standard_normal((count, 3, 6))
        self.slopes = np.random.default_rng(0).standard_normal((5, 3, 6)) / STEPS[:, None, None]
        self.theta = np.broadcast_to(theta, (count, 5))
        self.seeds = np.arange(count)

    def measured(self, marks):
        power = 1000 + np.einsum("np,pab->nab", self.theta - FIDUCIAL, self.slopes) + self.noise
        k = np.linspace(0.05, 0.2, 6)
        return Measurement(k, np.ones(6), self.theta, self.seeds, power[:, 0], dict.fromkeys(marks, power[:, 1:]))


@pytest.fixture(scope="module")
def evaluated(tmp_path_factory):
    low, high = PRIOR_LATIN_HYPERCUBE.T
    everywhere = low + np.random.default_rng(4).random((80, 5)) * (high - low)
    sets = {name: Line(name, 80, everywhere) for name in ("BSQ", "latin_hypercube")} | {
        "fiducial": Line("fiducial", 400, FIDUCIAL)
    }
    for i, name in enumerate(("Om", "Ob2", "h", "ns", "s8")):
        for sign, word in ((1, "p"), (-1, "m")):
            sets[f"{name}_{word}"] = Line("pairs", 8, FIDUCIAL + sign * STEPS[i] * np.eye(5)[i])
    power = {name: each.measured((FULL, "same")) for name, each in sets.items()}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NBKIT_RUNS", str(tmp_path_factory.mktemp("runs")))
        return ablations.evaluation(power, 0.2, repeats=1, resampling=50), sets


def test_evaluation_of_a_linear_model_has_its_closed_form(evaluated):
    result, sets = evaluated
    for label, slopes in ((UNMARKED, sets["fiducial"].slopes[:, 0]), (FULL, sets["fiducial"].slopes.reshape(5, -1))):
        sigma = np.sqrt(np.diag(np.linalg.inv(slopes @ slopes.T)))
        found = result.values(label)
        for name, i in (("sigma_Om", 0), ("sigma_s8", 4)):
            value, low, high = found[name]
            assert value == pytest.approx(sigma[i], rel=0.1) and low < value < high
    same = result.ratios("same", FULL)
    assert same["sigma_Om"] == pytest.approx((1, 1, 1)) and same["mse_s8"] == pytest.approx((1, 1, 1))
    assert result.ratios(UNMARKED, FULL)["sigma_s8"][0] > 1


def test_threads_are_given_back():
    before = torch.get_num_threads()
    with pytest.raises(ZeroDivisionError), one_thread():
        assert torch.get_num_threads() == 1
        1 / 0  # noqa: B018
    assert torch.get_num_threads() == before


def test_every_training_has_a_row_and_wide_marks_have_more(evaluated, monkeypatch):
    """At the kmax of its training; those trained to the largest at smaller ones as well."""
    result, _ = evaluated
    trainings = [nb.Training("mini", kmax=kmax, l_max=l_max) for kmax in (0.2, 0.3) for l_max in (0, 2)]
    runs = {each: SimpleNamespace(mark=each, name=each.name, best_loss=each.kmax) for each in trainings}
    measured = []
    monkeypatch.setattr(nb, "measure", lambda preset, marks, *_, **__: measured.append(marks))
    every = SimpleNamespace(forecasts=(FULL,), values=lambda _: result.values(FULL), ratios=lambda *_: {"ratio": "1"})
    monkeypatch.setattr(ablations, "evaluation", lambda power, kmax: every)
    monkeypatch.setattr(ablations, "numbers", lambda found, label: {"numbers": label})
    rows = ablations.table(runs, "mini", also=(0.1,))
    wide = [f"l_max = {l_max}{WIDE} 0.3" for l_max in (0, 2)]
    first = [UNMARKED, CLASSICAL]
    own = ["l_max = 0", FULL]
    labels = [*first, *wide, *first, *own, *wide, *first, *own]
    assert [row["mark"] for row in rows] == [row["numbers"] for row in rows] == labels
    assert [row["kmax"] for row in rows] == [0.1] * 4 + [0.2] * 6 + [0.3] * 4
    none, wide_at = [None, None], [0.3, 0.3]
    assert [row["trained_kmax"] for row in rows] == [*none, *wide_at, *none, 0.2, 0.2, *wide_at, *none, *wide_at]
    assert measured[1][wide[0]] == trainings[2] and measured[1]["l_max = 0"] == trainings[0]
    assert rows[-1]["run"] == trainings[-1].name and rows[-1]["val_loss"] == 0.3


def test_table_is_read_as_it_was_written(evaluated, tmp_path):
    result, _ = evaluated
    rows = [{"mark": UNMARKED, "kmax": 0.2, "seed": 0, **ablations.numbers(result, UNMARKED)}]
    about = {"mark": FULL, "kmax": 0.2, "trained_kmax": 0.2, "l_max": 2, "residual": True, "cross": False, "seed": 0}
    rows.append(about | {"run": "demo_l2", "val_loss": 4.0} | ablations.numbers(result, FULL))
    ablations.write(rows, tmp_path / "table.csv")
    back = ablations.read(tmp_path / "table.csv")
    assert back[0]["l_max"] is None and back[0]["run"] is None
    assert {name: back[1][name] for name in about} == about and back[1]["run"] == "demo_l2"
    for old, new in zip(rows, back, strict=True):
        assert all(new[name] == pytest.approx(old[name], rel=1e-3) for name in NUMBERS)


@pytest.mark.parametrize("preset", ["demo", "mini"])
def test_stored_tables_are_read(preset, tmp_path):
    """And written again they are the same, but for what digits are dropped."""
    rows = ablations.stored_table(preset)
    ablations.write(rows, tmp_path / "again.csv")
    first, again = ablations.lines(disk.figures() / f"ablations_{preset}.csv"), ablations.lines(tmp_path / "again.csv")
    words = ("mark", "run", "l_max", "residual", "cross", "seed")
    assert [[row[name] for name in words] for row in first] == [[row[name] for name in words] for row in again]
    assert {row["seed"] for row in rows} == ({0, 1} if preset == "demo" else {0})


def test_script_trains_what_is_missing_and_nothing_else(monkeypatch, tmp_path):
    """A few at a time, each with its share of the cores; then the table."""
    monkeypatch.setenv("NBKIT_RUNS", str(tmp_path))
    started, written, there = [], [], {nb.Training("mini", kmax=0.1, l_max=0), nb.Training("mini", kmax=0.2)}
    monkeypatch.setattr(nb, "suite", lambda preset, sets: None)
    monkeypatch.setattr(ablations, "finished_run", lambda training: training if training in there else None)
    monkeypatch.setattr(ablations.os, "cpu_count", lambda: 8)
    monkeypatch.setattr(ablations.subprocess, "run", lambda command, **options: started.append((command, options)))
    monkeypatch.setattr(ablations, "finished_runs", dict.fromkeys)
    monkeypatch.setattr(ablations, "table", lambda runs, preset: [len(runs), preset])
    monkeypatch.setattr(ablations, "write", lambda rows, path: written.append((rows, path.name)))
    ablations.main([0, 1], "mini", jobs=4)
    missing = [each for seed in (0, 1) for each in planned("mini", seed) if each not in there]
    assert sorted(command[1:] for command, _ in started) == sorted(["-m", "nbkit.train", *m.words()] for m in missing)
    assert {options["env"]["OMP_NUM_THREADS"] for _, options in started} == {"2"}
    assert all((tmp_path / "train" / each.name / "log.txt").exists() for each in missing)
    assert written == [([34, "mini"], "ablations_mini.csv")]


@pytest.fixture
def rows():
    """A table in the form of the real one: two seeds, of which the second has the larger errors."""
    made = []
    for training in planned() + planned(seed=1):
        about = {name: getattr(training, name) for name in ("kmax", *VARIED)}
        about |= {"mark": ablations.mark_label(training), "trained_kmax": training.kmax, "run": training.name}
        made.append(about | {"val_loss": 4.0} | {name: 1.0 + 0.3 * training.seed for name in NUMBERS})
    for kmax in ablations.KMAX:
        for mark in (UNMARKED, CLASSICAL):
            about = dict.fromkeys(COLUMNS) | {"mark": mark, "kmax": kmax, "seed": 0}
            made.append(about | dict.fromkeys(NUMBERS, np.inf if kmax == 0.1 and mark == UNMARKED else 2.0))
        wide = {"mark": f"{FULL}{WIDE} 0.3", "kmax": kmax, "trained_kmax": 0.3, "run": "wide", "val_loss": 4.0}
        wide |= {"l_max": 2, "residual": True, "cross": True, "seed": 0}
        made.append(wide | dict.fromkeys(NUMBERS, 1.5))
    ends = (("low", 0.9), ("high", 1.1))
    for row in made:
        row |= {f"{q}{r}_{end}": row[q + r] * f for q in QUANTITIES for r in ("", "_ratio") for end, f in ends}
    return made


def test_seeds_are_told_apart_only_outside_their_intervals(rows):
    found = ablations.between_seeds(rows, "sigma_s8")
    assert len(found) == 17
    assert all(ratio == pytest.approx(1.3) and apart for ratio, apart in found.values())
    for row in rows:
        row["sigma_s8_high"] = 2.0
    assert not any(apart for _, apart in ablations.between_seeds(rows, "sigma_s8").values())
    assert ablations.between_seeds([row for row in rows if row["seed"] == 0], "sigma_s8") == {}


def test_table_to_read_has_a_line_a_mark_and_kmax(rows):
    table = ablations.overview(rows)
    assert len(table.rows) == 17 + 3 * 5
    assert list(table.head) == ["mark", "kmax"] + [w for name in (*QUANTITIES, "loss") for w in (name, "seed 1")]
    by_mark = {(row[0], row[1]): row[2:] for row in table.rows}
    assert by_mark["l_max = 2, no residual", "0.20"] == ["1.000", "1.300"] * 4 + ["4.00", "4.00"]
    assert by_mark[UNMARKED, "0.10"] == ["inf", ""] * 4 + ["", ""]


def test_ratios_in_words(rows):
    assert ablations.in_words(rows[0], QUANTITIES[:1]) == "sigma_Om 1.00 (0.90 to 1.10)"


def test_row_of_a_run_is_found_by_what_it_is(rows, tmp_path):
    run = nb.load("demo_l2")
    row = ablations.row_of(rows, run, "demo")
    assert (row["kmax"], row["mark"], row["seed"]) == (0.3, FULL, 0)
    with pytest.raises(ValueError, match=r"'mini' has no row for the run demo_l2 \(Training.*for instance wide,"):
        ablations.row_of(rows, run, "mini")
    unit = nb.load("mini_unit")
    assert unit.mark == UnitMark() and unit.training == nb.Training("mini")
    with pytest.raises(ValueError, match="no row for the run mini_unit"):
        ablations.row_of(rows, unit, "mini")
    run.mark.save(tmp_path / "mine.safetensors")
    with pytest.raises(ValueError, match=r"no row for the run mine \(a mark alone\)"):
        ablations.row_of(rows, nb.load(tmp_path / "mine.safetensors"), "demo")


def test_figures_show_every_training(rows):
    plt.switch_backend("Agg")
    figure = ablation_plots.against_kmax(rows)
    assert len(figure.axes) == 4 and all(ax.get_ylabel() for ax in figure.axes)
    shown = [text.get_text() for text in figure.legends[0].get_texts()]
    assert len(shown) == len(set(shown)) >= 5
    # P_dd has fewer numbers than parameters at the lowest kmax: no point.
    black = [line for line in figure.axes[0].lines if line.get_color() == "#000000" and len(line.get_xdata()) > 1]
    assert min(len(line.get_xdata()) for line in black) == 4
    figure = ablation_plots.switched_off(rows)
    named = [label.get_text() for label in figure.axes[0].get_yticklabels()]
    assert "no residual" in named and "no cross term" in named
    plt.close("all")
