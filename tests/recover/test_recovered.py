"""Recoveries that are kept: the same as made, about what they say, and made once."""

import numpy as np
import pytest
from trainings import all_marks, shipped

from nbkit import ClassicalMark
from nbkit.mark import identity
from nbkit.measure import Measurement
from nbkit.recover.recovered import SHIPPED, _asked, recovered, ship_recoveries
from nbkit.recover.regression import recovery, spectra_by_mark
from nbkit.universe.cosmology import PRIOR_LATIN_HYPERCUBE

MARKS = {"p=1": ClassicalMark(1.0, 0.1), "p=2": ClassicalMark(2.0, 0.1)}


def power(seed, count=60, bins=4):
    """Made-up spectra that know sigma_8."""
    rng = np.random.default_rng(seed)
    theta = PRIOR_LATIN_HYPERCUBE[:, 0] + rng.random((count, 5)) * np.ptp(PRIOR_LATIN_HYPERCUBE, axis=1)
    P_dd = theta[:, 4:] ** 2 * rng.lognormal(0, 0.05, (count, bins))
    marked = {label: np.stack([0.5 * P_dd, P_dd * rng.lognormal(0, 0.05, P_dd.shape)], axis=1) for label in MARKS}
    return Measurement(np.linspace(0.05, 0.2, bins), np.ones(bins), theta, np.arange(count), P_dd, marked)


@pytest.fixture(autouse=True)
def runs(tmp_path, monkeypatch):
    monkeypatch.setenv("NBKIT_RUNS", str(tmp_path))
    return tmp_path / "recovery"


def test_what_is_kept_is_what_was_made_and_is_made_once(runs, monkeypatch):
    test = power(0)
    first, made = recovered(test, MARKS), recovery(spectra_by_mark(test), test.theta)
    assert first.labels == ("P_dd alone", *MARKS) and first.train == made.train
    for label in first.labels:
        assert np.allclose(first.mse(label), made.mse(label), rtol=5e-3)
    assert first.chosen(MARKS) == made.chosen(MARKS)
    monkeypatch.setattr("nbkit.recover.recovered.recovery", None)
    again = recovered(test, MARKS)
    assert np.array_equal(again.predicted, first.predicted) and len(list(runs.iterdir())) == 1
    monkeypatch.setattr("nbkit.recover.recovered.SHIPPED", runs)  # as if it came with the kit
    monkeypatch.setenv("NBKIT_RUNS", str(runs.parent / "none"))
    assert np.array_equal(recovered(test, MARKS).predicted, first.predicted)


def test_another_question_is_another_file(runs, monkeypatch):
    asked = []
    made = recovery(spectra_by_mark(power(0)), power(0).theta)
    monkeypatch.setattr("nbkit.recover.recovered.recovery", lambda *_, **options: asked.append(options) or made)
    monkeypatch.setattr(
        "nbkit.recover.recovered.recovery_elsewhere", lambda *_, **options: asked.append(options) or made
    )
    other = {"p=1": MARKS["p=1"], "p=2": ClassicalMark(2.0, 0.2)}
    for arguments in (
        {"test": power(0), "marks": MARKS},
        {"test": power(0), "marks": MARKS, "seed": 1},
        {"test": power(0), "marks": other},
        {"test": power(0).cut(0.15), "marks": MARKS},
        {"test": power(1), "marks": MARKS},
        {"test": power(0), "marks": MARKS, "training": power(2, 80)},
        {"test": power(0), "marks": MARKS, "training": power(2, 80), "train": 50},
    ):
        recovered(**arguments)
    assert len(asked) == len(list(runs.iterdir())) == 7


def test_what_comes_with_the_kit_is_of_marks_that_there_are(runs, monkeypatch):
    known = {identity(mark) for mark in all_marks(shipped()).values()}
    assert all(_asked(path)[1] <= known for path in SHIPPED.glob("*.npz"))
    kit = runs.parent / "kit"
    monkeypatch.setattr("nbkit.recover.recovered.SHIPPED", kit)
    recovered(power(0), MARKS)
    ship_recoveries(MARKS, 59)
    assert not list(kit.glob("*.npz"))  # of another set
    ship_recoveries(MARKS, 60)
    assert [path.name for path in kit.iterdir()] == [path.name for path in runs.iterdir()]
    ship_recoveries({"p=1": MARKS["p=1"]}, 60)
    assert not list(kit.iterdir())
