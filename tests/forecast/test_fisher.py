"""Fisher forecasts: closed forms, invariance, three estimators, an independent package, refusals."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from CompressedFisher import gaussianFisher

from nbkit import ClassicalMark, marked_field, spectra
from nbkit.forecast import UNMARKED, ingredients, unseen
from nbkit.forecast.bootstrap import weighted_hartlap
from nbkit.forecast.fisher import (
    ESTIMATORS,
    Ingredients,
    combined,
    compressed,
    fisher_matrix,
    geometric_mean,
    hartlap,
    inverse,
    noise_bias,
    sigma,
    standard,
)
from nbkit.measure import Measurement
from nbkit.universe.cosmology import FIDUCIAL, QUIJOTE_NAMES, STEPS
from nbkit.universe.suite import FIDUCIAL_SETS


@pytest.fixture
def linear():
    """A linear-Gaussian model: (n_s, N, noise) -> Ingredients, with its true F."""
    rng = np.random.default_rng(3)
    n_d = 12
    L = np.tril(rng.normal(size=(n_d, n_d))) / 4 + np.diag(10.0 ** rng.uniform(-2, 2, n_d))
    dmu = rng.normal(size=(5, n_d)) @ L.T
    F = dmu @ np.linalg.solve(L @ L.T, dmu.T)

    def model(n_s, N, noise=1.0, seed=0):
        rng = np.random.default_rng(seed)
        fiducial = rng.normal(size=(n_s, n_d)) @ L.T
        return Ingredients(fiducial, dmu + noise * rng.normal(size=(N, 5, n_d)) @ L.T)

    return model, F


def sigma_of(F):
    return np.sqrt(np.diagonal(np.linalg.inv(F)))


def test_linear_gaussian_model_in_closed_form(linear):
    """F is unbiased: with exact derivatives thanks to Hartlap, with noisy ones thanks to the correction."""
    model, F = linear
    units = np.sqrt(np.outer(np.diagonal(F), np.diagonal(F)))
    for noise in (0.0, 1.0):
        found = np.array([standard(model(60, 8, noise, seed)) for seed in range(700)]) / units
        error = found.std(0) / np.sqrt(len(found))
        assert np.all(np.abs(found.mean(0) - F / units) < 4.5 * error), noise
    raw = np.array([standard(model(60, 8, 1.0, seed), corrected=False) for seed in range(200)])
    # n_d / N more on the diagonal: noise that looks like information.
    np.testing.assert_allclose(np.diagonal(raw.mean(0) - F), 12 / 8, rtol=0.35)


def test_numpy_and_torch_share_the_algebra(linear):
    """The training objective differentiates the very function that forecasts use."""
    model, _ = linear
    given = model(60, 8)
    mean, P = given.derivatives.mean(0), given.precision()
    noise = np.einsum("nia,ab,njb->ij", given.derivatives - mean, P, given.derivatives - mean) / (8 * 7)
    for corrected in (True, False):
        F = fisher_matrix(given.derivatives, P, corrected)
        np.testing.assert_allclose(F, mean @ P @ mean.T - corrected * noise, rtol=1e-10, atol=1e-10 * np.abs(F).max())
        tensors = torch.from_numpy(given.derivatives).requires_grad_(), torch.from_numpy(P)
        again = fisher_matrix(*tensors, corrected)
        np.testing.assert_allclose(again.detach().numpy(), F, rtol=1e-10, atol=1e-10 * np.abs(F).max())
        again.trace().backward()
        assert torch.isfinite(tensors[0].grad).all() and tensors[0].grad.abs().max() > 0
    np.testing.assert_allclose(noise_bias(given.derivatives, P), standard(given, corrected=False) - standard(given))


def test_sigma_of_many_simulations_is_exact(linear):
    model, F = linear
    forecast = standard(model(40_000, 50, 0.02))
    np.testing.assert_allclose(sigma(forecast), sigma_of(F), rtol=0.02)
    some = sigma(forecast, fixed=("Ob2", "ns"))
    np.testing.assert_allclose(some[[0, 2, 4]], sigma_of(F[np.ix_([0, 2, 4], [0, 2, 4])]), rtol=0.02)
    assert some[1] == some[3] == 0
    np.testing.assert_allclose(sigma(forecast, fixed="h")[2], 0)


def test_estimators_bracket_and_meet():
    """sigma: standard below the truth, compressed above, combined and corrected between; all meet as N grows."""
    dmu, gaps = np.random.default_rng(3).normal(size=(5, 40)), []
    true = sigma_of(dmu @ dmu.T)
    for N in (10, 40, 160):
        draws = []
        for seed in range(10):
            rng = np.random.default_rng(seed)
            noisy = dmu + 1.5 * rng.normal(size=(N, 5, 40))
            draws.append(Ingredients(rng.normal(size=(4000, 40)), noisy))
        off = {name: np.mean([np.log(sigma(f(x)) / true) for x in draws]) for name, f in ESTIMATORS.items()}
        assert off["standard"] < off["combined"] < off["compressed"]
        assert off["standard"] < off["corrected"] < off["compressed"]
        gaps.append(off["compressed"] - off["standard"])
        assert -gaps[-1] < off["standard"] < 0.1 * gaps[-1], "standard promises too much"
        assert abs(off["combined"]) < 0.2 * gaps[-1]
    # The bias falls as 1 / N.
    assert gaps[0] > 3 * gaps[1] > 9 * gaps[2]
    assert gaps[2] < 0.03


def test_agrees_with_the_package_of_the_authors(linear):
    """CompressedFisher, for one division into halves, to rounding: standard, its bias, compressed, combined."""
    model, _ = linear
    given = model(80, 20)
    package = gaussianFisher(list(QUIJOTE_NAMES), given.pairs)
    package.initailize_covmat(given.fiducial)
    package.initailize_deriv_sims({name: given.derivatives[:, i] for i, name in enumerate(QUIJOTE_NAMES)})
    halves = np.array_split(np.random.default_rng(5).permutation(given.pairs), 2)
    means = {"compressed": [], "combined": []}
    for a, b in (halves, halves[::-1]):
        package._apply_deriv_split(a, b)
        means["compressed"].append(np.linalg.inv(package.compute_compressed_fisher_forecast(list(QUIJOTE_NAMES))))
        means["combined"].append(np.linalg.inv(package.compute_combined_fisher_forecast(list(QUIJOTE_NAMES))))
        plain = np.linalg.inv(package.compute_fisher_forecast(list(QUIJOTE_NAMES)))
        ours = standard(given.subset(pairs=b), corrected=False)
        np.testing.assert_allclose(ours, plain, rtol=1e-7, atol=1e-8 * np.abs(plain).max())
        bias = package.est_fisher_forecast_bias(list(QUIJOTE_NAMES))
        noise = ours - standard(given.subset(pairs=b))
        mine = np.linalg.solve(plain, np.linalg.solve(plain, noise).T)
        np.testing.assert_allclose(mine, bias, rtol=1e-6, atol=1e-7 * np.abs(bias).max())
    for ours, name in ((compressed, "compressed"), (combined, "combined")):
        wanted = np.mean(means[name], axis=0)
        np.testing.assert_allclose(ours(given, splits=1, seed=5), wanted, rtol=1e-6, atol=1e-7 * np.abs(wanted).max())


def test_invertible_maps_change_nothing(linear):
    model, _ = linear
    given = model(100, 20)
    rng = np.random.default_rng(1)
    # Any mixture, in any units.
    A = 10.0 ** rng.uniform(-4, 4, (12, 1)) * rng.normal(size=(12, 12)) / given.fiducial.std(0)
    shifted = Ingredients(given.fiducial @ A.T + 7.0, given.derivatives @ A.T)
    for estimate in (standard, compressed, combined):
        np.testing.assert_allclose(sigma(estimate(shifted)), sigma(estimate(given)), rtol=1e-8)


def test_affine_mark_on_measured_spectra(linear):
    """M -> a M + b maps {P_dd, P_dm, P_mm} linearly, so F stays: exactly in the spectra."""
    model, _ = linear
    given = model(100, 20)
    a, b, eye = -1.7, 0.6, np.eye(4)
    A = np.block([[eye, 0 * eye, 0 * eye], [b * eye, a * eye, 0 * eye], [b**2 * eye, 2 * a * b * eye, a**2 * eye]])
    np.testing.assert_allclose(
        standard(Ingredients(given.fiducial @ A.T, given.derivatives @ A.T)), standard(given), rtol=1e-8
    )


def test_affine_mark_from_fields(lognormal):
    """The same from density fields through mark, marked field and spectra, in float64."""
    mark = ClassicalMark(2.0, 0.25)
    draws = {name: [] for name in ("M", "2 M - 1")}
    for _ in range(40):
        delta, grid = lognormal(8)
        rows = {name: [] for name in draws}
        for scale in (1.0, 1.02, 0.98):
            scaled = scale * delta
            M = mark(scaled, grid)
            for name, changed in {"M": M, "2 M - 1": 2 * M - 1}.items():
                power = spectra(scaled, marked_field(changed, scaled), grid=grid)
                rows[name].append(torch.cat(power[1:4]).numpy())
        for name in draws:
            draws[name].append(rows[name])
    forecasts = []
    for vectors in map(np.array, draws.values()):
        slope = (vectors[:, None, 1] - vectors[:, None, 2]) / 0.04
        forecasts.append(standard(Ingredients(vectors[:, 0], slope)))
    np.testing.assert_allclose(sigma(forecasts[1]), sigma(forecasts[0]), rtol=1e-6)
    assert 0 < sigma(forecasts[0])[0] < 1


def test_geometric_mean_of_matrices():
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(2, 9, 5))
    A, B = x.T @ x, y.T @ y
    G = geometric_mean(A, B)
    np.testing.assert_allclose(G @ np.linalg.solve(A, G), B, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(geometric_mean(B, A), G, rtol=1e-9)


def test_too_few_simulations_are_refused_with_the_numbers(linear):
    model, _ = linear
    with pytest.raises(ValueError, match=r"14 simulations .* of 12 numbers: n_s - n_d - 2 is 0 .* at least 18 sim"):
        standard(model(14, 10))
    with pytest.raises(ValueError, match=r"Hartlap factor 0.19, below 0.2"):
        standard(model(17, 10))
    assert standard(model(18, 10)).shape == (5, 5)
    with pytest.raises(ValueError, match="1 derivative realisation"):
        model(50, 1)
    with pytest.raises(ValueError, match="3 derivative realisations cannot be split"):
        compressed(model(50, 3))


def test_singular_matrices_are_refused_with_their_condition_number(linear):
    model, _ = linear
    given = model(50, 10)
    twice = [*range(12), 3]
    with pytest.raises(ValueError, match=r"covariance of 13 numbers cannot be inverted.*condition number of"):
        standard(Ingredients(given.fiducial[:, twice], given.derivatives[:, :, twice]))
    same = given.derivatives.copy()
    same[:, 1] = 2 * same[:, 0]
    with pytest.raises(ValueError, match=r"Fisher matrix of Om, Ob2, h, ns, s8 cannot be inverted.*condition number"):
        sigma(standard(Ingredients(given.fiducial, same), corrected=False))
    assert sigma(standard(Ingredients(given.fiducial, same), corrected=False), fixed=("Ob2",))[0] > 0
    nearly = np.array([[1.0, 1 - 1e-9], [1 - 1e-9, 1.0]])
    with pytest.warns(UserWarning, match="A is ill-conditioned: 2.0e"):
        inverse(nearly, "A")
    with pytest.raises(ValueError, match=r"A has no positive diagonal at \[1\]"):
        inverse(np.diag([1.0, 0.0]), "A")
    # Units do not make a matrix ill-conditioned.
    np.testing.assert_allclose(inverse(np.diag([1e-12, 1e12]), "A"), np.diag([1e12, 1e-12]))


def test_wrong_shapes_and_names_are_refused(linear):
    model, _ = linear
    given = model(50, 10)
    with pytest.raises(ValueError, match=r"give \(n_s, n_d\), \(N, P, n_d\)"):
        Ingredients(given.fiducial, given.derivatives[..., :4])
    broken = given.fiducial.copy()
    broken[3, 2] = np.nan
    with pytest.raises(ValueError, match="fiducial has 1 of 600 values that are not finite"):
        Ingredients(broken, given.derivatives)
    with pytest.raises(ValueError, match="fixed has 'sigma_8'; allowed are Om, Ob2, h, ns, s8"):
        sigma(standard(given), fixed=("sigma_8",))
    with pytest.raises(ValueError, match="leave at least one parameter free"):
        sigma(standard(given), fixed=QUIJOTE_NAMES)


def test_weighted_hartlap():
    """Equal weights give Hartlap's factor; a bootstrap resample of white noise is unbiased with the weighted one."""
    np.testing.assert_allclose(weighted_hartlap(np.full((1, 90), 3), 20), hartlap(90, 20), rtol=1e-7)
    subset = np.repeat([1.0, 0.0], [60, 30])[None]
    np.testing.assert_allclose(weighted_hartlap(subset, 20), hartlap(60, 20), rtol=1e-7)
    rng = np.random.default_rng(0)
    w = rng.multinomial(200, np.full(200, 1 / 200), 400)
    h, traces = weighted_hartlap(w, 30), []
    for counts in w:
        x = rng.normal(size=(200, 30))
        C = np.cov(x, rowvar=False, aweights=counts)
        traces.append(np.trace(np.linalg.inv(C)) / 30)
    assert abs(np.mean(h * traces) - 1) < 0.01
    assert np.mean(hartlap(200, 30) * np.array(traces)) > 1.15


def fake_spectra(rng, seeds, shift):
    k = np.arange(1.0, 9.0) / 20
    P_dd = rng.normal(size=(len(seeds), 8)) + 10 + shift
    marked = {"mark": rng.normal(size=(len(seeds), 2, 8)) + 10 + 2 * shift}
    return Measurement(k, np.ones(8, int), np.tile(FIDUCIAL, (len(seeds), 1)), np.asarray(seeds), P_dd, marked)


def test_ingredients_match_seeds_and_cut_k():
    rng = np.random.default_rng(0)
    slope = np.arange(1.0, 6.0)
    sets = {"fiducial": fake_spectra(rng, range(40), 0.0)}
    for i, name in enumerate(FIDUCIAL_SETS[1:]):
        sign = 1 if name.endswith("_p") else -1
        seeds = rng.permutation(np.arange(100, 112))
        spectra = fake_spectra(rng, seeds, 0.0)
        # Noise that depends on the seed alone cancels in a pair, if and only if the pair is matched.
        spectra.P_dd[:] = 10 + 1e3 * (seeds[:, None] - 100) + sign * STEPS[i // 2] * slope[i // 2]
        kept = slice(0, 11) if name == "h_m" else slice(None)
        sets[name] = Measurement(
            spectra.k,
            spectra.modes,
            spectra.theta[kept],
            seeds[kept],
            spectra.P_dd[kept],
            {"mark": spectra["mark"][kept, 1:]},
        )
    given = ingredients(sets, UNMARKED, kmax=0.2)
    assert (given.n_s, given.n_d, given.pairs) == (40, 4, 11)
    np.testing.assert_allclose(given.derivatives, np.broadcast_to(slope[:, None], (11, 5, 4)), rtol=1e-6)
    given = ingredients(sets, "mark")
    assert (given.n_d, given.derivatives.shape) == (24, (11, 5, 24))
    np.testing.assert_array_equal(given.fiducial[:, :8], sets["fiducial"].P_dd)
    np.testing.assert_array_equal(given.fiducial[:, 16:], sets["fiducial"]["mark"][:, 2])
    del sets["s8_m"]
    with pytest.raises(ValueError, match="The sets s8_m are missing"):
        ingredients(sets, "mark")


def test_what_a_mark_was_trained_on_does_not_judge_it():
    rng = np.random.default_rng(0)
    sets = {name: fake_spectra(rng, range(10), 0.0) for name in FIDUCIAL_SETS}
    contrast = SimpleNamespace(settings={})
    assert all(new is sets[name] for name, new in unseen(sets, contrast).items())
    on_information = SimpleNamespace(settings={"seeds": {"fiducial": [100, 200], "derivatives": [4, 7]}})
    kept = unseen(sets, on_information)
    assert kept["fiducial"] is sets["fiducial"]
    for name in FIDUCIAL_SETS[1:]:
        assert kept[name].seeds.tolist() == [0, 1, 2, 3, 8, 9]
        np.testing.assert_array_equal(kept[name]["mark"], sets[name]["mark"][[0, 1, 2, 3, 8, 9]])
    assert ingredients(kept, "mark").pairs == 6
