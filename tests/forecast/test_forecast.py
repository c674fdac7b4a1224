"""The front door: forecasts of many marks from the same boxes, the best of the classical ones, ratios, a table."""

import numpy as np
import pytest

from nbkit import classical_marks, forecast
from nbkit.forecast import by_kmax, ingredients
from nbkit.forecast.bootstrap import resampled, resamples
from nbkit.forecast.fisher import sigma, standard
from nbkit.measure import Measurement
from nbkit.universe import FIDUCIAL, FIDUCIAL_SETS, QUIJOTE_NAMES, STEPS

BINS, LABELS = 7, (*classical_marks(), "mine")


@pytest.fixture(scope="module")
def power():
    """Made-up spectra of the 48 classical marks and one more, each of which knows the parameters differently well."""
    rng, k = np.random.default_rng(0), np.arange(1.0, BINS + 1) / 20
    slopes = {label: rng.normal(size=(5, 3, BINS)) * rng.uniform(0.5, 1.5, (5, 1, 1)) for label in LABELS}
    shared, sets = {label: slopes["mine"][:, :1] for label in LABELS}, {}
    noise = {seed: rng.normal(size=(len(LABELS), 3, BINS)) for seed in range(15)}

    def spectra(shift, seeds, values):
        values[:, :, 0] = values[:, :1, 0]  # P_dd does not know the mark
        marked = {label: 100 + values[:, i, 1:] for i, label in enumerate(LABELS)}
        return Measurement(k, np.ones(BINS), np.tile(FIDUCIAL, (len(seeds), 1)), seeds, 100 + values[:, 0, 0], marked)

    sets["fiducial"] = spectra(0, np.arange(100, 250), rng.normal(size=(150, len(LABELS), 3, BINS)))
    for name in FIDUCIAL_SETS[1:]:
        i, sign = QUIJOTE_NAMES.index(name[:-2]), 1 if name.endswith("p") else -1
        mean = np.stack([np.concatenate([shared[label][i], slopes[label][i, 1:]]) for label in LABELS])
        values = np.stack([sign * STEPS[i] * (20 * mean + noise[seed]) for seed in range(15)])
        sets[name] = spectra(sign, np.arange(15), values)
    return sets


@pytest.fixture(scope="module")
def forecasts(power):
    return forecast(power, count=30)


def test_every_mark_has_the_forecast_it_has_alone(power, forecasts):
    assert list(forecasts) == ["P_dd", *LABELS, "best of 48"]
    for label in ("P_dd", "mine", "p=2 ds=0"):
        alone = ingredients(power, label)
        np.testing.assert_array_equal(forecasts[label].F, standard(alone))
        again = resampled(alone, resamples(150, 15, 30))
        np.testing.assert_array_equal(forecasts[label].resampled, again.resampled)
        np.testing.assert_allclose(forecasts[label].sigma.value, sigma(standard(alone)), rtol=1e-9)
        np.testing.assert_allclose(np.diagonal(forecasts[label].covariance()) ** 0.5, sigma(standard(alone)))
    assert list(forecast(power, labels=["mine"], count=2)) == ["P_dd", "mine"]


def test_the_best_of_48_is_the_best_for_each_parameter(forecasts):
    best, mine = forecasts["best of 48"], forecasts["mine"]
    assert len(set(best.labels.values())) > 1, "one mark is best for all: the test says nothing"
    ratio = best / mine
    for i, (name, label) in enumerate(best.labels.items()):
        assert name == QUIJOTE_NAMES[i] and label != "mine"
        assert best.sigma.value[i] == min(forecasts[other].sigma.value[i] for other in classical_marks())
        one = forecasts[label] / mine
        assert (ratio.value[i], ratio.low[i], ratio.high[i]) == (one.value[i], one.low[i], one.high[i])


def test_parameters_are_held_at_once_or_later(power, forecasts):
    later, at_once = forecasts.hold("h", "ns"), forecast(power, fixed=("h", "ns"), count=30)
    for label in ("mine", "best of 48"):
        np.testing.assert_array_equal(later[label].sigma.value, at_once[label].sigma.value)
        assert later[label].sigma.value[2] == later[label].sigma.value[3] == 0
        assert (later[label].sigma.value[[0, 4]] < forecasts[label].sigma.value[[0, 4]]).all()
    np.testing.assert_array_equal(forecast(power, labels=[], fixed="h", count=2)["P_dd"].sigma.value[2], 0)
    with pytest.raises(ValueError, match="fixed has 'sigma_8'; allowed are Om, Ob2, h, ns, s8"):
        forecasts.hold("sigma_8")["mine"].sigma  # noqa: B018


def test_they_print_as_a_table(forecasts):
    head, *lines = repr(forecasts.only("P_dd", "mine").hold("h")).splitlines()
    assert head.split() == ["sigma", "Omega_m", "Omega_b", "h", "n_s", "sigma_8"]
    assert [line.split()[0] for line in lines] == ["P_dd", "mine"] and "fixed" in lines[1]
    held = forecasts.hold("h")["mine"].sigma
    assert f"{held.value[0]:.2g} ({held.low[0]:.2g} to {held.high[0]:.2g})" in lines[1]
    ratio = forecasts["P_dd"] / forecasts["mine"]
    assert repr(ratio).startswith(f"Omega_m {ratio.value[0]:.3g} ({ratio.low[0]:.3g} to") and "95%" in repr(ratio)


def test_every_useful_kmax(power):
    scan = by_kmax(power, ("mine",), count=2)
    assert list(scan) == list(power["fiducial"].k[5:])
    for kmax, here in scan.items():
        np.testing.assert_array_equal(here["mine"].F, forecast(power, kmax, ("mine",), count=2)["mine"].F)
