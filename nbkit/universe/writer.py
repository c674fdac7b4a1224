"""Filling a set's file so that `kill -9` at any moment leaves it whole.

The file is made entire before the first simulation: every chunk has its place, and the new file takes its name by an
atomic rename. From then on HDF5 only reads it; a simulation is written as plain bytes into its own chunk and, after
the disk has it, marked done with one byte. So HDF5's metadata is never half written. Chunks not yet made take no space.
"""

import errno
import fcntl
import importlib.metadata
import json
import os
import re
import shutil
import socket
import zlib
from contextlib import contextmanager
from pathlib import Path

import h5py
import numpy as np

import nbkit
from nbkit.universe.store import FORMAT, checked, marks

FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


class Writer:
    """The only one who may write a file, for as long as it lives; makes the file if there is none.

    Parameters
    ----------
    path : the HDF5 file.
    contents : what it must hold; a file that holds anything else is refused and left alone.

    Attributes
    ----------
    done : (N,) which simulations are written.
    versions : {package: version} at work now.
    other_versions : {package: version} that began the file, where it is not the one at work now.
    """

    def __init__(self, path, contents):
        self.path, self.contents = Path(path), contents
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._lock = _locked(self.path)
        try:
            if not self.path.exists():
                _make(self.path, contents)
            self._at, began = checked(self.path, contents)
            self.versions = _versions()
            self.other_versions = {
                name: version for name, version in began.items() if version != self.versions.get(name)
            }
            self.done, _ = marks(self.path, self._at, len(contents.seeds))
            self._file = self.path.open("r+b", buffering=0)
        except BaseException:
            self._lock.close()
            raise

    def write(self, fields):
        """Write simulations {row: float32 (n, n, n) array} and, once the disk has them, mark them done."""
        file, shape = self._file.fileno(), self.contents.grid.shape
        for row, field in fields.items():
            if field.dtype != np.float32 or field.shape != shape or not np.isfinite(field).all():
                raise ValueError(
                    f"Simulation {row} of {self.path.stem} came out as {field.dtype} {field.shape} with "
                    f"{np.count_nonzero(~np.isfinite(field))} values that are not finite; float32 {shape} is needed."
                )
        with _explained(self.path):
            for row, field in fields.items():
                data = np.ascontiguousarray(field, "<f4")
                _write(file, data, self._at["delta"] + row * data.nbytes)
                _write(file, np.array(zlib.crc32(data), "<u4"), self._at["checksum"] + 4 * row)
            os.fsync(file)
            for row in fields:
                _write(file, np.array(1, "u1"), self._at["done"] + row)
                self.done[row] = True

    def close(self):
        """Let others write."""
        self._file.close()
        self._lock.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


def room_for(folder, size):
    """Raise if the disk of an existing folder has less than `size` bytes left."""
    free = shutil.disk_usage(folder).free
    if size > free:
        numbers = f"{free / 1e6:.0f} MB free and {size / 1e6:.0f} MB are needed"
        raise OSError(errno.ENOSPC, f"{folder} has {numbers}; make room or choose another root")


def _versions():
    return {"nbkit": nbkit.__version__, **{name: importlib.metadata.version(name) for name in ("camb", "torch")}}


def _make(path, contents):
    """The whole file with nothing done, under a passing name until the disk has it."""
    count, shape = len(contents.seeds), contents.grid.shape
    early = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    early.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
    early.set_fill_time(h5py.h5d.FILL_TIME_NEVER)
    passing = path.with_name(f".{path.name}.new")
    with _explained(path, passing):
        # From HDF5 1.10 on, chunks allocated early lie one after another and need no index.
        with h5py.File(passing, "w", libver=("v110", "v110")) as file:
            file.attrs["format"] = FORMAT
            file.attrs["settings"] = json.dumps(contents.settings, sort_keys=True)
            file.attrs["versions"] = json.dumps(_versions())
            file["theta"] = np.asarray(contents.theta, "<f8")
            file["seed"] = np.asarray(contents.seeds, "<i8")
            file["done"] = np.zeros(count, "u1")
            file["checksum"] = np.zeros(count, "<u4")
            file.create_dataset("delta", (count, *shape), "<f4", chunks=(1, *shape), dcpl=early)
        with passing.open("rb") as file:
            os.fsync(file.fileno())
        passing.rename(path)


def _locked(path):
    """An open file that holds the right to write; the system takes it back when this process ends, however it ends."""
    lock = path.with_name(f".{path.stem}.lock").open("a+")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        with _explained(path):
            lock.truncate(0)
            lock.write(f"process {os.getpid()} on {socket.gethostname()}")
            lock.flush()
    except BlockingIOError:
        lock.seek(0)
        owner = lock.read() or "another process"
        lock.close()
        raise BlockingIOError(f"{path} is being written by {owner}; wait until it is done and run again.") from None
    return lock


def _write(file, array, place):
    data = memoryview(array.tobytes())
    while data:
        written = os.pwrite(file, data, place)
        data, place = data[written:], place + written


@contextmanager
def _explained(path, passing=None):
    """One sentence in place of a failed write; what was half made under a passing name is removed."""
    try:
        yield
    except (OSError, RuntimeError) as error:
        if passing is not None:
            passing.unlink(missing_ok=True)
        # HDF5 tells the number of a failed write only in words.
        said = re.search(r"errno = (\d+)", str(error))
        number = getattr(error, "errno", None) or (int(said[1]) if said else None)
        if number not in FULL:
            raise
        raise OSError(
            number,
            f"{path} could not be written ({os.strerror(number)}); simulations marked done are safe: make room and run "
            "again to finish, or choose another root",
        ) from error
