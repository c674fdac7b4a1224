"""The one atomic write: what a crash, a full disk, and other processes leave."""

import errno
import os
import signal
import subprocess
import sys
import time

import pytest
import torch

from nbkit import disk

HALF = """
import os, sys, time
from nbkit import disk
with disk.replacing(sys.argv[1]) as part:
    part.write_bytes(b"half of the new")
    print("half", flush=True)
    time.sleep(60)
"""


@pytest.fixture
def path(tmp_path):
    disk.write_atomically(tmp_path / "a.json", b"old")
    return tmp_path / "a.json"


def names(path):
    return sorted(each.name for each in path.parent.iterdir())


def test_a_killed_writer_leaves_the_old_file_and_the_next_one_clears_up(path):
    command = [sys.executable, "-c", HALF, str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout.readline() == "half\n"
        disk.write_atomically(path, b"mine")  # what a living process writes is left to it
        assert len(names(path)) == 2
        os.kill(writer.pid, signal.SIGKILL)
    assert path.read_bytes() == b"mine" and len(names(path)) == 2
    for other in ("a.jso", "a.json.b"):  # other paths' files are theirs
        disk.write_atomically(path.with_name(other), b"")
    assert len(names(path)) == 4
    disk.write_atomically(path, b"new")
    assert path.read_bytes() == b"new" and names(path) == ["a.jso", "a.json", "a.json.b"]


def test_a_block_that_fails_leaves_the_old_file(path):
    with pytest.raises(ZeroDivisionError), disk.replacing(path) as part:
        part.write_bytes(b"new")
        raise ZeroDivisionError
    assert path.read_bytes() == b"old" and names(path) == ["a.json"]


def test_a_full_disk_is_told_in_one_sentence(path, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(
        OSError, match=r"a\.json could not be written \(No space left on device; .* MB free\); .* make room"
    ) as raised:
        disk.write_atomically(path, b"new")
    assert raised.value.errno == errno.ENOSPC
    assert path.read_bytes() == b"old" and names(path) == ["a.json"]


def test_a_lock_is_taken_over_from_the_dead(path):
    words = "import sys; from pathlib import Path; from nbkit import disk; lock = disk.lock(Path(sys.argv[1])); "
    command = [sys.executable, "-c", words + "print('held', flush=True); input()", str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(BlockingIOError, match=rf"a\.json is being written by process {holder.pid} on .*; wait"):
            disk.lock(path)
        os.kill(holder.pid, signal.SIGKILL)
    disk.lock(path).close()


def test_what_is_kept_is_made_once_for_each_key(tmp_path, monkeypatch):
    monkeypatch.setenv("NBKIT_RUNS", str(tmp_path))
    calls = []

    def make():
        calls.append(time.time())
        return {"x": torch.full((2,), float(len(calls)))}

    first = disk.kept("things", {"version": 1, "rows": (1, 2)}, make)
    again = disk.kept("things", {"rows": [1, 2], "version": 1}, make)
    other = disk.kept("things", {"rows": [1, 2], "version": 2}, make)
    assert torch.equal(first["x"], again["x"]) and not torch.equal(first["x"], other["x"]) and len(calls) == 2
    for path in (tmp_path / "things").iterdir():
        path.write_bytes(path.read_bytes()[:40])
    with pytest.raises(ValueError, match="not a whole safetensors file"):
        disk.kept("things", {"version": 2, "rows": [1, 2]}, make)
