"""Simulations ready for training: split, read ahead, in batches with their candidates, measured where that will do."""

import os
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from typing import NamedTuple

import torch

from nbkit.disk import kept
from nbkit.mark import identity
from nbkit.measure.cross import contents_key
from nbkit.mesh.grid import to_fourier
from nbkit.mesh.spectra import marked_spectra, marked_summary, spectra_of_modes, unmarked_summary
from nbkit.mesh.threads import generator
from nbkit.train.negatives import candidates, normalised
from nbkit.universe.cosmology import PRIOR_BSQ

# First words of the seeds of everything random: streams of different use never meet.
SPLIT, WEIGHTS, ORDER, DRAWN, HELD_OUT = range(5)
# Part of the free memory that fields may take, and how many parts a thread reads ahead when they do not fit.
MEMORY_SHARE, AHEAD = 0.5, 3
# Voxels whose graph one backward pass may hold on a CPU: one simulation of 64^3, eight of 32^3.
CPU_VOXELS = 64**3
# Field-sized float32 arrays that a simulation's graph holds, rounded up; decides how many fill a GPU.
ARRAYS_A_SIMULATION = 100
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
    """The density fields of a set on a device, by index: all in memory when they fit, else read ahead by a thread.

    Parameters
    ----------
    simulations : has len(), `grid`, and simulations[list] -> (batch, n, n, n) float32.
    device : where the fields are wanted.
    memory : most bytes to keep there [default: half of what is free]; 0 streams from disk always.
    """

    def __init__(self, simulations, device, memory=None):
        self.simulations, self.device = simulations, device
        needed = 4 * len(simulations) * simulations.grid.n**3
        memory = MEMORY_SHARE * free_memory(device) if memory is None else memory
        self._all = self._read(range(len(simulations))) if needed <= memory else None

    @property
    def in_memory(self):
        """Whether no disk is needed any more."""
        return self._all is not None

    def parts(self, indices):
        """Yield the fields (m, n, n, n) of each list of indices in turn; the next ones are read meanwhile."""
        if self.in_memory:
            for part in indices:
                yield self._all[torch.as_tensor(part, device=self.device)]
            return
        indices = list(indices)
        with ThreadPoolExecutor(1, thread_name_prefix="nbkit-read") as reader:
            reading = [reader.submit(self._read, part) for part in indices[:AHEAD]]
            try:
                for i in range(len(indices)):
                    if i + AHEAD < len(indices):
                        reading.append(reader.submit(self._read, indices[i + AHEAD]))
                    yield reading[i].result()
                    reading[i] = None
            finally:
                for waiting in filter(None, reading):
                    waiting.cancel()

    def _read(self, part):
        fields = self.simulations[[int(i) for i in part]]
        return torch.as_tensor(fields, dtype=torch.float32).to(self.device, non_blocking=True)


class Prior:
    """Simulations over the prior, split into training and validation, for training by contrast.

    Parameters
    ----------
    simulations : has len(), `theta` (N, 5), `grid`, and simulations[list] -> (batch, n, n, n) float32.
    recipe : the Recipe.
    kmax : largest k of a bin [h/Mpc].
    seed : of the split and of all candidates.
    processes : the Processes that train together.
    memory : most bytes of fields to keep in memory.
    """

    def __init__(self, simulations, recipe, kmax, seed, processes, memory=None):
        self.grid, self.kmax, self.recipe, self.seed, self.processes = simulations.grid, kmax, recipe, seed, processes
        self.device, self._memory, self.simulations = processes.device, memory, simulations
        self.theta, self.S_M = normalised(simulations.theta, PRIOR_BSQ), None
        self.training, self.held_out = split(len(simulations), recipe.validation, seed)
        for name, size in (("batch", recipe.batch), ("pretrain_batch", recipe.pretrain_batch)):
            if size > len(self.training) or len(self.held_out) < 1:
                raise ValueError(
                    f"{len(simulations)} simulations give {len(self.training)} for training and {len(self.held_out)} "
                    f"for validation; {name} = {size} needs at least that many, and one to validate."
                )
        # The last batch is filled up with the first simulations' thetas: every loss is over as many candidates.
        padded = self.held_out.repeat(1 + recipe.batch // len(self.held_out) + 1)
        self._held_out_candidates = [
            candidates(
                self.theta[padded[rows.start : rows.start + recipe.batch]],
                self.theta[self.training],
                recipe.negatives,
                generator(seed, HELD_OUT, i),
            )
            for i, rows in enumerate(slices(len(self.held_out), recipe.batch))
        ]

    @cached_property
    def fields(self):
        """The density fields; read when first asked for, so that a finished run never touches them."""
        return Fields(self.simulations, self.device, self._memory)

    def load_summaries(self, mark=None):
        """Make S_delta (N, b), and S_M (N, 2b) of a mark that is given, or read them if they were made before."""
        key = {"version": SUMMARIES, "simulations": contents_key(self.simulations), "kmax": self.kmax}
        key |= {"mark": None if mark is None else identity(mark)}
        if self.processes.first:
            kept("summaries", key, lambda: self._summaries(mark))
        self.processes.wait()
        tensors = kept("summaries", key, lambda: self._summaries(mark), self.device)
        self.S_delta, self.S_M = tensors["S_delta"], tensors.get("S_M")

    def epoch(self, stream, epoch, size):
        """(ids, candidates) of every step of an epoch; the candidates are drawn when a step is reached.

        What is left over of the simulations waits for another epoch's order.
        """
        steps = len(self.training) // size
        order = torch.randperm(len(self.training), generator=generator(self.seed, ORDER, stream, epoch))
        ids = [self.training[order[rows]] for rows in slices(steps * size, size)]
        pool, negatives = self.theta[self.training], self.recipe.negatives

        def drawn(step):
            return candidates(self.theta[ids[step]], pool, negatives, generator(self.seed, DRAWN, stream, epoch, step))

        return ids, drawn

    def validation(self):
        """As `epoch`, for the held-out simulations, with the same candidates every time."""
        ids = [self.held_out[rows] for rows in slices(len(self.held_out), self.recipe.batch)]
        return ids, self._held_out_candidates.__getitem__

    def batches(self, ids, drawn, micro=None, first=0, fields=False):
        """Yield the micro-batches of each step from step `first` on: lists of Batch, this process's share.

        With `fields` they carry density fields, read ahead over the borders of batches; without, S_M.
        """
        shares = [self.processes.share(len(x)) for x in ids]
        cuts = [slices(s.stop - s.start, micro or len(x)) for x, s in zip(ids, shares, strict=True)]
        steps = range(first, len(ids))
        read = self.fields.parts([ids[i][shares[i]][rows] for i in steps for rows in cuts[i]]) if fields else None
        for step in steps:
            yield self._micro_batches(ids[step], shares[step], drawn(step), cuts[step], read)

    def _micro_batches(self, ids, share, drawn, cuts, read):
        mine = ids[share].to(self.device)
        positive = torch.arange(len(ids), device=self.device)[share]
        theta, excluded = drawn.theta.float().to(self.device), drawn.excluded[share].to(self.device)
        for rows in cuts:
            marked = next(read) if read is not None else None if self.S_M is None else self.S_M[mine[rows]]
            yield Batch(self.S_delta[mine[rows]], marked, theta, positive[rows], excluded[rows])

    @torch.no_grad()
    def _summaries(self, mark):
        parts = slices(len(self.simulations), 8)
        made = {"S_delta": []} if mark is None else {"S_delta": [], "S_M": []}
        for delta in self.fields.parts([range(p.start, p.stop) for p in parts]):
            if mark is None:
                power = spectra_of_modes(to_fourier(delta, self.grid), grid=self.grid, kmax=self.kmax)
            else:
                power = marked_spectra(mark, delta, grid=self.grid, kmax=self.kmax)
                made["S_M"].append(marked_summary(*power[1:4]))
            made["S_delta"].append(unmarked_summary(power.P_dd))
        return {name: torch.cat(rows) for name, rows in made.items()}


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


def micro_batch(grid, device):
    """Simulations that go through the mark together: each anchor's loss needs only its own, so any number is exact."""
    voxels = grid.n**3
    if device.type == "cuda":
        return max(1, int(MEMORY_SHARE * free_memory(device) // (4 * ARRAYS_A_SIMULATION * voxels)))
    return max(1, CPU_VOXELS // voxels)


def slices(count, size):
    """Slices of at most `size` that cover range(count)."""
    return [slice(i, min(i + size, count)) for i in range(0, count, size)]
