"""Trainings and recipes as words and numbers: names, command lines, the paper's tables, schedules, refusals."""

import json
import shlex
from dataclasses import asdict, fields, replace

import pytest
import torch
from training_process import RECIPE

from nbkit import Grid, LearnedMark, Training
from nbkit.train import RECIPES, Recipe, follow
from nbkit.train.__main__ import parser
from nbkit.train.run import Progress, cosine_factor
from nbkit.universe.suite import PRESETS

# Every field with another value than its default.
OTHER = {
    "preset": "mini",
    "objective": "information",
    "kmax": 0.2,
    "l_max": 0,
    "radial": "gaussians",
    "shared": True,
    "r0": 0.3,
    "residual": False,
    "cross": False,
    "start": "classical",
    "parameters": "h,n_s",
    "recipe": "warm",
    "epochs": 3,
    "head_epochs": 240,
    "seed": 7,
}
TRAININGS = [Training(), Training(**OTHER), *(Training(**{name: value}) for name, value in OTHER.items())]


def test_every_field_is_tried_and_changes_the_name():
    assert list(OTHER) == [each.name for each in fields(Training)]
    trainings = [*TRAININGS, *(Training(recipe=each) for each in (RECIPE, replace(RECIPE, batch=4)))]
    assert len({each.name for each in trainings}) == len(trainings)
    assert Training().name == "demo_contrast_k0.3_l2_seed0"
    assert Training(r0=1).name == Training(r0=1.0).name and Training(start="/a/mini_l2").name.count("/") == 0


@pytest.mark.parametrize("training", TRAININGS, ids=lambda training: training.name)
def test_words_and_json_give_a_training_back(training):
    asked = vars(parser().parse_args(training.words()))
    assert Training(**{name: asked[name] for name in OTHER}) == training
    assert Training(**json.loads(json.dumps(asdict(training)))) == training
    words = shlex.split(training.papermill())
    assert words[:3] == ["papermill", "notebooks/03_train.ipynb", f"runs/{training.name}.ipynb"]
    given = {words[i + 1]: words[i + 2] for i, word in enumerate(words) if word == "-p"}
    assert given.pop("compare") == "False"
    assert given == {n: str(v) for n, v in asdict(training).items() if v != getattr(Training(), n)}


def test_a_training_with_a_recipe_of_its_own_comes_back_from_json():
    training = Training(recipe=RECIPE)
    assert Training(**json.loads(json.dumps(asdict(training)))) == training


def test_where_it_runs_is_no_part_of_a_training():
    asked = parser().parse_args(["--folder", "out", "--device=cpu", "--data-root", "/data"])
    assert (asked.folder, asked.device, asked.data_root) == ("out", "cpu", "/data")


WRONG = {"preset": "dmeo", "objective": "both", "kmax": -0.1, "l_max": 3, "radial": "bessel", "parameters": "Omega"}
WRONG |= {"recipe": "papr", "epochs": -1, "head_epochs": -1, "seed": -1}
TYPED = dict.fromkeys(OTHER, None) | {"l_max": True, "kmax": True, "shared": 1, "seed": 1.5, "epochs": "3", "r0": "0.3"}


@pytest.mark.parametrize(
    ("name", "value"), [*WRONG.items(), *TYPED.items(), ("kmax", float("nan")), ("parameters", ""), ("recipe", 3)]
)
def test_impossible_values_of_a_training_are_refused(name, value):
    with pytest.raises(ValueError, match=rf"{name} is {value!r}; (allowed are|it must be)"):
        Training(**{name: value})


@pytest.mark.parametrize(
    ("name", "value"), [("schedule", "linear"), ("batch", 0), ("validation", 1.5), ("start", "there"), ("clip", 0.0)]
)
def test_impossible_values_of_a_recipe_are_refused(name, value):
    with pytest.raises(ValueError, match=rf"{name} is {value!r}; (allowed are|it must)"):
        Recipe(**{name: value})


def test_the_recipe_goes_with_objective_and_size_and_is_changed_by_what_is_said():
    grids = [Grid(n, 1000.0, "none") for n in (32, 64, 128)]
    chosen = [Training().recipe_for(grid) for grid in grids]
    assert chosen == [RECIPES[name] for name in ("tuned", "warm", "paper")]
    assert [each.start for each in chosen] == ["unit", "function", "unit"]
    assert Training(objective="information").recipe_for(grids[2]) == RECIPES["information"]
    own = Training(recipe="paper", epochs=3, head_epochs=2, start="classical").recipe_for(grids[0])
    assert own == replace(RECIPES["paper"], epochs=3, head_epochs=2, start="classical")
    assert Training(recipe="paper", start="demo_l2").recipe_for(grids[0]) == RECIPES["paper"]
    with pytest.raises(ValueError, match="start is 'function' and head_epochs is 0"):
        Training(start="function").recipe_for(grids[0])


def test_the_papers_recipe():
    """Tables 1 and 2."""
    paper = RECIPES["paper"]
    assert (paper.learning_rate, paper.weight_decay, paper.clip, paper.batch) == (5e-4, 1e-4, 10.0, 16)
    assert (paper.mark_rate, paper.theta_rate, paper.schedule, paper.gamma) == (2.0, 0.25, "plateau", 0.5)
    assert (paper.plateau_patience, paper.floor, paper.patience, paper.min_delta) == (8, 1e-7, 20, 1e-5)
    assert (paper.validation, paper.dimension, paper.width, paper.temperature) == (0.15, 16, 64, 0.05)
    assert paper.negatives.total(16) == 16 + 128 + 16 * 384 + 16 * 32
    assert RECIPES["released"].negatives.total(16) == 1040
    about = Training("quijote").mark_settings()
    assert (about["shared"], about["r0"]) == (True, 0.3) and LearnedMark(PRESETS["quijote"].grid, **about)
    assert not Training("quijote", recipe="released").mark_settings()["shared"]


def test_plateau_schedule_and_early_stopping_counters():
    """A rate is halved after more than `plateau_patience` epochs without progress, as torch's own scheduler does."""
    recipe = Recipe(plateau_patience=2, floor=1e-4, learning_rate=1e-3)
    losses = [5.0, 4.0, 4.0, 4.0 - 1e-6, 4.5, 3.9, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4]
    parameter = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([parameter], lr=1e-3)
    plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(
        optimizer, factor=0.5, patience=2, threshold=1e-5, threshold_mode="abs", min_lr=1e-4
    )
    now, stale = Progress("marked"), []
    for loss in losses:
        now.step, now.loss_sum = 4, 4.0
        now.end_epoch(recipe, None, loss, 16, 0.0)
        plateau.step(loss)
        stale.append(now.stale)
        assert now.rate(1e-3, recipe, 4, 700) == pytest.approx(optimizer.param_groups[0]["lr"])
    assert stale[:7] == [0, 0, 1, 2, 3, 0, 1]
    assert (now.best_loss, now.best_epoch) == (3.9, 6)
    assert now.history[0]["train_loss"] == 1.0 and now.history[1]["passes"] == 2 * 4 * 16


def test_cosine_schedule():
    factors = [cosine_factor(step, 100, 0.1) for step in range(100)]
    assert factors[0] == pytest.approx(0.1)
    assert max(factors) == factors[9] == factors[10] == 1
    assert factors[55] == pytest.approx(0.5)
    assert 0 < factors[99] < 0.001


def test_a_failing_process_is_reported_with_its_log(tmp_path):
    with pytest.raises(RuntimeError, match=r"(?s)The training ended with code \d+; the end of .*log.txt"):
        list(follow(["--preset=nothing"], 1, tmp_path / "run"))
    assert "preset is 'nothing'; allowed are demo, mini" in (tmp_path / "run" / "log.txt").read_text()
