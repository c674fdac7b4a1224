"""Classical marks."""

import warnings

import numpy as np
import pytest
import torch
from scipy.special import spherical_jn

from nbkit import ClassicalMark, Grid, classical_marks, marked_field
from nbkit.mark import smoothing_kernel


def test_marked_field_has_zero_mean(lognormal):
    delta, grid = lognormal(16, batch=(2,))
    Delta = marked_field(ClassicalMark(2.0, 0.25)(delta, grid), delta)
    torch.testing.assert_close(Delta.mean(dim=(-3, -2, -1)), torch.zeros(2, dtype=torch.float64), atol=1e-12, rtol=0)


@pytest.mark.parametrize("smoothing", ["gaussian", "tophat"])
def test_plane_wave_in_closed_form(smoothing):
    """delta_R of a plane wave is the wave times the kernel, so M is known at every voxel."""
    grid, R = Grid(16, 100.0), 12.0
    wave = 0.4 * torch.cos(2 * torch.pi * 3 * torch.arange(16, dtype=torch.float64) / 16)
    x = 3 * grid.k_f * R
    damping = np.exp(-(x**2) / 2) if smoothing == "gaussian" else 3 * spherical_jn(1, x) / x
    M = ClassicalMark(2.0, 0.25, R, smoothing)(wave[:, None, None].expand(16, 16, 16), grid)
    expected = (1.25 / (1.25 + damping * wave)) ** 2
    torch.testing.assert_close(M, expected[:, None, None].expand(16, 16, 16), rtol=1e-12, atol=0)


def test_tophat_kernel_is_smooth_at_the_origin():
    grid = Grid(64, 1e4)
    kernel = smoothing_kernel("tophat", 10.0, grid, torch.zeros(1, dtype=torch.float64))
    x = grid.k_f * 10.0 * np.arange(1, 33)
    np.testing.assert_allclose(kernel[0, 0, 1:], 3 * spherical_jn(1, x) / x, rtol=1e-9)


def test_unit_density_has_unit_mark():
    M = ClassicalMark(-1.5, 0.3)(torch.zeros(8, 8, 8), Grid(8, 100.0))
    torch.testing.assert_close(M, torch.ones(8, 8, 8))


def test_the_grid_of_48():
    marks = classical_marks()
    assert len(set(marks)) == 48
    assert {m.p for m in marks} == {-2.5, -2, -1.5, -1, 1, 1.5, 2, 2.5}
    assert {m.delta_s for m in marks} == {0, 0.1, 0.2, 0.3, 0.4, 0.5}
    assert {m.R for m in marks} == {10.0}


def test_floored_voxels_are_counted():
    delta = torch.zeros(8, 8, 8)
    delta[0, 0, :3] = -1.5  # no smoothing to speak of at R << cell
    with pytest.warns(UserWarning, match="in 3 of 512 voxels"):
        M = ClassicalMark(1.0, 0.0, R=0.01)(delta, Grid(8, 100.0))
    assert torch.isfinite(M).all()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ClassicalMark(1.0, 0.6, R=0.01)(delta, Grid(8, 100.0))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [((1.0, -0.1), "delta_s is -0.1"), ((1.0, 0.1, 0.0), "R is 0.0"), ((1.0, 0.1, 10.0, "box"), "smoothing is 'box'")],
)
def test_impossible_marks_are_refused(arguments, said):
    with pytest.raises(ValueError, match=said):
        ClassicalMark(*arguments)
