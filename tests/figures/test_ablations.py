"""Ablations: the plan, its commands, what is missing, an evaluation with a known answer, the table and its figures."""

import importlib.util
import shlex
import subprocess
from dataclasses import asdict

import ablation_plots
import ablation_table
import cases
import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch
from ablation_table import FULL, NUMBERS, QUANTITIES
from cases import Case, planned
from fake import FakeSet
from nbkit.train.launch import run_name
from nbkit.train.recipe import recipe_named
from nbkit.train.shipped import run_folder
from nbkit.train.train import train

from nbkit import disk
from nbkit.forecast.fisher import UNMARKED
from nbkit.measure import Measurement
from nbkit.mesh.threads import one_thread
from nbkit.train.run import load_run
from nbkit.universe.cosmology import FIDUCIAL, PRIOR_LATIN_HYPERCUBE, STEPS


def test_plan_has_every_combination_once():
    cases = planned()
    assert len(cases) == len(set(cases)) == 17
    assert {(case.kmax, case.l_max) for case in cases} == {
        (k, l) for k in (0.1, 0.15, 0.2, 0.25, 0.3) for l in (0, 1, 2)
    }
    assert Case(0.2, residual=False) in cases and Case(0.2, cross=False) in cases
    array = (disk.figures() / "ablations.slurm").read_text()
    assert f"--array=1-{len(cases)}\n" in array


def test_commands_are_those_that_notebook_03_understands():
    words = shlex.split(Case(0.2, 2, cross=False, seed=3).command("mini"))
    name = run_name("mini", kmax=0.2, cross=False, seed=3)
    assert words[:3] == ["papermill", "notebooks/03_train.ipynb", f"runs/{name}.ipynb"]
    given = dict(zip(words[4::3], words[5::3], strict=True))
    assert given == {"preset": "mini", "compare": "False", "kmax": "0.2", "l_max": "2", "cross": "False", "seed": "3"}
    source = (disk.figures().parent / "notebooks" / "03_train.ipynb").read_text()
    assert all(f'"{name}: ' in source for name in given)


def test_missing_runs_are_named_with_their_command(monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("NBKIT_RUNS", str(tmp_path))
    with pytest.raises(
        FileNotFoundError, match=r"15 of 17 trainings of preset 'mini' .*03_train\.ipynb .*-p kmax 0\.1"
    ):
        cases.trained(planned(), "mini")
    cases.main(["--preset", "mini", "--seed", "5"])
    assert capsys.readouterr().out.splitlines() == [case.command("mini") for case in planned(5)]


def test_a_run_under_the_wrong_name_is_refused(monkeypatch, tmp_path):
    monkeypatch.setenv("NBKIT_RUNS", str(tmp_path))
    recipe = recipe_named("tuned", epochs=1, pretrain_epochs=1, negatives={"n_real": 8, "n_global": 8, "n_local": 2})
    folder = tmp_path / "train" / run_name("mini", kmax=0.2, l_max=0, seed=9)
    options = {"recipe": recipe, "kmax": 0.3, "l_max": 0, "seed": 9, "device": "cpu", "progress": False}
    run = train(FakeSet(48, n=8), folder, **options)
    assert cases.case_of(run) == Case(0.3, 0, seed=9)
    with pytest.raises(ValueError, match=r"kmax=0\.3.* not the Case\(kmax=0\.2.* its name promises; delete it and run"):
        cases.found(Case(0.2, 0, seed=9), "mini")


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
def evaluated():
    low, high = PRIOR_LATIN_HYPERCUBE.T
    everywhere = low + np.random.default_rng(4).random((80, 5)) * (high - low)
    sets = {name: Line(name, 80, everywhere) for name in ("BSQ", "latin_hypercube")} | {
        "fiducial": Line("fiducial", 400, FIDUCIAL)
    }
    for i, name in enumerate(("Om", "Ob2", "h", "ns", "s8")):
        for sign, word in ((1, "p"), (-1, "m")):
            sets[f"{name}_{word}"] = Line("pairs", 8, FIDUCIAL + sign * STEPS[i] * np.eye(5)[i])
    power = {name: each.measured((FULL, "same")) for name, each in sets.items()}
    return ablation_table.evaluation(power, 0.2, repeats=1, resampling=50), sets


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


def test_table_is_read_as_it_was_written(evaluated, tmp_path):
    result, _ = evaluated
    rows = [{"mark": UNMARKED, "kmax": 0.2, "seed": 0, **ablation_table.numbers(result, UNMARKED)}]
    about = {
        "mark": FULL,
        "kmax": 0.2,
        "trained_kmax": 0.2,
        "l_max": 2,
        "residual": True,
        "cross": False,
        "seed": 0,
        "run": "demo_l2",
    }
    rows.append(about | {"val_loss": 4.0} | ablation_table.numbers(result, FULL))
    ablation_table.write(rows, tmp_path / "table.csv")
    back = ablation_table.read(tmp_path / "table.csv")
    assert back[0]["l_max"] is None and back[0]["run"] is None
    assert (back[1]["l_max"], back[1]["residual"], back[1]["cross"], back[1]["run"]) == (2, True, False, "demo_l2")
    for old, new in zip(rows, back, strict=True):
        assert all(new[name] == pytest.approx(old[name], rel=1e-3) for name in NUMBERS)


def test_array_script_is_valid_shell():
    subprocess.run(["bash", "-n", disk.figures() / "ablations.slurm"], check=True)


def test_a_missing_table_is_named_with_its_command(monkeypatch, tmp_path):
    monkeypatch.setattr(disk, "figures", lambda: tmp_path)
    monkeypatch.setenv("NBKIT_RUNS", str(tmp_path))
    with pytest.raises(FileNotFoundError, match=r"15 of 17 trainings of preset 'mini' are missing"):
        ablation_table.finished("mini")
    monkeypatch.setattr(ablation_table, "trained", lambda cases, preset: {})
    with pytest.raises(FileNotFoundError, match=r"`python figures/ablations\.py --preset mini` measures them"):
        ablation_table.finished("mini")


def test_script_trains_what_is_missing_and_nothing_else(monkeypatch, tmp_path):
    """A few at a time, each with its share of the cores; then the table."""
    path = disk.figures() / "ablations.py"
    script = importlib.util.module_from_spec(importlib.util.spec_from_file_location("script", path))
    script.__spec__.loader.exec_module(script)
    (tmp_path / "figures").mkdir()
    started, written, there = [], [], {Case(0.1, 0), Case(0.2)}
    monkeypatch.setattr(script, "figures", lambda: tmp_path / "figures")
    monkeypatch.setattr(script, "suite", lambda preset, sets: None)
    monkeypatch.setattr(script, "found", lambda case, preset: case if case in there else None)
    monkeypatch.setattr(script.os, "cpu_count", lambda: 8)
    monkeypatch.setattr(script.subprocess, "run", lambda command, **options: started.append((command, options)))
    monkeypatch.setattr(script, "trained", lambda cases, preset: dict.fromkeys(cases))
    monkeypatch.setattr(script, "table", lambda runs, preset: [len(runs), preset])
    monkeypatch.setattr(script, "write", lambda rows, path: written.append((rows, path.name)))
    script.main([0, 1], "mini", jobs=4)
    commands = [shlex.join(command[2:-1]) for command, _ in started]
    missing = [case for seed in (0, 1) for case in planned(seed) if case not in there]
    assert sorted(commands) == sorted(case.command("mini") for case in missing)
    assert {options["env"]["OMP_NUM_THREADS"] for _, options in started} == {"2"}
    assert written == [([34, "mini"], "ablations_mini.csv")]


@pytest.fixture
def rows():
    """A table in the form of the real one: two seeds, of which the second has the larger errors."""
    made = []
    for case in (case for seed in (0, 1) for case in planned(seed)):
        about = asdict(case) | {"mark": case.mark, "trained_kmax": case.kmax, "run": f"{case}", "val_loss": 4.0}
        made.append(about | {name: 1.0 + 0.3 * case.seed for name in NUMBERS})
    for kmax in cases.KMAX:
        for mark in (UNMARKED, ablation_table.CLASSICAL):
            about = dict.fromkeys(ablation_table.COLUMNS) | {"mark": mark, "kmax": kmax, "seed": 0}
            made.append(about | dict.fromkeys(NUMBERS, np.inf if kmax == 0.1 and mark == UNMARKED else 2.0))
        wide = f"{FULL}{ablation_table.WIDE} 0.3"
        made.append(asdict(Case(kmax)) | {"mark": wide, "trained_kmax": 0.3, "run": "wide", "val_loss": 4.0})
        made[-1] |= dict.fromkeys(NUMBERS, 1.5)
    ends = (("low", 0.9), ("high", 1.1))
    for row in made:
        row |= {f"{q}{r}_{end}": row[q + r] * f for q in QUANTITIES for r in ("", "_ratio") for end, f in ends}
    return made


def test_seeds_are_told_apart_only_outside_their_intervals(rows):
    found = ablation_table.between_seeds(rows, "sigma_s8")
    assert len(found) == 17
    assert all(ratio == pytest.approx(1.3) and apart for ratio, apart in found.values())
    for row in rows:
        row["sigma_s8_high"] = 2.0
    assert not any(apart for _, apart in ablation_table.between_seeds(rows, "sigma_s8").values())
    assert ablation_table.between_seeds([row for row in rows if row["seed"] == 0], "sigma_s8") == {}


def test_table_to_read_has_a_line_a_mark_and_kmax(rows):
    lines = ablation_table.text(rows).splitlines()
    assert len(lines) == 1 + 17 + 3 * 5
    assert lines[0].split() == ["kmax", "mark", *QUANTITIES, "loss"]
    (line,) = (line for line in lines if line.startswith("0.20  l_max = 2, no residual"))
    assert line.split()[6:] == ["1.000", "1.300"] * 4 + ["4.00", "4.00"]
    (line,) = (line for line in lines if line.startswith("0.10  P_dd"))
    assert line.split()[2:] == ["inf"] * 4


def test_ratios_in_words(rows):
    assert ablation_table.in_words(rows[0], QUANTITIES[:1]) == "sigma_Om 1.00 (0.90 to 1.10)"


def test_threads_are_given_back():
    before = torch.get_num_threads()
    with pytest.raises(ZeroDivisionError), one_thread():
        assert torch.get_num_threads() == 1
        1 / 0  # noqa: B018
    assert torch.get_num_threads() == before


def test_row_of_a_run_is_found_by_what_it_is(rows):
    run = load_run(run_folder("demo_l2"))
    row = ablation_table.row_of(rows, run, "demo")
    assert (row["kmax"], row["l_max"], row["residual"], row["cross"], row["seed"]) == (0.3, 2, True, True, 0)
    with pytest.raises(
        ValueError, match=r"preset 'mini' has no row for the run demo_l2 \(32\^3 cells, Case.*for instance wide,"
    ):
        ablation_table.row_of(rows, run, "mini")


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
