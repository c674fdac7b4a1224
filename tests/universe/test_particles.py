"""Painting against Pylians, mass and threads; forces read back."""

import MAS_library
import numpy as np
import pytest
import torch

from nbkit import Grid
from nbkit.mesh.grid import MAS_ORDER
from nbkit.universe.particles import counts, kick, paint

SCHEMES = ("NGP", "CIC", "TSC", "PCS")


def scattered(count=20_000, box_size=100.0):
    return torch.rand(count, 3) * box_size


@pytest.mark.parametrize("mas", SCHEMES)
@pytest.mark.parametrize("n", [15, 32])
def test_painting_agrees_with_pylians(mas, n):
    positions = scattered()
    theirs = np.zeros((n, n, n), dtype=np.float32)
    MAS_library.MA(positions.numpy(), theirs, 100.0, mas, verbose=False)
    ours = (1 + paint(positions, Grid(n, 100.0, mas))) * (len(positions) / n**3)
    np.testing.assert_allclose(ours, theirs, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("mas", SCHEMES)
def test_a_cloud_is_the_window_of_the_grid(mas):
    """Averaged over where a particle sits in its cell, the modes of its cloud are W_MAS: what `spectra` divides by."""
    grid, steps = Grid(8, 8.0, mas), 99
    offset = (torch.arange(steps, dtype=torch.float64) + 0.5) / steps - 0.5
    measured = torch.zeros(grid.half_shape, dtype=torch.complex128)
    for x in offset:
        place = torch.tensor([[3 + x, 3, 3]], dtype=torch.float32)
        cloud = counts(place, 8, 1.0, MAS_ORDER[mas])
        k_x = grid.wavevector(dtype=torch.float64)[0]
        measured += torch.fft.rfftn(cloud) * torch.exp(1j * k_x * (3 + x)) / steps
    along_x = measured[:, 0, 0].real
    expected = grid.window(dtype=torch.float64)[:, 0, 0]
    # A finite number of offsets leaves aliases of the order of the window at the next harmonic.
    torch.testing.assert_close(along_x[:3], expected[:3], rtol=0, atol=2e-3)


def test_positions_wrap_around_the_box():
    grid, positions = Grid(16, 100.0, "PCS"), scattered(1000).round(decimals=1)
    moved = positions + 100.0 * torch.randint(-3, 4, positions.shape)
    torch.testing.assert_close(paint(moved, grid), paint(positions, grid), rtol=0, atol=2e-3)
    corners = torch.tensor([[0.0, 100.0, -0.0], [100.0, 100.0, 100.0], [np.nextafter(np.float32(100), 0)] * 3])
    for mas in SCHEMES:
        assert paint(corners, Grid(16, 100.0, mas))[0, 0, 0] > 0


@pytest.mark.parametrize("mas", ["CIC", "PCS"])
def test_density_does_not_depend_on_threads(mas):
    positions, grid, before = scattered(), Grid(32, 100.0, mas), torch.get_num_threads()
    fields = []
    for threads in (1, 2, 3, 7):
        torch.set_num_threads(threads)
        fields.append(paint(positions, grid))
    torch.set_num_threads(before)
    assert all(torch.equal(field, fields[0]) for field in fields)


def test_reading_a_linear_field_is_exact():
    """CIC interpolates a linear function without error; alpha, beta and drift do what the equation says."""
    i = torch.arange(32, dtype=torch.float32)
    force = [
        (c + a * i[:, None, None] + b * i[:, None] + 0.3 * i).contiguous()
        for a, b, c in ((1, 2, 3), (0, 1, 0), (2, 0, 1))
    ]
    x = 1 + 28 * torch.rand(500, 3)
    v, before = torch.rand(500, 3), x.clone()
    expected = [c + a * x[:, 0] + b * x[:, 1] + 0.3 * x[:, 2] for a, b, c in ((1, 2, 3), (0, 1, 0), (2, 0, 1))]
    speed = 0.5 * v + 2 * torch.stack(expected, -1)
    kick(x, v, force, alpha=0.5, beta=2.0, drift=0.01, box_size=32.0)
    torch.testing.assert_close(v, speed, rtol=1e-5, atol=1e-4)
    torch.testing.assert_close(x, (before + 0.01 * speed).remainder(32), rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize(
    ("positions", "mas", "said"),
    [
        (torch.zeros(3, 2), "CIC", r"positions have shape \(3, 2\)"),
        (torch.zeros(0, 3), "CIC", "at least one particle"),
        (torch.zeros(3, 3), "none", "choose NGP, CIC, TSC or PCS"),
        (torch.full((3, 3), torch.nan), "PCS", "3 of 3 positions are not finite"),
        (torch.tensor([[1.0, 2.0, 1e9]]), "CIC", "1 of 1 positions are not finite or more than 10000 boxes away"),
    ],
)
def test_bad_input_gets_one_sentence(positions, mas, said):
    with pytest.raises(ValueError, match=said):
        paint(positions, Grid(8, 10.0, mas))
