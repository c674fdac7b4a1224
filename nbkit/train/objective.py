"""What both stages minimise: a batch of simulations and its candidates -> the sum of the anchors' InfoNCE."""

from typing import NamedTuple

import torch
from torch import nn

from nbkit.mesh.spectra import marked_spectra, marked_summary
from nbkit.train.contrast import Metric, info_nce, mahalanobis_scores
from nbkit.train.fields import MEMORY_SHARE, free_memory

# Voxels whose graph one backward pass may hold on a CPU: one simulation of 64^3, eight of 32^3.
CPU_VOXELS = 64**3
# Field-sized float32 arrays that a simulation's graph holds, rounded up; decides how many fill a GPU.
ARRAYS_A_SIMULATION = 100
# Added to the variances by which S_M is standardised: at M = 1 it has none.
LEAST_VARIANCE = 1e-4


class Batch(NamedTuple):
    """m anchors, and the c cosmologies they are compared with."""

    S_delta: torch.Tensor  # (m, b) unmarked summaries
    marked: torch.Tensor | None  # (m, n, n, n) fields to be marked, or (m, 2b) S_M of a mark that does not change
    theta: torch.Tensor  # (c, 5) candidates, normalised
    positive: torch.Tensor  # (m,) which of them is the anchor's own
    excluded: torch.Tensor  # (m, c) which are too near the anchor to be called wrong


class UnmarkedObjective(nn.Module):
    """Stage one: z_d against z_theta, with a metric of its own."""

    def __init__(self, heads, temperature):
        super().__init__()
        self.heads, self.temperature = heads, temperature
        self.metric = Metric(heads.theta.out_features)

    def forward(self, batch):
        z_theta = self.heads.z_theta(batch.theta)
        scores = mahalanobis_scores(self.heads.z_d(batch.S_delta), z_theta, self.metric(), self.temperature)
        return info_nce(scores, batch.positive, batch.excluded).sum()


class MarkedObjective(nn.Module):
    """Stage two: z_perp of the marked summary against z_theta.

    With `standardise` it remembers the S_M of a step, and `follow` moves the mean and variance by which the heads see
    them: within a step these are constants, so that each anchor's loss still depends on its own simulation alone.
    """

    def __init__(self, mark, heads, grid, kmax, temperature, standardise=False):
        super().__init__()
        self.mark, self.heads = mark, heads
        self.grid, self.kmax, self.temperature = grid, kmax, temperature
        self._seen = [] if standardise else None

    def S_M(self, delta):
        """Marked summaries (m, 2b) of fields (m, n, n, n)."""
        power = marked_spectra(self.mark, delta, grid=self.grid, kmax=self.kmax)
        return marked_summary(power.P_dd, power.P_dm, power.P_mm)

    def forward(self, batch):
        S_M = self.S_M(batch.marked) if batch.marked.ndim == 4 else batch.marked
        if self._seen is not None and torch.is_grad_enabled():
            self._seen.append(S_M.detach())
        z_perp, z_theta = self.heads.z_perp(S_M, batch.S_delta), self.heads.z_theta(batch.theta)
        scores = mahalanobis_scores(z_perp, z_theta, self.heads.metric(), self.temperature)
        return info_nce(scores, batch.positive, batch.excluded).sum()

    @torch.no_grad()
    def follow(self, total, share):
        """Move the heads' mean and variance of S_M towards those of the last step by a share of the way.

        Parameters
        ----------
        total : sums a tensor over processes.
        """
        if self._seen is None:
            return
        S_M = torch.cat(self._seen).double()
        self._seen.clear()
        count, *sums = total(torch.cat([S_M.new_tensor([len(S_M)]), S_M.sum(0), (S_M**2).sum(0)])).split(
            [1, S_M.shape[1], S_M.shape[1]]
        )
        mean, square = (x / count for x in sums)
        self.heads.marked_mean.lerp_(mean.float(), share)
        self.heads.marked_variance.lerp_((square - mean**2 + LEAST_VARIANCE).float(), share)


def micro_batch(grid, device):
    """Simulations that go through the mark together: each anchor's loss needs only its own, so any number is exact."""
    voxels = grid.n**3
    if device.type == "cuda":
        return max(1, int(MEMORY_SHARE * free_memory(device) // (4 * ARRAYS_A_SIMULATION * voxels)))
    return max(1, CPU_VOXELS // voxels)


def slices(count, size):
    """Slices of at most `size` that cover range(count)."""
    return [slice(i, min(i + size, count)) for i in range(0, count, size)]
