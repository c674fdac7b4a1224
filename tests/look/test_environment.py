"""The cosmic web's classes where they are known: plane waves, and the trace of the tidal tensor."""

import torch

from nbkit import Grid
from nbkit.look.environment import peaks, stacked, tidal_eigenvalues, web_class
from nbkit.mark.classical import smoothing_kernel
from nbkit.mesh.grid import to_fourier, to_real


def test_trace_is_the_smoothed_density(lognormal):
    delta, grid = lognormal(16, 100.0)
    delta_k = to_fourier(delta, grid)
    smoothed = to_real(delta_k * smoothing_kernel(8.0, grid, delta_k), grid)
    trace = tidal_eigenvalues(delta, grid, R=8.0).sum(-1)
    torch.testing.assert_close(trace, smoothed - smoothed.mean(), rtol=0, atol=1e-10)


def test_crossing_waves_make_sheets_filaments_and_knots():
    """One wave collapses along one axis; two along two; three along three: where all crests meet, and nowhere else."""
    grid = Grid(16, 100.0)
    wave = torch.cos(2 * torch.pi * (torch.arange(16, dtype=torch.float64) + 0.5) / 16)
    axes = wave[:, None, None], wave[None, :, None], wave[None, None, :]
    for count in (1, 2, 3):
        delta = sum(axes[:count]).expand(16, 16, 16)
        crests = sum((x > 0).int() for x in axes[:count]).expand(16, 16, 16)
        # The transform leaves rounding noise of 1e-17 along the other axes, so the threshold is not quite 0.
        assert torch.equal(web_class(delta, grid, R=5.0, threshold=1e-9), crests)


def test_stacking_finds_the_profile_around_peaks():
    """Identical blobs at three places, one across the boundary: their peaks are found, and the stack is the blob."""
    grid, places = Grid(32, 64.0), [(0, 0, 0), (16, 0, 16), (16, 16, 0)]
    cells = torch.minimum(torch.arange(32), 32 - torch.arange(32)).double()
    blob = torch.exp(-2 * (cells[:, None, None] ** 2 + cells[:, None] ** 2 + cells**2) / 3**2)
    field = sum(blob.roll(place, (0, 1, 2)) for place in places)
    found = peaks(field)
    assert sorted(map(tuple, found.nonzero().tolist())) == sorted(places)
    r, profile = stacked(field, found, grid, r_max=12.0)
    assert r[0] == 0
    exact = torch.bincount(
        (cells[:, None, None] ** 2 + cells[:, None] ** 2 + cells**2).sqrt().round().long().flatten(), blob.flatten()
    )
    count = torch.bincount((cells[:, None, None] ** 2 + cells[:, None] ** 2 + cells**2).sqrt().round().long().flatten())
    torch.testing.assert_close(profile, (exact / count)[: len(profile)], rtol=0, atol=1e-6)
