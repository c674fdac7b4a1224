"""The mesh against what it stands for: plain numpy wavevectors, closed forms, symmetry."""

import numpy as np
import pytest
import torch

from nbkit import Grid
from nbkit.mesh.grid import to_fourier, to_real


def full_k(n, box_size):
    m = np.fft.fftfreq(n, 1 / n)
    return 2 * np.pi / box_size * np.sqrt(m[:, None, None] ** 2 + m[None, :, None] ** 2 + m[None, None, :] ** 2)


@pytest.mark.parametrize("n", [8, 9, 32])
def test_shells_give_every_modulus(n):
    grid = Grid(n, 123.0)
    shells = grid.shells(dtype=torch.float64)
    np.testing.assert_allclose(shells.k[shells.index], full_k(n, 123.0)[..., : n // 2 + 1], rtol=1e-14)
    assert (shells.k.diff() > 0).all()


@pytest.mark.parametrize("n", [8, 9])
def test_mode_weights_count_the_full_grid(n):
    weights = Grid(n, 1.0).mode_weights().expand(Grid(n, 1.0).half_shape)
    assert weights.sum() == n**3


def test_wavevector_matches_fftfreq():
    k_x, k_y, k_z = Grid(8, 50.0).wavevector(dtype=torch.float64)
    expected = 2 * np.pi * np.fft.fftfreq(8, 50.0 / 8)
    np.testing.assert_allclose(k_x.flatten(), expected)
    np.testing.assert_allclose(k_y.flatten(), expected)
    np.testing.assert_allclose(k_z.flatten(), np.abs(expected[:5]))
    assert (k_x.shape, k_y.shape, k_z.shape) == ((8, 1, 1), (1, 8, 1), (1, 1, 5))


@pytest.mark.parametrize(("mas", "order"), [("none", 0), ("NGP", 1), ("CIC", 2), ("TSC", 3), ("PCS", 4)])
def test_window_is_the_transform_of_the_cloud(mas, order):
    """A cloud of order p is p top-hats of one cell convolved; sum its transform over fine samples of each."""
    n, fine = 8, 4001
    top_hat = (np.arange(fine) + 0.5) / fine - 0.5
    m = np.arange(n // 2 + 1)
    one_axis = np.mean(np.cos(2 * np.pi * m[:, None] * top_hat / n), axis=1) ** order
    window = Grid(n, 10.0, mas).window(dtype=torch.float64)
    np.testing.assert_allclose(window[0, 0], one_axis, rtol=1e-6)
    np.testing.assert_allclose(window[2, 3, 4], one_axis[2] * one_axis[3] * one_axis[4], rtol=1e-6)


def test_taper():
    grid = Grid(32, 250.0)
    x = torch.tensor([0.0, 0.5, 0.85, 0.925, 1.0, 1.7], dtype=torch.float64)
    expected = torch.tensor([1.0, 1.0, 1.0, 0.5, 0.0, 0.0], dtype=torch.float64)
    torch.testing.assert_close(grid.taper(x * grid.k_nyq), expected, atol=1e-12, rtol=0)


@pytest.mark.parametrize("n", [8, 9])
def test_transforms_invert_and_have_the_right_gradient(n):
    grid = Grid(n, 10.0)
    field = torch.randn(2, n, n, n, dtype=torch.float64, requires_grad=True)
    torch.testing.assert_close(to_real(to_fourier(field, grid), grid), field)
    some = torch.randn(2, *grid.half_shape, dtype=torch.complex128)
    (ours,) = torch.autograd.grad((to_fourier(field, grid) * some).real.sum(), field)
    (theirs,) = torch.autograd.grad((torch.fft.rfftn(field, dim=(-3, -2, -1)) * some).real.sum(), field)
    torch.testing.assert_close(ours, theirs)


def test_cached_tensors_survive_inference_mode():
    grid = Grid(6, 77.0)
    with torch.inference_mode():
        grid.shells()
    weight = torch.ones(len(grid.shells().k), requires_grad=True)
    (weight * grid.shells().k).sum().backward()
    assert weight.grad is not None


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((3, 100.0), "n is 3"),
        ((8.5, 100.0), "n is 8.5"),
        ((8, -1.0), "box_size is -1.0"),
        ((8, float("nan")), "box_size is nan"),
        ((8, 100.0, "cic"), "allowed are none, NGP, CIC, TSC, PCS"),
    ],
)
def test_impossible_grids_are_refused(arguments, said):
    with pytest.raises(ValueError, match=said):
        Grid(*arguments)
