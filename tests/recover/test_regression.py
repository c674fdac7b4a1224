"""The regressor against plain torch, alone and in company; splits and intervals; what cannot be recovered."""

from itertools import pairwise
from math import inf

import numpy as np
import pytest
import torch
from torch import nn

from nbkit.measure import Measurement
from nbkit.mesh.threads import generator
from nbkit.recover import Recovery, features, folds, recovery, spectra_by_mark
from nbkit.recover.pyramid import START, Pyramid, RegressionRecipe, fitted, log_mse
from nbkit.universe.cosmology import PRIOR_LATIN_HYPERCUBE


def unmarked(P_dd):
    """Spectra (N, 3, b) of M = 1."""
    return np.repeat(P_dd[:, None], 3, axis=1)


def plain_pyramid(start, dropout=0.1):
    """Table 4 written with torch's own layers, holding the weights of a Pyramid."""
    inputs = start.widths[0]
    widths, layers = [inputs, inputs, 2 * inputs, 4 * inputs, 4 * inputs, 2 * inputs, inputs], []
    for a, b in pairwise(widths):
        layers += [nn.Linear(a, b), nn.LayerNorm(b), nn.GELU(), nn.Dropout(dropout)]
    model = nn.Sequential(*layers, nn.Linear(inputs, 5)).to(start.last.weight.dtype)
    with torch.no_grad():
        for mine, its in zip(model.parameters(), start.parameters(), strict=True):
            mine.copy_(its)
    return model


def problem(marks=3, count=90, inputs=6, dtype=torch.float64):
    """Inputs that know theta through noise which differs from mark to mark."""
    theta = torch.randn(count, 5, dtype=dtype)
    noise = torch.linspace(0.1, 2.0, marks, dtype=dtype)[:, None, None] * torch.randn(marks, count, inputs, dtype=dtype)
    return theta @ torch.randn(5, inputs, dtype=dtype) + noise, theta


def toy_spectra(count, b=6, seed=0):
    """{label: (N, 3, b)} that know Omega_m and sigma_8 through P_dd, and n_s through P_mm of one mark alone; theta."""
    rng = np.random.default_rng(seed)
    low, high = PRIOR_LATIN_HYPERCUBE.T
    theta = low + rng.random((count, 5)) * (high - low)
    unit = (theta - low) / (high - low)
    k = np.linspace(-1.0, 1.0, b)
    P_dd = 10 ** (4 + unit[:, :1] * k + unit[:, 4:] + 0.1 * rng.standard_normal((count, b)))
    told = 10 ** (unit[:, 3:4] + 0.1 * rng.standard_normal((count, b)))
    r = 0.9 + 0.01 * rng.standard_normal((count, b))
    return {
        "nothing": unmarked(P_dd),
        "n_s": np.stack([P_dd, r * P_dd * told**0.5, P_dd * told], axis=1),
    }, theta


def pyramid(inputs, seed=1):
    return Pyramid(inputs).double().start(torch.Generator().manual_seed(seed))


def test_pyramid_is_table_4():
    one, other = pyramid(7), pyramid(7, seed=2)
    model = plain_pyramid(one).eval()
    assert [layer.out_features for layer in model if isinstance(layer, nn.Linear)] == [7, 14, 28, 28, 14, 7, 5]
    x = torch.randn(2, 20, 7, dtype=torch.float64)
    torch.testing.assert_close(one(x[0]), model(x[0]))
    rows = torch.stack([nn.utils.parameters_to_vector(each.parameters()) for each in (one, other)])
    torch.testing.assert_close(one.stacked(rows, x), torch.stack([one(x[0]), other(x[1])]))


def test_weights_start_as_those_of_torch():
    """Uniform within 1 / sqrt(inputs), of weights and offsets; the same from the same seed."""
    one, torchs = pyramid(50), nn.Linear(50, 50)
    for mine, its in zip(one.hidden[0][0].parameters(), torchs.parameters(), strict=True):
        assert mine.abs().max() < 50**-0.5
        assert mine.std().item() == pytest.approx(its.std().item(), rel=0.2)
    assert torch.equal(one.last.weight, pyramid(50).last.weight)


def test_dropout_masks_follow_the_activation():
    model, x = pyramid(4), torch.randn(3, 4, dtype=torch.float64)
    none = [torch.zeros(3, width) for width in model.widths]
    torch.testing.assert_close(model(x, none), model.last.bias.expand(3, 5))


def test_training_is_that_of_plain_torch():
    """Weights, AdamW, plateau, early stop and best weights as torch has them, for a model in a stack of three."""
    x, theta = problem()
    train, held = torch.arange(60), torch.arange(60, 90)
    recipe = RegressionRecipe(dropout=0.0, batch=60, learning_rate=0.02, patience=7, plateau_patience=2, epochs=60)
    predicted, loss, epochs = fitted(x, theta, [(train, held)], recipe, seed=3)
    for mark in range(3):
        seen = x[mark, train]
        mine = (x[mark] - seen.mean(0)) / seen.std(0)
        model = plain_pyramid(Pyramid(6).double().start(generator(3, START, 0)), 0.0)
        adam = torch.optim.AdamW(model.parameters(), recipe.learning_rate, weight_decay=recipe.weight_decay)
        schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(
            adam, factor=0.5, patience=2, threshold=recipe.min_delta, threshold_mode="abs", min_lr=recipe.floor
        )
        best, stale, epoch = inf, 0, 0
        while epoch < recipe.epochs and stale < recipe.patience:
            adam.zero_grad()
            log_mse(model(mine[train])[None], theta[train][None], recipe.eps).sum().backward()
            adam.step()
            with torch.no_grad():
                value = log_mse(model(mine[held])[None], theta[held][None], recipe.eps).item()
                everywhere = model(mine)
            schedule.step(value)
            epoch += 1
            stale += 1
            if value < best - recipe.min_delta:
                best, stale, kept = value, 0, everywhere
        assert epochs[mark, 0] == epoch
        assert loss[mark, 0].item() == pytest.approx(best, rel=1e-6)
        torch.testing.assert_close(predicted[mark, 0], kept, rtol=1e-5, atol=1e-6)
    assert len(set(epochs.flatten().tolist())) > 1, "all stopped together: the test says nothing of their own stops"
    assert epochs.max() < recipe.epochs


def test_a_model_is_the_same_in_any_company():
    """With dropout and minibatches: in a stack, in another order, in small stacks, and alone."""
    x, theta = problem(marks=5)
    splits = [(torch.arange(60), torch.arange(60, 75)), (torch.arange(15, 75), torch.arange(15))]
    recipe = RegressionRecipe(batch=20, learning_rate=0.01, patience=4, epochs=30)
    together = fitted(x, theta, splits, recipe)
    assert len(set(together[2].flatten().tolist())) > 2
    turned = fitted(x.flip(0), theta, splits, recipe, at_once=2)
    alone = fitted(x[3:4], theta, splits, recipe)
    for whole, other, single in zip(together, turned, alone, strict=True):
        torch.testing.assert_close(whole, other.flip(0), rtol=1e-6, atol=1e-7)
        torch.testing.assert_close(whole[3:4], single, rtol=1e-6, atol=1e-7)


def test_the_best_weights_are_kept():
    x, theta = problem(count=60)
    train, held = torch.arange(25), torch.arange(25, 60)
    recipe = RegressionRecipe(batch=25, learning_rate=0.03, patience=15, epochs=80)
    predicted, loss, _ = fitted(x, theta, [(train, held)], recipe)
    again = log_mse(predicted[:, 0, held], theta[held], recipe.eps)
    torch.testing.assert_close(again, loss[:, 0])


def test_every_simulation_is_tested_once():
    for count in (50, 203):
        tested = []
        for train, held, test in folds(count, seed=4):
            rows = torch.cat([train, held, test])
            assert len(rows.unique()) == len(rows), "parts of a split overlap"
            assert len(held) == round(0.15 * count)
            tested.append(test)
        assert torch.equal(torch.cat(tested).sort().values, torch.arange(count))
    first, second = folds(200, seed=4)[0][2], folds(200, seed=4, repeat=1)[0][2]
    assert not torch.equal(first.sort().values, second.sort().values)
    assert len(folds(200, train=40)[0][0]) == 40


def test_features_are_the_papers():
    P = np.array([[[100.0, 1e4], [20.0, 2e4], [1.0, 1e5]]])
    expected = [[2.0, 4.0, -2.0, 1.0, 20 / 10, 2e4 / np.sqrt(1e9)]]
    np.testing.assert_allclose(features(P), expected)
    np.testing.assert_allclose(features(unmarked(P[:, 0])), [[2.0, 4.0, 0.0, 0.0, 1.0, 1.0]], atol=1e-12)


def test_what_the_spectra_know_is_recovered_and_no_more():
    spectra, theta = toy_spectra(200)
    found = recovery((spectra, theta), recipe=RegressionRecipe(learning_rate=5e-3, batch=32, epochs=40))
    nothing, told = found.mse("nothing")[0], found.mse("n_s")[0]
    assert (nothing[[0, 4]] < 0.2).all() and (told[[0, 4]] < 0.2).all()
    assert told[3] < 0.2
    assert (nothing[[1, 2, 3]] > 0.85).all() and (told[[1, 2]] > 0.85).all()
    value, low, high = found.ratio("nothing", over="n_s")[:, 3]
    assert 1 < low < value < high
    assert found.chosen(found.labels) == "n_s"


def test_training_elsewhere_tests_on_all_of_the_other_set():
    spectra, theta = toy_spectra(200)
    test_spectra, test_theta = toy_spectra(60, seed=1)
    recipe = RegressionRecipe(learning_rate=5e-3, batch=32, epochs=40)
    found = recovery((spectra, theta), (test_spectra, test_theta), train=100, repeats=2, recipe=recipe)
    assert found.predicted.shape == (2, 2, 60, 5)
    assert found.train == 100
    np.testing.assert_array_equal(found.theta, test_theta)
    assert (found.mse("n_s")[0][[0, 3, 4]] < 0.3).all()


def made_up(error, repeats=1, seed=0):
    """A Recovery whose predictions miss by `error` (marks, N, 5) in units of the prior's scatter."""
    low, high = PRIOR_LATIN_HYPERCUBE.T
    theta = np.tile((low + high) / 2, (error.shape[1], 1))
    predicted = theta + error[:, None].repeat(repeats, 1) * (high - low) / 12**0.5
    labels = tuple("abc"[: len(error)])
    zero = np.zeros(len(error))
    return Recovery(labels, theta, predicted, zero, 0, seed)


def test_guessing_the_middle_of_the_prior_gives_one():
    rng = np.random.default_rng(0)
    low, high = PRIOR_LATIN_HYPERCUBE.T
    theta = low + rng.random((5000, 5)) * (high - low)
    predicted = np.broadcast_to((low + high) / 2, (1, 1, 5000, 5))
    found = Recovery(("a",), theta, predicted, np.zeros(1), 0, 0)
    value, low, high = found.mse("a")
    np.testing.assert_allclose(value, 1, atol=0.03)
    assert (low < value).all() and (value < high).all()


def test_intervals_cover_as_often_as_they_say():
    """Two marks of equal error, 100 simulations: the true ratio 1 is inside the 95 % interval in 95 % of trials."""
    rng = np.random.default_rng(1)
    inside = []
    for trial in range(60):
        shared = rng.standard_normal((1, 100, 5))
        found = made_up(shared + 0.5 * rng.standard_normal((2, 100, 5)), seed=trial)
        _, low, high = found.ratio("a", over="b")
        inside.append((low < 1) & (high > 1))
    # 300 trials: a binomial scatter of 0.013, and a bootstrap of 100 is a little too narrow.
    assert 0.90 < np.mean(inside) < 0.99


def test_pairing_narrows_the_interval_of_a_ratio():
    rng = np.random.default_rng(2)
    shared = rng.standard_normal((1, 100, 5))
    alike = made_up(shared + 0.1 * rng.standard_normal((2, 100, 5)))
    apart = made_up(rng.standard_normal((2, 100, 5)))
    width = [np.diff(found.ratio("a", over="b")[1:], axis=0).mean() for found in (alike, apart)]
    assert width[0] < 0.5 * width[1]
    np.testing.assert_array_equal(alike.ratio("a", over="a"), 1)


def test_too_few_simulations_are_refused_in_one_sentence():
    spectra, theta = toy_spectra(30)
    with pytest.raises(ValueError, match=r"There are 30 simulations; .* needs at least 50 .*suite\(\"demo\"\)"):
        recovery((spectra, theta))
    with pytest.raises(ValueError, match="There are 30 simulations"):
        recovery((spectra, theta), toy_spectra(60))


def test_spectra_by_mark_put_the_unmarked_first():
    P_dd, marked = np.full((4, 3), 2.0), np.full((4, 2, 3), 5.0)
    both = spectra_by_mark(
        Measurement(np.arange(3.0), np.ones(3), np.zeros((4, 5)), np.arange(4), P_dd, {"a": marked}), ["a"]
    )
    assert list(both) == ["P_dd", "a"]
    np.testing.assert_array_equal(both["P_dd"], 2.0)
    np.testing.assert_array_equal(both["a"][:, 1:], 5.0)


def test_what_does_not_fit_is_refused():
    spectra, theta = toy_spectra(60)
    with pytest.raises(ValueError, match=r"train is 55; .* 10 \.\.\. 39"):
        recovery((spectra, theta), train=55)
    with pytest.raises(KeyError, match="'p' is not among the marks a, b"):
        made_up(np.ones((2, 5, 5))).mse("p")
