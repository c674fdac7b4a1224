"""Known marks are found again; the cosmic web's classes where they are known: plane waves, and the trace."""

import numpy as np
import pytest
import torch
from fake import busy_mark

from nbkit import ClassicalMark, Grid, look
from nbkit.look.likeness import tidal_eigenvalues
from nbkit.mark.classical import smoothing_kernel
from nbkit.mesh.grid import to_fourier, to_real


def test_environments_share_everything_out(lognormal):
    delta, grid = lognormal(24, box_size=187.5, mas="PCS", dtype=torch.float32)
    parts = look.anatomy(busy_mark(grid), delta, grid)
    rows = look.environments(parts.M(), parts.delta, parts.grid, kmax=0.3)
    for column in ("volume", "mass", "P_dd", "P_mm"):
        assert sum(row[column] for row in rows.values()) == pytest.approx(1, abs=1e-4)
    assert sum(row["volume"] * row["M"] for row in rows.values()) == pytest.approx(1, abs=1e-4)
    silent = look.without(parts.mark, parts.means, list(parts.terms))
    for row in look.environments(silent(parts.delta, parts.grid), parts.delta, parts.grid).values():
        assert row["P_mm"] == pytest.approx(row["P_dd"], abs=1e-4)
        assert row["M"] == pytest.approx(1, abs=1e-4)


@pytest.mark.parametrize("p", [1.5, -1.0])
def test_a_classical_mark_is_found_again_through_an_affine_map(lognormal, p):
    delta, grid = lognormal(24, box_size=187.5, dtype=torch.float32)
    M = 0.3 - 2.0 * ClassicalMark(p, 0.4, R=10.0)(delta, grid)
    near = look.nearest_classical(M, delta, grid, scales=(7.0, 10.0, 14.0))
    assert near.mark.R == 10.0
    assert np.sign(near.mark.p) == np.sign(p)
    assert near.a < 0
    assert min(near.R2, near.R2_any) > 0.999
    M_c = near.mark(delta, grid)
    scaled = M.mean() + near.a * (M_c - M_c.mean())
    torch.testing.assert_close(scaled, M, rtol=0, atol=0.03 * float(M.std()))


def test_noise_has_no_classical_likeness(lognormal):
    delta, grid = lognormal(24, box_size=187.5, dtype=torch.float32)
    M = torch.randn(grid.shape)
    near = look.nearest_classical(M, delta, grid, scales=(10.0,))
    assert near.R2_any + 0.002 >= near.R2
    M_c = near.mark(delta, grid)
    np.testing.assert_allclose(near.R2, np.corrcoef(M_c.ravel(), M.ravel())[0, 1] ** 2, rtol=1e-3)
    assert near.R2_any < 0.06  # 400 means of 35 voxels of noise


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
        assert torch.equal(look.web_class(delta, grid, R=5.0, threshold=1e-9), crests)


def test_stacking_finds_the_profile_around_peaks():
    """Identical blobs at three places, one across the boundary: their peaks are found, and the stack is the blob."""
    grid, places = Grid(32, 64.0), [(0, 0, 0), (16, 0, 16), (16, 16, 0)]
    cells = torch.minimum(torch.arange(32), 32 - torch.arange(32)).double()
    blob = torch.exp(-2 * (cells[:, None, None] ** 2 + cells[:, None] ** 2 + cells**2) / 3**2)
    field = sum(blob.roll(place, (0, 1, 2)) for place in places)
    summits = look.peaks(field)
    assert sorted(map(tuple, summits.nonzero().tolist())) == sorted(places)
    r, profile = look.stack(field, summits, grid, r_max=12.0)
    assert r[0] == 0
    bins = (cells[:, None, None] ** 2 + cells[:, None] ** 2 + cells**2).sqrt().round().long().flatten()
    exact = torch.bincount(bins, blob.flatten()) / torch.bincount(bins)
    torch.testing.assert_close(profile, exact[: len(profile)], rtol=0, atol=1e-6)
