"""Intervals of forecasts: they hold the truth as often as they say, for errors and for ratios of errors."""

import numpy as np
import pytest

from nbkit.forecast.bootstrap import Forecast, interval, resampled, resamples
from nbkit.forecast.fisher import Ingredients, marginalised, sigma, standard

N_D, N_S, PAIRS, NOISE = 15, 120, 30, 0.5


def truth():
    """Derivatives of unit white noise, two parameters half degenerate, and sigma with all numbers and with half."""
    dmu = np.random.default_rng(0).normal(size=(2, N_D))
    dmu[1] += dmu[0]
    return dmu, *(marginalised((dmu[:, :n] @ dmu[:, :n].T)[None])[0] for n in (N_D, N_D // 2))


def drawn(dmu, seed):
    rng = np.random.default_rng([7, seed])
    return Ingredients(rng.normal(size=(N_S, N_D)), dmu + NOISE * rng.normal(size=(PAIRS, 2, N_D)))


def half(given):
    return Ingredients(given.fiducial[:, : N_D // 2], given.derivatives[..., : N_D // 2])


def test_coverage():
    """68 and 95 % intervals of sigma and of a ratio of two sigmas, on 200 synthetic suites."""
    dmu, all_of_it, half_of_it = truth()
    held = {("sigma", level): [] for level in (0.68, 0.95)} | {("ratio", level): [] for level in (0.68, 0.95)}
    for seed in range(200):
        given = drawn(dmu, seed)
        weights = resamples(N_S, PAIRS, count=100, seed=seed)
        whole, part = resampled(given, weights), resampled(half(given), weights)
        for level in (0.68, 0.95):
            for what, found, true in (
                ("sigma", whole.errors, all_of_it),
                ("ratio", [b / a for a, b in zip(whole.errors, part.errors, strict=True)], half_of_it / all_of_it),
            ):
                found = interval(*found, level)
                held[what, level].append((found.low <= true) & (true <= found.high))
    share = {key: np.mean(each) for key, each in held.items()}
    for (what, level), found in share.items():
        assert abs(found - level) < {0.68: 0.07, 0.95: 0.035}[level], (what, level, found)


def test_copies_bias_a_naive_bootstrap():
    """Why resamples are weighted: taken for new simulations, copies make sigma too small by about one scatter."""
    dmu, *_ = truth()
    shift = {"naive": [], "weighted": []}
    for seed in range(15):
        given = drawn(dmu, seed)
        weights = resamples(N_S, PAIRS, count=60, seed=seed)
        weighted = resampled(given, weights)
        F = [
            standard(given.subset(np.repeat(range(N_S), v), np.repeat(range(PAIRS), w)))
            for v, w in zip(*weights, strict=True)
        ]
        for name, one in (("naive", Forecast(weighted.F, np.stack(F))), ("weighted", weighted)):
            off = np.log(one.errors[1] / one.errors[0])
            shift[name].append(off.mean(0) / off.std(0))
    assert np.mean(shift["naive"]) < -0.7
    assert abs(np.mean(shift["weighted"])) < 0.2


def test_equal_weights_give_the_estimate():
    dmu, *_ = truth()
    given = drawn(dmu, 0)
    once = resampled(given, (np.ones((1, N_S)), np.full((1, PAIRS), 4)))
    np.testing.assert_allclose(once.resampled[0], once.F, rtol=1e-7)
    np.testing.assert_allclose(once.sigma.value, sigma(once.F), rtol=1e-9)


def test_the_same_resamples_cancel_in_a_ratio():
    """A mark compared with itself, in other units, is exactly as good; with other resamples it would not be."""
    dmu, *_ = truth()
    given = drawn(dmu, 0)
    units = np.geomspace(1e-3, 1e3, N_D)
    other = Ingredients(given.fiducial * units, given.derivatives * units)
    weights = resamples(N_S, PAIRS)
    ratio = resampled(other, weights) / resampled(given, weights)
    for found in (ratio.value, ratio.low, ratio.high):
        np.testing.assert_allclose(found, 1, rtol=1e-8)
    ratio = resampled(other, resamples(N_S, PAIRS, seed=1)) / resampled(given, weights)
    assert np.all(ratio.high > 1.05)
    assert ratio.includes_one.all()


def test_parameters_held_fixed():
    dmu, *_ = truth()
    given = drawn(dmu, 0)
    weights = resamples(N_S, PAIRS, 50)
    one, other = resampled(given, weights), resampled(half(given), weights)
    held = one.hold("Ob2").sigma
    assert held.value[1] == held.low[1] == held.high[1] == 0
    assert held.value[0] < one.sigma.value[0]
    ratio = other.hold("Ob2") / one.hold("Ob2")
    assert np.isnan([ratio.value[1], ratio.low[1], ratio.high[1]]).all()
    assert 1 < ratio.value[0] < np.inf


def test_noise_alone_is_infinitely_uncertain():
    """Without a signal the corrected F is not positive in many resamples: their sigma is infinite, not left out."""
    rng = np.random.default_rng(0)
    given = Ingredients(rng.normal(size=(N_S, N_D)), rng.normal(size=(PAIRS, 2, N_D)))
    one = resampled(given, resamples(N_S, PAIRS))
    assert np.isinf(one.sigma.high).all()
    assert np.isinf((one / one).high).all()


def test_weights_of_other_simulations_are_refused():
    dmu, *_ = truth()
    with pytest.raises(ValueError, match=r"weights are for 100 simulations and 30 .* use resamples\(120, 30\)"):
        resampled(drawn(dmu, 0), resamples(100, PAIRS))
    one = resampled(drawn(dmu, 0), resamples(N_S, PAIRS, 50))
    with pytest.raises(ValueError, match="40 resamples against 50"):
        resampled(drawn(dmu, 0), resamples(N_S, PAIRS, 40)) / one
    few = drawn(dmu, 0).subset(fiducial=slice(0, 25))
    with pytest.raises(ValueError, match="too few for the covariance of 15 numbers"):
        resampled(few, resamples(25, PAIRS))
