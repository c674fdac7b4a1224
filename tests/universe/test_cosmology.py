"""Parameters, samples, linear power against CAMB, growth against closed forms."""

import numpy as np
import pytest
import transfer_table
from fake import camb_power
from scipy.integrate import quad
from scipy.special import hyp2f1
from simulated_power import nonlinear_power
from threadpoolctl import threadpool_limits

from nbkit.universe import cosmology
from nbkit.universe.cosmology import (
    FIDUCIAL,
    PARAMETERS,
    PRIOR_BSQ,
    PRIOR_LATIN_HYPERCUBE,
    STEPS,
    check_theta,
    derivative_thetas,
    latin_hypercube_thetas,
    linear_power,
    sobol_thetas,
)
from nbkit.universe.simulate import Growth

# What simulations ask for: the longest mode of a 1000 Mpc/h box to the corner of 128^3 particles in 500 Mpc/h.
K = np.geomspace(2 * np.pi / 1000, 3**0.5 * np.pi * 128 / 500, 400)


def test_names_and_numbers_are_those_of_quijote():
    assert PARAMETERS == ("Omega_m", "Omega_b", "h", "n_s", "sigma_8")
    np.testing.assert_array_equal(FIDUCIAL, [0.3175, 0.049, 0.6711, 0.9624, 0.834])
    sets = derivative_thetas()
    assert list(sets) == ["Om_p", "Om_m", "Ob2_p", "Ob2_m", "h_p", "h_m", "ns_p", "ns_m", "s8_p", "s8_m"]
    np.testing.assert_allclose(sets["Ob2_p"], [0.3175, 0.051, 0.6711, 0.9624, 0.834])
    for i, name in enumerate(("Om", "Ob2", "h", "ns", "s8")):
        np.testing.assert_allclose(sets[f"{name}_p"] - sets[f"{name}_m"], 2 * STEPS[i] * np.eye(5)[i], atol=1e-15)
    with pytest.raises(ValueError, match="read-only"):
        FIDUCIAL[0] = 0.3


@pytest.mark.parametrize(
    ("sample", "prior"), [(sobol_thetas, PRIOR_BSQ), (latin_hypercube_thetas, PRIOR_LATIN_HYPERCUBE)]
)
def test_samples_fill_their_prior(sample, prior):
    thetas = sample(500)
    assert thetas.shape == (500, 5)
    unit = (thetas - prior[:, 0]) / (prior[:, 1] - prior[:, 0])
    assert ((unit >= 0) & (unit <= 1)).all()
    for column in unit.T:
        counts = np.bincount((column * 10).astype(int), minlength=10)
        assert abs(counts - 50).max() <= 5
    np.testing.assert_array_equal(sample(500), thetas)


def test_samples_nest_or_stratify():
    np.testing.assert_array_equal(sobol_thetas(600), sobol_thetas(2000)[:600])
    low, high = PRIOR_LATIN_HYPERCUBE.T
    rows = (latin_hypercube_thetas(200) - low) / (high - low) * 200
    np.testing.assert_array_equal(np.sort(rows.astype(int), axis=0), np.arange(200)[:, None].repeat(5, 1))


@pytest.mark.parametrize("theta", [FIDUCIAL, *sobol_thetas(8)[[0, 1, 3]], latin_hypercube_thetas(200)[7]], ids=str)
def test_table_has_the_power_of_camb(theta):
    np.testing.assert_allclose(linear_power(theta)(K), camb_power(theta)(K), rtol=1e-3)


def test_a_node_of_the_table_made_anew_is_the_same(tmp_path, monkeypatch):
    monkeypatch.setenv("NBKIT_RUNS", str(tmp_path))
    node, path = list(transfer_table.table_nodes())[100], tmp_path / "table.npz"
    transfer_table.table([node], path)
    with np.load(cosmology.TABLE) as whole, np.load(path) as made:
        np.testing.assert_allclose(made["ratios"], whole["ratios"][100:101], rtol=1e-4)


def test_power_has_the_same_bits_on_any_number_of_threads():
    roots = []
    for threads in (1, 2, 3):
        cosmology._table.cache_clear()
        with threadpool_limits(threads):
            roots.append(linear_power(FIDUCIAL).root)
    assert all(np.array_equal(root, roots[0]) for root in roots)


def test_table_in_a_thin_baryon_rich_universe():
    """Below omega_m = 0.07 CAMB's own accuracy settings differ by 0.2 %: the table cannot be nearer than that."""
    theta = [0.12, 0.06, 0.7, 1.0, 0.8]
    table, camb = linear_power(theta)(K), camb_power(theta)(K)
    envelope = np.maximum.accumulate(camb[::-1])[::-1]  # P itself comes near zero between the wiggles
    assert (abs(table - camb) / envelope).max() < 3e-3


def test_table_covers_every_cosmology_of_the_presets(monkeypatch):
    monkeypatch.setattr(cosmology, "camb_transfer", None)  # calling it would raise
    thetas = [sobol_thetas(2000), latin_hypercube_thetas(200), latin_hypercube_thetas(500)]
    thetas += [FIDUCIAL[None], np.array(list(derivative_thetas().values()))]
    corners = np.stack(np.meshgrid(*PRIOR_BSQ, indexing="ij"), -1).reshape(-1, 5)
    for theta in np.concatenate([*thetas, corners]):
        power = linear_power(theta)
        assert power.k[0] < 1e-3
        assert power.k[-1] > 2.4


@pytest.mark.parametrize("theta", [FIDUCIAL, sobol_thetas(4)[2]], ids=str)
def test_power_has_its_sigma_8(theta):
    power = linear_power(theta)

    def integrand(ln_k):
        x = 8 * np.exp(ln_k)
        return np.exp(3 * ln_k) * power(np.exp(ln_k)) * (3 * (np.sin(x) - x * np.cos(x)) / x**3) ** 2 / (2 * np.pi**2)

    variance = quad(integrand, np.log(6e-4), np.log(3.0), limit=500, epsrel=1e-6)[0]
    assert np.sqrt(variance) == pytest.approx(theta[4], rel=1e-4)


def test_amplitude_and_tilt_enter_in_closed_form():
    tilted = FIDUCIAL + np.array([0, 0, 0, 0.1, 0.1])
    ratio = linear_power(tilted)(K) / linear_power(FIDUCIAL)(K)
    np.testing.assert_allclose(ratio / ratio[0], (K / K[0]) ** 0.1, rtol=1e-5)


def test_power_outside_the_table_comes_from_camb_once(monkeypatch):
    theta = FIDUCIAL * [1, 1, 2, 1, 1]
    first, misses = linear_power(theta), cosmology.camb_transfer.cache_info().misses
    louder = linear_power(theta * [1, 1, 1, 1, 1.1])  # the same transfer function
    np.testing.assert_allclose(louder(K), 1.1**2 * first(K), rtol=1e-12)
    assert cosmology.camb_transfer.cache_info().misses == misses


def test_hmcode_adds_power_on_small_scales_only():
    ratio = nonlinear_power(FIDUCIAL)(K) / linear_power(FIDUCIAL)(K)
    assert abs(ratio[K < 0.02] - 1).max() < 0.02
    assert 1.3 < ratio[K < 0.3][-1] < 2.0


@pytest.mark.parametrize("Omega_m", [0.1, 0.3175, 0.5])
def test_first_order_growth_is_hypergeometric(Omega_m):
    a = np.array([0.02, 0.1, 0.3, 0.7, 1.0])

    def D(a):
        return a * hyp2f1(1 / 3, 1, 11 / 6, -(a**3) * (1 - Omega_m) / Omega_m)

    np.testing.assert_allclose(Growth(Omega_m).D(a), D(a) / D(1.0), rtol=1e-8)
    step = 1e-4
    slope = np.log(D(a * (1 + step)) / D(a * (1 - step))) / np.log((1 + step) / (1 - step))
    np.testing.assert_allclose(Growth(Omega_m).rate(a), slope, rtol=1e-6)


def test_second_order_growth():
    """E -> -3/7 D^2 while matter rules; today about -3/7 Omega_m^(-1/143) D^2 (a fit known to 0.1 %)."""
    G = Growth(0.3)
    early = G.D(1e-3)
    assert G.E(early) / early**2 == pytest.approx(-3 / 7, rel=1e-6)
    assert G.dE_dD(early) / early == pytest.approx(-6 / 7, rel=1e-6)
    assert G.E(1.0) == pytest.approx(-3 / 7 * 0.3 ** (-1 / 143), rel=1e-3)
    step = 1e-4
    assert G.dE_dD(0.7) == pytest.approx((G.E(0.7 + step) - G.E(0.7 - step)) / (2 * step), rel=1e-6)


@pytest.mark.parametrize(
    ("theta", "said"),
    [
        ([0.3, 0.05], r"theta has shape \(2,\); give the five numbers Omega_m, Omega_b, h, n_s, sigma_8"),
        ([1.2, 0.05, 0.7, 1, 0.8], r"Omega_m is 1.2 in theta = .*; it must lie in 0.01 ... 0.99"),
        ([0.3, 0.4, 0.7, 1, 0.8], r"Omega_b is 0.4 .* 0.0001 ... 0.3"),
        ([0.3, 0.05, 67.0, 1, 0.8], "h is 67 "),
        ([0.3, 0.05, 0.7, np.nan, 0.8], "n_s is nan"),
        ([0.3, 0.05, 0.7, 1, -0.8], "sigma_8 is -0.8"),
    ],
)
def test_bad_theta_gets_one_sentence(theta, said):
    with pytest.raises(ValueError, match=said):
        check_theta(theta)


def test_power_beyond_its_range_is_refused():
    with pytest.raises(ValueError, match=r"k runs from 0.1 to 50 h/Mpc; the power spectrum is known from"):
        linear_power(FIDUCIAL)(np.array([0.0, 0.1, 50.0]))
