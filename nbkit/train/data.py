"""A set of simulations ready for training: its split, its summaries, its batches with their candidates."""

import torch
from torch import nn

from nbkit.disk import read_tensors, write_tensors
from nbkit.mark import weights_hash
from nbkit.mesh.grid import to_fourier
from nbkit.mesh.spectra import marked_spectra, marked_summary, spectra_of_modes, unmarked_summary
from nbkit.mesh.threads import generator
from nbkit.train.fields import Fields
from nbkit.train.negatives import candidates, normalised
from nbkit.train.objective import Batch, slices
from nbkit.universe.cosmology import PRIOR_BSQ
from nbkit.universe.store import fingerprint

# First words of the seeds of everything random: streams of different use never meet.
SPLIT, WEIGHTS, ORDER, DRAWN, HELD_OUT = range(5)


class TrainingData:
    """Simulations split into training and validation, with summaries that do not change while training.

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
        self.device, self._memory, self._simulations, self._fields = processes.device, memory, simulations, None
        self.theta = normalised(simulations.theta, PRIOR_BSQ)
        held_out = round(recipe.validation * len(simulations))
        order = torch.randperm(len(simulations), generator=generator(seed, SPLIT))
        self.held_out, self.training = order[:held_out].sort().values, order[held_out:].sort().values
        for name, size in (("batch", recipe.batch), ("pretrain_batch", recipe.pretrain_batch)):
            if size > len(self.training) or held_out < 1:
                raise ValueError(
                    f"{len(simulations)} simulations give {len(self.training)} for training and {held_out} for "
                    f"validation; {name} = {size} needs at least that many, and one to validate."
                )
        self._held_out_candidates = [
            candidates(self.theta[anchors], self.theta[self.training], recipe.negatives, generator(seed, HELD_OUT, i))
            for i, anchors in enumerate(self._held_out_anchors())
        ]

    @property
    def fields(self):
        """The density fields; read when first asked for, so that a finished run never touches them."""
        if self._fields is None:
            self._fields = Fields(self._simulations, self.device, self._memory)
        return self._fields

    def load_summaries(self, folder, mark=None):
        """Make S_delta (N, b), and S_M (N, 2b) of a mark that is given, or read them if `folder` has them already."""
        path = folder / "summaries.safetensors"
        which = weights_hash(mark) if isinstance(mark, nn.Module) else repr(mark)
        about = {"fingerprint": fingerprint(self._simulations), "kmax": self.kmax, "mark": which}
        if self.processes.first and not (path.exists() and read_tensors(path)[1] == about):
            write_tensors(path, self._summaries(mark), about)
        self.processes.wait()
        tensors, _ = read_tensors(path, self.device)
        self.S_delta, self.S_M = tensors["S_delta"], tensors.get("S_M")

    def steps(self, batch):
        """Optimiser steps of an epoch; what is left over waits for another epoch's order."""
        return len(self.training) // batch

    def epoch(self, stage, epoch, size):
        """(ids, candidates) of every step of an epoch; the candidates are drawn when a step is reached."""
        order = torch.randperm(len(self.training), generator=generator(self.seed, ORDER, stage, epoch))
        ids = [self.training[order[rows]] for rows in slices(self.steps(size) * size, size)]
        pool, negatives = self.theta[self.training], self.recipe.negatives

        def drawn(step):
            return candidates(self.theta[ids[step]], pool, negatives, generator(self.seed, DRAWN, stage, epoch, step))

        return ids, drawn

    def validation(self):
        """As `epoch`, for the held-out simulations, with the same candidates every time."""
        ids = [self.held_out[rows] for rows in slices(len(self.held_out), self.recipe.batch)]
        return ids, self._held_out_candidates.__getitem__

    def batches(self, ids, drawn, micro=None, first=0, fields=False):
        """Yield (step, micro-batches) from step `first` on: this process's share of each batch.

        A micro-batch is a Batch and whether it is the last of its step. With `fields` they carry density fields, read
        ahead over the borders of batches; without, S_M.
        """
        shares = [self.processes.share(len(x)) for x in ids]
        cuts = [slices(s.stop - s.start, micro or len(x)) for x, s in zip(ids, shares, strict=True)]
        steps = range(first, len(ids))
        read = self.fields.parts([ids[i][shares[i]][rows] for i in steps for rows in cuts[i]]) if fields else None
        for step in steps:
            yield step, self._micro_batches(ids[step], shares[step], drawn(step), cuts[step], read)

    def _micro_batches(self, ids, share, drawn, cuts, read):
        mine = ids[share].to(self.device)
        positive = torch.arange(len(ids), device=self.device)[share]
        theta, excluded = drawn.theta.float().to(self.device), drawn.excluded[share].to(self.device)
        for rows in cuts:
            marked = next(read) if read is not None else None if self.S_M is None else self.S_M[mine[rows]]
            batch = Batch(self.S_delta[mine[rows]], marked, theta, positive[rows], excluded[rows])
            yield batch, rows is cuts[-1]

    def _held_out_anchors(self):
        # The last batch is filled up with the first simulations' thetas: every loss is over as many candidates.
        size = self.recipe.batch
        padded = self.held_out.repeat(1 + size // len(self.held_out) + 1)
        return [padded[rows.start : rows.start + size] for rows in slices(len(self.held_out), size)]

    @torch.no_grad()
    def _summaries(self, mark):
        parts = slices(len(self._simulations), 8)
        made = {"S_delta": []} if mark is None else {"S_delta": [], "S_M": []}
        for delta in self.fields.parts([range(p.start, p.stop) for p in parts]):
            if mark is None:
                power = spectra_of_modes(to_fourier(delta, self.grid), grid=self.grid, kmax=self.kmax)
            else:
                power = marked_spectra(mark, delta, grid=self.grid, kmax=self.kmax)
                made["S_M"].append(marked_summary(*power[1:4]))
            made["S_delta"].append(unmarked_summary(power.P_dd))
        return {name: torch.cat(rows) for name, rows in made.items()}
