"""The filter bank against scipy's harmonics, closed forms and symmetry."""

import numpy as np
import pytest
import torch
from scipy.special import sph_harm_y

from nbkit import Grid
from nbkit.mark.filters import CHANNELS, RadialProfiles, _FilterMaps, _maps, filter_maps, harmonics
from nbkit.mesh.grid import to_fourier

N, BOX = 16, 100.0


def maps(delta, grid, G=lambda k: torch.ones(3, len(k))):
    k = grid.shells(dtype=delta.dtype).k
    return filter_maps(to_fourier(delta, grid), G(k).to(delta.dtype), grid)


def test_harmonics_agree_with_scipy():
    grid = Grid(8, 1.0)
    k_x, k_y, k_z = (k.expand(grid.half_shape).numpy() for k in grid.wavevector(dtype=torch.float64))
    polar, azimuth = np.arctan2(np.hypot(k_x, k_y), k_z), np.arctan2(k_y, k_x)
    ours = harmonics(grid, dtype=torch.float64)
    for (l, m), Y in zip(CHANNELS, ours, strict=True):
        complex_Y = sph_harm_y(l, abs(m), polar, azimuth)
        part = complex_Y.imag if m < 0 else complex_Y.real
        real_Y = part * (np.sqrt(2) * (-1) ** m if m else 1)
        real_Y[0, 0, 0] = real_Y[0, 0, 0] if l == 0 else 0
        np.testing.assert_allclose(Y, real_Y, atol=1e-14)


@pytest.mark.parametrize("wave", [(2, 0, 0), (1, 3, -2), (0, -4, 1)])
@pytest.mark.parametrize("mas", ["none", "PCS"])
def test_plane_wave_in_closed_form(wave, mas):
    """A cos(q x) becomes A G_l Y_lm(q) / W times cos, -sin, -cos for l = 0, 1, 2."""
    grid = Grid(N, BOX, mas)
    x = torch.arange(N, dtype=torch.float64) * 2 * torch.pi / N
    phase = wave[0] * x[:, None, None] + wave[1] * x[:, None] + wave[2] * x
    q = np.array(wave) * grid.k_f
    window = np.prod(np.sinc(np.array(wave) / N)) ** (4 if mas == "PCS" else 0)
    polar, azimuth = np.arctan2(np.hypot(q[0], q[1]), q[2]), np.arctan2(q[1], q[0])
    ours = maps(0.3 * torch.cos(phase), grid, lambda k: torch.stack([1 + k, 2 - k, k**2]))
    norm = np.linalg.norm(q)
    G = (1 + norm, 2 - norm, norm**2)
    for (l, m), f in zip(CHANNELS, ours, strict=True):
        complex_Y = sph_harm_y(l, abs(m), polar, azimuth)
        Y = (complex_Y.imag if m < 0 else complex_Y.real) * (np.sqrt(2) * (-1) ** m if m else 1)
        shape = (torch.cos(phase), -torch.sin(phase), -torch.cos(phase))[l]
        torch.testing.assert_close(f, 0.3 * G[l] * Y / window * shape, atol=1e-13, rtol=0)


def test_gaussian_blob_in_closed_form():
    """With G_l = k^l the maps of a blob are its derivatives: i k -> gradient, -k k -> Hessian."""
    n, box, width = 32, 100.0, 9.0
    grid = Grid(n, box)
    x = (torch.arange(n, dtype=torch.float64) - n / 2) * grid.cell_size
    X, Y, Z = torch.meshgrid(x, x, x, indexing="ij")
    blob = torch.exp(-(X**2 + Y**2 + Z**2) / (2 * width**2))
    ours = maps(blob, grid, lambda k: torch.stack([k**0, k, k**2]))
    c1, c2 = np.sqrt(3 / (4 * np.pi)), np.sqrt(15 / (4 * np.pi))
    expected = {
        (0, 0): blob / np.sqrt(4 * np.pi),
        (1, -1): -c1 * Y / width**2 * blob,
        (1, 0): -c1 * Z / width**2 * blob,
        (1, 1): -c1 * X / width**2 * blob,
        (2, -2): c2 * X * Y / width**4 * blob,
        (2, 0): c2 * (2 * Z**2 - X**2 - Y**2) / (2 * np.sqrt(3)) / width**4 * blob,
        (2, 2): c2 * (X**2 - Y**2) / 2 / width**4 * blob,
    }
    for channel, answer in expected.items():
        f = ours[CHANNELS.index(channel)]
        # The blob is not quite periodic: exp(-L^2 / 8 width^2) = 2e-7 at the faces.
        torch.testing.assert_close(f, answer, atol=5e-6 * float(answer.abs().max() + 0.01), rtol=0)


@pytest.mark.parametrize("n", [15, 16])
def test_parity(n):
    delta = torch.randn(n, n, n, dtype=torch.float64)
    mirror = delta.flip(0, 1, 2).roll((1, 1, 1), (0, 1, 2))  # x -> -x
    grid = Grid(n, BOX, "CIC")
    for (l, _), f, f_mirror in zip(CHANNELS, maps(delta, grid), maps(mirror, grid), strict=True):
        back = f_mirror.flip(0, 1, 2).roll((1, 1, 1), (0, 1, 2))
        torch.testing.assert_close(back, (-1) ** l * f, atol=1e-12, rtol=0)


def test_dipole_turns_as_a_vector():
    """Turn the box by 90 degrees about z: the dipole maps turn with it and mix as (x, y) -> (-y, x)."""
    delta = torch.randn(N, N, N, dtype=torch.float64)
    grid = Grid(N, BOX, "PCS")
    f, turned = maps(delta, grid), maps(delta.rot90(1, (0, 1)), grid)
    y, z, x = 1, 2, 3
    torch.testing.assert_close(turned[x], -f[y].rot90(1, (0, 1)), atol=1e-12, rtol=0)
    torch.testing.assert_close(turned[y], f[x].rot90(1, (0, 1)), atol=1e-12, rtol=0)
    torch.testing.assert_close(turned[z], f[z].rot90(1, (0, 1)), atol=1e-12, rtol=0)


@pytest.mark.parametrize("batch", [(), (2, 3)])
@pytest.mark.parametrize("n", [9, 16])
def test_compiled_and_plain_paths_agree(n, batch):
    grid = Grid(n, BOX, "PCS")
    delta_k = to_fourier(torch.randn(*batch, n, n, n, dtype=torch.float64), grid)
    # Profiles reach `_maps` with the taper inside, as `filter_maps` passes them.
    shells = grid.shells(dtype=torch.float64)
    profiles = (torch.randn(3, len(shells.k), dtype=torch.float64) * grid.taper(shells.k)).requires_grad_()
    plain, compiled = _maps(delta_k, profiles, grid), _FilterMaps.apply(delta_k, profiles, grid)
    cotangents = [torch.randn(f.shape, dtype=torch.float64) for f in plain]
    torch.testing.assert_close(plain, compiled, atol=1e-12, rtol=0)
    inside = shells.k < grid.k_nyq
    grads = [torch.autograd.grad(f, profiles, cotangents)[0][:, inside] for f in (plain, compiled)]
    torch.testing.assert_close(*grads, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("n", [4, 5])
def test_gradcheck(n):
    grid = Grid(n, BOX, "CIC")
    delta_k = to_fourier(torch.randn(n, n, n, dtype=torch.float64), grid)
    G = torch.randn(3, len(grid.shells().k), dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda G: filter_maps(delta_k, G, grid), G)


def test_every_map_is_real_and_ends_at_the_taper():
    grid = Grid(N, BOX)
    k = grid.shells(dtype=torch.float64).k
    beyond = (grid.shells().index.long() >= torch.searchsorted(k, grid.k_nyq)).expand(grid.half_shape)
    for f in maps(torch.randn(N, N, N, dtype=torch.float64), grid):
        assert f.dtype == torch.float64
        assert to_fourier(f, grid)[beyond].abs().max() < 1e-12


@pytest.mark.parametrize("radial", ["fourier", "gaussians"])
def test_profiles_start_as_band_passes(radial):
    x = torch.linspace(0, 1, 101)
    G = RadialProfiles(radial=radial)(x)
    for l, (r0, sigma) in enumerate(zip((0.15, 0.25, 0.35), (0.10, 0.12, 0.15), strict=True)):
        band = torch.exp(-(((x - r0) / sigma) ** 2) / 2)
        if l == 0:
            band = band + (1 - band[0]) * torch.exp(-((x / 0.1) ** 2) / 2)
        torch.testing.assert_close(G[l], band, atol=0.03 if radial == "gaussians" else 1e-6, rtol=0)


@pytest.mark.parametrize("radial", ["fourier", "gaussians"])
def test_monopole_keeps_unit_gain_whatever_it_learns(radial):
    profiles = RadialProfiles(radial=radial)
    for parameter in profiles.parameters():
        nn_noise = torch.randn_like(parameter)
        parameter.data += 3 * nn_noise
    G = profiles(torch.linspace(0, 1, 50))
    torch.testing.assert_close(G[0, 0], torch.tensor(1.0))
    assert torch.isfinite(G).all()


def test_shared_band_pass_is_the_papers_text():
    profiles = RadialProfiles(shared=True)
    assert len(profiles.r0) == 1
    torch.testing.assert_close(profiles.r0, torch.tensor([0.30]))
    G = profiles(torch.linspace(0, 1, 11))
    torch.testing.assert_close(G[1], G[2])


def test_centres_stay_within_bounds():
    profiles = RadialProfiles()
    profiles.r0_logit.data[:] = torch.tensor([-50.0, 0.0, 50.0])
    assert profiles.r0.min() >= 0.05
    assert profiles.r0.max() <= 0.60


@pytest.mark.parametrize("radial", ["fourier", "gaussians"])
@pytest.mark.parametrize("shared", [True, False])
def test_band_passes_start_where_they_are_told(radial, shared):
    x = torch.linspace(0, 1, 101)
    G = RadialProfiles(2, radial, shared, r0=0.4)(x)
    for l in (1, 2):
        assert abs(float(x[G[l].argmax()]) - 0.4) <= 0.021
    if radial == "fourier":
        torch.testing.assert_close(RadialProfiles(2, radial, shared, r0=0.4).r0, torch.full((1 if shared else 3,), 0.4))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((3,), "l_max is 3"),
        ((2, "spline"), "radial is 'spline'"),
        *(((2, "fourier", False, r0), f"r0 is {r0!r}.* between 0.05 and 0.6") for r0 in (0.05, 0.6, -1, "0.3")),
        ((2, "fourier", True, float("nan")), "r0 is nan"),
    ],
)
def test_impossible_profiles_are_refused(arguments, said):
    with pytest.raises(ValueError, match=said):
        RadialProfiles(*arguments)
