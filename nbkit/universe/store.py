"""One set of simulations on disk, as an HDF5 file: its contents, its reader, and the only one who writes it.

theta (N, 5), seed (N,), delta (N, n, n, n) with one simulation a chunk, and for each simulation whether it is `done`
and the `checksum` of its bytes; settings and versions are attributes. Any HDF5 tool can read the file. The chunks are
neither compressed nor scattered, so the kit itself reads a simulation with one system call at a known place.

`kill -9` at any moment leaves a file whole. It is made entire before the first simulation: every chunk has its place,
and the new file takes its name by an atomic rename. From then on HDF5 only reads it; a simulation is written as plain
bytes into its own chunk and, after the disk has it, marked done with one byte. So HDF5's metadata is never half
written. Chunks not yet made take no space.
"""

import errno
import hashlib
import importlib.metadata
import json
import os
import zlib
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import h5py
import numpy as np
import torch

from nbkit import disk
from nbkit.mesh.grid import Grid

FORMAT = "nbkit simulations 1"
# Decimals of thetas in a fingerprint: their last bit may depend on the machine that scaled them to the prior.
DECIMALS = 9


def fingerprint(simulations):
    """What tells a set from another: its own `fingerprint`, or a hash of its thetas."""
    return getattr(simulations, "fingerprint", None) or _hash(np.ascontiguousarray(simulations.theta))


@dataclass(frozen=True)
class Contents:
    """What a file holds, apart from the fields.

    Parameters
    ----------
    theta : (N, 5) float64.
    seeds : (N,) int64.
    settings : whatever decides the fields; `n`, `box_size` and `mas` among them.
    """

    theta: np.ndarray
    seeds: np.ndarray
    settings: dict

    @property
    def grid(self):
        """The mesh of the fields."""
        return Grid(*(self.settings[key] for key in ("n", "box_size", "mas")))

    @property
    def fingerprint(self):
        """16 letters that change with the settings, thetas or seeds: known before there is any file."""
        theta = np.rint(self.theta * 10**DECIMALS).astype("<i8")
        return _hash(_json(self.settings), theta, np.asarray(self.seeds, "<i8"))

    def difference(self, other):
        """What of these contents, "there", is not so in others, "here", in words; "" if nothing is."""
        if settings := differing_settings(self.settings, other.settings):
            return settings
        if len(self.seeds) != len(other.seeds):
            return f"it is for {len(self.seeds)} simulations, {len(other.seeds)} are wanted"
        if not np.allclose(self.theta, other.theta, rtol=1e-12, atol=0):
            return "its thetas are others"
        return "" if np.array_equal(self.seeds, other.seeds) else "its seeds are others"


def differing_settings(there, here):
    """Which settings of two sets differ, in words; "" if none does."""
    there, here = (json.loads(json.dumps(settings)) for settings in (there, here))
    differing = sorted(key for key in there | here if there.get(key) != here.get(key))
    return "; ".join(f"{key} is {there.get(key)!r} there and {here.get(key)!r} here" for key in differing)


class SimulationSet:
    """Simulations of one set, read by index: `set[3]` is (n, n, n), `set[:8]` or `set[[3, 5]]` is (batch, n, n, n).

    Threads, forked and spawned processes may share one object. An imported set may lack realisations; it shows only
    those it has, so pair sets by their `seeds`.

    Attributes
    ----------
    theta : (N, 5) float64.
    seeds : (N,) int64.
    name, grid, settings, versions : of all simulations in it.
    """

    def __init__(self, path):
        self.path = Path(path)
        contents, self._at, self.versions = open_set(self.path)
        done, checksums = _flags(self.path, self._at, len(contents.seeds))
        self._rows = np.flatnonzero(done)
        self.name, self.grid, self.settings = self.path.stem, contents.grid, contents.settings
        self.theta, self.seeds = contents.theta[self._rows], contents.seeds[self._rows]
        self._checksums = checksums[self._rows]

    def __len__(self):
        return len(self._rows)

    def __repr__(self):
        return f"<{self.name}: {len(self)} simulations of {self.grid}>"

    def __getitem__(self, index):
        rows = self._rows[index]
        fields = torch.empty(*np.shape(rows), *self.grid.shape)
        for row, field in zip(np.ravel(rows).tolist(), fields.view(-1, self.grid.n**3).numpy(), strict=True):
            place = self._at["delta"] + row * field.nbytes
            if os.preadv(self._file.fileno(), [field], place) != field.nbytes:
                raise ValueError(f"{self.path} is truncated; delete it and run again to make it anew.")
        return fields

    @cached_property
    def fingerprint(self):
        """16 letters that change with the settings, thetas, seeds or fields: a key for what is derived from them."""
        return _hash(_json(self.settings), self.theta, self.seeds, self._checksums)

    def check(self):
        """Read everything; raise if a simulation is not the one that was written."""
        for i in range(len(self)):
            self.check_field(i)

    def check_field(self, i):
        """Simulation i; raise if it is not the one that was written."""
        field = self[i]
        if zlib.crc32(field.numpy()) != self._checksums[i]:
            raise ValueError(f"Simulation {i} of {self.path} is damaged; delete the file and run again.")
        return field

    @cached_property
    def _file(self):
        return self.path.open("rb", buffering=0)

    def __getstate__(self):
        return {key: value for key, value in self.__dict__.items() if key != "_file"}


class Writer(AbstractContextManager):
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
        self._lock = disk.lock(self.path)
        try:
            if not self.path.exists():
                _make(self.path, contents)
            self._at, began = _check_contents(self.path, contents)
            self.versions = _versions()
            self.other_versions = {
                name: version for name, version in began.items() if version != self.versions.get(name)
            }
            self.done, _ = _flags(self.path, self._at, len(contents.seeds))
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
        with disk.explain_full(self.path):
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

    def __exit__(self, *_):
        self.close()


def done_rows(path, contents):
    """(N,) which simulations of a file are done, all False where there is no file; any other contents are refused."""
    if not Path(path).exists():
        return np.zeros(len(contents.seeds), bool)
    return _flags(path, _check_contents(path, contents)[0], len(contents.seeds))[0]


def open_set(path):
    """Contents of a file, {dataset: byte at which it begins}, and the versions that made it."""
    try:
        with h5py.File(path, "r", locking=False) as file:
            if file.attrs.get("format") != FORMAT:
                raise ValueError(f"{path} is HDF5 but not a set of this kit; move it away or choose another root.")
            settings = json.loads(file.attrs["settings"])
            if settings.get("source") == "nbkit":  # files from before simulators had a version are of the first
                settings = {"simulator": 1} | settings
            contents = Contents(file["theta"][:], file["seed"][:], settings)
            at = {name: file[name].id.get_offset() for name in ("done", "checksum")}
            return contents, at | {"delta": _first_chunk(path, file["delta"])}, json.loads(file.attrs["versions"])
    except (OSError, KeyError) as error:
        if isinstance(error, (FileNotFoundError, PermissionError)) or getattr(error, "errno", None) == errno.EIO:
            raise
        raise ValueError(
            f"{path} is truncated or not a set of this kit ({error}); move it away or delete it, and run again."
        ) from error


def _check_contents(path, contents):
    """As `open_set`, without the contents, for a file that must hold these."""
    held, at, versions = open_set(path)
    if difference := held.difference(contents):
        raise ValueError(f"{path} was made with other settings ({difference}); choose another root, or delete it.")
    return at, versions


def _flags(path, at, count):
    """(N,) which simulations are done, and (N,) their checksums."""
    with Path(path).open("rb", buffering=0) as file:
        done = np.frombuffer(os.pread(file.fileno(), count, at["done"]), "u1").astype(bool)
        return done, np.frombuffer(os.pread(file.fileno(), 4 * count, at["checksum"]), "<u4")


def _first_chunk(path, dataset):
    first, last = (dataset.id.get_chunk_info_by_coord((i, 0, 0, 0)) for i in (0, len(dataset) - 1))
    size = 4 * int(np.prod(dataset.shape[1:]))
    in_order = last.byte_offset == first.byte_offset + (len(dataset) - 1) * size
    if not (in_order and dataset.dtype == "<f4" and first.size == last.size == size):
        raise ValueError(f"{path} was rewritten by another program; delete it and run again to make it anew.")
    return first.byte_offset


def _make(path, contents):
    """The whole file with nothing done."""
    count, shape = len(contents.seeds), contents.grid.shape
    early = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    early.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
    early.set_fill_time(h5py.h5d.FILL_TIME_NEVER)
    # From HDF5 1.10 on, chunks allocated early lie one after another and need no index.
    with disk.replacing(path) as part, h5py.File(part, "w", libver=("v110", "v110")) as file:
        file.attrs["format"] = FORMAT
        file.attrs["settings"] = json.dumps(contents.settings, sort_keys=True)
        file.attrs["versions"] = json.dumps(_versions())
        file["theta"] = np.asarray(contents.theta, "<f8")
        file["seed"] = np.asarray(contents.seeds, "<i8")
        file["done"] = np.zeros(count, "u1")
        file["checksum"] = np.zeros(count, "<u4")
        file.create_dataset("delta", (count, *shape), "<f4", chunks=(1, *shape), dcpl=early)


def _write(file, array, place):
    data = memoryview(array.tobytes())
    while data:
        written = os.pwrite(file, data, place)
        data, place = data[written:], place + written


def _versions():
    return {name: importlib.metadata.version(name) for name in ("nbkit", "camb", "torch")}


def _json(settings):
    return json.dumps(settings, sort_keys=True)


def _hash(*parts):
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part.encode() if isinstance(part, str) else part.tobytes())
    return digest.hexdigest()[:16]
