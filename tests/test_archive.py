"""Spectra that come with the kit: small, and the same to a small part of their scatter."""

import numpy as np
import pytest

from nbkit import archive, suite
from nbkit.archive import Archive, suite_spectra, write
from nbkit.grid import Grid
from nbkit.mark import ClassicalMark
from nbkit.measured import Measured
from nbkit.suite import SETS, Preset, contents

TINY = Preset("tiny", Grid(8, 62.5, "PCS"), 40, 20, 60, 10, 8, 2, 2)
MARKS = {f"p={p}": ClassicalMark(p, 0.1) for p in (-1.0, 1.0, 2.0)}
BINS = 4


def spectra(name, marks, rng, shape):
    """Spectra with three degrees of freedom a box, and a little that is new in every number."""
    about = contents(TINY, name)
    hidden = rng.standard_normal((len(about.seeds), 3))
    x = hidden @ shape[:, : BINS * (1 + 2 * len(marks))]
    x = 0.1 * x + 1e-5 * rng.standard_normal(x.shape)
    P_dd, *rest = np.split(10 ** (3 + x[:, :BINS]), 1) + np.split(x[:, BINS:], 2 * len(marks), axis=1)
    marked = {}
    for label, ratio, r in zip(marks, rest[::2], rest[1::2], strict=True):
        P_mm = P_dd * 10**ratio
        marked[label] = np.stack([np.tanh(1 + r) * np.sqrt(P_dd * P_mm), P_mm], axis=1)
    return Measured(np.linspace(0.1, 0.3, BINS), np.arange(1, BINS + 1), about.theta, about.seeds, P_dd, marked)


@pytest.fixture
def power(tmp_path, monkeypatch):
    monkeypatch.setitem(suite.PRESETS, "tiny", TINY)
    monkeypatch.setattr(archive, "FOLDER", tmp_path)
    rng = np.random.default_rng(1)
    shape = rng.standard_normal((3, BINS * (1 + 2 * len(MARKS))))
    around = dict(list(MARKS.items())[:2])  # one mark is measured over the prior alone
    power = {name: spectra(name, around if name in SETS[2:] else MARKS, rng, shape) for name in SETS}
    write(power, MARKS, "tiny", tmp_path / "tiny_spectra.npz")
    return power


def test_what_was_kept_comes_back_to_a_small_part_of_its_scatter(power, tmp_path):
    held = Archive(tmp_path / "tiny_spectra.npz")
    for names, marks in ((SETS[2:], ("p=-1.0", "p=1.0")), (SETS[:1], ("p=2.0", "p=-1.0")), (SETS[1:2], MARKS)):
        found = held.measured(names, {label: MARKS[label] for label in marks})
        everyone = np.concatenate([power[name].P_dd for name in names])
        for name in names:
            one, other = power[name], found[name]
            np.testing.assert_array_equal(one.seeds, other.seeds)
            np.testing.assert_array_equal(one.theta, other.theta)
            assert (np.abs(one.P_dd - other.P_dd).max(0) < 0.02 * everyone.std(0)).all()
            for label in marks:
                scatter = np.concatenate([power[each][label] for each in names]).std(0)
                assert (np.sqrt(((one[label] - other[label]) ** 2).mean(0)) < 0.005 * scatter).all()


def test_a_suite_is_made_only_for_what_was_not_kept(power, monkeypatch):
    def no_suite(*_, **__):
        raise LookupError("made a suite")

    monkeypatch.setattr(archive, "suite", no_suite)
    found = suite_spectra("tiny", ("fiducial",), {"mine": MARKS["p=1.0"]})
    assert found["fiducial"].labels == ("mine",)
    for names, marks, root in (
        (("fiducial",), {"new": ClassicalMark(2.5, 0.1)}, None),
        (("fiducial",), {"over the prior alone": MARKS["p=2.0"]}, None),
        (("BSQ",), MARKS, "/somewhere"),
        (("BSQ",), {}, "/somewhere"),
    ):
        with pytest.raises(LookupError, match="made a suite"):
            suite_spectra("tiny", names, marks, root)


def test_few_components_are_kept(power, tmp_path):
    held = np.load(tmp_path / "tiny_spectra.npz", allow_pickle=False)
    assert len(held["scores_0"]) < 12 and held["scores_0"].dtype == np.int16
