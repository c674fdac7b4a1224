"""Shared fixtures: seeds, and fields to test on."""

import pytest
import torch

from nbkit import Grid


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(1234)


@pytest.fixture
def lognormal():
    """A skewed, clustered density contrast: exp of a red Gaussian field, on any grid."""

    def field(n, box_size=500.0, mas="none", batch=(), dtype=torch.float64):
        grid = Grid(n, box_size, mas)
        noise = torch.fft.rfftn(torch.randn(*batch, n, n, n, dtype=dtype), dim=(-3, -2, -1))
        shells = grid.shells(dtype=dtype)
        noise = noise * torch.exp(-((shells.k * 10.0) ** 2) / 2)[shells.index]
        smooth = torch.fft.irfftn(noise, s=grid.shape, dim=(-3, -2, -1))
        density = torch.exp(smooth / smooth.std())
        return density / density.mean(dim=(-3, -2, -1), keepdim=True) - 1, grid

    return field
