"""A set's file: what it holds, who may write it, and what survives."""

import errno
import hashlib
import importlib.metadata
import os
import pickle
import resource
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import h5py
import numpy as np
import pytest
import torch

from nbkit.universe import store
from nbkit.universe.store import Contents, SimulationSet, Writer

SETTINGS = {"source": "test", "n": 8, "box_size": 50.0, "mas": "PCS"}


def contents(count=12, **settings):
    return Contents(np.random.default_rng(0).random((count, 5)), 100 + np.arange(count), SETTINGS | settings)


def field(row, n=8):
    return np.random.default_rng(row).standard_normal((n, n, n), dtype=np.float32)


def fields(rows, n=8):
    return {row: field(row, n) for row in rows}


def digest(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.fixture
def path(tmp_path):
    return tmp_path / "fiducial.h5"


@pytest.fixture
def whole(path):
    with Writer(path, contents()) as writer:
        writer.write(fields(range(12)))
    return path


def test_any_hdf5_tool_reads_the_same(whole):
    simulations = SimulationSet(whole)
    with h5py.File(whole) as file:
        assert file["delta"].chunks == (1, 8, 8, 8)
        np.testing.assert_array_equal(file["delta"][:], simulations[:])
        np.testing.assert_array_equal(file["theta"][:], contents().theta)
        np.testing.assert_array_equal(file["seed"][:], contents().seeds)
        assert file["done"][:].all()
        assert '"box_size": 50.0' in file.attrs["settings"]
        assert all(name in file.attrs["versions"] for name in ("nbkit", "camb", "torch"))
    assert simulations.versions["torch"] == importlib.metadata.version("torch")


def test_reading_by_index(whole):
    simulations = SimulationSet(whole)
    assert len(simulations) == 12
    assert simulations[3].dtype == torch.float32
    for index in (3, -1, [4, 2], slice(2, 9, 3), np.array([1, 1]), torch.tensor([5, 0]), np.arange(12) > 8):
        expected = np.stack([field(row) for row in range(12)])[index]
        np.testing.assert_array_equal(simulations[index], expected)
    assert simulations[[]].shape == (0, 8, 8, 8)
    with pytest.raises(IndexError):
        simulations[12]
    assert sum(1 for _ in simulations) == 12


def test_threads_forks_and_pickles_read_the_same(whole):
    simulations = SimulationSet(whole)
    rows = np.random.default_rng(1).integers(0, 12, 400).tolist()
    with ThreadPoolExecutor(8) as pool:
        read = list(pool.map(simulations.__getitem__, rows))
    assert all(np.array_equal(got, field(row)) for got, row in zip(read, rows, strict=True))
    copy = pickle.loads(pickle.dumps(simulations))
    np.testing.assert_array_equal(copy[7], field(7))
    child = os.fork()
    if child == 0:
        same = all(np.array_equal(simulations[row], field(row)) for row in rows)
        os._exit(0 if same else 1)
    assert all(np.array_equal(simulations[row], field(row)) for row in rows)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_unfinished_rows_are_not_shown(path):
    with Writer(path, contents()) as writer:
        writer.write(fields([2, 5]))
    simulations = SimulationSet(path)
    np.testing.assert_array_equal(simulations.seeds, [102, 105])
    np.testing.assert_array_equal(simulations.theta, contents().theta[[2, 5]])
    np.testing.assert_array_equal(simulations[:], np.stack([field(2), field(5)]))
    np.testing.assert_array_equal(np.flatnonzero(SimulationSet(path, contents()).done), [2, 5])


def test_fields_not_made_take_no_space(path):
    Writer(path, contents(1000, n=32)).close()
    assert path.stat().st_size > 1000 * 4 * 32**3
    assert path.stat().st_blocks * 512 < 2e5


def test_fingerprint_follows_settings_thetas_seeds_and_fields(tmp_path):
    def fingerprint(name, what, some):
        with Writer(tmp_path / f"{name}.h5", what) as writer:
            writer.write(some)
        return SimulationSet(tmp_path / f"{name}.h5").fingerprint

    plain = contents()
    some = fields(range(12))
    first = fingerprint("a", plain, some)
    assert fingerprint("b", contents(), some) == first
    others = {
        fingerprint("c", contents(mas="CIC"), some),
        fingerprint("d", Contents(plain.theta + 1e-9, plain.seeds, plain.settings), some),
        fingerprint("e", Contents(plain.theta, plain.seeds + 1, plain.settings), some),
        fingerprint("f", plain, some | {3: field(99)}),
        fingerprint("g", plain, fields(range(11))),
    }
    assert len(others | {first}) == 6


def test_damage_is_found(whole):
    simulations = SimulationSet(whole)
    place = simulations.at["delta"] + 5 * 4 * 8**3 + 17
    with whole.open("r+b") as file:
        file.seek(place)
        file.write(b"\x55")
    with pytest.raises(ValueError, match=r"Simulation 5 of .* is damaged"):
        simulations[[3, 5]]


# Children write and are killed at random moments, from before the file exists to its last byte.
KILLS = """
import os, random, signal, sys, time
from pathlib import Path
import numpy as np
import h5py
from nbkit.universe.store import Contents, SimulationSet, Writer

folder, wanted = Path(sys.argv[1]), int(sys.argv[2])
count, n = 24, 48
what = Contents(np.ones((count, 5)), np.arange(count), {"n": n, "box_size": 1.0, "mas": "CIC"})
field = [np.random.default_rng(i).standard_normal((n, n, n), dtype=np.float32) for i in range(count)]

def child(path):
    with Writer(path, what) as writer:
        rows = np.flatnonzero(~writer.done).tolist()
        for i in range(0, len(rows), 3):
            writer.write({row: field[row] for row in rows[i : i + 3]})
    os._exit(0)

random.seed(7)
start = time.perf_counter()
pid = os.fork()
if pid == 0:
    child(folder / "timing.h5")
os.waitpid(pid, 0)
undisturbed = time.perf_counter() - start
kills = files = absent = partly = 0
while kills < wanted:
    path, files = folder / f"{files}.h5", files + 1
    while True:
        pid = os.fork()
        if pid == 0:
            child(path)
        time.sleep(random.random() ** 2 * undisturbed)
        os.kill(pid, signal.SIGKILL)
        ended = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        if ended == 0:
            break
        assert ended == -signal.SIGKILL, ended
        kills += 1
        if not path.exists():
            absent += 1
            continue
        simulations = SimulationSet(path)
        partly += 0 < len(simulations) < count
        for i, row in enumerate(simulations.seeds):
            assert np.array_equal(simulations[i].numpy(), field[row]), (path, row)
        with h5py.File(path) as file:
            assert np.flatnonzero(file["done"][:]).tolist() == simulations.seeds.tolist()
    assert np.array_equal(SimulationSet(path)[:].numpy(), np.stack(field)), path
    path.unlink()
print(kills, absent, partly, files)
"""


def test_kill_9_at_random_moments(tmp_path):
    command = [sys.executable, "-c", KILLS, str(tmp_path), "100"]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    kills, absent, partly, files = map(int, result.stdout.split())
    assert kills >= 100
    # The moments were well spread: before the file had its name, and between the first simulation and the last.
    assert absent >= 3
    assert partly >= 20
    assert files >= 3


HOLD = """
import sys, time
sys.path.insert(0, sys.argv[2])
from pathlib import Path
from test_store import contents
from nbkit.universe.store import Writer
writer = Writer(Path(sys.argv[1]), contents())
print("holding", flush=True)
time.sleep(60)
"""


def test_a_second_writer_is_refused_until_the_first_is_gone(path):
    command = [sys.executable, "-c", HOLD, str(path), os.path.dirname(__file__)]  # noqa: PTH120
    holder = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert holder.stdout.readline() == "holding\n"
        with pytest.raises(BlockingIOError, match=rf"is being written by process {holder.pid} on .*; wait until"):
            Writer(path, contents())
        # Readers are not locked out.
        assert len(SimulationSet(path)) == 0
        with h5py.File(path) as file:
            assert not file["done"][:].any()
    finally:
        os.kill(holder.pid, signal.SIGKILL)
        holder.wait()
    with Writer(path, contents()) as writer:
        writer.write(fields([0]))
        with pytest.raises(BlockingIOError):
            Writer(path, contents())
    assert len(SimulationSet(path)) == 1


def test_of_many_writers_at_once_one_writes(path):
    barrier, results = threading.Barrier(8), []

    def attempt():
        barrier.wait()
        try:
            with Writer(path, contents()) as writer:
                barrier.wait(timeout=30)
                results.append(len(writer.done))
        except BlockingIOError:
            barrier.wait(timeout=30)
            results.append("refused")

    threads = [threading.Thread(target=attempt) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(results, key=str) == [12, *["refused"] * 7]


def in_child_with_file_size(limit, work):
    """Run in a fork whose files may not grow beyond `limit` bytes; what it raised, as (errno, text)."""
    out, into = os.pipe()
    child = os.fork()
    if child == 0:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        try:
            work()
            os.write(into, b"0 nothing raised")
        except OSError as error:
            os.write(into, f"{error.errno} {error}".encode())
        finally:
            os._exit(0)
    os.close(into)
    os.waitpid(child, 0)
    with os.fdopen(out) as pipe:
        number, said = pipe.read().split(" ", 1)
    return int(number), said


def test_no_room_when_the_file_is_made(path):
    number, said = in_child_with_file_size(5000, lambda: Writer(path, contents()))
    assert number == errno.EFBIG
    assert "fiducial.h5 could not be written (File too large; " in said
    assert [each.name for each in path.parent.iterdir()] == [".fiducial.h5.lock"]


def test_no_room_in_the_midst(path):
    with Writer(path, contents()) as writer:
        writer.write(fields([0, 1]))

    def work():
        with Writer(path, contents()) as writer:
            writer.write(fields([2]))
            writer.write(fields([3, 9]))

    number, said = in_child_with_file_size(SimulationSet(path).at["delta"] + 5 * 4 * 8**3, work)
    assert number == errno.EFBIG
    assert "what was finished before is safe: make room and run again" in said
    np.testing.assert_array_equal(SimulationSet(path).seeds, [100, 101, 102])
    with Writer(path, contents()) as writer:
        writer.write(fields(np.flatnonzero(~writer.done).tolist()))
    np.testing.assert_array_equal(SimulationSet(path)[:], np.stack([field(row) for row in range(12)]))


def test_full_disk_while_writing(path, monkeypatch):
    pwrite, calls = os.pwrite, []

    def full(*arguments):
        calls.append(arguments)
        if len(calls) > 7:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return pwrite(*arguments)

    with Writer(path, contents()) as writer:
        monkeypatch.setattr(os, "pwrite", full)
        writer.write(fields([0, 1]))  # two fields, two checksums, two marks
        with pytest.raises(OSError, match="could not be written \\(No space left on device; "):
            writer.write(fields([2, 3]))
        monkeypatch.undo()
    np.testing.assert_array_equal(SimulationSet(path).seeds, [100, 101])
    SimulationSet(path)[:]


def test_short_writes_are_completed(path, monkeypatch):
    pwrite = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda file, data, place: pwrite(file, data[:100], place))
    with Writer(path, contents()) as writer:
        writer.write(fields([4]))
    np.testing.assert_array_equal(SimulationSet(path)[0], field(4))


def cut(size):
    def spoil(path):
        os.truncate(path, path.stat().st_size + size if size < 0 else size)

    return spoil


def plain_hdf5(path):
    with h5py.File(path, "w") as file:
        file["x"] = np.arange(5)


def repacked(path):
    with h5py.File(path) as file:
        old, attrs = {name: file[name][:] for name in file}, dict(file.attrs)
    with h5py.File(path, "w") as file:
        file.attrs.update(attrs)
        for name, data in old.items():
            options = {"chunks": (1, 8, 8, 8), "compression": 1} if name == "delta" else {}
            file.create_dataset(name, data=data, **options)


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (cut(-1), "truncated"),
        (cut(9000), "truncated"),
        (cut(600), "truncated"),
        (cut(3), "truncated or not a set"),
        (cut(0), "truncated or not a set"),
        (lambda path: path.write_text("theta seed\n0 1\n" * 99), "truncated or not a set"),
        (plain_hdf5, "is HDF5 but not a set of this kit; move it away"),
        (repacked, "was rewritten by another program"),
    ],
)
def test_truncated_and_foreign_files_are_refused_and_left_alone(whole, spoil, said):
    spoil(whole)
    before = digest(whole)
    for use in (SimulationSet, lambda path: SimulationSet(path, contents()), lambda path: Writer(path, contents())):
        with pytest.raises(ValueError, match=said) as raised:
            use(whole)
        assert str(whole) in str(raised.value)
        assert "\n" not in str(raised.value)
    assert digest(whole) == before


def test_file_cut_after_it_was_opened(whole):
    simulations = SimulationSet(whole)
    os.truncate(whole, simulations.at["delta"] + 1000)
    with pytest.raises(ValueError, match="is damaged or cut short"):
        simulations[3]


@pytest.mark.parametrize(
    ("other", "said"),
    [
        (contents(mas="CIC"), "mas is 'PCS' there and 'CIC' here"),
        (contents(steps=6), "steps is None there and 6 here"),
        (contents(n=16), "n is 8 there and 16 here"),
        (contents(13), "12 simulations there and 13 here"),
        (Contents(contents().theta + 0.01, contents().seeds, SETTINGS), "other thetas or seeds"),
        (Contents(contents().theta, contents().seeds + 1, SETTINGS), "other thetas or seeds"),
    ],
)
def test_other_settings_are_refused_and_left_alone(whole, other, said):
    before = digest(whole)
    for use in (SimulationSet, Writer):
        with pytest.raises(ValueError, match=f"made with other settings \\({said}\\); choose another root, or delete"):
            use(whole, other)
    assert digest(whole) == before


def test_bad_fields_are_never_marked_done(path):
    nan = field(0)
    nan[1, 2, 3] = np.nan
    with Writer(path, contents()) as writer:
        for bad, said in (
            (nan, "with 1 values that are not finite"),
            (field(0, 9), r"\(9, 9, 9\)"),
            (nan * 1.0j, "complex"),
        ):
            with pytest.raises(ValueError, match=said):
                writer.write({1: field(1), 0: bad})
    assert len(SimulationSet(path)) == 0


def test_versions_that_began_a_file_are_told(path, monkeypatch):
    monkeypatch.setattr(store, "_versions", lambda: {"nbkit": "0.0", "camb": "1", "torch": "2"})
    with Writer(path, contents()) as writer:
        writer.write({0: field(0)})
    monkeypatch.undo()
    with pytest.warns(UserWarning, match=r"begun with nbkit 0\.0, camb 1, torch 2"), Writer(path, contents()) as writer:
        assert set(writer.held.versions) == {"nbkit", "camb", "torch"}
