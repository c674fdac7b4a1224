"""The simulator against closed forms, CAMB, HMcode-2020 and its own finer runs."""

from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from fake import camb_power
from simulated_power import mean_power, nonlinear_power

from nbkit import Grid, spectra
from nbkit.universe import particles, simulate
from nbkit.universe.cosmology import FIDUCIAL, derivative_thetas, linear_power
from nbkit.universe.simulate import (
    Growth,
    Simulator,
    bullfrog,
    force,
    green_function,
    lagrangian,
    linear_modes,
    white_noise,
)

DEMO = Simulator(Grid(32, 250.0, "PCS"), particles=32, force_factor=2, steps=6)
MINI = Simulator(Grid(64, 500.0, "PCS"), particles=64, force_factor=2, steps=6)
ACCURATE = Simulator(Grid(64, 500.0, "PCS"), particles=96, force_factor=2, steps=6)
EDS = SimpleNamespace(E=lambda D: -3 / 7 * D**2, dE_dD=lambda D: -6 / 7 * D)


def over(delta, other, grid, kmax):
    """k, modes, P(delta) / P(other) and r(k) up to kmax."""
    s = spectra(delta, other, grid=grid, kmax=kmax)
    return s.k.numpy(), s.modes.numpy(), (s.P_dd / s.P_mm).numpy(), (s.P_dm / (s.P_dd * s.P_mm).sqrt()).numpy()


def plane_waves(grid, A, B, m=2):
    """Modes of A cos(k x) + B cos(k y), k = m k_F, and the lattice positions."""
    q = torch.arange(grid.n, dtype=torch.float32) * grid.cell_size
    x, y, z = torch.meshgrid(q, q, q, indexing="ij")
    k = m * grid.k_f
    delta = A * torch.cos(k * x) + B * torch.cos(k * y)
    return torch.fft.rfftn(delta), k, torch.stack([x, y, z], -1).reshape(-1, 3)


def test_2lpt_of_one_plane_wave_is_exact():
    """delta = A cos(k q) moves particles by -D A/k sin(k q), to all orders until shells cross."""
    grid = Grid(16, 100.0)
    delta_k, k, q = plane_waves(grid, 0.3, 0.0)
    x, v = lagrangian(delta_k, grid, D=0.5, E=-0.1, dE_dD=-0.4)
    moved = torch.zeros_like(q)
    moved[:, 0] = -0.3 / k * torch.sin(k * q[:, 0])
    torch.testing.assert_close(v, moved, rtol=0, atol=2e-5)
    torch.testing.assert_close(x - q, 0.5 * moved, rtol=0, atol=2e-5)


def test_2lpt_of_crossed_plane_waves_has_its_second_order():
    """lap phi2 = A B cos(kx) cos(ky), so E adds E A B / 2k (sin kx cos ky, cos kx sin ky, 0)."""
    grid, A, B = Grid(16, 100.0), 0.3, 0.2
    delta_k, k, q = plane_waves(grid, A, B)
    first = lagrangian(delta_k, grid, 0.5, 0.0, 0.0)[0]
    both = lagrangian(delta_k, grid, 0.5, -0.1, 0.0)[0]
    a, b = k * q[:, 0], k * q[:, 1]
    second = -0.1 * A * B / (2 * k) * torch.stack([a.sin() * b.cos(), a.cos() * b.sin(), 0 * a], -1)
    torch.testing.assert_close(both - first, second, rtol=0, atol=2e-5)


def test_early_density_has_the_linear_power_of_camb():
    """Every linear mode is sqrt(P V) w / cell volume; at D = 0.03 the painted particles carry D^2 times their power."""
    grid, D, seed = Grid(64, 1000.0, "PCS"), 0.03, 5
    lattice = Grid(64, 1000.0)
    delta_k = linear_modes(FIDUCIAL, seed, lattice)
    shells = lattice.shells(dtype=torch.float64)
    P = camb_power(FIDUCIAL)(shells.k.numpy())[shells.index.numpy()]
    expected = np.sqrt(P / lattice.box_size**3) * lattice.n**3 * white_noise(64, seed).numpy()
    np.testing.assert_allclose(delta_k, expected, rtol=5e-4)  # half of the 0.1 % on P
    positions = lagrangian(delta_k, lattice, D, -3 / 7 * D**2, 0)[0]
    painted = spectra(particles.paint(positions, grid), grid=grid, kmax=0.06).P_dd
    linear = spectra(torch.fft.irfftn(delta_k, s=grid.shape), grid=lattice, kmax=0.06).P_dd
    np.testing.assert_allclose(painted / (D**2 * linear), 1, atol=0.004)


def test_large_scales_grow_linearly():
    """After all steps the longest modes still follow linear theory to a few per cent."""
    simulator = Simulator(Grid(64, 2000.0, "PCS"), particles=64, steps=6)
    k, P = (x.numpy() for x in mean_power(simulator, FIDUCIAL, [3]))
    modes, ratio = simulator.grid.bins().modes.numpy(), P / linear_power(FIDUCIAL)(k)
    long = k < 0.03
    assert abs((ratio * modes)[long].sum() / modes[long].sum() - 1) < 0.02


def test_alpha_of_an_einstein_de_sitter_step_from_zero():
    for end in (0.1, 1.0):
        alpha, beta = bullfrog(EDS, 0.0, end)
        assert alpha == pytest.approx(-5 / 7, abs=1e-12)
        assert beta == pytest.approx((1 + 5 / 7) / (end / 2), rel=1e-12)


def test_one_bullfrog_step_is_2lpt_up_to_third_order(monkeypatch):
    """Halving crossed waves leaves an eighth of the difference from 2LPT; a step without second order, a quarter."""
    # Long waves must feel the whole force and images of the lattice none: another softening, on a very fine mesh.
    monkeypatch.setattr(simulate, "SOFTENING", (0.0, 3.0))
    green_function.cache_clear()
    G, grid, mesh = Growth(0.3), Grid(16, 50.0), Grid(128, 50.0)
    D0, D1 = 0.2, 1.0
    # Any alpha with beta = (1 - alpha) / D_m gets first order right.
    rules = {"bullfrog": bullfrog(G, D0, D1), "first order": (0.0, 1 / 0.6)}
    differences = {name: [] for name in rules}
    for size in (0.4, 0.2):
        delta_k = plane_waves(grid, size, 0.7 * size, m=1)[0]
        end = lagrangian(delta_k, grid, D1, G.E(D1), G.dE_dD(D1))[1]
        for name, (alpha, beta) in rules.items():
            x, v = lagrangian(delta_k, grid, D0, G.E(D0), G.dE_dD(D0))
            x = (x + (D1 - D0) / 2 * v).remainder(50.0)
            particles.kick(x, v, force(x, mesh, 16), alpha, beta, 0.0, 50.0)
            differences[name].append((v - end).square().mean().sqrt().item())
    green_function.cache_clear()
    shrinks = {name: large / small for name, (large, small) in differences.items()}
    assert shrinks["bullfrog"] > 6
    assert shrinks["first order"] < 5


def test_momentum_is_conserved():
    """Forces painted and read by the same cloud sum to zero; so do the momenta after a whole run."""
    x, v = MINI.phase_space(FIDUCIAL, 1)
    assert (v.double().mean(0).abs() < 1e-6 * v.double().std(0)).all()
    start = torch.zeros_like(v)
    particles.kick(x, start, force(x, Grid(128, 500.0), 64), 0.0, 1.0, 0.0, 500.0)
    assert (start.double().mean(0).abs() < 1e-6 * start.double().std(0)).all()


def test_velocities_are_those_of_linear_theory():
    """On large scales the velocity divergence is -100 f delta: v in km/s, as snapshots want them."""
    simulator = Simulator(Grid(32, 2000.0, "CIC"), particles=32, steps=6)
    x, v = simulator.phase_space(FIDUCIAL, 2)
    grid, lattice = simulator.grid, Grid(32, 2000.0)
    delta_k = linear_modes(FIDUCIAL, 2, lattice)
    expected = 100 * Growth(FIDUCIAL[0]).rate(1.0) * lagrangian(delta_k, lattice, 1.0, 0.0, 0.0)[1]
    slope = (v * expected).sum() / expected.square().sum()
    assert abs(slope.item() - 1) < 0.05
    assert x.shape == v.shape == (grid.n**3, 3)


@pytest.mark.parametrize(
    ("simulator", "seeds", "tolerance"),
    [(DEMO, 24, 0.05), (MINI, 4, 0.05), (ACCURATE, 2, 0.03)],
    ids=("demo", "mini", "accurate"),
)
def test_power_of_hmcode(simulator, seeds, tolerance):
    """P(k) of HMcode-2020 for 0.05 <= k <= 0.3, in bands of k; cosmic variance divided out by the phases."""
    k, P = (x.numpy() for x in mean_power(simulator, FIDUCIAL, range(seeds)))
    modes, ratio = simulator.grid.bins().modes.numpy(), P / nonlinear_power(FIDUCIAL)(k)
    edges = (0.04, 0.075, 0.125, 0.175, 0.225, 0.275, 0.32)
    bands = [(k > low) & (k < high) for low, high in pairwise(edges)]
    bands = [(ratio * modes)[band].sum() / modes[band].sum() for band in bands]
    np.testing.assert_allclose(bands, 1, atol=tolerance)


class TestConvergence:
    """Mean |P / P_finest - 1| over the modes up to k = 0.3 and mean r, against our own 40-step runs, same phases."""

    grid = Grid(32, 250.0, "PCS")

    def ratio(self, simulator, finest):
        _, modes, ratio, r = over(simulator(FIDUCIAL, 1), finest(FIDUCIAL, 1), self.grid, 0.3)
        return (abs(ratio - 1) * modes).sum() / modes.sum(), (r * modes).sum() / modes.sum()

    def test_in_steps(self):
        finest = Simulator(self.grid, 32, 2, 40)
        errors = [self.ratio(Simulator(self.grid, 32, 2, steps), finest)[0] for steps in (2, 6, 20)]
        assert errors[0] > errors[1] > errors[2]
        assert errors[1] < 0.005
        assert errors[2] < 0.001

    def test_in_force_factor(self):
        finest = Simulator(self.grid, 32, 4, 40)
        errors = [self.ratio(Simulator(self.grid, 32, B, 40), finest)[0] for B in (1, 2, 3)]
        assert errors[0] > errors[1] > errors[2]
        assert errors[1] < 0.025

    def test_in_particles(self):
        finest = Simulator(self.grid, 96, 2, 40)
        coarse, middle = (self.ratio(Simulator(self.grid, p, 2, 40), finest) for p in (32, 64))
        assert coarse[0] < 0.02
        assert middle[0] < 0.005
        assert 0.99 < coarse[1] < middle[1]


def test_noise_is_white_hermitian_and_nested():
    small, odd, large = white_noise(16, 7), white_noise(15, 7), white_noise(24, 7)
    m = np.fft.fftfreq(15, 1 / 15).astype(int)
    common = np.ix_(m, m, range(8))
    assert torch.equal(odd, small[common])
    assert torch.equal(odd, large[common])
    field = torch.fft.irfftn(large, s=(24,) * 3)
    torch.testing.assert_close(torch.fft.rfftn(field), large, rtol=0, atol=1e-5)
    weights = Grid(24, 1.0).mode_weights()
    drawn = 23**3 - 1
    assert abs((large.abs() ** 2 * weights).sum().item() / drawn - 1) < 4 * (2 / drawn) ** 0.5
    assert large[0, 0, 0] == 0
    assert (large[12] == 0).all()
    assert not torch.equal(small, white_noise(16, 8))


def test_long_modes_are_the_same_at_any_resolution():
    coarse, fine = DEMO(FIDUCIAL, 4), Simulator(DEMO.grid, 64, 2, 6)(FIDUCIAL, 4)
    k, _, ratio, r = over(coarse, fine, DEMO.grid, 0.2)
    assert r[k < 0.1].min() > 0.99
    assert abs(ratio[k < 0.1] - 1).max() < 0.05


def test_phases_do_not_depend_on_theta():
    theta = derivative_thetas()["s8_p"]
    ratio = linear_modes(theta, 3, Grid(8, 100.0)) / linear_modes(FIDUCIAL, 3, Grid(8, 100.0))
    drawn = white_noise(8, 3) != 0
    torch.testing.assert_close(ratio[drawn].real, torch.full_like(ratio[drawn].real, theta[4] / FIDUCIAL[4]))
    assert ratio[drawn].imag.abs().max() < 1e-5


def test_same_seed_same_bits_on_any_number_of_threads():
    before, fields = torch.get_num_threads(), []
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        fields.append(DEMO(FIDUCIAL, 9))
    torch.set_num_threads(before)
    assert all(torch.equal(field, fields[0]) for field in fields)
    assert not torch.equal(fields[0], DEMO(FIDUCIAL, 10))


def test_two_lpt_alone():
    delta = Simulator(DEMO.grid, 32, 2, steps=0)(FIDUCIAL, 0)
    assert delta.dtype == torch.float32
    assert abs(delta.mean().item()) < 1e-5
    assert delta.min() >= -1


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: Simulator(Grid(8, 10.0), 8), "needs NGP, CIC, TSC or PCS"),
        (lambda: Simulator(Grid(8, 10.0, "CIC"), 2), "particles is 2; give a whole number from 4 to 1024"),
        (lambda: Simulator(Grid(8, 10.0, "CIC"), 8.5), "particles is 8.5"),
        (lambda: Simulator(Grid(8, 10.0, "CIC"), 8, 0), "force_factor is 0"),
        (lambda: Simulator(Grid(8, 10.0, "CIC"), 8, 2, -1), "steps is -1"),
        (lambda: Simulator(Grid(8, 10.0, "CIC"), 8, 2, True), "steps is True"),
        (lambda: DEMO(FIDUCIAL, None), "seed is None; give a whole number"),
        (lambda: DEMO(FIDUCIAL, -1), "seed is -1"),
        (lambda: DEMO(FIDUCIAL[:4], 0), r"theta has shape \(4,\)"),
        (lambda: DEMO(FIDUCIAL * np.nan, 0), "Omega_m is nan"),
        (lambda: Simulator(Grid(64, 10.0, "CIC"), 64)(FIDUCIAL, 0), "k runs from .* the power spectrum is known"),
    ],
)
def test_bad_input_gets_one_sentence(call, said):
    with pytest.raises(ValueError, match=said):
        call()
