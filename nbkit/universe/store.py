"""One set of simulations on disk, as an HDF5 file, and its reader; `nbkit.universe.writer` makes and fills the file.

theta (N, 5), seed (N,), delta (N, n, n, n) with one simulation a chunk, and for each simulation whether it is `done`
and the `checksum` of its bytes; settings and versions are attributes. Any HDF5 tool can read the file. The chunks are
neither compressed nor scattered, so the kit itself reads a simulation with one system call at a known place.
"""

import errno
import hashlib
import json
import os
import zlib
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import h5py
import numpy as np
import torch

from nbkit.mesh.grid import Grid


def fingerprint(simulations):
    """What tells a set from another: its own `fingerprint`, or a hash of its thetas."""
    own = getattr(simulations, "fingerprint", None)
    return own or hashlib.sha256(np.ascontiguousarray(simulations.theta).tobytes()).hexdigest()[:16]


FORMAT = "nbkit simulations 1"


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
        contents, self._at, self.versions = opened(self.path)
        done, checksums = marks(self.path, self._at, len(contents.seeds))
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
        settings = json.dumps(self.settings, sort_keys=True).encode()
        parts = (settings, *(array.tobytes() for array in (self.theta, self.seeds, self._checksums)))
        return hashlib.sha256(b"".join(parts)).hexdigest()[:16]

    def check(self):
        """Read everything; raise if a simulation is not the one that was written."""
        for i in range(len(self)):
            self.checked(i)

    def checked(self, i):
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


def finished(path, contents):
    """(N,) which simulations of a file are done, all False where there is no file; any other contents are refused."""
    if not Path(path).exists():
        return np.zeros(len(contents.seeds), bool)
    return marks(path, checked(path, contents)[0], len(contents.seeds))[0]


def opened(path):
    """Contents of a file, {dataset: byte at which it begins}, and the versions that made it."""
    try:
        with h5py.File(path, "r", locking=False) as file:
            if file.attrs.get("format") != FORMAT:
                raise ValueError(f"{path} is HDF5 but not a set of this kit; move it away or choose another root.")
            contents = Contents(file["theta"][:], file["seed"][:], json.loads(file.attrs["settings"]))
            at = {name: file[name].id.get_offset() for name in ("done", "checksum")}
            return contents, at | {"delta": _first_chunk(path, file["delta"])}, json.loads(file.attrs["versions"])
    except (OSError, KeyError) as error:
        if isinstance(error, (FileNotFoundError, PermissionError)) or getattr(error, "errno", None) == errno.EIO:
            raise
        raise ValueError(
            f"{path} is truncated or not a set of this kit ({error}); move it away or delete it, and run again."
        ) from error


def checked(path, contents):
    """As `opened`, without the contents, for a file that must hold these."""
    held, at, versions = opened(path)
    wanted = json.loads(json.dumps(contents.settings))
    differing = sorted(key for key in held.settings | wanted if held.settings.get(key) != wanted.get(key))
    said = [f"{key} is {held.settings.get(key)!r} there and {wanted.get(key)!r} here" for key in differing]
    if not said and len(held.seeds) != len(contents.seeds):
        said = [f"it is for {len(held.seeds)} simulations, {len(contents.seeds)} are wanted"]
    # The last bit of a theta may depend on the machine that scaled it to the prior.
    if not said and not np.allclose(held.theta, contents.theta, rtol=1e-12, atol=0):
        said = ["its thetas are others"]
    if not said and not np.array_equal(held.seeds, contents.seeds):
        said = ["its seeds are others"]
    if said:
        raise ValueError(f"{path} was made with other settings ({'; '.join(said)}); choose another root, or delete it.")
    return at, versions


def marks(path, at, count):
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
