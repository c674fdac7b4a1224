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
import warnings
import zlib
from contextlib import ExitStack, suppress
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
        return _hash(self.settings, theta, np.asarray(self.seeds, "<i8"))

    def difference(self, settings, count, fingerprint):
        """What tells simulations elsewhere, "there", from these, "here", in words; "" if nothing does."""
        here = json.loads(json.dumps(self.settings))
        if differing := sorted(key for key in settings | here if settings.get(key) != here.get(key)):
            return "; ".join(f"{key} is {settings.get(key)!r} there and {here.get(key)!r} here" for key in differing)
        if count != len(self.seeds):
            return f"{count} simulations there and {len(self.seeds)} here"
        return "" if fingerprint == self.fingerprint else "other thetas or seeds"


class SimulationSet:
    """Simulations of one set, read by index: `set[3]` is (n, n, n), `set[:8]` or `set[[3, 5]]` is (batch, n, n, n).

    Threads, forked and spawned processes may share one object. An imported set may lack realisations; it shows only
    those it has, so pair sets by their `seeds`.

    Attributes
    ----------
    theta, seeds : (N, 5) float64 and (N,) int64, of the simulations that it has.
    contents, done : what the whole file is for, and which of that is written.
    at : {dataset: byte at which it begins}.
    versions : {package: version} that began the file.
    """

    def __init__(self, path, wanted=None):
        self.path, self.name = Path(path), Path(path).stem
        try:
            with h5py.File(path, "r", locking=False) as file:
                if file.attrs.get("format") != FORMAT:
                    raise ValueError(f"{path} is HDF5 but not a set of this kit; move it away or choose another root.")
                settings = json.loads(file.attrs["settings"])
                if settings.get("source") == "nbkit":  # files from before simulators had a version are of the first
                    settings = {"simulator": 1} | settings
                held = self.contents = Contents(file["theta"][:], file["seed"][:], settings)
                self.versions = json.loads(file.attrs["versions"])
                self.done, self._checksums = file["done"][:].astype(bool), file["checksum"][:]
                self.at = {name: file[name].id.get_offset() for name in ("done", "checksum")}
                self.at["delta"] = _first_chunk(self.path, file["delta"])
        except (OSError, KeyError, TypeError, json.JSONDecodeError) as error:
            if isinstance(error, (FileNotFoundError, PermissionError)) or getattr(error, "errno", None) == errno.EIO:
                raise
            raise ValueError(
                f"{path} is truncated or not a set of this kit ({error}); move it away or delete it, and run again."
            ) from error
        if wanted and (difference := wanted.difference(held.settings, len(held.seeds), held.fingerprint)):
            raise ValueError(f"{path} was made with other settings ({difference}); choose another root, or delete it.")
        self._rows = np.flatnonzero(self.done)
        self.grid, self.settings = held.grid, held.settings
        self.theta, self.seeds = held.theta[self._rows], held.seeds[self._rows]

    def __len__(self):
        return len(self._rows)

    def __repr__(self):
        return f"<{self.name}: {len(self)} simulations of {self.grid}>"

    def __getitem__(self, index):
        rows = self._rows[index]
        fields = torch.empty(*np.shape(rows), *self.grid.shape)
        with self.path.open("rb", buffering=0) as file:
            for row, field in zip(np.ravel(rows).tolist(), fields.view(-1, self.grid.n**3).numpy(), strict=True):
                os.preadv(file.fileno(), [field], self.at["delta"] + row * field.nbytes)
                if zlib.crc32(field) != self._checksums[row]:
                    self._refuse(row)
        return fields

    def _refuse(self, row):
        """Take the mark of a damaged simulation away, so that it alone is made again."""
        with suppress(PermissionError), self.path.open("r+b", buffering=0) as file:
            if os.pread(file.fileno(), 4, self.at["checksum"] + 4 * row) == self._checksums[row].tobytes():
                os.pwrite(file.fileno(), b"\0", self.at["done"] + row)
        raise ValueError(
            f"Simulation {row} of {self.path} is damaged or cut short; ask for the suite again (with data_root, if it "
            "was imported), and this one alone is made anew."
        )

    @cached_property
    def fingerprint(self):
        """16 letters that change with the settings, thetas, seeds or fields: a key for what is derived from them."""
        return _hash(self.settings, self.theta, self.seeds, self._checksums[self._rows])


class Writer(ExitStack):
    """The only one who writes a file: it is made, or continued if it `held` the same contents; `done`, (N,), grows."""

    def __init__(self, path, contents):
        super().__init__()
        self.path, self.contents = Path(path), contents
        self.enter_context(disk.lock(self.path))
        try:
            if not self.path.exists():
                _make(self.path, contents)
            self.held = SimulationSet(self.path, contents)
            self._file = self.enter_context(self.path.open("r+b", buffering=0))
        except BaseException:
            self.close()
            raise
        self.done, now = self.held.done, _versions()
        others = ", ".join(f"{name} {then}" for name, then in self.held.versions.items() if then != now.get(name))
        if others and self.done.any():
            warnings.warn(
                f"{self.path} was begun with {others}; its last bits may differ from simulations made now. "
                "Delete it to make all of them with the same versions.",
                stacklevel=4,
            )

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
                _write(file, data, self.held.at["delta"] + row * data.nbytes)
                _write(file, np.array(zlib.crc32(data), "<u4"), self.held.at["checksum"] + 4 * row)
            os.fsync(file)
            for row in fields:
                _write(file, np.array(1, "u1"), self.held.at["done"] + row)
                self.done[row] = True


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
        file.create_dataset("theta", data=np.asarray(contents.theta, "<f8"), fletcher32=True)
        file.create_dataset("seed", data=np.asarray(contents.seeds, "<i8"), fletcher32=True)
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


def _hash(*parts):
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part.tobytes() if isinstance(part, np.ndarray) else json.dumps(part, sort_keys=True).encode())
    return digest.hexdigest()[:16]
