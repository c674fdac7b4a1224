"""Embeddings, score and loss against closed forms."""

from math import log

import pytest
import torch

from nbkit.train.contrast import Heads, Metric, Projector, info_nce, mahalanobis_scores, residual


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
