"""Recoveries that are kept: the same as made, about what they say, and made once."""

import sys
from dataclasses import replace

import numpy as np
import pytest
from bundle import boxes_and_marks as question
from bundle import bundle_recoveries

import nbkit as nb
from nbkit import disk, recover
from nbkit.mark import identity
from nbkit.measure import Measurement
from nbkit.recover import recovery, spectra_by_mark
from nbkit.universe.cosmology import PRIOR_LATIN_HYPERCUBE

LABELS = ("p=1", "p=2")
ROOM = sys.modules["nbkit.recover"]  # the name itself is the function's


def power(seed, count=60, bins=4, key="", identities=("one", "two")):
    """Made-up spectra that know sigma_8; theta is the same for every seed."""
    low, high = PRIOR_LATIN_HYPERCUBE.T
    theta, rng = low + np.random.default_rng(0).random((count, 5)) * (high - low), np.random.default_rng(seed)
    P_dd = theta[:, 4:] ** 2 * rng.lognormal(0, 0.05, (count, bins))
    marked = {label: np.stack([0.5 * P_dd, P_dd * rng.lognormal(0, 0.05, P_dd.shape)], axis=1) for label in LABELS}
    k, modes = np.linspace(0.05, 0.2, bins), np.ones(bins)
    named = dict(zip(LABELS, identities, strict=True))
    return Measurement(k, modes, theta, np.arange(count), P_dd, marked, key or f"boxes {seed}", named)


@pytest.fixture(autouse=True)
def runs(tmp_path, monkeypatch):
    monkeypatch.setenv("NBKIT_RUNS", str(tmp_path))
    return tmp_path / "recovery"


@pytest.fixture
def asked(monkeypatch):
    """What regressors were trained for; they are trained once."""
    made, calls = recovery((spectra_by_mark(power(0), LABELS), power(0).theta)), []

    def answer(*_, **options):
        calls.append(options)
        return made

    monkeypatch.setattr(ROOM, "recovery", answer)
    return calls


def test_what_is_kept_is_what_was_made_and_is_made_once(runs, monkeypatch):
    test = power(0)
    first, made = recover({"latin_hypercube": test}, LABELS, 0.2), recovery((spectra_by_mark(test, LABELS), test.theta))
    assert first.labels == ("P_dd", *LABELS) and first.train == made.train
    for label in first.labels:
        np.testing.assert_allclose(first.mse(label), made.mse(label), rtol=5e-3)
    assert first.chosen(LABELS) == made.chosen(LABELS)
    monkeypatch.setattr(ROOM, "recovery", None)
    again = recover({"latin_hypercube": test}, LABELS, 0.2)
    assert np.array_equal(again.predicted, first.predicted) and len(list(runs.iterdir())) == 1
    monkeypatch.setattr("nbkit.disk.BUNDLED", runs.parent)  # as if it came with the kit
    monkeypatch.setenv("NBKIT_RUNS", str(runs.parent / "none"))
    assert np.array_equal(recover({"latin_hypercube": test}, LABELS, 0.2).predicted, first.predicted)


def test_another_question_is_another_file(runs, asked):
    here = {"latin_hypercube": power(0), "BSQ": power(2, 80)}
    for sets, options in (
        (here, {}),
        (here, {"seed": 1}),
        (here, {"kmax": 0.15}),
        (here, {"repeats": 2}),
        (here, {"train_on": "BSQ"}),
        (here, {"train_on": "BSQ", "train": 50}),
        ({"latin_hypercube": power(0, identities=("one", "another"))}, {}),
        ({"latin_hypercube": power(0).rows(np.arange(55))}, {}),
    ):
        nb.recover(sets, LABELS, **({"kmax": 0.2} | options))
    assert len(asked) == len(list(runs.iterdir())) == 8
    nb.recover({"latin_hypercube": power(0)}, LABELS, 0.21)
    assert len(asked) == 8, "no bin lies between 0.2 and 0.21"
    nb.recover({"latin_hypercube": power(0)}, "p=1", 0.2)
    assert len(asked) == 9


def test_other_simulations_of_the_same_thetas_are_not_mistaken(runs, asked):
    """Equal thetas and seeds, and a mean power that is the same to two digits: the spectra are others all the same."""
    one, other = power(0), power(1)
    assert np.array_equal(one.theta, other.theta) and np.array_equal(one.seeds, other.seeds)
    assert abs(np.log10(one.P_dd).mean() - np.log10(other.P_dd).mean()) < 0.005
    for each in (one, other, replace(other, key="", P_dd=other.P_dd * (1 + 1e-6))):
        recover({"latin_hypercube": each}, LABELS, 0.2)
    assert len(asked) == len(list(runs.iterdir())) == 3


def test_sets_and_marks_that_are_missing_are_said(runs):
    with pytest.raises(ValueError, match="train_on is 'fiducial'; allowed are latin_hypercube, BSQ"):
        recover({"latin_hypercube": power(0)}, LABELS, 0.2, train_on="fiducial")
    with pytest.raises(KeyError, match="'p=3' was not measured; there are p=1, p=2"):
        recover({"latin_hypercube": power(0)}, "p=3", 0.2)


def test_what_comes_with_the_kit_is_of_marks_that_there_are(runs, monkeypatch):
    trained = [nb.load(path.parent.name).mark for path in disk.BUNDLED.glob("mini_*/run.json")]
    known = set(map(identity, [*nb.classical_marks().values(), *trained]))
    assert all(question(path)[1] <= known for path in (disk.BUNDLED / "recovery").iterdir())
    marks = {"p=1": nb.ClassicalMark(1.0, 0.1), "p=2": nb.ClassicalMark(2.0, 0.1)}
    monkeypatch.setattr("nbkit.disk.BUNDLED", runs.parent / "kit")
    kit = runs.parent / "kit" / "recovery"
    recover({"latin_hypercube": power(0, identities=map(identity, marks.values()))}, LABELS, 0.2)
    bundle_recoveries(marks, 59)
    assert not kit.exists()  # of another set
    bundle_recoveries(marks, 60)
    assert [path.name for path in kit.iterdir()] == [path.name for path in runs.iterdir()]
    bundle_recoveries({"p=1": marks["p=1"]}, 60)
    assert not list(kit.iterdir())


def test_what_comes_with_the_kit_is_read(runs, asked):
    """The recoveries of the results are those of the bundled spectra: nothing is trained."""
    assert len(list((disk.BUNDLED / "recovery").iterdir())) == 8
    marks = {"p=2 ds=0": nb.ClassicalMark(2.0, 0.0)} | {
        name: nb.load(name).mark for name in ("mini_l2", "mini_i2", "mini_i3")
    }
    power = nb.measure("mini", marks, sets=("BSQ", "latin_hypercube"))
    for kmax in (0.2, 0.3):
        found = recover(power, marks, kmax, train_on="BSQ", repeats=2)
        assert found.predicted.shape == (5, 2, 500, 5) and found.train == 1700
    assert not asked and not runs.exists()
