"""Shared fixtures: seeds, and fields to test on."""

import sys

import pytest
import torch

from nbkit import Grid

SKIPPED = pytest.StashKey()


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


def pytest_terminal_summary(terminalreporter, config):
    """Keep what was skipped for the last line."""
    reasons = [report.longrepr[2] for report in terminalreporter.stats.get("skipped", [])]
    config.stash[SKIPPED] = [reason.removeprefix("Skipped: ") for reason in dict.fromkeys(reasons)]


def pytest_unconfigure(config):
    """The last line of `make test`: what was skipped, and why."""
    if (reasons := config.stash.get(SKIPPED, None)) is not None and not config.option.collectonly:
        sys.stdout.write(f"Skipped: {' '.join(reasons)}\n" if reasons else "Nothing was skipped.\n")
