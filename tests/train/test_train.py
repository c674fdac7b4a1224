"""Training: exact accumulation, exact resume, one or many processes, and clear ends when it cannot go on."""

import csv
import json
import signal
import subprocess
import sys
import warnings
from copy import deepcopy
from dataclasses import replace
from math import isfinite, log
from pathlib import Path

import numpy as np
import pytest
import torch
from fake import FakeSet
from nbkit.train.fields import Fields
from nbkit.train.objective import Batch, MarkedObjective
from nbkit.train.progress import Progress
from nbkit.train.recipe import RECIPES, Recipe, as_json, cosine_factor, recipe_named
from nbkit.train.train import train
from nbkit.train.trainer import TrainingDiverged
from safetensors.torch import load_file
from training_process import RECIPE

from nbkit import ClassicalMark, Grid, LearnedMark
from nbkit.disk import read_tensors, write_atomically, write_tensors
from nbkit.mark import weights_hash
from nbkit.mark.classical import UnitMark
from nbkit.train.contrast import Heads
from nbkit.train.data import TrainingData
from nbkit.train.negatives import Negatives, candidates
from nbkit.train.processes import Processes, choose_device
from nbkit.train.run import load_run

HERE = Path(__file__).parents[1]
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def simulations():
    return FakeSet()


@pytest.fixture(scope="module")
def small():
    return FakeSet(40)


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def trained(simulations, folder, recipe=RECIPE, **options):
    return train(simulations, folder, recipe=recipe, **{"kmax": 0.3, "seed": 3, "device": "cpu", **options})


def batch_of(simulations, anchors, kmax, dtype=torch.float64, device="cpu"):
    u = torch.rand(40, 5, dtype=torch.float64)
    drawn = candidates(u[:anchors], u, Negatives(n_real=8, n_global=16, n_local=4), torch.Generator())
    delta = simulations[list(range(anchors))].to(dtype)
    bins = len(simulations.grid.bins(kmax).k)
    whole = Batch(
        torch.randn(anchors, bins, dtype=dtype), delta, drawn.theta.to(dtype), torch.arange(anchors), drawn.excluded
    )
    return Batch(*(x.to(device) for x in whole)), bins


def stirred(mark):
    """Away from M = 1, so that every weight has a gradient."""
    with torch.no_grad():
        for parameter in mark.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return mark


def test_micro_batches_add_up_to_the_full_batch(simulations):
    batch, bins = batch_of(simulations, 6, 0.3)
    objective = MarkedObjective(
        stirred(LearnedMark(simulations.grid)), Heads(bins), simulations.grid, 0.3, 0.05
    ).double()
    objective(batch).backward()
    whole = {name: p.grad.clone() for name, p in objective.named_parameters() if p.grad is not None}
    objective.zero_grad()
    for rows in (slice(0, 1), slice(1, 4), slice(4, 6)):
        objective(Batch(*(x[rows] for x in batch[:2]), batch.theta, *(x[rows] for x in batch[3:]))).backward()
    assert any(name.startswith("mark.") for name in whole)
    for name, gradient in whole.items():
        torch.testing.assert_close(dict(objective.named_parameters())[name].grad, gradient, rtol=1e-9, atol=1e-10)


def test_one_step_is_the_same_for_any_micro_batch(small, tmp_path, monkeypatch):
    results = []
    for size in (1, 3, 8):
        monkeypatch.setattr("nbkit.train.trainer.micro_batch", lambda grid, device, size=size: size)
        results.append(trained(small, tmp_path / str(size), replace(RECIPE, epochs=1)))
    for run in results[1:]:
        np.testing.assert_allclose(run.column("train_loss"), results[0].column("train_loss"), rtol=1e-4)
        np.testing.assert_allclose(run.best_loss, results[0].best_loss, rtol=1e-4)


def test_training_learns_and_leaves_a_whole_run(simulations, tmp_path):
    recipe = replace(RECIPE, pretrain_epochs=20, pretrain_rate=5e-3, epochs=8, plateau_patience=8)
    run = trained(simulations, tmp_path, recipe)
    chance = log(recipe.negatives.total(8))
    assert min(run.column("val_loss", "unmarked")) < 0.9 * chance
    assert run.best_loss == min(run.column("val_loss")) < 0.85 * chance
    assert run.finished
    with (tmp_path / "history.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [(r["stage"], int(r["epoch"])) for r in rows] == [("unmarked", i + 1) for i in range(20)] + [
        ("marked", i + 1) for i in range(8)
    ]
    assert [float(r["val_loss"]) for r in rows[20:]] == run.column("val_loss")
    assert run.column("passes") == [64 * (i + 1) for i in range(8)]
    again = load_run(tmp_path)
    z_perp, z_d, z_theta = again.embeddings(simulations)
    assert z_perp.shape == z_d.shape == z_theta.shape == (80, 16)
    torch.testing.assert_close((z_perp * z_d).sum(-1), torch.zeros(80), atol=1e-5, rtol=0)
    delta = simulations[[0]]
    assert torch.equal(again.mark(delta, simulations.grid), run.mark(delta, simulations.grid))
    assert not torch.allclose(run.mark(delta, simulations.grid), torch.ones_like(delta), atol=1e-3)


def test_a_finished_run_is_not_trained_again(small, tmp_path):
    first = trained(small, tmp_path)
    before = (tmp_path / "last.safetensors").stat().st_mtime_ns
    again = trained(small, tmp_path, on_epoch=lambda trainer: pytest.fail("trained again"))
    assert again.history == first.history
    assert (tmp_path / "last.safetensors").stat().st_mtime_ns == before


def test_kick_starts_a_mark_beside_one_and_spares_a_mark_given(small, tmp_path):
    def at_start(name, recipe, **options):
        seen = []  # stage one leaves the mark as it is
        trained(small, tmp_path / name, recipe, on_epoch=lambda t: seen.append(t.mark.responses.v.clone()), **options)
        return seen[0]

    short = replace(RECIPE, pretrain_epochs=1, epochs=1)
    kicked = replace(short, kick=0.1)
    v = at_start("kicked", kicked)
    assert 0.03 < v[0].std() < 0.3 and not v[1:].any()
    assert not at_start("given", kicked, mark=LearnedMark(small.grid)).any()
    assert not at_start("plain", short).any()


def test_stage_two_leaves_the_unmarked_head_alone_and_starts_theta_from_stage_one(small, tmp_path):
    run = trained(small, tmp_path, replace(RECIPE, epochs=1, theta_rate=1e-9, weight_decay=0.0))
    first, _ = read_tensors(tmp_path / "unmarked.safetensors")
    for name, value in run.heads.unmarked.state_dict().items():
        assert torch.equal(value, first[f"weights.heads.unmarked.{name}"])
    torch.testing.assert_close(run.heads.theta.weight, first["weights.heads.theta.weight"], atol=1e-6, rtol=0)
    assert not torch.equal(run.heads.metric(), torch.eye(16))


def test_validation_candidates_never_change(small):
    data = TrainingData(small, RECIPE, 0.3, 3, Processes(CPU))
    again = TrainingData(small, RECIPE, 0.3, 3, Processes(CPU))
    for one, other in ((data, data), (data, again)):
        ids, drawn = one.validation()
        other_ids, other_drawn = other.validation()
        for i in range(len(ids)):
            assert torch.equal(ids[i], other_ids[i])
            assert torch.equal(drawn(i).theta, other_drawn(i).theta)
            assert len(drawn(i).theta) == RECIPE.negatives.total(8)
    assert len(data.held_out) == 6
    assert sorted([*data.held_out.tolist(), *data.training.tolist()]) == list(range(40))
    orders = [data.epoch(1, epoch, 8)[0] for epoch in (0, 1)]
    assert not torch.equal(torch.stack(orders[0]), torch.stack(orders[1]))


def same_run(a, b):
    for name in ("last", "best", "unmarked"):
        one, other = (load_file(folder / f"{name}.safetensors") for folder in (a, b))
        assert one.keys() == other.keys()
        for key in one:
            assert torch.equal(one[key], other[key]), f"{name}: {key}"
    histories = [[{**row, "seconds": 0} for row in load_run(folder).history] for folder in (a, b)]
    assert histories[0] == histories[1]


def process(folder, *moment, **options):
    command = [sys.executable, str(HERE / "training_process.py"), str(folder), *map(str, moment)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options)


def test_killed_anywhere_and_run_again_is_bit_for_bit_the_same(tmp_path):
    """In both stages, inside steps, while a checkpoint is flushed, between best and last, and from outside."""
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    uninterrupted = process(whole)
    deaths = [("steps", 3), ("syncs", 9), ("replaces", 14), ("steps", 5)]
    for moment in deaths:
        assert process(broken, *moment).wait() == -signal.SIGKILL, f"was not killed at {moment}"
    outside = process(broken)
    try:
        outside.wait(timeout=3.5)
    except subprocess.TimeoutExpired:
        outside.kill()
    for last in (uninterrupted, process(broken)):
        _, said = last.communicate()
        assert last.returncode == 0, said
    same_run(whole, broken)


def test_stopped_and_continued_is_the_same_too(small, tmp_path):
    trained(small, tmp_path / "whole")
    for steps in (2, 7, 8):
        asked = iter([False] * (steps - 1) + [True] * 1000)
        run = trained(small, tmp_path / "stopped", stop=lambda asked=asked: next(asked))
        assert not run.finished
    assert isfinite(run.best_loss)
    assert trained(small, tmp_path / "stopped").finished
    same_run(tmp_path / "whole", tmp_path / "stopped")


@pytest.mark.parametrize(
    "changes",
    [{}, {"head_epochs": 2, "start": "classical"}, {"head_epochs": 2, "start": "function"}],
    ids=["tuned", "classical start", "warm"],
)
def test_standardised_training_is_exact_too(small, tmp_path, changes, monkeypatch):
    """The running mean and variance of S_M are part of what a checkpoint keeps."""
    monkeypatch.setenv("NBKIT_RUNS", str(tmp_path / "runs"))
    recipe = replace(RECIPE, standardise=True, schedule="cosine", **changes)
    whole = trained(small, tmp_path / "whole", recipe)
    for steps in (9, 3, 6):
        asked = iter([False] * (steps - 1) + [True] * 1000)
        trained(small, tmp_path / "stopped", recipe, stop=lambda asked=asked: next(asked))
    trained(small, tmp_path / "stopped", recipe)
    same_run(tmp_path / "whole", tmp_path / "stopped")
    S_delta = read_tensors(tmp_path / "whole" / "summaries.safetensors")[0]["S_delta"]
    data = TrainingData(small, recipe, 0.3, 3, Processes(CPU))
    torch.testing.assert_close(whole.heads.unmarked_mean, S_delta[data.training].mean(0))
    assert (whole.heads.marked_variance > 1e-4).all()


def test_heads_learn_to_read_the_first_mark_before_it_moves(simulations, tmp_path):
    """Between the stages the heads, and nothing else, learn; S_M of the start is measured once and standardised."""
    recipe = replace(RECIPE, standardise=True, pretrain_rate=5e-3, head_epochs=6, start="classical", epochs=1)
    marks = []
    run = trained(simulations, tmp_path, recipe, on_epoch=lambda t: marks.append(weights_hash(t.mark)))
    assert [row["stage"] for row in run.history] == ["unmarked"] * 2 + ["heads"] * 6 + ["marked"]
    assert len(set(marks[:8])) == 1 and marks[8] != marks[0]
    losses = run.column("val_loss", "heads")
    assert min(losses) < losses[0]
    at_start, _ = read_tensors(tmp_path / "heads.safetensors")
    tensors, _ = read_tensors(tmp_path / "summaries.safetensors")
    training = TrainingData(simulations, recipe, 0.3, 3, Processes(CPU)).training
    torch.testing.assert_close(at_start["weights.heads.marked_mean"], tensors["S_M"][training].mean(0))
    # A mark that does not learn has its heads trained in the same way, for as long.
    fixed = trained(simulations, tmp_path / "fixed", recipe, mark=ClassicalMark(2.0, 0.0))
    assert len(fixed.column("val_loss")) == 6


@pytest.mark.parametrize("rate", [1e-9, 0.3])
def test_a_start_that_no_epoch_improves_is_kept(small, tmp_path, rate):
    recipe = replace(
        RECIPE, standardise=True, pretrain_rate=5e-3, head_epochs=6, start="classical", epochs=1, learning_rate=rate
    )
    run = trained(small, tmp_path, recipe)
    start, about = read_tensors(tmp_path / "heads.safetensors")
    kept, _ = read_tensors(tmp_path / "best.safetensors")
    spoilt = run.column("val_loss")[0] > about["best_loss"]
    assert spoilt or rate < 1e-3  # such steps lead nowhere good
    assert run.best_loss == min(about["best_loss"], *run.column("val_loss"))
    assert (run.best_epoch == 0) == spoilt == all(torch.equal(kept[name], start[name]) for name in start)


def test_a_classical_start_is_one(simulations, tmp_path):
    seen = []
    recipe = replace(RECIPE, pretrain_epochs=1, epochs=1, start="classical")
    trained(simulations, tmp_path, recipe, on_epoch=lambda t: seen.append(deepcopy(t.mark)))
    delta, grid = simulations[[0, 40]], simulations.grid
    wanted = ClassicalMark(2.0, 0.0)(delta, grid).flatten()
    with torch.no_grad():
        M = seen[0](delta, grid).flatten()
    assert torch.corrcoef(torch.stack([M, wanted]))[0, 1] > 0.95


def test_following_is_the_running_mean_of_what_was_seen(simulations):
    batch, bins = batch_of(simulations, 6, 0.3, torch.float32)
    objective = MarkedObjective(stirred(LearnedMark(simulations.grid)), Heads(bins), simulations.grid, 0.3, 0.05, True)
    objective(batch)
    S_M = objective.S_M(batch.marked).detach()
    objective.follow(lambda tensor: tensor, 0.1)
    torch.testing.assert_close(objective.heads.marked_mean, 0.1 * S_M.mean(0))
    torch.testing.assert_close(objective.heads.marked_variance, 0.9 + 0.1 * (S_M.var(0, correction=0) + 1e-4))


def test_streamed_fields_give_the_same_run(small, tmp_path):
    assert Fields(small, CPU).in_memory
    assert not Fields(small, CPU, memory=0).in_memory
    trained(small, tmp_path / "memory")
    trained(small, tmp_path / "disk", memory=0)
    same_run(tmp_path / "memory", tmp_path / "disk")


def test_streaming_raises_what_reading_raised(small):
    class Broken(FakeSet):
        def __getitem__(self, index):
            if 5 in index:
                raise OSError("the disk is gone")
            return super().__getitem__(index)

    parts = Fields(Broken(10), CPU, memory=0).parts([[i] for i in range(10)])
    for _ in range(5):
        next(parts)
    with pytest.raises(OSError, match="the disk is gone"):
        next(parts)


def test_two_processes_give_the_losses_of_one(small, tmp_path):
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    command += [str(HERE / "training_process.py"), str(tmp_path / "two")]
    subprocess.run(command, check=True, capture_output=True, text=True)
    one, two = trained(small, tmp_path / "one"), load_run(tmp_path / "two")
    for stage in ("unmarked", "marked"):
        for column in ("train_loss", "val_loss"):
            np.testing.assert_allclose(two.column(column, stage), one.column(column, stage), rtol=2e-4)
    assert two.finished


def test_nan_in_a_simulation_names_epoch_batch_and_checkpoint(small, tmp_path):
    broken = FakeSet(40)
    data = TrainingData(broken, RECIPE, 0.3, 3, Processes(CPU))
    bad = int(data.epoch(1, 0, 8)[0][2][0])
    with pytest.raises(TrainingDiverged) as raised:
        # The summaries are made before the field goes bad, as when a disk decays during a long run.
        def spoil(trainer):
            if trainer.progress.stage == "unmarked" and trainer.progress.epoch == 2:
                trainer.data.fields._all[bad, 0, 0, 0] = torch.nan

        trained(broken, tmp_path, on_epoch=spoil)
    said = str(raised.value)
    assert "stage marked, epoch 1, batch 3" in said
    assert str(bad) in said
    assert f"last good checkpoint is {tmp_path / 'last.safetensors'}" in said
    assert load_file(tmp_path / "last.safetensors")


def test_diverging_loss_stops(small, tmp_path):
    with pytest.raises(TrainingDiverged, match=r"stage marked, epoch \d+, batch \d+: .*last good checkpoint"):
        trained(small, tmp_path, replace(RECIPE, learning_rate=1e4, epochs=30, clip=1e9))


def test_fixed_marks_train_heads_only(small, tmp_path):
    run = trained(small, tmp_path / "classical", mark=ClassicalMark(1.0, 0.3), memory=0)
    assert load_run(tmp_path / "classical").mark == ClassicalMark(1.0, 0.3)
    assert isfinite(run.best_loss)
    unit = trained(small, tmp_path / "unit", mark=UnitMark())
    tensors, _ = read_tensors(tmp_path / "unit" / "summaries.safetensors")
    b = tensors["S_delta"].shape[1]
    torch.testing.assert_close(tensors["S_M"][:, b:], torch.ones(40, b))
    assert unit.mark == UnitMark()


def test_a_mark_can_be_carried_over(small, tmp_path):
    start = stirred(LearnedMark(Grid(16, 125.0), l_max=1))
    before = {name: value.clone() for name, value in start.state_dict().items()}
    run = trained(small, tmp_path, replace(RECIPE, epochs=1, mark_rate=1e-9, weight_decay=0.0), mark=start)
    assert run.mark.settings["l_max"] == 1
    for name, value in run.mark.state_dict().items():
        torch.testing.assert_close(value, before[name], atol=1e-6, rtol=0)
        assert torch.equal(start.state_dict()[name], before[name])


@pytest.mark.parametrize("options", [{"l_max": 0}, {"radial": "gaussians"}, {"residual": False}, {"cross": False}])
def test_options_are_kept_by_the_run(small, tmp_path, options):
    run = trained(small, tmp_path, replace(RECIPE, pretrain_epochs=1, epochs=1), **options)
    for name, value in options.items():
        assert {**run.mark.settings, "residual": run.heads.residualised}[name] == value


def test_runs_on_the_meta_device(simulations):
    """No tensor is left on the CPU: mixing devices would raise."""
    batch, bins = batch_of(simulations, 3, 0.3, torch.float32, "meta")
    mark = LearnedMark(simulations.grid)
    objective = MarkedObjective(mark, Heads(bins), simulations.grid, 0.3, 0.05).to("meta")
    optimizer = torch.optim.AdamW(objective.parameters())
    objective(batch).backward()
    optimizer.step()
    assert all(p.grad.shape == p.shape for p in mark.parameters())


def test_another_runs_folder_is_refused(small, tmp_path):
    quick = replace(RECIPE, pretrain_epochs=1, epochs=1)
    trained(small, tmp_path, quick)
    with pytest.raises(ValueError, match=r"holds a run with other settings: kmax is 0.3 there and 0.2 now.*fresh=True"):
        trained(small, tmp_path, quick, kmax=0.2)
    assert trained(small, tmp_path, quick, kmax=0.2, fresh=True).kmax == 0.2


def test_kmax_above_the_taper_warns_and_above_nyquist_is_refused(small, tmp_path):
    quick = replace(RECIPE, pretrain_epochs=1, epochs=1)
    with pytest.warns(UserWarning, match=r"kmax is 0.39 h/Mpc, but the mark's filters fade from 0.3418"):
        trained(small, tmp_path / "a", quick, kmax=0.39)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        trained(small, tmp_path / "b", quick, kmax=0.3)
    with pytest.raises(ValueError, match=r"kmax is 0.5 h/Mpc; this grid .* k_Nyq = 0.4021"):
        trained(small, tmp_path / "c", quick, kmax=0.5)
    assert not (tmp_path / "c").exists()


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (
            lambda s, d: trained(s, d, replace(RECIPE, batch=60)),
            "40 simulations give 34 for training and 6 for validation",
        ),
        (lambda s, d: trained(s, d, "papr"), "recipe is 'papr'; allowed are paper, tuned"),
        (lambda s, d: trained(s, d, replace(RECIPE, negatives=Negatives())), "n_real is 128, but only"),
        (lambda s, d: trained(s, d, device="gpu"), "device is 'gpu'; allowed are"),
        (lambda s, d: recipe_named("paper", bach=3), "No such setting of a recipe: bach; allowed are batch, "),
        (lambda s, d: Recipe(schedule="linear"), "schedule is 'linear'; allowed are plateau, cosine"),
        (lambda s, d: Recipe(batch=0), "batch is 0"),
        (lambda s, d: Recipe(validation=1.5), "validation is 1.5"),
        (lambda s, d: load_run(d), "There is no run in"),
    ],
)
def test_impossible_requests_get_one_sentence(small, tmp_path, call, said):
    with pytest.raises((ValueError, FileNotFoundError), match=said):
        call(small, tmp_path)


@pytest.mark.skipif(torch.cuda.is_available(), reason="has a GPU")
def test_a_missing_gpu_is_said():
    assert choose_device("auto") == CPU
    with pytest.raises(ValueError, match="device is 'cuda', but no GPU is usable here"):
        choose_device("cuda")


def test_the_papers_recipe():
    """Tables 1 and 2."""
    paper = RECIPES["paper"]
    assert (paper.learning_rate, paper.weight_decay, paper.clip, paper.batch) == (5e-4, 1e-4, 10.0, 16)
    assert (paper.mark_rate, paper.theta_rate, paper.schedule, paper.gamma) == (2.0, 0.25, "plateau", 0.5)
    assert (paper.plateau_patience, paper.floor, paper.patience, paper.min_delta) == (8, 1e-7, 20, 1e-5)
    assert (paper.validation, paper.dimension, paper.width, paper.temperature) == (0.15, 16, 64, 0.05)
    assert paper.negatives.total(16) == 1040
    assert Recipe(**json.loads(json.dumps(as_json(paper)))) == paper


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
        now.end_epoch(recipe, loss, 16, 0.0)
        plateau.step(loss)
        stale.append(now.stale)
        assert now.rate(1e-3, recipe, 4, 700) == pytest.approx(optimizer.param_groups[0]["lr"])
    assert stale[:7] == [0, 0, 1, 2, 3, 0, 1]
    assert (now.best_loss, now.best_epoch) == (3.9, 6)


def test_cosine_schedule():
    factors = [cosine_factor(step, 100, 0.1) for step in range(100)]
    assert factors[0] == pytest.approx(0.1)
    assert max(factors) == factors[9] == factors[10] == 1
    assert factors[55] == pytest.approx(0.5)
    assert 0 < factors[99] < 0.001


def test_files_are_replaced_whole(tmp_path, monkeypatch):
    path = tmp_path / "a.safetensors"
    write_tensors(path, {"x": torch.arange(3)}, {"epoch": 1})
    monkeypatch.setattr("nbkit.disk.os.fsync", lambda _: (_ for _ in ()).throw(OSError("No space left on device")))
    with pytest.raises(OSError, match="No space left"):
        write_atomically(path, b"half")
    tensors, about = read_tensors(path)
    assert (tensors["x"].tolist(), about) == ([0, 1, 2], {"epoch": 1})
    path.write_bytes(path.read_bytes()[:-4])
    with pytest.raises(ValueError, match="is not a whole safetensors file"):
        read_tensors(path)


def test_quiet_where_nobody_watches(small, tmp_path, capfd):
    trained(small, tmp_path, replace(RECIPE, pretrain_epochs=1, epochs=1))
    assert capfd.readouterr() == ("", "")
