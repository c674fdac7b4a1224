"""Power spectra against Pylians, closed forms and autograd; summaries against their definitions."""

import numpy as np
import Pk_library
import pytest
import torch

from nbkit import ClassicalMark, Grid, marked_field, spectra
from nbkit.mesh.grid import to_fourier
from nbkit.mesh.spectra import (
    _gradient,
    _gradient_compiled,
    _sums,
    _sums_compiled,
    correlation,
    marked_spectra,
    marked_summary,
    unmarked_summary,
)


@pytest.mark.parametrize("n", [32, 64])
@pytest.mark.parametrize("mas", ["CIC", "PCS"])
def test_agrees_with_pylians(n, mas, lognormal, capfd):
    delta, grid = lognormal(n, 250.0 * n / 32, mas, dtype=torch.float32)
    other = (1 + delta) ** 2 - ((1 + delta) ** 2).mean()
    ours = spectra(delta, other, grid=grid)
    theirs = Pk_library.XPk([delta.numpy(), other.numpy()], grid.box_size, axis=0, MAS=[mas, mas], threads=1)
    auto = Pk_library.Pk(delta.numpy(), grid.box_size, axis=0, MAS=mas, threads=1, verbose=False)
    b = len(ours.k)
    assert b == n // 2 - 1  # every bin below k_Nyq
    np.testing.assert_allclose(ours.k, theirs.k3D[:b], rtol=1e-6)
    np.testing.assert_array_equal(ours.modes, theirs.Nmodes3D[:b])
    np.testing.assert_allclose(ours.P_dd, theirs.Pk[:b, 0, 0], rtol=1e-5)
    np.testing.assert_allclose(ours.P_dd, auto.Pk[:b, 0], rtol=1e-5)
    np.testing.assert_allclose(ours.P_mm, theirs.Pk[:b, 0, 1], rtol=1e-5)
    np.testing.assert_allclose(ours.P_dm, theirs.XPk[:b, 0, 0], rtol=1e-5)


@pytest.mark.parametrize("n", [9, 16])
def test_mode_counts(n):
    """Bins hold every mode of the full grid once for each +-k pair."""
    m = np.fft.fftfreq(n, 1 / n)
    shell = np.sqrt(m[:, None, None] ** 2 + m[None, :, None] ** 2 + m[None, None, :] ** 2).astype(int)
    bins = Grid(n, 10.0).bins()
    np.testing.assert_array_equal(bins.modes, np.bincount(shell.ravel())[1 : len(bins.k) + 1] / 2)


def test_kmax_keeps_the_bins_of_the_paper():
    assert len(Grid(128, 1000.0, "PCS").bins(0.3).k) == 47


def test_white_noise_is_flat():
    """<P> = V / N^3 (N cells a side), with the scatter sqrt(1 / modes) that independent modes have."""
    grid = Grid(32, 300.0)
    result = spectra(torch.randn(50, 32, 32, 32, dtype=torch.float64), grid=grid)
    ratio = result.P_dd / (grid.box_size**3 / grid.n**3)
    error = (ratio.mean(0) - 1) * (50 * result.modes).sqrt()
    assert error.abs().max() < 4
    assert 0.8 < error.std() < 1.25 or len(error) < 30
    scatter = ratio.var(0) * result.modes
    assert 0.8 < scatter.mean() < 1.2


@pytest.mark.parametrize("n", [9, 16])
def test_parseval(n):
    """The variance of the field is the sum of P over all modes; band-limit it so that the bins hold them all."""
    grid = Grid(n, 100.0)
    modes = to_fourier(torch.randn(n, n, n, dtype=torch.float64), grid)
    shells = grid.shells(dtype=torch.float64)
    inside = (shells.k < grid.bins().k[-1].double() - grid.k_f)[shells.index]
    field = torch.fft.irfftn(modes * inside, s=grid.shape)
    result = spectra(field - field.mean(), grid=grid)
    variance = (2 * result.modes * result.P_dd).sum() / grid.box_size**3
    torch.testing.assert_close(variance, field.var(correction=0), rtol=1e-12, atol=0)


def test_one_plane_wave():
    """A cos(k x) puts A^2 V / 4 into each of its two modes and nothing elsewhere."""
    grid = Grid(16, 100.0)
    x = torch.arange(16, dtype=torch.float64) * 2 * torch.pi / 16
    field = (0.3 * torch.cos(5 * x))[:, None, None].expand(16, 16, 16)
    result = spectra(field, grid=grid)
    expected = torch.zeros_like(result.P_dd)
    expected[4] = 0.3**2 / 4 * grid.box_size**3 / result.modes[4]
    torch.testing.assert_close(result.P_dd, expected, rtol=1e-12, atol=1e-10)


@pytest.mark.parametrize("n", [6, 7])
def test_gradcheck(n):
    grid = Grid(n, 20.0, "CIC")
    fields = [torch.randn(2, n, n, n, dtype=torch.float64, requires_grad=True) for _ in range(2)]
    assert torch.autograd.gradcheck(lambda a, b: spectra(a, b, grid=grid)[1:4], fields)
    assert torch.autograd.gradcheck(lambda a: spectra(a, grid=grid).P_dd, fields[:1])


def test_compiled_and_plain_paths_agree():
    """The plain path is the one GPUs take."""
    grid = Grid(16, 100.0, "PCS")
    a, b = to_fourier(torch.randn(2, 3, 16, 16, 16, dtype=torch.float64), grid).flatten(2)
    bins = grid.bins(dtype=torch.float64)
    torch.testing.assert_close(_sums(a, b, bins), _sums_compiled(a, b, bins), rtol=1e-12, atol=0)
    g_auto, g_cross = torch.randn(2, 3, len(bins.k), dtype=torch.float64)
    plain, compiled = (f(a, b, g_auto, g_cross, bins) for f in (_gradient, _gradient_compiled))
    torch.testing.assert_close(plain, compiled, rtol=1e-12, atol=1e-15)


def test_float32_is_close_to_float64(lognormal):
    delta, grid = lognormal(64, mas="PCS")
    other = (1 + delta) ** -1
    double = spectra(delta, other - other.mean(), grid=grid)
    single = spectra(delta.float(), (other - other.mean()).float(), grid=grid)
    for exact, rounded in zip(double[1:4], single[1:4], strict=True):
        np.testing.assert_allclose(rounded, exact, rtol=1e-4)


def test_batch_axes_are_free(lognormal):
    delta, grid = lognormal(16, batch=(2, 3))
    together = spectra(delta, delta**2, grid=grid)
    assert together.P_mm.shape == (2, 3, len(together.k))
    torch.testing.assert_close(together.P_dm[1, 2], spectra(delta[1, 2], delta[1, 2] ** 2, grid=grid).P_dm)


def test_runs_on_the_meta_device():
    """No tensor is left on the CPU: mixing devices would raise."""
    delta = torch.zeros(2, 8, 8, 8, device="meta", requires_grad=True)
    result = spectra(delta, delta * 2, grid=Grid(8, 10.0, "CIC"))
    result.P_mm.sum().backward()
    assert delta.grad.shape == delta.shape


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda g, d: spectra(d, grid=g, kmax=2.0), "kmax is 2 h/Mpc; this grid .* k_Nyq = 0.2513"),
        (lambda g, d: spectra(d, grid=g, kmax=0.01), "below the first bin"),
        (lambda g, d: spectra(d[..., :7], grid=g), r"delta has shape \(8, 8, 7\); this grid needs 8 x 8 x 8"),
        (lambda g, d: spectra(d, d.expand(2, 8, 8, 8), grid=g), "make them equal"),
        (lambda g, d: spectra(d.where(d < 2, torch.nan), grid=g), r"delta has \d+ of 512 values that are not finite"),
        (lambda g, d: spectra(d, d.where(d < 2, torch.inf), grid=g), r"other has \d+ of 512 values"),
        (lambda g, d: spectra(d.numpy(), grid=g), "delta is a ndarray; give a torch tensor"),
        (lambda g, d: spectra(d.long(), grid=g), "delta is a torch.int64 tensor"),
    ],
)
def test_bad_input_gets_one_sentence(call, said):
    with pytest.raises((ValueError, TypeError), match=said):
        call(Grid(8, 100.0), torch.randn(8, 8, 8) + torch.eye(8) * 3)


def unit_mark(delta, grid):
    return torch.ones_like(delta)


def test_definitions():
    P_dd, P_dm, P_mm = np.array([[100.0, 1e4]]), np.array([[-5.0, 2e4]]), np.array([[1.0, 1e5]])
    S_delta = unmarked_summary(torch.from_numpy(P_dd))
    S_M = marked_summary(*map(torch.from_numpy, (P_dd, P_dm, P_mm)))
    np.testing.assert_allclose(S_delta, [[2.0, 4.0]])
    np.testing.assert_allclose(S_M, [[-2.0, 1.0, -0.5, 2e4 / np.sqrt(1e9)]])


def test_a_unit_mark_says_nothing(lognormal):
    delta, grid = lognormal(16, mas="CIC", batch=(3,))
    power = marked_spectra(unit_mark, delta, grid=grid)
    b = len(power.k)
    expected = torch.cat([torch.zeros(3, b), torch.ones(3, b)], -1).double()
    torch.testing.assert_close(marked_summary(*power[1:4]), expected, atol=1e-10, rtol=0)


def test_marked_spectra_are_those_of_the_marked_field(lognormal):
    delta, grid = lognormal(16, mas="PCS", batch=(2,))
    mark = ClassicalMark(2.0, 0.3)
    ours = marked_spectra(mark, delta, grid=grid, kmax=0.08)
    by_hand = spectra(delta, marked_field(mark(delta, grid), delta), grid=grid, kmax=0.08)
    for a, b in zip(ours, by_hand, strict=True):
        torch.testing.assert_close(a, b)


def test_correlation_is_bounded_and_survives_large_spectra(lognormal):
    delta, grid = lognormal(16, dtype=torch.float32)
    power = spectra(delta, 1e12 * delta**2, grid=grid)
    r = correlation(*power[1:4])
    assert torch.isfinite(r).all()
    assert (r.abs() <= 1 + 1e-5).all()


@pytest.mark.parametrize("bad", [0.0, -3.0, torch.nan, torch.inf])
def test_spectra_without_a_logarithm_are_refused(bad):
    good, wrong = torch.ones(2, 4), torch.ones(2, 4)
    wrong[1, 2] = bad
    with pytest.raises(ValueError, match=r"P_dd is not a positive number in 1 of 8 bins"):
        unmarked_summary(wrong)
    with pytest.raises(ValueError, match=r"P_mm is not a positive number in 1 of 8 bins"):
        marked_summary(good, good, wrong)


def test_a_mark_that_leaves_no_power_is_refused():
    delta = torch.rand(8, 8, 8, dtype=torch.float64) - 0.5
    power = marked_spectra(lambda delta, grid: torch.zeros_like(delta), delta, grid=Grid(8, 50.0))
    with pytest.raises(ValueError, match="P_mm is not a positive number"):
        marked_summary(*power[1:4])


def test_gradient_reaches_the_mark(lognormal):
    delta, grid = lognormal(8, 100.0)
    power = torch.tensor(0.7, dtype=torch.float64, requires_grad=True)

    def S_M(exponent):
        spectra = marked_spectra(lambda delta, grid: (1 + delta) ** exponent, delta, grid=grid)
        return marked_summary(*spectra[1:4])

    assert torch.autograd.gradcheck(S_M, (power,))
