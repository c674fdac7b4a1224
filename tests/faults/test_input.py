"""Bad input of every kind, made up by hypothesis: it works, or one sentence says what is wrong with what was given."""

import gc
import json
import os
import sys
import warnings
from itertools import count
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch
from fake import busy_mark
from harness import MARKS, TALLY, TINY, N, write_data
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import nbkit as nb
from nbkit import disk
from nbkit.mark.classical import UnitMark
from nbkit.measure import measure
from nbkit.notebook import notebook
from nbkit.train import Recipe
from nbkit.universe import Preset
from nbkit.universe.cosmology import PRIOR_BSQ
from nbkit.universe.quijote import Files, counts, cube, snapshot, thetas
from nbkit.universe.store import SimulationSet

many = settings(
    max_examples=10 * N, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck)
)
GRID = nb.Grid(8, 62.5)
NUMBERS = count()
ANYTHING = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=8), st.just([]), st.just({}), st.just(b"0.3")
)
NUMBER = st.one_of(st.integers(-10, 3000), st.floats(-2, 2000), ANYTHING)
NAME = st.one_of(st.sampled_from(["..", "../..", "/etc", "~", "a\0b", "mini_l2/../..", "Ωm"]), ANYTHING)


def tried(call, *arguments, **options):
    """What a call gives, or None where it refuses in one sentence; anything else is a fault."""
    TALLY["bad input", getattr(call, "__name__", type(call).__name__).strip("<>")] += 1
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return call(*arguments, **options)
        except (ValueError, TypeError, FileNotFoundError) as error:
            words = str(error)
            assert words.strip() and "\n" not in words.strip() and len(words) < 2000, words
            assert "__init__" not in words, words
            return None


@st.composite
def fields(draw):
    """Tensors and arrays, few of which are density contrasts on GRID."""
    shape = draw(st.sampled_from([(8, 8, 8), (2, 8, 8, 8), (8, 8), (9, 9, 9), (8, 8, 7), (0, 8, 8, 8), ()]))
    x = np.random.default_rng(draw(st.integers(0, 99))).standard_normal(shape).clip(-0.9) * draw(
        st.sampled_from([0, 1e-30, 0.1, 1, 1e30, 1e200])
    )
    x = x + draw(st.sampled_from([0, 1, 37.5, -5]))
    if x.size and draw(st.booleans()):
        x.flat[0] = draw(st.sampled_from([np.nan, np.inf, -np.inf, -3]))
    kind = draw(st.sampled_from(["f2", "f4", "f8", ">f4", "i4", "c8", "?", "O"]))
    with np.errstate(all="ignore"):
        array = np.asarray(np.nan_to_num(x) if kind in ("i4", "?") else x).astype(kind)
    return torch.from_numpy(array) if kind in ("f2", "f4", "f8", "i4", "c8", "?") and draw(st.booleans()) else array


@many
@given(fields(), NUMBER)
def test_fields(field, kmax):
    for mark in (*MARKS.values(), UnitMark(), busy_mark(GRID)):
        M = tried(mark, field, GRID)
        assert M is None or torch.isfinite(M).all()
    power = tried(nb.spectra, field, grid=GRID, kmax=kmax)
    assert power is None or torch.isfinite(power.P_dd).all()


@many
@given(NUMBER, NUMBER, st.one_of(st.sampled_from(["PCS", "pcs"]), ANYTHING))
def test_grids_presets_and_marks(n, box_size, mas):
    tried(nb.Grid, n, box_size, mas)
    tried(Preset, mas, GRID, n, 1, 1, 1)
    tried(nb.ClassicalMark, n, box_size)


@many
@given(NAME, NAME)
def test_names(name, sets):
    tried(nb.load, name)
    tried(nb.suite, "demo", [name, sets], root="/nonexistent")
    if name not in (None, "demo") and sets != []:
        tried(nb.suite, name, root="/nonexistent")


@many
@given(st.sampled_from(sorted(nb.Training.__dataclass_fields__)), NUMBER)
def test_trainings(key, value):
    tried(nb.Training, **{key: value})


@many
@given(st.sampled_from(sorted(Recipe.__dataclass_fields__)), NUMBER)
def test_recipes(key, value):
    tried(Recipe, **{key: value})


@many
@given(st.sampled_from(["seed", "kmax", "preset", "sead", "objective"]), ANYTHING)
def test_parameters_of_a_notebook(name, value):
    cell = 'preset: str = "demo"\nkmax: float = 0.3\nseed: int = 0\nobjective: str = "contrast"'
    injected = f"# Parameters\n{name} = {value!r}\n"
    space = {"preset": "demo", "kmax": 0.3, "seed": 0, "objective": "contrast", name: value, "In": [cell, injected]}
    tried(notebook, space, kmax=(0.05, 0.4), objective=("contrast", "information"))


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Whole files of every kind, to be spoilt: their folder."""
    folder = tmp_path_factory.mktemp("data")
    write_data(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NBKIT_RUNS", str(folder / "runs"))
        busy_mark(GRID).save(folder / "mark.safetensors")
        disk.write_json(folder / "run/run.json", disk.read_json(disk.BUNDLED / "demo_l2/run.json"))
        disk.write_atomically(
            folder / "run/marked.safetensors", (disk.BUNDLED / "demo_l2/marked.safetensors").read_bytes()
        )
        measure({"fiducial": SimulationSet(folder / "fiducial.h5")}, MARKS)
        yield folder


def spoilt(draw, path):
    """The bytes of a file, cut short or some of them changed."""
    data = bytearray(path.read_bytes())
    if draw(st.booleans()):
        data = data[: draw(st.integers(0, len(data)))]
    for _ in range(draw(st.integers(0, 3))):
        if data:
            data[draw(st.integers(0, len(data) - 1))] = draw(st.integers(0, 255))
    return data


def same_or_refused(draw, path, read):
    """What is read of a spoilt file is what was in it, or it is refused."""
    before, expected = path.read_bytes(), read(path)
    try:
        path.write_bytes(spoilt(draw, path))
        found = tried(read, path)
    finally:
        path.write_bytes(before)
    assert found is None or all(np.array_equal(a, b) for a, b in zip(found, expected, strict=True))


@many
@given(st.data())
def test_spoilt_suites(whole, data):
    def stored_fields(path):
        boxes = SimulationSet(path)
        return [*(boxes[boxes.seeds.tolist().index(i)] for i in boxes.seeds), boxes.theta][:1]

    same_or_refused(data.draw, whole / "fiducial.h5", stored_fields)


@many
@given(st.data())
def test_spoilt_marks(whole, data):
    def mark_in_a_file(path):
        return [p.numpy() for p in nb.load(path).mark.parameters()]

    same_or_refused(data.draw, whole / "mark.safetensors", mark_in_a_file)


@many
@given(st.data())
def test_spoilt_spectra_are_measured_anew(whole, data):
    boxes = SimulationSet(whole / "fiducial.h5")

    def kept_spectra(path):
        power = measure({"fiducial": boxes}, MARKS)["fiducial"]
        return [power[label] for label in MARKS]

    table = data.draw(st.sampled_from(sorted((whole / "runs").rglob("*.npy"))))
    same_or_refused(data.draw, table, kept_spectra)


@many
@given(st.data())
def test_spoilt_runs(whole, data):
    path = whole / "run/run.json"
    before = path.read_bytes()
    settings, key = json.loads(before), data.draw(st.sampled_from(["training", "recipe", "grid", "mark", "format"]))
    if data.draw(st.booleans()):
        settings[key] = data.draw(st.one_of(st.just({}), st.just({"n": 10**6, "box_size": 1.0}), st.text(), st.none()))
    elif data.draw(st.booleans()):
        settings.pop(key)
    elif isinstance(settings[key], dict):
        settings[key][data.draw(st.sampled_from(["n", "l_max", "extra", "kmax", "kind"]))] = data.draw(
            st.one_of(st.integers(), st.floats(), st.text(), st.none(), st.booleans())
        )
    path.write_text(json.dumps(settings) if data.draw(st.booleans()) else json.dumps(settings)[: len(before) // 2])
    tried(nb.load, path.parent)
    path.write_bytes(before)


@many
@given(st.data())
def test_parameter_files(whole, data):
    row = data.draw(st.sampled_from(["0.3 0.05 0.7 1.0 0.8", "0.3 0.05 0.7 1.0", "a b c d e", "nan 0.05 0.7 1 .8", ""]))
    rows = [data.draw(st.one_of(st.just("0.3 0.05 0.7 1.0 0.8"), st.just(row), st.text(max_size=20))) for _ in range(3)]
    path = whole / "params.txt"
    path.write_bytes(data.draw(st.sampled_from(["\n", "\r\n", "\r"])).join(rows).encode("utf-8", "replace"))
    found = tried(thetas, path, PRIOR_BSQ, 2)
    assert found is None or (found.shape == (2, 5) and np.isfinite(found).all())


@many
@given(fields(), st.sampled_from([".npy", ".hdf5", ".txt"]), NUMBER, st.data())
def test_cubes_and_catalogues(whole, field, ending, box_size, data):
    """Of any type, byte order and shape, then spoilt."""
    # A name of its own: Pylians leaves HDF5 files open that it cannot read.
    array, path = np.asarray(field), whole / f"cube {next(NUMBERS)}{ending}"
    if data.draw(st.booleans()):
        array = np.asfortranarray(array)
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if ending == ".npy":
            np.save(path, array, allow_pickle=True)
        elif ending == ".hdf5":
            with h5py.File(path, "w") as file:
                name = data.draw(st.sampled_from(["df", "other", "PartType1/Coordinates"]))
                file[name] = array.astype("S4") if array.dtype == object else array
        else:
            np.savetxt(path, array.reshape(-1, array.shape[-1] if array.ndim else 1), fmt="%s")
    if data.draw(st.booleans()):
        path.write_bytes(spoilt(data.draw, path))
    found = tried(nb.field, path, box_size)
    assert found is None or torch.isfinite(found.delta).all()
    for read in (cube, counts, snapshot):
        found = tried(read, str(path), nb.Grid(8, 62.5, "PCS"))
        assert found is None or np.isfinite(found).all()


def hostile(folder, kind):
    """Files that want more than to be read."""
    path = folder / f"{kind}.hdf5"
    with h5py.File(path, "w") as file:
        if kind == "link":
            file["df"] = h5py.ExternalLink(str(folder / "fiducial.h5"), "delta")
        elif kind == "raw":
            file.create_dataset("df", (8, 8, 8), "f4", external=[("/proc/self/environ", 0, 2048)])
        elif kind == "huge":
            file.create_dataset("df", (10**6,) * 3, "f4", chunks=(64,) * 3)
        elif kind == "group":
            file.create_group("df")
        else:
            file["df"] = np.zeros((8, 8, 8), dtype=[("a", "f4")])
    return path


@pytest.mark.parametrize("kind", ["link", "raw", "huge", "group", "record"])
def test_hostile_hdf5(whole, kind):
    path = hostile(whole, kind)
    for read in (lambda: counts(str(path), nb.Grid(8, 62.5, "PCS")), lambda: nb.field(path, 62.5)):
        assert tried(read) is None


class Bomb:
    """What a pickle would do."""

    def __reduce__(self):
        return os.system, ("touch /tmp/nbkit_was_here",)


@pytest.mark.parametrize("name", ["mark.safetensors", "mark.npy", "run/run.json", "marked.pt", "fiducial.h5", "df.npy"])
def test_pickles_are_never_loaded(tmp_path, name):
    path, evidence = tmp_path / name, Path("/tmp/nbkit_was_here")
    path.parent.mkdir(exist_ok=True)
    if name.endswith(".npy"):
        np.save(path, np.array([Bomb()], object), allow_pickle=True)
    else:
        torch.save({"x": Bomb()}, path)
    for read in (nb.load, lambda p: nb.field(p, 62.5), SimulationSet, lambda p: cube(str(p), GRID)):
        assert tried(read, path.parent if name == "run/run.json" and read is nb.load else path) is None
    assert not evidence.exists()


def test_a_flipped_byte_is_found_and_that_box_alone_made_again(tmp_path, monkeypatch):

    from harness import client

    module = sys.modules["nbkit.universe.suite"]
    with client() as workers:
        made = nb.suite(TINY, "fiducial", root=tmp_path, client=workers)["fiducial"]
        before, data = made[:], bytearray(made.path.read_bytes())
        data[made.at["delta"] + 5 * 4 * 8**3 + 17] ^= 64
        made.path.write_bytes(data)
        with pytest.raises(ValueError, match=r"Simulation 5 of .*fiducial\.h5 is damaged .* this one alone"):
            made[:]
        asked, farm = [], module.farm
        monkeypatch.setattr(module, "farm", lambda f, calls, *rest: asked.extend(calls) or farm(f, calls, *rest))
        again = nb.suite(TINY, "fiducial", root=tmp_path, client=workers)["fiducial"]
    assert asked == [("fiducial", 5)] and torch.equal(again[:], before)


def test_a_source_of_quijote_that_is_none():
    assert tried(Files, TINY, Path("/nonexistent")) is None


def test_files_are_closed(whole):
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        boxes = SimulationSet(whole / "fiducial.h5")
        boxes[:], measure({"fiducial": boxes}, MARKS), nb.load(whole / "mark.safetensors"), nb.load("demo_l2")
        disk.lock(whole / "x").close()
        del boxes
        gc.collect()
    assert not [each for each in told if each.category is ResourceWarning]
