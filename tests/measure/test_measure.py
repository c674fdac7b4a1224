import numpy as np
import pytest
import torch

from nbkit import ClassicalMark, LearnedMark
from nbkit.mark import identity
from nbkit.mark.classical import classical_marks
from nbkit.measure import Measurement, Pass, measure
from nbkit.mesh.grid import Grid
from nbkit.mesh.spectra import marked_spectra
from nbkit.universe.suite import Preset, suite

TINY = Preset("tiny", Grid(16, 125.0, "PCS"), 2, 2, 5, 3, 16, 1, 2)
MARKS = {"up": ClassicalMark(2.0, 0.1), "down": ClassicalMark(-1.0, 0.2, R=15.0)}


@pytest.fixture(scope="module")
def sets(tmp_path_factory):
    return suite(TINY, ("fiducial", "s8_p"), root=tmp_path_factory.mktemp("suites"), progress=False)


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.setenv("NBKIT_RUNS", str(tmp_path))
    return tmp_path


@pytest.fixture
def passes(monkeypatch):
    """(name, row, number of marks) of every simulation gone through."""
    seen, call = [], Pass.__call__

    def counted(self, name, row):
        seen.append((name, row, len(self.sets[name][1])))
        return call(self, name, row)

    monkeypatch.setattr(Pass, "__call__", counted)
    return seen


def test_spectra_are_those_of_each_simulation_alone(sets, here):
    torch.manual_seed(0)
    learned = LearnedMark(TINY.grid)
    torch.nn.init.normal_(learned.responses.v)
    marks = MARKS | {"learned": learned}
    result = measure(sets, marks, "fiducial")["fiducial"]
    assert result.labels == tuple(marks) and len(result) == 5
    for label, mark in marks.items():
        with torch.no_grad():
            expected = marked_spectra(mark, sets["fiducial"][3], grid=TINY.grid)
        np.testing.assert_allclose(result[label][3], torch.stack(expected[1:4]).numpy(), rtol=1e-6)
    np.testing.assert_array_equal(result.k, expected.k.numpy())


def test_measured_once_and_kept(sets, here, passes):
    first = measure(sets, MARKS, "fiducial")["fiducial"]
    again = measure({"mine": sets["fiducial"]}, {"another name": MARKS["up"]})["mine"]
    assert again.key == first.key and again.identities["another name"] == identity(MARKS["up"])
    np.testing.assert_array_equal(first["up"], again["another name"])
    assert len(passes) == 5
    measure(sets, MARKS | {"new": ClassicalMark(1.0, 0.0)}, ("fiducial",))
    assert len(passes) == 10 and passes[-1][2] == 1  # only the new mark


def test_goes_on_where_it_was_stopped(sets, here, passes, monkeypatch):
    whole = measure(sets, MARKS, "fiducial")["fiducial"]["down"]
    table = next(here.glob(f"spectra/fiducial_*/{identity(MARKS['down'])}.*.npy"))
    kept = np.load(table, mmap_mode="r+")
    kept[2, 7] = kept[1, 7]  # a row half written, or a byte of it damaged
    kept.flush()
    passes.clear()
    np.testing.assert_array_equal(measure(sets, MARKS, "fiducial")["fiducial"]["down"], whole)
    assert passes == [("fiducial", 2, 1)]


def test_several_sets_in_one_go_with_worker_processes(sets, here, monkeypatch):
    monkeypatch.setitem(measure.__globals__, "WORTH_A_CLUSTER", 0.0)
    both = measure(sets, MARKS, progress=False)
    assert {name: len(each) for name, each in both.items()} == {"fiducial": 5, "s8_p": 3}
    alone = marked_spectra(MARKS["up"], sets["s8_p"][1], grid=TINY.grid)
    np.testing.assert_allclose(both["s8_p"]["up"][1], torch.stack(alone[1:4]).numpy(), rtol=1e-6)


def test_cut_keeps_the_bins_up_to_kmax(sets, here):
    result = measure(sets, MARKS, "s8_p")["s8_p"]
    cut = result.cut(0.2)
    assert cut.k.max() <= 0.2 < result.k[len(cut.k)]
    np.testing.assert_array_equal(cut["up"], result["up"][..., : len(cut.k)])
    with pytest.raises(ValueError, match=r"kmax is 0\.01 .*first bin"):
        result.cut(0.01)
    with pytest.raises(KeyError, match=r"sideways.*up, down"):
        result["sideways"]


def test_keys_tell_simulations_and_rows_apart(sets, here):
    power = measure(sets, MARKS)
    assert (
        len({each.key for each in (*power.values(), power["fiducial"].rows([0, 1]), power["fiducial"].rows([0, 2]))})
        == 4
    )
    assert power["fiducial"].cut(0.2).key == power["fiducial"].key
    one = power["s8_p"]
    mine = [
        Measurement(one.k, one.modes, one.theta + shift, one.seeds, one.P_dd, {"up": one.marked["up"] + shift})
        for shift in (0.0, 0.0, 1e-3)
    ]
    assert mine[0].key == mine[1].key != mine[2].key
    assert mine[0].identities == mine[1].identities != mine[2].identities


def test_another_version_of_the_code_measures_anew(sets, here, passes, monkeypatch):
    before = measure(sets, MARKS, "s8_p")["s8_p"]
    monkeypatch.setitem(measure.__globals__, "VERSION", 2)
    assert measure(sets, MARKS, "s8_p")["s8_p"].key != before.key
    assert len(passes) == 6


def test_a_damaged_table_is_named_and_not_overwritten(sets, here):
    measure(sets, MARKS, "s8_p")
    table = next(here.glob(f"spectra/s8_p_*/{identity(MARKS['up'])}.*.npy"))
    table.write_bytes(table.read_bytes()[:100])
    with pytest.raises(ValueError, match=r"damaged.*delete it"):
        measure(sets, MARKS, "s8_p")
    assert table.stat().st_size == 100


def test_identity_follows_settings_and_weights():
    torch.manual_seed(0)
    one, other = LearnedMark(TINY.grid), LearnedMark(TINY.grid)
    other.load_state_dict(one.state_dict())
    assert identity(one) == identity(other)
    with torch.no_grad():
        other.responses.bias += 1e-6
    marks = [one, other, LearnedMark(TINY.grid, cross=False), *classical_marks().values()]
    assert len({identity(mark) for mark in marks}) == len(marks) == 51
