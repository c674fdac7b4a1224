"""Candidates: the paper's counts, the shells they must lie in, and no silent shortfall."""

from math import sqrt

import numpy as np
import pytest
import torch

from nbkit.train.contrast import Negatives, candidates, normalised

PAPER = Negatives()


def draw(anchors, pool=None, negatives=PAPER, seed=0):
    pool = torch.rand(2000, 5, dtype=torch.float64) if pool is None else pool
    return candidates(anchors, pool, negatives, torch.Generator().manual_seed(seed))


def split(theta, batch=16):
    return theta.split([batch, 128, 384, 32 * batch])


def corner_anchors():
    """Corners of the prior, where most of a shell sticks out."""
    corners = torch.cartesian_prod(*[torch.tensor([0.0, 1.0], dtype=torch.float64)] * 5)
    return corners[::2]


@pytest.mark.parametrize("place", ["random", "corners"])
def test_the_papers_candidates(place):
    anchors = torch.rand(16, 5, dtype=torch.float64) if place == "random" else corner_anchors()
    pool = torch.rand(2000, 5, dtype=torch.float64)
    theta, excluded = draw(anchors, pool)
    assert theta.shape == (1040, 5)
    assert PAPER.total(16) == 1040
    own, real, everywhere, local = split(theta)
    assert torch.equal(own, anchors)
    assert all((row == pool).all(1).any() for row in real)
    assert len(torch.unique(real, dim=0)) == 128
    assert ((theta >= 0) & (theta <= 1)).all()
    for kind in (real, everywhere):
        assert torch.cdist(kind, anchors).min() >= 0.03 * sqrt(5)
    distance = (local.reshape(16, 32, 5) - anchors[:, None]).norm(dim=-1)
    assert distance.min() >= 0.03 * sqrt(5) - 1e-12
    assert distance.max() <= 0.15 * sqrt(5) + 1e-12
    assert not excluded.diagonal().any()
    assert not excluded[:, 16 : 16 + 128 + 384].any()
    assert not any(excluded[i, 528 + 32 * i : 528 + 32 * (i + 1)].any() for i in range(16))


def test_global_negatives_are_drawn_for_every_anchor_or_once():
    each, once = Negatives(per_anchor=True), Negatives()
    theta, excluded = draw(torch.rand(16, 5, dtype=torch.float64), negatives=each)
    assert len(theta) == each.total(16) == once.total(16) + 15 * 384 == excluded.shape[1]
    assert not excluded[:, 16 : 16 + 128 + 16 * 384].any() and len(torch.unique(theta, dim=0)) == len(theta)


def test_local_shell_is_filled_evenly_in_radius_and_direction():
    anchors = torch.full((1, 5), 0.5, dtype=torch.float64)
    theta, _ = draw(anchors, negatives=Negatives(n_real=0, n_global=0, n_local=20_000))
    step = theta[1:] - anchors
    radius = step.norm(dim=-1) / sqrt(5)
    counts = torch.histc(radius, 6, 0.03, 0.15)
    assert ((counts - 20_000 / 6).abs() < 5 * sqrt(20_000 / 6)).all()
    assert (step.mean(0).abs() < 5 * step.std(0) / sqrt(20_000)).all()


def test_global_negatives_cover_the_prior():
    theta, _ = draw(torch.rand(1, 5, dtype=torch.float64), negatives=Negatives(n_real=0, n_global=20_000, n_local=0))
    assert (theta[1:].mean(0) - 0.5).abs().max() < 5 * sqrt(1 / 12 / 20_000)
    assert theta[1:].min() < 0.001
    assert theta[1:].max() > 0.999


def test_near_twins_are_not_called_wrong():
    """An anchor inside another's exclusion is no negative of it, and neither are its own local candidates there."""
    anchors = torch.full((16, 5), 0.5, dtype=torch.float64) + 0.4 * torch.eye(16, 5, dtype=torch.float64)
    anchors[6:] = torch.rand(10, 5, dtype=torch.float64) * 0.1 + 0.05
    anchors[5] = anchors[0] + 0.01
    theta, excluded = draw(anchors)
    near = torch.cdist(anchors, theta) < 0.03 * sqrt(5) - 1e-9
    near[:, :16].fill_diagonal_(False)
    assert excluded[0, 5]
    assert excluded[5, 0]
    assert torch.equal(excluded, near)


def test_the_generator_decides_everything():
    anchors, pool = torch.rand(16, 5, dtype=torch.float64), torch.rand(500, 5, dtype=torch.float64)
    first, again, other = (draw(anchors, pool, seed=s).theta for s in (3, 3, 4))
    assert torch.equal(first, again)
    assert not (first[16:] == other[16:]).all(1).any()


def test_too_small_a_pool_is_refused():
    with pytest.raises(ValueError, match="n_real is 128, but only 99 of 100 training cosmologies"):
        pool = torch.rand(100, 5, dtype=torch.float64)
        pool[1:] = pool[1:] * 0.5 + 0.5
        pool[0] = 0
        draw(pool[:1], pool)


def test_a_prior_full_of_anchors_is_refused():
    grid = torch.cartesian_prod(*[torch.linspace(0, 1, 4, dtype=torch.float64)] * 5)
    with pytest.raises(ValueError, match=r"only 0 of 384 global negatives are farther than the exclusion 0.2"):
        candidates(grid, grid, Negatives(n_real=0, exclusion=0.2, neighbourhood=0.22), torch.Generator())


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"n_real": -1}, "n_real is -1"),
        ({"n_local": 2.5}, "n_local is 2.5"),
        ({"exclusion": 0.2}, "0 <= exclusion < neighbourhood"),
        ({"neighbourhood": 0.3}, "neighbourhood 0.3; they must satisfy 0 <= exclusion < neighbourhood <= 0.2236"),
    ],
)
def test_impossible_settings_are_refused(settings, said):
    with pytest.raises(ValueError, match=said):
        Negatives(**settings)


def test_normalised_theta():
    prior = np.array([[0.1, 0.5], [0.02, 0.08], [0.5, 0.9], [0.8, 1.2], [0.6, 1.0]])
    u = normalised([[0.1, 0.08, 0.7, 0.9, 0.6]], prior)
    np.testing.assert_allclose(u, [[0, 1, 0.5, 0.25, 0]], atol=1e-12)
    with pytest.raises(ValueError, match="1 of 2 cosmologies lie outside the prior"):
        normalised([[0.3, 0.05, 0.7, 1.0, 0.8], [0.6, 0.05, 0.7, 1.0, 0.8]], prior)
