"""Every kind of training: it learns, leaves a whole run, goes on exactly, alone or shared, and ends clearly."""

import csv
import json
import re
import signal
import subprocess
import sys
import warnings
from copy import deepcopy
from dataclasses import replace
from math import isfinite, log
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import training_process
from fake import FakeSet
from training_process import (
    CASES,
    CONTRAST,
    GRID,
    INFORMATION,
    ON_INFORMATION,
    RECIPE,
    WARM,
    Boxes,
    boxes,
    fake,
    in_a_process,
    noise_only,
    simulations_of,
    stirred,
    trained,
)

from nbkit import ClassicalMark, LearnedMark, Training, load, train
from nbkit.disk import read_tensors
from nbkit.mark import UnitMark, identity, weights_hash
from nbkit.mesh.threads import choose_device
from nbkit.train import TrainingDiverged, bundled_runs, fixed_losses, own_runs, search
from nbkit.train.__main__ import main
from nbkit.train.contrast import Negatives
from nbkit.train.data import Fields, Prior
from nbkit.train.fit import Objective, Processes, fit
from nbkit.train.information import Neighbourhood
from nbkit.universe.cosmology import FIDUCIAL
from nbkit.universe.store import fingerprint

pytestmark = pytest.mark.filterwarnings("ignore:kmax is 0.38")
CPU = torch.device("cpu")
QUICK = replace(RECIPE, pretrain_epochs=1, epochs=1)
# Optimiser steps of each case, and how many of them belong to the search for functions.
STEPS = {"paper": (20, 0), "warm": (76, 48), "fixed": (20, 0), "information": (69, 60)}
FILES = {"run.json", "history.csv", "marked.safetensors"}


@pytest.fixture(scope="module", params=CASES)
def whole(request, tmp_path_factory):
    """A case's name, the Run of a training that a process of its own made undisturbed, and its folder."""
    folder = tmp_path_factory.mktemp(request.param)
    assert in_a_process(request.param, folder, tmp_path_factory.mktemp("caches")) == 0
    return request.param, load(folder), folder


@pytest.fixture(scope="module", params=CASES)
def here(request, tmp_path_factory):
    """A case's name, and the folder of a training that was made undisturbed in this process."""
    folder = tmp_path_factory.mktemp(request.param)
    trained(request.param, folder)
    return request.param, folder


def same_run(one, other):
    """Bit for bit, files and histories, but for the seconds."""
    names = [sorted(str(path.relative_to(f)) for path in f.rglob("*.safetensors")) for f in (one, other)]
    assert names[0] == names[1]
    for name in names[0]:
        (a, about_a), (b, about_b) = (read_tensors(folder / name) for folder in (one, other))
        assert a.keys() == b.keys()
        for key in a:
            assert torch.equal(a[key], b[key]), f"{name}: {key}"
        histories = [[row | {"seconds": 0} for row in about.pop("history", [])] for about in (about_a, about_b)]
        assert histories[0] == histories[1] and about_a == about_b


def weights(run):
    return {
        f"{which}.{name}": x
        for which in ("mark", "heads")
        if isinstance(getattr(run, which), torch.nn.Module)
        for name, x in getattr(run, which).state_dict().items()
    }


def test_training_leaves_a_whole_run(whole):
    case, run, folder = whole
    training, fixed = CASES[case]
    again = load(folder)
    for each in (run, again, trained(case, folder)):
        assert each.finished and each.training == training and each.folder == folder
        assert each.kmax == training.kmax and each.recipe == training.recipe_for(each.grid)
        assert each.best_loss == min(each.column("val_loss"))
        assert (each.heads is None) == (training.objective == "information")
    assert again.history == run.history and weights(again).keys() == weights(run).keys()
    assert all(torch.equal(x, weights(again)[name]) for name, x in weights(run).items())
    assert run.mark == again.mark == fixed or fixed is None
    with (folder / "history.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [{name: str(value) for name, value in row.items()} for row in run.history] == rows
    assert {path.name for path in folder.iterdir() if not path.name.startswith(".")} >= FILES
    assert Training(**json.loads((folder / "run.json").read_text())["training"]) == training


def test_a_finished_run_is_not_trained_again(whole):
    """Nothing is written and no field is read."""

    class Closed:
        def __init__(self, simulations):
            self.__dict__ |= vars(simulations)
            self.grid, self.fingerprint = simulations.grid, fingerprint(simulations)

        def __len__(self):
            return len(self.theta)

    case, run, folder = whole
    information = CASES[case][0].objective == "information"
    closed = {name: Closed(each) for name, each in boxes().items()} if information else Closed(fake(40))
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*.safetensors")}
    again = trained(case, folder, closed, on_epoch=lambda *_: pytest.fail("trained again"))
    assert again.history == run.history and again.finished
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*.safetensors")} == before


def test_stopped_and_continued_is_bit_for_bit_the_same(here, tmp_path):
    case, folder = here
    steps, searched = STEPS[case]
    drawn = np.random.default_rng(len(case))
    places = {*drawn.choice(np.arange(1, steps), 3, replace=False), *([searched // 2] if searched else [])}
    before = 0
    for place in sorted(places):
        asked = iter([False] * (place - before - 1) + [True] * 100)
        run = trained(case, tmp_path, stop=lambda asked=asked: next(asked))
        assert not run.finished and not load(tmp_path).finished
        before = place
    assert trained(case, tmp_path).finished
    same_run(folder, tmp_path)


def test_killed_anywhere_and_run_again_is_bit_for_bit_the_same(whole, tmp_path):
    """Inside a step (of the search, where there is one), while a checkpoint is flushed, and between two renames."""
    case, _, folder = whole
    steps, searched = STEPS[case]
    drawn, broken, left = np.random.default_rng(steps), tmp_path / "broken", False
    deaths = [("steps", int(searched // 2 + drawn.integers(2, 7)))]
    deaths += [("syncs", int(drawn.integers(5, 20))), ("replaces", int(drawn.integers(3, 10)))]
    for i, (moment, count) in enumerate(deaths):
        code = in_a_process(case, broken, tmp_path / "caches", moment, count)
        assert code == -signal.SIGKILL, f"was not killed at {moment} {count}"
        if searched and i == 0:
            with pytest.raises(FileNotFoundError, match=f"The run in {broken} has no checkpoint yet"):
                load(broken)
        left = left or any(broken.rglob("*.part"))
    assert in_a_process(case, broken, tmp_path / "caches") == 0 and load(broken).finished
    assert left and not any(broken.rglob("*.part"))  # what a flush left unfinished is cleared away
    same_run(folder, broken)


@pytest.fixture(scope="module")
def by_two(tmp_path_factory):
    """Folder in which two processes have trained every case together."""
    folder = tmp_path_factory.mktemp("two")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    command += [training_process.__file__, str(folder)]
    subprocess.run(command, check=True, capture_output=True, text=True)
    return folder


def test_two_processes_give_the_losses_of_one(whole, by_two):
    case, one, folder = whole
    two, near = load(by_two / case), {"abs": 2e-3} if one.heads is None else {"rel": 2e-4}
    assert two.finished
    for path in folder.rglob("marked.safetensors"):  # of searches, too
        alone, together = (read_tensors(each)[1] for each in (path, by_two / case / path.relative_to(folder)))
        assert together["best_loss"] == pytest.approx(alone["best_loss"], **near)
    for a, b in zip(one.history, two.history, strict=True):
        assert (a["stage"], a["epoch"], a["passes"]) == (b["stage"], b["epoch"], b["passes"])
        for column in ("train_loss", "val_loss"):
            assert b[column] == pytest.approx(a[column], **near)
    assert two.mark == one.mark if case == "fixed" else two.mark.responses.v.any()


def test_streamed_fields_give_the_same_run(here, tmp_path):
    case, folder = here
    trained(case, tmp_path, memory=0)
    same_run(folder, tmp_path)


LONG = replace(RECIPE, pretrain_epochs=20, pretrain_rate=5e-3, epochs=8, plateau_patience=8)


# From functions the start is an imitation, which makes much of the last bits of this machine's arithmetic.
@pytest.mark.parametrize(
    ("training", "fixed", "share"),
    [
        (replace(CONTRAST, recipe=LONG), None, 0.85),
        (replace(CONTRAST, recipe=replace(WARM, pretrain_epochs=20, head_epochs=40)), None, 0.9),
        (replace(CONTRAST, recipe=LONG), ClassicalMark(2.0, 0.0), 0.85),
    ],
    ids=["paper", "warm", "fixed"],
)
def test_contrast_falls_well_below_chance(training, fixed, share, tmp_path):
    run = trained(training, tmp_path, fake(80), fixed=fixed)
    chance = log(RECIPE.negatives.total(8))
    assert min(run.column("val_loss", "unmarked")) < 0.9 * chance
    assert run.best_loss < share * chance
    assert run.column("passes")[-1] == 64 * run.column("epoch")[-1]
    M = run.mark(fake(80)[[0]], run.grid)
    assert not torch.allclose(M, torch.ones_like(M), atol=1e-3)


def test_information_is_gained(tmp_path):
    run = trained(replace(INFORMATION, start="unit", recipe=replace(ON_INFORMATION, epochs=6)), tmp_path)
    losses = run.column("train_loss")
    assert run.column("epoch") == list(range(7)) and run.column("passes")[-1] == 6 * 300
    assert min(losses) < losses[0] - 0.05


@pytest.mark.parametrize(("case", "stage", "epoch"), [("paper", "unmarked", 2), ("information", "marked", 0)])
def test_nan_in_a_simulation_names_stage_epoch_place_and_checkpoint(case, stage, epoch, tmp_path):
    """The field goes bad once the summaries are made, or the start is judged, as when a disk decays on the way."""
    if contrast := case == "paper":
        simulations = spoilt = FakeSet(40)
        bad = int(Prior(simulations, RECIPE, 0.3, 3, Processes(CPU)).epoch(1, 0, 8)[0][2][0])
    else:
        spoilt = Boxes(FIDUCIAL, range(150))
        simulations = boxes() | {"fiducial": spoilt}
        bad = int(Neighbourhood(simulations, ON_INFORMATION, 0.38, 3, Processes(CPU)).training[0][7])

    def on_epoch(objective, now):
        if (now.stage, now.epoch) == (stage, epoch) and not isinstance(objective, search.InformationSearch):
            spoilt.fields[bad, 0, 0, 0] = torch.nan

    with pytest.raises(TrainingDiverged) as raised:
        trained(case, tmp_path, simulations, on_epoch=on_epoch, memory=0, checkpoint_every=0.0)
    said = str(raised.value)
    assert f"Training stopped in stage marked, epoch 1, batch {'3: ' if contrast else ''}" in said
    assert re.search(rf"simulations \[{bad}, " if contrast else rf"\(simulations fiducial {bad}\)", said)
    assert f"the last good checkpoint is {tmp_path / 'marked.safetensors'}" in said
    assert not load(tmp_path).finished


def test_steps_that_lead_nowhere_stop(tmp_path):
    """By their loss, its gradient, or a mark that has become 0 everywhere: which comes first is up to rounding."""
    wild = replace(CONTRAST, recipe=replace(RECIPE, learning_rate=1e4, epochs=30, clip=1e9))
    said = "the loss is|the validation loss is|P_mm is not a positive number|not finite"
    with pytest.raises(TrainingDiverged, match=rf"stage marked, epoch \d+, .*: .*({said}).*last good checkpoint is"):
        trained(wild, tmp_path, checkpoint_every=0.0)


@pytest.mark.parametrize(
    ("losses", "said"),
    [
        ([*[3.1] * 7, 2.9, *[3.1] * 8], "epoch 2, batch 8: the loss is 3.1 and the norm of its gradient 1"),
        ([1.0, torch.nan], "epoch 1, batch 2: the loss is nan"),
        ([1.0] * 8 + [torch.inf], "epoch 1, validation: the validation loss is inf"),
    ],
    ids=["far above the best", "nan", "validation"],
)
def test_one_bad_batch_is_forgiven_and_many_are_not(losses, said, tmp_path):
    class Toy(Objective):
        name, recipe, batch, steps, epochs, chance = "toy", replace(RECIPE, patience=9), 1, 8, 9, 1.0

        def __init__(self):
            super().__init__()
            self.x, self.losses = torch.nn.Parameter(torch.zeros(())), iter(losses)

        def groups(self):
            return [([self], 1e-3, 0.0)]

        def start(self):
            return None, 0.0

        def step(self, i):
            loss = self.x - self.x.detach() + next(self.losses)
            loss.backward()
            return loss

        def validate(self):
            return None, next(self.losses, 0.0) if len(losses) == 9 else 0.0

    with pytest.raises(TrainingDiverged, match=f"Training stopped in stage toy, {said}.*; no checkpoint had been writ"):
        fit(Toy(), tmp_path, Processes(CPU))


def test_derivatives_of_pure_noise_are_refused(tmp_path):
    """Where there is no information the training says so instead of finding some."""
    with pytest.raises(TrainingDiverged, match=r"stage marked, epoch 1, .*: The derivatives of the .* mostly noise"):
        trained(INFORMATION, tmp_path, noise_only())


def test_fixed_losses_are_those_that_training_reports(tmp_path):
    run = trained("information", tmp_path)
    losses = fixed_losses(run.training, {"best": run.mark, "p": ClassicalMark(1.0, 0.1)}, boxes(), device="cpu")
    assert losses["best"] == pytest.approx(run.best_loss, abs=1e-6)
    assert losses["p"] != losses["best"]


def test_fixed_marks_are_compared_in_one_pass(tmp_path, monkeypatch):
    """The losses are those of trainings one by one, and no field is read for them again."""
    monkeypatch.setenv("NBKIT_RUNS", str(tmp_path))
    training, passes, really = replace(CONTRAST, recipe=QUICK), [], Fields.parts
    marks = {"p": ClassicalMark(1.0, 0.3), "learned": stirred(LearnedMark(GRID, 1)), "M = 1": UnitMark()}
    monkeypatch.setattr(Fields, "parts", lambda self, parts: passes.append(1) or really(self, parts))
    losses = fixed_losses(training, marks, fake(40), tmp_path / "fixed", device="cpu")
    assert len(passes) == 1 and list(losses) == list(marks) and len(set(losses.values())) == 3
    assert losses["p"] == trained(training, tmp_path / "again", fixed=marks["p"]).best_loss
    assert load(tmp_path / "fixed" / "learned").finished


@pytest.mark.parametrize(
    "mark", [ClassicalMark(1.0, 0.3), UnitMark(), LearnedMark(GRID, 1)], ids=lambda mark: type(mark).__name__
)
def test_fixed_marks_stay_as_they_are_and_come_back(mark, tmp_path):
    learned = isinstance(mark, LearnedMark)
    if learned:
        stirred(mark)
    before = identity(mark)
    asked = iter([False] * 2 + [True] * 100)
    for run in (trained(CONTRAST, tmp_path, fixed=mark, stop=lambda: next(asked)), load(tmp_path)):
        assert identity(run.mark) == before and not run.finished  # known before its heads are
    for run in (trained(CONTRAST, tmp_path, fixed=mark), load(tmp_path)):
        assert identity(run.mark) == before == identity(mark) and run.finished and isfinite(run.best_loss)
    assert [row["stage"] for row in run.history] == ["unmarked"] * 2 + ["marked"] * 3
    if mark == UnitMark():
        data = Prior(fake(40), RECIPE, 0.3, 3, Processes(CPU))
        data.load_summaries(mark)
        b = data.S_delta.shape[1]
        torch.testing.assert_close(data.S_M[:, b:], torch.ones(40, b))


@pytest.mark.parametrize("training", [CONTRAST, INFORMATION], ids=lambda training: training.objective)
def test_training_goes_on_from_a_mark_or_a_run(training, tmp_path, monkeypatch):
    """The mark given keeps its weights, and is not kicked; a run may be named, and brings its own settings."""
    monkeypatch.setenv("NBKIT_RUNS", str(tmp_path))
    start = stirred(LearnedMark(GRID, l_max=1))
    before = weights_hash(start)
    still = replace(training.recipe, epochs=1, learning_rate=1e-9, weight_decay=0.0, kick=0.1)
    training = replace(training, recipe=still, start="default")
    first = trained(training, None, mark=start)
    assert own_runs() == (training.name,) and first.name == training.name
    named = trained(replace(training, start=first.name), tmp_path / "named")
    for run in (first, named):
        assert run.finished and run.mark.settings["l_max"] == 1 and weights_hash(start) == before
        for name, value in run.mark.state_dict().items():
            torch.testing.assert_close(value, start.state_dict()[name], atol=1e-6, rtol=0)
    assert (first.settings["start"], named.settings["start"]) == (before, weights_hash(first.mark))


@pytest.mark.parametrize("start", ["unit", "classical"])
@pytest.mark.parametrize("training", [CONTRAST, INFORMATION], ids=lambda training: training.objective)
def test_starts(training, start, tmp_path):
    """Of the recipe or said; the same for the same seed alone."""
    recipe = replace(training.recipe, head_epochs=1, epochs=1, start=start, kick=0.1)

    def first(seed, start):
        marks = []  # heads, or an epoch 0, come before a mark moves
        changed = replace(training, recipe=recipe, start=start, seed=seed, l_max=2)
        folder = tmp_path / f"{seed}{start}"
        trained(changed, folder, on_epoch=lambda t, _: marks.append(deepcopy(getattr(t, "mark", None))))
        return next(mark for mark in marks if mark is not None)

    one, again, other = first(3, start), first(3, "default"), first(4, start)
    assert weights_hash(one) == weights_hash(again) != weights_hash(other)
    delta = simulations_of(training)[[0, 20]] if training is CONTRAST else boxes()["fiducial"][[0, 20]]
    with torch.no_grad():
        M = one(delta, GRID).flatten()
    if start == "classical":
        wanted = ClassicalMark(2.0, 0.0)(delta, GRID).flatten()
        assert torch.corrcoef(torch.stack([M, wanted]))[0, 1] > 0.95
    else:
        v = one.responses.v
        assert 0.3 < float(M.mean()) < 3 and 0.03 < v[0].std() < 0.3
        assert v[1:].any() == (training is INFORMATION)  # by contrast h_0 alone is kicked


@pytest.mark.parametrize(
    "options", [{"l_max": 0, "residual": False}, {"radial": "gaussians"}, {"cross": False}, {"shared": True, "r0": 0.3}]
)
def test_options_reach_mark_and_heads_and_are_kept(options, tmp_path):
    run = trained(replace(CONTRAST, recipe=replace(QUICK, learning_rate=1e-9), **options), tmp_path)
    for each in (run, load(tmp_path)):
        assert ({"residual": each.heads.residualised} | each.mark.settings).items() >= options.items()
    if "shared" in options:  # one centre, at r0
        torch.testing.assert_close(run.mark.profiles.r0, torch.tensor([0.3]), atol=1e-4, rtol=0)


def test_another_runs_folder_is_refused_or_emptied(tmp_path):
    quick = replace(CONTRAST, recipe=QUICK)
    trained(quick, tmp_path)
    with pytest.raises(ValueError, match=r"holds a run with other settings: training is .*Choose another.*fresh=True"):
        trained(replace(quick, kmax=0.2), tmp_path)
    assert trained(replace(quick, kmax=0.2), tmp_path, fresh=True).kmax == 0.2
    assert load(tmp_path).kmax == 0.2


def test_a_run_of_the_version_before_is_refused(tmp_path):
    (tmp_path / "run.json").write_text('{"kmax": 0.3, "seed": 3}')
    for call in (lambda: trained(CONTRAST, tmp_path), lambda: load(tmp_path)):
        with pytest.raises(ValueError, match=r"was written by another version of nbkit \(format 1, .* train again"):
            call()


def test_kmax_above_the_taper_warns(tmp_path):
    quick = replace(CONTRAST, recipe=QUICK)
    with pytest.warns(UserWarning, match=r"kmax is 0.39 h/Mpc, but the mark's filters fade from 0.3418"):
        trained(replace(quick, kmax=0.39), tmp_path / "a")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        trained(quick, tmp_path / "b")


def recipe(training, **changes):
    return replace(training, recipe=replace(training.recipe, **changes))


@pytest.mark.parametrize(
    ("training", "options", "said"),
    [
        (replace(CONTRAST, kmax=0.5), {}, r"kmax is 0.5 h/Mpc; this grid .* k_Nyq = 0.4021"),
        (replace(INFORMATION, kmax=0.3), {}, "kmax is 0.3 h/Mpc, which leaves 4 bins; P_dd alone, .* needs 5 or more"),
        (replace(CONTRAST, r0=0.9), {}, "r0 is 0.9; it must be a number between 0.05 and 0.6"),
        (replace(CONTRAST, start="no_run"), {}, "There is no run 'no_run': give one of demo_i2, "),
        (replace(INFORMATION, start="clasical"), {}, "There is no run 'clasical': give one of demo_i2, "),
        (recipe(CONTRAST, start="function"), {}, "start is 'function' and head_epochs is 0; the search .* takes 1"),
        (recipe(CONTRAST, batch=60), {}, "40 simulations give 34 for training and 6 for validation; batch = 60 needs"),
        (recipe(CONTRAST, negatives=Negatives()), {}, "n_real is 128, but only"),
        (recipe(INFORMATION, batch=4), {}, "which makes 75 steps of 1 fiducial boxes and 0 pairs; a step needs"),
        (recipe(INFORMATION, validation=0.1), {}, "validation has 15 fiducial simulations and 3 pairs"),
        (CONTRAST, {"device": "gpu"}, "device is 'gpu'; allowed are"),
        (CONTRAST, {"mark": ClassicalMark(1.0, 0.1)}, "mark is a ClassicalMark, which has nothing to train; give a"),
        (CONTRAST, {"simulations": boxes()}, "objective is 'contrast', but simulations is a dict; give one set"),
        (INFORMATION, {"simulations": fake(40)}, "but simulations is a FakeSet; give a suite"),
        (INFORMATION, {"fixed": UnitMark()}, "objective is 'information', which trains no heads to read a fixed mark"),
        (INFORMATION, {"simulations": boxes() | {"h_m": Boxes(FIDUCIAL, range(30))}}, "h_m has other seeds than Om_p"),
    ],
)
def test_impossible_requests_get_one_sentence_and_leave_no_run(training, options, said, tmp_path):
    asked = {"simulations": simulations_of(training), "device": "cpu"} | options
    with pytest.raises((ValueError, TypeError, FileNotFoundError), match=said):
        train(training, folder=tmp_path, **asked)
    assert not (tmp_path / "marked.safetensors").exists()
    assert not (tmp_path / "run.json").exists() or "boxes and 0 pairs" in said


def test_a_batch_that_processes_cannot_share_is_refused(tmp_path, monkeypatch):
    three = SimpleNamespace(size=3, device=CPU)
    monkeypatch.setattr(sys.modules["nbkit.train"], "Processes", lambda device: three)
    with pytest.raises(ValueError, match="batch is 8, which 3 processes cannot share; use a multiple"):
        trained(CONTRAST, tmp_path)


def test_a_run_that_is_not_there_is_said(tmp_path):
    with pytest.raises(
        FileNotFoundError, match=r"There is no run 'l9': give one of demo_i2, .*demo_l2, the name of a folder"
    ):
        load("l9", preset="demo")
    assert load("l2", preset="demo").name == "demo_l2" in bundled_runs()


@pytest.mark.skipif(torch.cuda.is_available(), reason="has a GPU")
def test_a_missing_gpu_is_said():
    assert choose_device("auto") == CPU
    with pytest.raises(ValueError, match="device is 'cuda', but no GPU is usable here"):
        choose_device("cuda")


def test_a_damaged_checkpoint_is_said(tmp_path):
    trained(replace(CONTRAST, recipe=QUICK), tmp_path)
    path = tmp_path / "marked.safetensors"
    path.write_bytes(path.read_bytes()[:-4])
    for call in (lambda: trained(replace(CONTRAST, recipe=QUICK), tmp_path), lambda: load(tmp_path)):
        with pytest.raises(ValueError, match=f"{path} is not a whole safetensors file .* delete it to start anew"):
            call()


def test_a_shell_gets_a_line_an_epoch(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(Training, "simulations", lambda training, data_root: boxes())
    words = replace(INFORMATION, start="unit", recipe="default", epochs=2).words()
    main([*words, f"--folder={tmp_path}", "--device=cpu"])
    lines = capsys.readouterr().out.splitlines()
    line = re.compile(r"marked epoch (\d): training -?[\d.]+, validation -?[\d.]+, [\d.]+ s")
    assert [line.fullmatch(each)[1] for each in lines] == ["0", "1", "2"]
    assert load(tmp_path).finished and load(tmp_path).recipe.epochs == 2


def test_quiet_where_nobody_watches(tmp_path, capfd):
    trained(replace(CONTRAST, recipe=QUICK), tmp_path)
    assert capfd.readouterr() == ("", "")
