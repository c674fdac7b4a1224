"""What both stages minimise: a batch of simulations and its candidates -> the sum of the anchors' InfoNCE."""

from typing import NamedTuple

import torch
from torch import nn

from nbkit.contrast import Metric, info_nce, mahalanobis_scores
from nbkit.fields import MEMORY_SHARE, free_memory
from nbkit.summaries import marked_spectra, marked_summary

# Voxels whose graph one backward pass may hold on a CPU: one simulation of 64^3, eight of 32^3.
CPU_VOXELS = 64**3
# Field-sized float32 arrays that a simulation's graph holds, rounded up; decides how many fill a GPU.
ARRAYS_A_SIMULATION = 100


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
    """Stage two: z_perp of the marked summary against z_theta."""

    def __init__(self, mark, heads, grid, kmax, temperature):
        super().__init__()
        self.mark, self.heads = mark, heads
        self.grid, self.kmax, self.temperature = grid, kmax, temperature

    def S_M(self, delta):
        """Marked summaries (m, 2b) of fields (m, n, n, n)."""
        power = marked_spectra(self.mark, delta, grid=self.grid, kmax=self.kmax)
        return marked_summary(power.P_dd, power.P_dm, power.P_mm)

    def forward(self, batch):
        S_M = self.S_M(batch.marked) if batch.marked.ndim == 4 else batch.marked
        z_perp, z_theta = self.heads.z_perp(S_M, batch.S_delta), self.heads.z_theta(batch.theta)
        scores = mahalanobis_scores(z_perp, z_theta, self.heads.metric(), self.temperature)
        return info_nce(scores, batch.positive, batch.excluded).sum()


def micro_batch(grid, device):
    """Simulations that go through the mark together: each anchor's loss needs only its own, so any number is exact."""
    voxels = grid.n**3
    if device.type == "cuda":
        return max(1, int(MEMORY_SHARE * free_memory(device) // (4 * ARRAYS_A_SIMULATION * voxels)))
    return max(1, CPU_VOXELS // voxels)


def slices(count, size):
    """Slices of at most `size` that cover range(count)."""
    return [slice(i, min(i + size, count)) for i in range(0, count, size)]
