"""Shared fixtures: seeds, and fields to test on."""

import subprocess
import sys

import pytest
import torch

from nbkit import Grid

# A process that compiles the loops rounds some voxels otherwise than one that loads them: compile in another one first.
COMPILE = """
import torch
from nbkit import Grid, LearnedMark, marked_field, spectra
for l_max, grid in ((0, Grid(8, 60.0)), (1, Grid(8, 60.0)), (2, Grid(8, 60.0))):
    mark, delta = LearnedMark(grid, l_max), torch.randn(8, 8, 8)
    for parameter in mark.parameters():
        parameter.data += 0.1
    power = spectra(delta, marked_field(mark(delta), delta), grid=grid)
    (power.P_mm + power.P_dm).sum().backward()
"""


def pytest_sessionstart(session):
    subprocess.run([sys.executable, "-c", COMPILE], check=True)


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
