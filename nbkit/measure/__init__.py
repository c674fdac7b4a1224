"""Fields -> spectra of whole sets of simulations for many marks: in one pass over the fields, and kept on disk."""

import hashlib
import io
import json
import zlib
from copy import deepcopy
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import nn
from torch.nn.functional import softplus
from tqdm.auto import tqdm

from nbkit import disk
from nbkit.mark import identity, weights_hash
from nbkit.mark.classical import ClassicalMark, smoothing_kernel
from nbkit.mark.learned import LearnedMark
from nbkit.mesh.grid import to_fourier, to_real
from nbkit.mesh.spectra import marked_field, spectra_of_modes
from nbkit.mesh.threads import choose_device
from nbkit.universe.farm import farm, is_watched
from nbkit.universe.store import fingerprint
from nbkit.universe.suite import Preset, set_names, suite

# Of all that makes spectra of a field and a mark: raise it when their numbers change, and none from before is found.
VERSION = 1
# How tables are written.
SEALED = "sealed"
# Seconds a voxel and mark on one core, roughly: decides how many simulations make a task of about a second.
COST = 2.5e-8
WORTH_A_CLUSTER = 4.0  # seconds of one core: below that, starting processes takes longer than doing it here


@dataclass(frozen=True)
class Measurement:
    """Spectra of N simulations for some marks: `power[label]` is (N, 3, b), P_dd, P_dm and P_mm [(Mpc/h)^3].

    Attributes
    ----------
    k, modes : (b,) mean |k| [h/Mpc] and number of independent modes of each bin.
    theta, seeds : (N, 5) and (N,) of the simulations.
    P_dd : (N, b), the same for all marks.
    marked : {label: (N, 2, b)} P_dm and P_mm.
    key : what the simulations are and where the spectra come from; how many bins there are is not part of it.
    identities : {label: identity of the mark}. Both are for keys of what is derived from the spectra; where the spectra
        were not measured here, they are hashes of the numbers.
    """

    k: np.ndarray
    modes: np.ndarray
    theta: np.ndarray
    seeds: np.ndarray
    P_dd: np.ndarray
    marked: dict
    key: str = ""
    identities: dict = field(default_factory=dict)

    def __post_init__(self):
        object.__setattr__(self, "key", self.key or _hash(self.theta, self.P_dd))
        known = {label: self.identities.get(label) or _hash(power) for label, power in self.marked.items()}
        object.__setattr__(self, "identities", known)

    @property
    def labels(self):
        """Names of the marks."""
        return tuple(self.marked)

    def __len__(self):
        return len(self.seeds)

    def __getitem__(self, label):
        if label not in self.marked:
            raise KeyError(f"{label!r} was not measured; there are {', '.join(self.labels)}.")
        return np.concatenate([self.P_dd[:, None], self.marked[label]], axis=1)

    def rows(self, kept):
        """The same of some simulations alone: (N,) flags, or their numbers."""
        some = {name: getattr(self, name)[kept] for name in ("theta", "seeds", "P_dd")}
        some["marked"] = {label: power[kept] for label, power in self.marked.items()}
        return replace(self, **some, key=f"{self.key}, rows {_hash(np.arange(len(self))[kept])}")

    def cut(self, kmax):
        """The same with the bins up to kmax [h/Mpc] alone."""
        kept = int((self.k <= kmax).sum())
        if not kept:
            raise ValueError(f"kmax is {kmax:g} h/Mpc; the first bin is at {self.k[0]:.4g} h/Mpc.")
        marked = {label: power[..., :kept] for label, power in self.marked.items()}
        return replace(self, k=self.k[:kept], modes=self.modes[:kept], P_dd=self.P_dd[:, :kept], marked=marked)


def measure(simulations, marks, sets=None, data_root=None, client=None, progress=True, device="auto"):
    """{set: Measurement}: P_dd, P_dm and P_mm of every box for every mark; at once where they come with the kit.

    Otherwise up to k_Nyq, each field read and transformed once, whatever the number of marks. What was measured before
    is read. Rows are kept as they come, under `spectra` in `nbkit.disk.runs()`: a call that was stopped goes on, and
    several may run at once.

    Parameters
    ----------
    simulations : name of a preset, a Preset, a Suite, or {name: set}.
    marks : {label: mark}.
    sets : names of those wanted, or of one; default all there are.
    data_root : folder with Quijote's files, see `suite`.
    client, progress : see `nbkit.universe.farm.farm`.
    device : "auto", "cpu", "cuda", "cuda:1"; a GPU takes the boxes one by one, in this process.
    """
    device = choose_device("cpu" if client else device)
    if isinstance(simulations, (str, Preset)):
        from nbkit.measure.bundled import Bundle  # which gives Measurements

        preset, sets = Preset.of(simulations), set_names(sets)
        bundle = None if data_root else Bundle.of(preset, sets)
        if bundle is not None and bundle.holds(sets, marks):
            return bundle.spectra(sets, marks)
        simulations = suite(preset, sets=sets, data_root=data_root, client=client, progress=progress)
    if device.type != "cpu":
        copies = deepcopy(marks)
        marks = {label: mark.to(device) if isinstance(mark, nn.Module) else mark for label, mark in copies.items()}
    names = (sets,) if isinstance(sets, str) else simulations if sets is None else sets
    tables = {name: _Tables(simulations[name], marks) for name in names}
    calls = {(name, row): (name, row) for name, table in tables.items() for row in table.missing_rows}

    def receive(results):
        for (name, row), power in results.items():
            tables[name].write(row, power)

    if calls:
        one = Pass({name: (table.simulations, table.missing_marks) for name, table in tables.items()}, device)
        cost = max(COST * table.simulations.grid.n**3 * (1 + len(table.missing_marks)) for table in tables.values())
        if device.type != "cpu" or (client is None and cost * len(calls) < WORTH_A_CLUSTER):
            for key in tqdm(calls, disable=not (progress and is_watched()), leave=False, unit="field"):
                receive({key: one(*key)})
        else:
            farm(one, calls, receive, int(np.clip(1 / cost, 1, 32)), client, progress)
    return {name: table.measurement() for name, table in tables.items()}


class _Tables:
    """What is on disk of one set: a float32 array a mark, a row a simulation, written in place and sealed."""

    def __init__(self, simulations, marks):
        self.simulations = simulations
        self.identities = {label: identity(mark) for label, mark in marks.items()}
        folder = disk.runs() / "spectra" / f"{simulations.name}_{fingerprint(simulations)}_{VERSION}"
        rows, bins = len(simulations), len(simulations.grid.bins().k)
        self.density, done = _table(folder / f"density.{SEALED}.npy", rows, bins)
        self.marked, self.missing_marks = {}, {}
        for label, mark in marks.items():
            self.marked[label], whole = _table(folder / f"{self.identities[label]}.{SEALED}.npy", rows, 2 * bins)
            done &= whole
            if not whole.all():
                self.missing_marks[label] = mark
        self.missing_rows = np.flatnonzero(~done).tolist()

    def write(self, row, power):
        """Keep what `Pass` gave for one simulation."""
        tables = [self.density, *(self.marked[label] for label in self.missing_marks)]
        for table, spectra in zip(tables, [power[0, 0], *power[1:, 1:]], strict=True):
            table[row] = [*spectra.ravel(), _checksum(np.ascontiguousarray(spectra))]

    def measurement(self):
        """All of it, in float64."""
        sims, bins = self.simulations, self.simulations.grid.bins()
        P_dd = np.array(self.density[:, :-1], np.float64)
        marked = {
            label: np.array(table[:, :-1], np.float64).reshape(len(sims), 2, -1) for label, table in self.marked.items()
        }
        key, k = json.dumps({"simulations": fingerprint(sims), "spectra": VERSION}), bins.k.double().numpy()
        return Measurement(k, bins.modes.numpy(), sims.theta, sims.seeds, P_dd, marked, key, self.identities)


class Pass:
    """name, row -> (1 + marks, 3, b): the spectra of one simulation, without and with the marks; for any process.

    Parameters
    ----------
    sets : {name: (simulations, {label: mark})}.
    device : where the marks are.
    """

    def __init__(self, sets, device="cpu"):
        self.sets, self.device = sets, device

    @torch.no_grad()
    def __call__(self, name, row):
        simulations, marks = self.sets[name]
        grid, delta = simulations.grid, simulations[row].to(self.device)
        delta_k, smoothed, filtered = to_fourier(delta, grid), {}, {}
        power = [spectra_of_modes(delta_k, grid=grid).P_dd.expand(3, -1)]
        for mark in marks.values():
            if isinstance(mark, ClassicalMark):
                if mark.R not in smoothed:
                    smoothed[mark.R] = to_real(delta_k * smoothing_kernel(mark.R, grid, delta_k), grid)
                M = mark.of_smoothed(smoothed[mark.R])
            elif isinstance(mark, LearnedMark):
                key = weights_hash(mark.profiles), mark.grid
                if key not in filtered:
                    filtered.clear()  # maps of one filter bank at a time: variants of a mark follow one another
                    filtered[key] = mark.filter_maps(delta_k, grid)
                M = softplus(mark.responses(filtered[key]))
            else:
                M = mark.of_modes(delta_k, grid) if hasattr(mark, "of_modes") else mark(delta, grid)
            Delta_k = to_fourier(marked_field(M, delta), grid)
            power.append(torch.stack(spectra_of_modes(delta_k, Delta_k, grid=grid)[1:4]))
        return torch.stack(power).cpu().numpy()


def _table(path, rows, numbers):
    """The array (rows, numbers + 1) of a file, made if there is none, and which rows are whole: the others are NaN."""
    if not path.exists():
        empty = io.BytesIO()  # numpy does not notice that a file on disk is cut short for lack of room
        np.save(empty, np.full((rows, numbers + 1), np.nan, np.float32))
        disk.write_atomically(path, empty.getvalue())
    try:
        table = np.load(path, mmap_mode="r+", allow_pickle=False)
    except (ValueError, OSError, EOFError) as error:
        raise ValueError(f"{path} is damaged ({error}); delete it and run again.") from error
    if table.shape != (rows, numbers + 1) or table.dtype != np.float32:
        raise ValueError(f"{path} holds {table.dtype} of shape {table.shape}, not float32 of {rows} rows; delete it.")
    return table, table[:, -1] == [_checksum(row) for row in np.asarray(table)[:, :-1]]


def _checksum(row):
    """24 bits, which a float32 can hold, of the numbers before it: a row half written or damaged is measured anew."""
    return zlib.crc32(row) >> 8


def _hash(*arrays):
    return hashlib.sha256(b"".join(np.asarray(array, float).tobytes() for array in arrays)).hexdigest()[:16]
