"""Embeddings, score and loss against closed forms; batches, candidates and stages of a training by contrast."""

from dataclasses import replace
from math import log

import numpy as np
import pytest
import torch
from fake import FakeSet
from training_process import CONTRAST, GRID, RECIPE, fake, stirred, trained

from nbkit import LearnedMark
from nbkit.disk import read_tensors
from nbkit.mark import weights_hash
from nbkit.train import objectives
from nbkit.train.contrast import (
    LEAST_VARIANCE,
    Heads,
    Metric,
    Negatives,
    Projector,
    candidates,
    info_nce,
    mahalanobis_scores,
    residual,
)
from nbkit.train.data import Batch, Fields, Prior
from nbkit.train.fit import Processes
from nbkit.train.objectives import Contrast

CPU = torch.device("cpu")


def test_residual_is_orthogonal_and_keeps_the_rest():
    z_m, z_d = torch.randn(2, 7, 16, dtype=torch.float64)
    z_perp = residual(z_m, z_d)
    torch.testing.assert_close((z_perp * z_d).sum(-1), torch.zeros(7, dtype=torch.float64), atol=1e-7, rtol=0)
    cosine = (z_m * z_d).sum(-1) / z_m.norm(dim=-1) / z_d.norm(dim=-1)
    torch.testing.assert_close(z_perp.norm(dim=-1), z_m.norm(dim=-1) * (1 - cosine**2).sqrt())


def test_score_is_the_quadratic_form():
    z, z_theta = torch.randn(3, 4, dtype=torch.float64), torch.randn(5, 4, dtype=torch.float64)
    L = torch.randn(4, 4, dtype=torch.float64).tril()
    scores = mahalanobis_scores(z, z_theta, L, 0.05)
    for i in range(3):
        for j in range(5):
            difference = z[i] - z_theta[j]
            torch.testing.assert_close(scores[i, j], -(difference @ L @ L.T @ difference) / 0.05)


def test_metric_starts_as_identity_and_stays_positive():
    metric = Metric(6)
    assert torch.equal(metric(), torch.eye(6))
    with torch.no_grad():
        metric.log_diagonal.normal_(std=3)
        metric.below.normal_()
    L = metric()
    assert torch.equal(L, L.tril())
    assert (L.diagonal() > 0).all()
    assert torch.linalg.eigvalsh((L @ L.T).detach().double()).min() > 0


@pytest.mark.parametrize("count", [2, 1040])
def test_identical_embeddings_are_chance(count):
    z = torch.ones(16, 16) / 4
    scores = mahalanobis_scores(z, z[:1].expand(count, 16), torch.eye(16), 0.05)
    loss = info_nce(scores, torch.zeros(16, dtype=torch.long))
    torch.testing.assert_close(loss, torch.full((16,), log(count)))


def test_info_nce_in_closed_form():
    scores = torch.tensor([[0.0, 1.0, 2.0], [3.0, 0.0, 0.0]], dtype=torch.float64)
    positive = torch.tensor([0, 1])
    excluded = torch.tensor([[False, True, False], [False, False, False]])
    p = torch.exp(scores)
    full = torch.stack([-torch.log(p[0, 0] / p[0].sum()), -torch.log(p[1, 1] / p[1].sum())])
    torch.testing.assert_close(info_nce(scores, positive), full)
    without = -torch.log(p[0, 0] / (p[0, 0] + p[0, 2]))
    torch.testing.assert_close(info_nce(scores, positive, excluded)[0], without)


def test_perfect_embeddings_reach_zero():
    z = torch.eye(16)
    scores = mahalanobis_scores(z, z, torch.eye(16), 0.05)
    assert info_nce(scores, torch.arange(16)).max() < 1e-12


def test_excluded_candidates_get_no_gradient():
    scores = torch.randn(1, 4, requires_grad=True)
    info_nce(scores, torch.tensor([0]), torch.tensor([[False, True, False, False]])).sum().backward()
    assert scores.grad[0, 1] == 0
    assert (scores.grad[0, [0, 2, 3]] != 0).all()


def test_projector_is_the_papers():
    kinds = [type(layer).__name__ for layer in Projector(47)]
    assert kinds == ["Linear", "LayerNorm", "GELU", "Linear", "LayerNorm", "GELU", "Linear"]
    assert Projector(47)(torch.randn(3, 2, 47)).shape == (3, 2, 16)
    assert sum(p.numel() for p in Projector(47).parameters()) == 47 * 64 + 64 + 128 + 64 * 64 + 64 + 128 + 64 * 16 + 16


def test_heads_give_unit_vectors():
    heads = Heads(10)
    S_delta, S_M, theta = torch.randn(6, 10), torch.randn(6, 20), torch.rand(6, 5)
    z_d, z_m, z_theta = heads.z_d(S_delta), heads.z_m(S_M), heads.z_theta(theta)
    z_perp = heads.z_perp(S_M, S_delta)
    for z in (z_d, z_m, z_theta, z_perp):
        assert z.shape == (6, 16)
        torch.testing.assert_close(z.norm(dim=-1), torch.ones(6))
    torch.testing.assert_close((z_perp * z_d).sum(-1), torch.zeros(6), atol=1e-6, rtol=0)


def test_without_residual_the_unmarked_summary_is_ignored():
    heads = Heads(10, residualised=False)
    S_M = torch.randn(6, 20)
    torch.testing.assert_close(heads.z_perp(S_M, torch.randn(6, 10)), heads.z_m(S_M))


def test_mean_and_variance_standardise_what_the_projectors_see():
    heads = Heads(4)
    S_delta = torch.randn(5, 4) * 3 + 7
    expected = torch.nn.functional.normalize(heads.unmarked((S_delta - 7) * 2), dim=-1)
    heads.unmarked_mean.fill_(7.0)
    heads.unmarked_variance.fill_(0.25)
    torch.testing.assert_close(heads.z_d(S_delta), expected)


def batch_of(anchors, dtype=torch.float64, device="cpu"):
    u = torch.rand(40, 5, dtype=torch.float64)
    drawn = candidates(u[:anchors], u, Negatives(n_real=8, n_global=16, n_local=4), torch.Generator())
    delta, S_delta = fake(40)[list(range(anchors))].to(dtype), torch.randn(anchors, 4, dtype=dtype)
    whole = Batch(S_delta, delta, drawn.theta.to(dtype), torch.arange(anchors), drawn.excluded)
    return Batch(*(x.to(device) for x in whole))


def objective_of(recipe=RECIPE, mark=None):
    """Stage two of four bins, its mark away from M = 1."""
    data = Prior(fake(40), recipe, 0.3, 3, Processes(CPU))
    return Contrast(data, Heads(4), mark or stirred(LearnedMark(GRID)))


def test_micro_batches_add_up_to_the_full_batch():
    batch, objective = batch_of(6), objective_of().double()
    objective(batch).backward()
    whole = {name: p.grad.clone() for name, p in objective.named_parameters() if p.grad is not None}
    objective.zero_grad()
    for rows in (slice(0, 1), slice(1, 4), slice(4, 6)):
        objective(Batch(*(x[rows] for x in batch[:2]), batch.theta, *(x[rows] for x in batch[3:]))).backward()
    assert any(name.startswith("mark.") for name in whole)
    for name, gradient in whole.items():
        torch.testing.assert_close(dict(objective.named_parameters())[name].grad, gradient, rtol=1e-9, atol=1e-10)


def test_one_step_is_the_same_for_any_micro_batch(tmp_path, monkeypatch):
    results = []
    for size in (1, 3, 8):
        monkeypatch.setattr(objectives, "micro_batch", lambda grid, device, size=size: size)
        results.append(trained(replace(CONTRAST, epochs=1), tmp_path / str(size)))
    for run in results[1:]:
        np.testing.assert_allclose(run.column("train_loss"), results[0].column("train_loss"), rtol=1e-4)
        np.testing.assert_allclose(run.best_loss, results[0].best_loss, rtol=1e-4)


def test_runs_on_the_meta_device():
    """No tensor is left on the CPU: mixing devices would raise."""
    batch, objective = batch_of(3, torch.float32, "meta"), objective_of().to("meta")
    optimizer = torch.optim.AdamW(objective.parameters())
    objective(batch).backward()
    optimizer.step()
    assert all(p.grad.shape == p.shape for p in objective.mark.parameters())


def test_following_is_the_running_mean_of_what_was_seen():
    batch, objective = batch_of(6, torch.float32), objective_of(replace(RECIPE, standardise=True, newest=0.2))
    objective(batch)
    S_M = objective.S_M(batch.marked).detach()
    objective._seen.pop()  # seen twice here
    objective.moved(0.5)
    torch.testing.assert_close(objective.heads.marked_mean, 0.1 * S_M.mean(0))
    variance = S_M.var(0, correction=0) + LEAST_VARIANCE
    torch.testing.assert_close(objective.heads.marked_variance, 0.9 + 0.1 * variance)
    objective.moved(0.5)  # nothing new
    torch.testing.assert_close(objective.heads.marked_mean, 0.1 * S_M.mean(0))


def test_validation_candidates_never_change():
    data, again = (Prior(fake(40), RECIPE, 0.3, 3, Processes(CPU)) for _ in range(2))
    for one, other in ((data, data), (data, again)):
        ids, drawn = one.validation
        other_ids, other_drawn = other.validation
        for i in range(len(ids)):
            assert torch.equal(ids[i], other_ids[i])
            assert torch.equal(drawn(i).theta, other_drawn(i).theta)
            assert len(drawn(i).theta) == RECIPE.negatives.total(8)
    assert len(data.held_out) == 6
    assert sorted([*data.held_out.tolist(), *data.training.tolist()]) == list(range(40))
    orders = [data.epoch(1, epoch, 8)[0] for epoch in (0, 1)]
    assert not torch.equal(torch.stack(orders[0]), torch.stack(orders[1]))


def test_stage_two_leaves_the_unmarked_head_alone_and_starts_theta_from_stage_one(tmp_path):
    still = replace(RECIPE, epochs=1, theta_rate=1e-9, weight_decay=0.0)
    run = trained(replace(CONTRAST, recipe=still), tmp_path)
    first, _ = read_tensors(tmp_path / "unmarked.safetensors")
    for name, value in run.heads.unmarked.state_dict().items():
        assert torch.equal(value, first[f"weights.heads.unmarked.{name}"])
    torch.testing.assert_close(run.heads.theta.weight, first["weights.heads.theta.weight"], atol=1e-6, rtol=0)
    assert not torch.equal(run.heads.metric(), torch.eye(16))


CLASSICAL = replace(RECIPE, standardise=True, pretrain_rate=5e-3, head_epochs=6, start="classical", epochs=1)


@pytest.mark.parametrize("keep_metric", [False, True])
def test_heads_learn_to_read_the_first_mark_before_it_moves(keep_metric, tmp_path):
    """Between the stages the heads, and nothing else, learn; S_M of the start is measured once and standardised."""
    marks, recipe, simulations = [], replace(CLASSICAL, keep_metric=keep_metric), fake(80)

    def on_epoch(objective, now):
        marks.append(now.stage if now.stage == "unmarked" else weights_hash(objective.mark))

    run = trained(replace(CONTRAST, recipe=recipe), tmp_path, simulations, on_epoch=on_epoch)
    assert [row["stage"] for row in run.history] == ["unmarked"] * 2 + ["heads"] * 6 + ["marked"]
    assert len(marks) == 9 and len(set(marks[2:8])) == 1 and marks[8] != marks[2]
    losses = run.column("val_loss", "heads")
    assert min(losses) < losses[0]
    at_start, _ = read_tensors(tmp_path / "heads.safetensors")
    data = Prior(simulations, recipe, 0.3, 3, Processes(CPU))
    start = LearnedMark(GRID)
    start.load_state_dict({k.removeprefix("weights.mark."): x for k, x in at_start.items() if "weights.mark." in k})
    assert weights_hash(start) == marks[2]
    data.load_summaries(start)
    torch.testing.assert_close(at_start["weights.heads.marked_mean"], data.S_M[data.training].mean(0))
    torch.testing.assert_close(run.heads.unmarked_mean, data.S_delta[data.training].mean(0))
    assert (run.heads.marked_variance > LEAST_VARIANCE).all()
    # A mark that does not learn has its heads trained in the same way, for as long.
    fixed = trained(replace(CONTRAST, recipe=recipe), tmp_path / "fixed", simulations, fixed=start)
    assert [row["val_loss"] for row in fixed.history[:2]] == run.column("val_loss", "unmarked")
    assert len(fixed.column("val_loss")) == 6


@pytest.mark.parametrize("rate", [1e-9, 0.3])
def test_a_start_that_no_epoch_improves_is_kept(rate, tmp_path):
    run = trained(replace(CONTRAST, recipe=replace(CLASSICAL, learning_rate=rate)), tmp_path)
    start, about = read_tensors(tmp_path / "heads.safetensors")
    kept, _ = read_tensors(tmp_path / "marked.safetensors")
    spoilt = run.column("val_loss")[0] > about["best_loss"]
    assert spoilt or rate < 1e-3  # such steps lead nowhere good
    assert run.best_loss == min(about["best_loss"], *run.column("val_loss"))
    assert (run.best_epoch == 0) == spoilt == all(torch.equal(kept[name], start[name]) for name in start)


def test_fields_are_streamed_where_memory_is_short_and_raise_what_reading_raised():
    class Broken(FakeSet):
        def __getitem__(self, index):
            if 5 in index:
                raise OSError("the disk is gone")
            return super().__getitem__(index)

    assert Fields(fake(40), CPU).all is not None and Fields(fake(40), CPU, memory=0).all is None
    parts = Fields(Broken(10), CPU, memory=0).parts([[i] for i in range(10)])
    for i in range(5):
        assert torch.equal(next(parts)[0], FakeSet(10)[i])
    with pytest.raises(OSError, match="the disk is gone"):
        next(parts)
