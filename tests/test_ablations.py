"""Ablations: the plan, its commands, what is missing, an evaluation with a known answer, the table and its figures."""

import shlex
import subprocess

import numpy as np
import pytest
from fake import FakeSet

from nbkit import ablation_table, ablations, paths
from nbkit.ablation_table import FULL, NUMBERS
from nbkit.ablations import Case, planned
from nbkit.cosmology import FIDUCIAL, PRIOR_LATIN_HYPERCUBE, STEPS
from nbkit.fisher import UNMARKED
from nbkit.launch import run_name
from nbkit.measured import Measured
from nbkit.recipe import recipe_named
from nbkit.train import train


def test_plan_has_every_combination_once():
    cases = planned()
    assert len(cases) == len(set(cases)) == 17
    assert {(case.kmax, case.l_max) for case in cases} == {
        (k, l) for k in (0.1, 0.15, 0.2, 0.25, 0.3) for l in (0, 1, 2)
    }
    assert Case(0.2, residual=False) in cases and Case(0.2, cross=False) in cases
    array = (paths.figures() / "ablations.slurm").read_text()
    assert f"--array=1-{len(cases)}\n" in array


def test_commands_are_those_that_notebook_03_understands():
    words = shlex.split(Case(0.2, 2, cross=False, seed=3).command("mini"))
    name = run_name("mini", kmax=0.2, cross=False, seed=3)
    assert words[:3] == ["papermill", "notebooks/03_train.ipynb", f"runs/{name}.ipynb"]
    given = dict(zip(words[4::3], words[5::3], strict=True))
    assert given == {"preset": "mini", "compare": "False", "kmax": "0.2", "l_max": "2", "cross": "False", "seed": "3"}
    source = (paths.figures().parent / "notebooks" / "03_train.ipynb").read_text()
    assert all(f'"{name}: ' in source for name in given)


def test_missing_runs_are_named_with_their_command(monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("NBKIT_RUNS", str(tmp_path))
    with pytest.raises(
        FileNotFoundError, match=r"17 of 17 trainings of preset 'mini' .*03_train\.ipynb .*-p kmax 0\.1"
    ):
        ablations.trained(planned(), "mini")
    ablations.main(["--preset", "mini", "--seed", "2"])
    assert capsys.readouterr().out.splitlines() == [case.command("mini") for case in planned(2)]


def test_a_run_under_the_wrong_name_is_refused(monkeypatch, tmp_path):
    monkeypatch.setenv("NBKIT_RUNS", str(tmp_path))
    recipe = recipe_named("tuned", epochs=1, pretrain_epochs=1, negatives={"n_real": 8, "n_global": 8, "n_local": 2})
    folder = tmp_path / "train" / run_name("mini", kmax=0.2, l_max=0, seed=9)
    options = {"recipe": recipe, "kmax": 0.3, "l_max": 0, "seed": 9, "device": "cpu", "progress": False}
    run = train(FakeSet(48, n=8), folder, **options)
    assert ablations.case_of(run) == Case(0.3, 0, seed=9)
    with pytest.raises(ValueError, match=r"kmax=0\.3.* not the Case\(kmax=0\.2.* its name promises; delete it and run"):
        ablations.found(Case(0.2, 0, seed=9), "mini")


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
        return Measured(k, np.ones(6), self.theta, self.seeds, power[:, 0], dict.fromkeys(marks, power[:, 1:]))


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
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ablation_table, "measured", lambda simulations, marks, *_: simulations.measured(marks))
        return ablation_table.evaluation({FULL: None, "same": None}, sets, 0.2, repeats=1, resampling=50), sets


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
    subprocess.run(["bash", "-n", paths.figures() / "ablations.slurm"], check=True)
