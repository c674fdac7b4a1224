"""Stand-ins: a set of lognormal fields whose amplitude, tilt and skewness follow theta; a mark with busy weights."""

from unittest.mock import patch

import numpy as np
import torch

from nbkit import Grid, LearnedMark
from nbkit.mesh.threads import one_thread
from nbkit.universe.cosmology import PRIOR_BSQ, linear_power


class FakeSet:
    """`count` fields of n^3 cells of 7.8 Mpc/h, read like a set of a suite."""

    def __init__(self, count=80, n=12, seed=5):
        self.grid = Grid(n, 7.8125 * n, "none")
        rng = np.random.default_rng(seed)
        self.theta = PRIOR_BSQ[:, 0] + rng.random((count, 5)) * (PRIOR_BSQ[:, 1] - PRIOR_BSQ[:, 0])
        noise = torch.from_numpy(rng.standard_normal((count, n, n, n)).astype(np.float32))
        theta = torch.from_numpy(self.theta).float()[:, :, None, None, None]
        shells = self.grid.shells()
        k = shells.k.clamp(min=self.grid.k_f)[shells.index]
        with one_thread():  # the same bits in every process
            modes = torch.fft.rfftn(noise, dim=(1, 2, 3)) * k ** (-2 * theta[:, 0])
            smooth = torch.fft.irfftn(modes, s=self.grid.shape, dim=(1, 2, 3))
        smooth = theta[:, 4] * smooth / smooth.std(dim=(1, 2, 3), keepdim=True)
        density = torch.exp(smooth + 0.3 * (theta[:, 3] - 1) * smooth**2)
        self.fields = density / density.mean(dim=(1, 2, 3), keepdim=True) - 1

    def __len__(self):
        return len(self.theta)

    def __getitem__(self, index):
        return self.fields[index]


def busy_mark(grid, l_max=2):
    """A mark with weights that are not those of the start."""
    mark = LearnedMark(grid, l_max=l_max).requires_grad_(False)
    for parameter in mark.parameters():
        parameter += 0.3 * torch.randn(parameter.shape)
    return mark


def camb_power(theta):
    """As linear_power, straight from CAMB."""
    with patch("nbkit.universe.cosmology.transfer", lambda *_: None):
        return linear_power(theta)
