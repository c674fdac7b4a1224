"""Simulations ready for training: split, read ahead, in batches with their candidates, measured where that will do."""

import os
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from functools import cache, cached_property, partial
from itertools import islice
from typing import NamedTuple

import numpy as np
import torch

from nbkit.disk import kept
from nbkit.mark import identity
from nbkit.measure.cross import contents_key
from nbkit.mesh.grid import to_fourier
from nbkit.mesh.spectra import marked_spectra, marked_summary, spectra_of_modes, unmarked_summary
from nbkit.mesh.threads import generator
from nbkit.train.contrast import candidates, normalised
from nbkit.universe.cosmology import PRIOR_BSQ
from nbkit.universe.store import fingerprint

CPU = torch.device("cpu")
# First words of the seeds of everything random: streams of different use never meet.
SPLIT, WEIGHTS, ORDER, DRAWN, HELD_OUT = range(5)
# Part of the free memory that fields may take, and how many parts a thread reads ahead when they do not fit.
MEMORY_SHARE, AHEAD = 0.4, 3
# Voxels whose graph one backward pass may hold on a CPU: one simulation of 64^3, eight of 32^3.
CPU_VOXELS = 64**3
# Share of a GPU that graphs may fill, and the field-sized float32 arrays in that of a simulation, rounded up.
GRAPH_SHARE, ARRAYS_A_SIMULATION = 0.3, 100
# Version of what summaries are made of.
SUMMARIES = 1


class Batch(NamedTuple):
    """m anchors, and the c cosmologies they are compared with."""

    S_delta: torch.Tensor  # (m, b) unmarked summaries
    marked: torch.Tensor | None  # (m, n, n, n) fields to be marked, or (m, 2b) S_M of a mark that does not change
    theta: torch.Tensor  # (c, 5) candidates, normalised
    positive: torch.Tensor  # (m,) which of them is the anchor's own
    excluded: torch.Tensor  # (m, c) which are too near the anchor to be called wrong


class Fields:
    """The density fields of a set on a device, by index: all of them there when they fit into `memory` [bytes; a share
    of what is free], or beside a GPU in the memory of its host, or else read ahead by a thread.

    A set has len(), `grid`, and gives set[list] -> (batch, n, n, n) float32.
    """

    all = host = None  # (N, n, n, n) on the device, or on the CPU

    def __init__(self, simulations, device, memory=None):
        self.simulations, self.device = simulations, device
        needed = 4 * len(simulations) * simulations.grid.n**3
        if needed <= (MEMORY_SHARE * free_memory(device) if memory is None else memory):
            self.all = self._load(device)
        elif memory is None and device.type == "cuda" and needed <= MEMORY_SHARE * free_memory(CPU):
            self.host = self._load(CPU)

    def parts(self, indices):
        """Yield the fields (m, n, n, n) of each list of indices in turn; the next ones are read meanwhile."""
        if self.all is not None:
            yield from (self.all[torch.as_tensor(part, device=self.device)] for part in indices)
            return
        indices = iter(indices)
        with ThreadPoolExecutor(1, thread_name_prefix="nbkit-read") as reader:
            reading = deque(reader.submit(self._read, part) for part in islice(indices, AHEAD))
            try:
                while reading:
                    fields = reading.popleft().result()
                    reading.extend(reader.submit(self._read, part) for part in islice(indices, 1))
                    yield fields.to(self.device, non_blocking=True)
            finally:
                reader.shutdown(cancel_futures=True)

    def _load(self, device):
        fields = torch.empty(len(self.simulations), *self.simulations.grid.shape, device=device)
        for rows in torch.arange(len(fields)).split(64):  # never all of them twice
            fields[rows[0] : rows[-1] + 1] = self._read(rows)
        return fields

    def _read(self, part):
        source = self.simulations if self.host is None else self.host
        fields = torch.as_tensor(source[[int(i) for i in part]], dtype=torch.float32)
        # Copies from pinned memory go on while the GPU works.
        return fields.pin_memory() if self.device.type == "cuda" else fields


class Simulations:
    """Simulations to train on with a Recipe, in bins up to kmax [h/Mpc]: their fields, of which at most `memory` bytes
    are kept on the device of the Processes. The seed decides the split and all that is drawn."""

    def __init__(self, simulations, recipe, kmax, seed, processes, memory=None):
        self.simulations, self.recipe, self.kmax, self.seed = simulations, recipe, kmax, seed
        self.processes, self.device, self._memory = processes, processes.device, memory
        self.grid, self.bins = simulations.grid, len(simulations.grid.bins(kmax).k)
        require_memory(self.grid, self.device)

    @cached_property
    def fields(self):
        """The density fields; read when first asked for, so that a finished run never touches them."""
        return Fields(self.simulations, self.device, self._memory)

    def order(self, rows, *words):
        """These rows in an order of their own."""
        return rows[torch.randperm(len(rows), generator=generator(self.seed, ORDER, *words))]

    def spectra(self, mark, delta, **options):
        """Spectra of fields (m, n, n, n) under a mark, `bins` of each."""
        return marked_spectra(mark, delta, grid=self.grid, kmax=self.kmax, **options)


class Prior(Simulations):
    """Simulations over the prior, with their `theta` (N, 5), for training by contrast; see `Simulations`."""

    S_M = None

    def __init__(self, *about, **options):
        super().__init__(*about, **options)
        recipe, count = self.recipe, len(self.simulations)
        self.theta = normalised(self.simulations.theta, PRIOR_BSQ)
        self.training, self.held_out = split(count, recipe.validation, self.seed)
        for name, size in (("batch", recipe.batch), ("pretrain_batch", recipe.pretrain_batch)):
            if size > len(self.training) or len(self.held_out) < 1:
                raise ValueError(
                    f"{count} simulations give {len(self.training)} for training and {len(self.held_out)} for "
                    f"validation; {name} = {size} needs at least that many, and one to validate."
                )
            if size % (others := self.processes.size):
                raise ValueError(f"{name} is {size}, which {others} processes cannot share; use a multiple.")
        # The last batch is filled up with the first simulations' thetas: every loss is over as many candidates.
        padded = self.held_out.repeat(2 + recipe.batch // len(self.held_out))
        rows = self.held_out.split(recipe.batch)
        drawn = [self._candidates(x, HELD_OUT, i) for i, x in enumerate(padded.split(recipe.batch)[: len(rows)])]
        # As `epoch` gives them, with the same candidates every time.
        self.validation = rows, drawn.__getitem__

    def about(self):
        """What the simulations are."""
        return {"simulations": [len(self.simulations), fingerprint(self.simulations)]}

    def some(self, count):
        """So many fields (count, n, n, n), spread evenly over the set."""
        return self.simulations[np.linspace(0, len(self.simulations), count, endpoint=False).astype(int).tolist()]

    def load_summaries(self, mark=None, others=()):
        """Make S_delta (N, b), and S_M (N, 2b) of a mark that is given, or read them if they were made before.

        If they have to be made, those of other marks are in the same pass over the fields, and kept for later.
        """
        marks, tensors = [mark, *others], []
        about = {"version": SUMMARIES, "simulations": contents_key(self.simulations), "kmax": self.kmax}
        made = cache(lambda: self._summaries(marks))
        for i, each in enumerate(marks):
            asked = "summaries", about | {"mark": None if each is None else identity(each)}, lambda i=i: made()[i]
            tensors.append(self.processes.in_turn(partial(kept, *asked, self.device)))
        self.S_delta, self.S_M = tensors[0]["S_delta"], tensors[0].get("S_M")

    def epoch(self, stream, epoch, size):
        """(ids, candidates) of every step of an epoch; the candidates are drawn when a step is reached.

        What is left over of the simulations waits for another epoch's order.
        """
        ids = self.order(self.training, stream, epoch)[: len(self.training) // size * size].split(size)
        return ids, lambda step: self._candidates(ids[step], DRAWN, stream, epoch, step)

    def _candidates(self, ids, *words):
        pool = self.theta[self.training]
        return candidates(self.theta[ids], pool, self.recipe.negatives, generator(self.seed, *words))

    def batches(self, ids, drawn, micro=None, first=0):
        """Yield the micro-batches of each step from step `first` on: lists of Batch, this process's share.

        With a size `micro` they carry density fields, read ahead over the borders of batches; without, S_M.
        """
        steps = range(first, len(ids))
        shares = {i: torch.arange(len(ids[i]))[self.processes.share(len(ids[i]))] for i in steps}
        parts = {i: chunks(share, micro or len(share)) for i, share in shares.items()}
        read = self.fields.parts([ids[i][part] for i in steps for part in parts[i]]) if micro else None
        for i in steps:
            yield self._micro_batches(ids[i], drawn(i), parts[i], read)

    def _micro_batches(self, ids, drawn, parts, read):
        theta = drawn.theta.float().to(self.device)
        for part in parts:
            mine, excluded = ids[part].to(self.device), drawn.excluded[part].to(self.device)
            marked = next(read) if read is not None else None if self.S_M is None else self.S_M[mine]
            yield Batch(self.S_delta[mine], marked, theta, part.to(self.device), excluded)

    @torch.no_grad()
    def _summaries(self, marks):
        made = [{"S_delta": []} if mark is None else {"S_delta": [], "S_M": []} for mark in marks]
        for delta in self.fields.parts(torch.arange(len(self.simulations)).split(8)):
            for mark, of_mark in zip(marks, made, strict=True):
                if mark is None:
                    power = spectra_of_modes(to_fourier(delta, self.grid), grid=self.grid, kmax=self.kmax)
                else:
                    power = self.spectra(mark, delta)
                    of_mark["S_M"].append(marked_summary(*power[1:4]))
                of_mark["S_delta"].append(unmarked_summary(power.P_dd))
        return [{name: torch.cat(rows) for name, rows in each.items()} for each in made]


def split(count, validation, seed, *words):
    """Rows of the training and of what is held out, ascending; drawn by whole numbers."""
    held_out, order = round(validation * count), torch.randperm(count, generator=generator(seed, SPLIT, *words))
    return order[held_out:].sort().values, order[:held_out].sort().values


def free_memory(device):
    """Bytes free on a device; 4 GiB where the system does not say."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError):
        return 4 * 2**30


def require_memory(grid, device):
    """Refuse a GPU on which the graph of a single simulation has no room."""
    needed, free = 4 * ARRAYS_A_SIMULATION * grid.n**3, free_memory(device)
    if device.type == "cuda" and needed > free:
        room = f"{free / 1e9:.1f} GB free, and training on boxes of {grid.n}^3 takes {needed / 1e9:.1f} GB"
        raise ValueError(f'{device} has {room}; free some of it, or use another card or device="cpu".')


def micro_batch(grid, device):
    """Simulations that go through the mark together: each anchor's loss needs only its own, so any number is exact.

    It depends on the card, not on what is free at the moment: sums come out alike every time.
    """
    voxels = CPU_VOXELS
    if device.type == "cuda":
        memory = torch.cuda.get_device_properties(device).total_memory
        voxels = GRAPH_SHARE * memory / (4 * ARRAYS_A_SIMULATION)
    return max(1, int(voxels / grid.n**3))


def chunks(rows, size):
    """Rows (N,) in parts of at most `size`; of none, none."""
    return rows.split(size) if len(rows) else ()
