"""Spectra that come with the kit: small, and the same to what a forecast notices."""

from dataclasses import replace

import numpy as np
import pytest

from nbkit.mark.classical import ClassicalMark
from nbkit.measure import bundled as archive
from nbkit.measure.bundled import Archive, suite_spectra, write
from nbkit.measure.measure import Measured
from nbkit.mesh.grid import Grid
from nbkit.universe import suite
from nbkit.universe.suite import SETS, Preset, contents

TINY = Preset("tiny", Grid(8, 62.5, "PCS"), 40, 20, 60, 10, 8, 2, 2)
MARKS = {f"p={p}": ClassicalMark(p, 0.1) for p in (-1.0, 1.0, 2.0)}
BINS = 4


def spectra(name, marks, rng, shape):
    """Spectra with three degrees of freedom a box, and twelve small ones, as many as one mark has numbers."""
    about = contents(TINY, name)
    hidden = rng.standard_normal((len(about.seeds), 3 + 3 * BINS)) * np.repeat([0.1, 1e-4], [3, 3 * BINS])
    x = hidden @ shape[:, : BINS * (1 + 2 * len(marks))]
    P_dd, *rest = np.split(10 ** (3 + x[:, :BINS]), 1) + np.split(x[:, BINS:], 2 * len(marks), axis=1)
    marked = {}
    for label, ratio, r in zip(marks, rest[::2], rest[1::2], strict=True):
        P_mm = P_dd * 10**ratio
        marked[label] = np.stack([(0.7 + 0.1 * r) * np.sqrt(P_dd * P_mm), P_mm], axis=1)
    return Measured(np.linspace(0.1, 0.3, BINS), np.arange(1, BINS + 1), about.theta, about.seeds, P_dd, marked)


@pytest.fixture
def power(tmp_path, monkeypatch):
    monkeypatch.setitem(suite.PRESETS, "tiny", TINY)
    monkeypatch.setattr(archive, "FOLDER", tmp_path)
    rng = np.random.default_rng(1)
    shape = rng.standard_normal((3 + 3 * BINS, BINS * (1 + 2 * len(MARKS))))
    few = dict(list(MARKS.items())[:2])  # one mark is measured around the fiducial point alone
    power = {name: spectra(name, MARKS if name in SETS[2:] else few, rng, shape) for name in SETS}
    write(power, MARKS, "tiny", tmp_path / "tiny_spectra.npz")
    return power


def numbers(spectra, label):
    """What is kept of a box for one mark, (N, 3 b)."""
    P_dd, P_dm, P_mm = spectra[label].transpose(1, 0, 2)
    return np.concatenate([np.log10(P_dd), np.log10(P_mm / P_dd), P_dm / np.sqrt(P_dd * P_mm)], axis=1)


def test_what_was_kept_comes_back_to_a_small_part_of_what_forecasts_notice(power, tmp_path):
    held = Archive(tmp_path / "tiny_spectra.npz")
    for number, (names, marks) in enumerate(
        ((SETS[2:], MARKS), (SETS[1:2], ("p=1.0", "p=-1.0")), (SETS[:1], ("p=-1.0", "p=1.0")))
    ):
        found = held.measured(names, {label: MARKS[label] for label in marks})
        for name in names:
            np.testing.assert_array_equal(power[name].seeds, found[name].seeds)
            np.testing.assert_array_equal(power[name].theta, found[name].theta)
        for label in marks:
            root = np.linalg.cholesky(np.cov(numbers(power["fiducial"], label).T))  # unit covariance is how they weigh
            errors = np.concatenate([numbers(power[n], label) - numbers(found[n], label) for n in names])
            rms = np.sqrt(np.mean(np.linalg.solve(root, errors.T) ** 2, axis=1))
            # Dropped and rounded: sqrt(1 + 1/4) of the tolerance, and twenty boxes do not average rounding out.
            assert 0 < rms.max() < 1.1 * np.sqrt(1.25) * archive.TOLERANCES[number]


def test_a_mark_the_fiducial_set_lacks_is_refused(power, tmp_path):
    lacking = power | {"fiducial": replace(power["fiducial"], marked={"p=1.0": power["fiducial"].marked["p=1.0"]})}
    with pytest.raises(ValueError, match=r"lacks p=-1\.0"):
        write(lacking, MARKS, "tiny", tmp_path / "other.npz")
    assert not (tmp_path / "other.npz").exists()


def test_a_suite_is_made_only_for_what_was_not_kept(power, monkeypatch):
    def no_suite(*_, **__):
        raise LookupError("made a suite")

    monkeypatch.setattr(archive, "suite", no_suite)
    found = suite_spectra("tiny", ("fiducial",), {"mine": MARKS["p=1.0"]})
    assert found["fiducial"].labels == ("mine",)
    for names, marks, root in (
        (("fiducial",), {"new": ClassicalMark(2.5, 0.1)}, None),
        (("BSQ",), {"around the fiducial point alone": MARKS["p=2.0"]}, None),
        (("BSQ",), MARKS, "/somewhere"),
        (("BSQ",), {}, "/somewhere"),
    ):
        with pytest.raises(LookupError, match="made a suite"):
            suite_spectra("tiny", names, marks, root)


def test_few_components_are_kept(power, tmp_path):
    held = np.load(tmp_path / "tiny_spectra.npz", allow_pickle=False)
    assert len(held["scores_0"]) <= 16 < held["axes_0"].shape[1] and held["scores_0"].dtype == np.int16
