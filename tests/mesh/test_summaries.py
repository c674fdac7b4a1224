"""Summaries against their definitions, at M = 1, and where they are not defined."""

import numpy as np
import pytest
import torch

from nbkit import ClassicalMark, Grid, marked_field, spectra
from nbkit.mesh.spectra import correlation, marked_spectra, marked_summary, unmarked_summary


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
