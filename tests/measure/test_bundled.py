"""Spectra that come with the kit: small, the same to what a forecast notices, and of the simulations asked for."""

import sys
from dataclasses import replace

import bundle
import numpy as np
import pytest
from bundle import write

from nbkit import disk
from nbkit.mark.classical import ClassicalMark
from nbkit.measure import Measurement, measure
from nbkit.measure.bundled import Bundle
from nbkit.mesh.grid import Grid
from nbkit.mesh.spectra import spectra as spectra_of
from nbkit.universe import SETS, Preset
from nbkit.universe import suite as suite_of

TINY = Preset("tiny", Grid(8, 62.5, "PCS"), 40, 20, 60, 10, 8, 2, 2)
MARKS = {f"p={p}": ClassicalMark(p, 0.1) for p in (-1.0, 1.0, 2.0)}
BINS = 4


def spectra(name, marks, rng, shape):
    """Spectra with three degrees of freedom a box, and twelve small ones, as many as one mark has numbers."""
    about = TINY.contents(name)
    hidden = rng.standard_normal((len(about.seeds), 3 + 3 * BINS)) * np.repeat([0.1, 1e-4], [3, 3 * BINS])
    x = hidden @ shape[:, : BINS * (1 + 2 * len(marks))]
    P_dd, *rest = np.split(10 ** (3 + x[:, :BINS]), 1) + np.split(x[:, BINS:], 2 * len(marks), axis=1)
    marked = {}
    for label, ratio, r in zip(marks, rest[::2], rest[1::2], strict=True):
        P_mm = P_dd * 10**ratio
        marked[label] = np.stack([(0.7 + 0.1 * r) * np.sqrt(P_dd * P_mm), P_mm], axis=1)
    return Measurement(np.linspace(0.1, 0.3, BINS), np.arange(1, BINS + 1), about.theta, about.seeds, P_dd, marked)


@pytest.fixture
def power(tmp_path, monkeypatch):
    monkeypatch.setattr(disk, "BUNDLED", tmp_path)
    rng = np.random.default_rng(1)
    shape = rng.standard_normal((3 + 3 * BINS, BINS * (1 + 2 * len(MARKS))))
    few = dict(list(MARKS.items())[:2])  # one mark is measured around the fiducial point alone
    power = {name: spectra(name, MARKS if name in SETS[2:] else few, rng, shape) for name in SETS}
    write(power, MARKS, TINY, tmp_path / "tiny_spectra.npz")
    return power


def numbers(spectra, label):
    """What is kept of a box for one mark, (N, 3 b)."""
    P_dd, P_dm, P_mm = spectra[label].transpose(1, 0, 2)
    return np.concatenate([np.log10(P_dd), np.log10(P_mm / P_dd), P_dm / np.sqrt(P_dd * P_mm)], axis=1)


def test_what_was_kept_comes_back_to_a_small_part_of_what_forecasts_notice(power):
    held = Bundle.of(TINY)
    for number, (names, marks) in enumerate(
        ((SETS[2:], MARKS), (SETS[1:2], ("p=1.0", "p=-1.0")), (SETS[:1], ("p=-1.0", "p=1.0")))
    ):
        found = held.spectra(names, {label: MARKS[label] for label in marks})
        for name in names:
            np.testing.assert_array_equal(power[name].seeds, found[name].seeds)
            np.testing.assert_array_equal(power[name].theta, found[name].theta)
        for label in marks:
            root = np.linalg.cholesky(np.cov(numbers(power["fiducial"], label).T))  # unit covariance is how they weigh
            errors = np.concatenate([numbers(power[n], label) - numbers(found[n], label) for n in names])
            rms = np.sqrt(np.mean(np.linalg.solve(root, errors.T) ** 2, axis=1))
            # Dropped and rounded: sqrt(1 + 1/4) of the tolerance, and twenty boxes do not average rounding out.
            assert 0 < rms.max() < 1.1 * np.sqrt(1.25) * bundle.TOLERANCES[number]


def test_a_mark_the_fiducial_set_lacks_is_refused(power, tmp_path):
    lacking = power | {"fiducial": replace(power["fiducial"], marked={"p=1.0": power["fiducial"].marked["p=1.0"]})}
    with pytest.raises(ValueError, match=r"lacks p=-1\.0"):
        write(lacking, MARKS, TINY, tmp_path / "other.npz")
    assert not (tmp_path / "other.npz").exists()


@pytest.fixture
def no_suite(monkeypatch):
    def fail(*_, **__):
        raise LookupError("made a suite")

    monkeypatch.setitem(measure.__globals__, "suite", fail)


def test_a_suite_is_made_only_for_what_was_not_kept(power, no_suite):
    found = measure(TINY, {"mine": MARKS["p=1.0"]}, "fiducial")
    assert found["fiducial"].labels == ("mine",)
    for names, marks, root in (
        (("fiducial",), {"new": ClassicalMark(2.5, 0.1)}, None),
        (("BSQ",), {"around the fiducial point alone": MARKS["p=2.0"]}, None),
        (("BSQ",), MARKS, "/somewhere"),
        (("BSQ",), {}, "/somewhere"),
    ):
        with pytest.raises(LookupError, match="made a suite"):
            measure(TINY, marks, names, root)


@pytest.mark.parametrize(
    ("other", "names", "said"),
    [
        (replace(TINY, fiducial=50), ("fiducial",), "fiducial: 60 simulations there and 50 here"),
        (replace(TINY, steps=3), ("BSQ",), "BSQ: steps is 2 there and 3 here"),
        (replace(TINY, grid=Grid(8, 60.0, "PCS")), SETS, r"BSQ: box_size is 62\.5 there and 60\.0 here"),
        (replace(TINY, skipped=(60, 0)), ("Om_p", "fiducial"), "fiducial: other thetas or seeds"),
    ],
)
def test_spectra_of_other_simulations_are_refused(power, no_suite, other, names, said):
    """A preset of the same name is not served them."""
    message = f"Bundled spectra of 'tiny' are measured anew: {said}"
    with pytest.warns(UserWarning, match=message) as warned, pytest.raises(LookupError, match="made a suite"):
        measure(other, {"mine": MARKS["p=1.0"]}, names)
    assert len(warned) == 1
    assert measure(replace(TINY, fiducial=50), {"mine": MARKS["p=1.0"]}, "BSQ")["BSQ"].P_dd.shape == (40, BINS)


@pytest.mark.parametrize(
    ("where", "said"),
    [
        ("nbkit.universe.suite.VERSION", "fiducial: simulator is 1 there and 2 here"),
        ("nbkit.measure.bundled.VERSION", "version 1 of the code measured them, this is version 2"),
    ],
)
def test_spectra_of_other_code_are_refused(power, no_suite, monkeypatch, where, said):
    module, name = where.rsplit(".", 1)
    monkeypatch.setattr(sys.modules[module], name, 2)
    with (
        pytest.warns(UserWarning, match=f"are measured anew: {said}"),
        pytest.raises(LookupError, match="made a suite"),
    ):
        measure(TINY, {"mine": MARKS["p=1.0"]}, "fiducial")


def test_a_small_mini_is_measured_and_not_served_rows_of_the_large_one(tmp_path, monkeypatch):
    """What comes with the kit is of the preset's own size."""
    monkeypatch.setenv("NBKIT_RUNS", str(tmp_path))
    small = Preset("mini", Grid(16, 125.0, "PCS"), 2, 2, 3, 2, 16, 1, 2)
    with pytest.warns(UserWarning, match="Bundled spectra of 'mini' are measured anew: .*box_size is 500"):
        power = measure(small, {"mine": ClassicalMark(2.0, 0.0)}, "fiducial", progress=False)["fiducial"]
    delta = suite_of(small, "fiducial")["fiducial"][2]
    assert len(power) == 3
    np.testing.assert_allclose(power.P_dd[2], spectra_of(delta, grid=small.grid).P_dd, rtol=1e-6)
    assert Bundle.of("mini", ("fiducial",)).means


def test_few_components_are_kept(power, tmp_path):
    held = np.load(tmp_path / "tiny_spectra.npz", allow_pickle=False)
    assert len(held["scores_0"]) <= 16 < held["axes_0"].shape[1] and held["scores_0"].dtype == np.int16
