"""A universe in a box: 2LPT start, BullFrog drift-kick-drift steps of a particle mesh, density on the final grid.

x = q - D grad phi1 + E grad phi2 up to a = 0.1, then steps uniform in the growth factor D, with v = dx/dD.
A box depends on its settings, theta and seed alone: not on threads, workers, or what ran before.
"""

from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import pairwise
from math import log

import numpy as np
import torch
from scipy.interpolate import CubicSpline

from nbkit.mesh.grid import Grid
from nbkit.universe.cosmology import check_theta, linear_power
from nbkit.universe.particles import counts, kick, paint

# Of all in here, and in `particles` and `cosmology`, that decides a density field: raise it when one of them changes.
# Suites on disk and spectra that come with the kit are of one version, and refused by another.
VERSION = 1
A_START = 0.1
# Softening of the force, exp(-c2 x^2 - c4 x^4) with x = k / k_Nyq of the particles. Beyond x = 1 the mesh holds only
# images of the particle lattice, and unsoftened they raise P(k) by 7 %; with these the presets' 64^3 particles have
# the P(k) of 128^3 particles to about 1 % up to k = 0.35 h/Mpc.
SOFTENING = (0.3, 0.15)


@dataclass(frozen=True)
class Simulator:
    """theta, seed -> density contrast today; the settings of a suite's universes.

    Parameters
    ----------
    grid : final mesh, box and mass-assignment scheme of the density.
    particles : particles along a side.
    force_factor : B, the force mesh has B x particles cells along a side.
    steps : BullFrog steps from a = 0.1 to today; 0 is 2LPT alone, straight to today.
    """

    grid: Grid
    particles: int
    force_factor: int = 2
    steps: int = 6

    def __post_init__(self):
        if self.grid.mas == "none":
            raise ValueError('grid.mas is "none"; a simulated density needs NGP, CIC, TSC or PCS.')
        for name, low, high in (("particles", 4, 1024), ("force_factor", 1, 8), ("steps", 0, 1000)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or not low <= value <= high:
                raise ValueError(f"{name} is {value!r}; give a whole number from {low} to {high}.")
            object.__setattr__(self, name, int(value))

    def __call__(self, theta, seed):
        """Density contrast today, (n, n, n) float32."""
        return paint(self.phase_space(theta, seed)[0], self.grid)

    @torch.no_grad()
    def phase_space(self, theta, seed):
        """Positions [Mpc/h], inside the box, and peculiar velocities [km/s] today, both (particles^3, 3) float32."""
        theta = check_theta(theta)
        G = Growth(theta[0])
        D = np.linspace(G.D(A_START), 1.0, self.steps + 1) if self.steps else np.ones(1)
        lattice = Grid(self.particles, self.grid.box_size)
        x, v = lagrangian(linear_modes(theta, seed, lattice), lattice, D[0], G.E(D[0]), G.dE_dD(D[0]))
        mesh = Grid(self.particles * self.force_factor, self.grid.box_size)
        half = (1 - D[0]) / (2 * max(self.steps, 1))
        x.add_(v, alpha=half)
        for D0, D1 in pairwise(D):
            alpha, beta = bullfrog(G, D0, D1)
            # The second half of this drift and the first half of the next are one.
            drift = half if D1 == 1.0 else 2 * half
            kick(x, v, force(x, mesh, self.particles), alpha, beta, drift, mesh.box_size)
        # A coordinate just below 0 rounds to the far edge, which is the near one.
        x.remainder_(mesh.box_size).masked_fill_(x == mesh.box_size, 0)
        return x, v.mul_(100 * float(G.rate(1.0)))  # dx/dt = H_0 f dx/dD today


class Growth:
    """First and second order growth of a flat universe, as functions of a or of D (normalised to D = 1 today).

    D'' + (2 + H'/H) D' = 3/2 Omega_m(a) D  and  E'' + (2 + H'/H) E' = 3/2 Omega_m(a) (E - D^2), primes d/d ln a;
    at early times D -> a and E -> -3/7 D^2, up to the normalisation.
    """

    def __init__(self, Omega_m):
        # Every flat universe lies on one curve in s = a (Omega_L / Omega_m)^(1/3), which starts as D = s.
        self.scale = ((1 - Omega_m) / Omega_m) ** (1 / 3)
        self.D_today = float(np.exp(_curve()["D"](log(self.scale))))

    def D(self, a):
        """Linear growth factor at scale factor a."""
        return np.exp(_curve()["D"](np.log(np.asarray(a) * self.scale))) / self.D_today

    def rate(self, a):
        """f = d ln D / d ln a."""
        return _curve()["D"](np.log(np.asarray(a) * self.scale), 1)

    def E(self, D):
        """Second order growth when the first is D."""
        D = np.asarray(D) * self.D_today
        return _curve()["E"](np.log(D)) * (D / self.D_today) ** 2

    def dE_dD(self, D):
        """Derivative of E."""
        D = np.asarray(D) * self.D_today
        return _curve()["dE_dD"](np.log(D)) * D / self.D_today


@lru_cache(maxsize=1)
def _curve():
    """Splines of ln D(ln s), E/D^2(ln D), (dE/dD)/D (ln D), where Omega_m(a) = 1 / (1 + s^3)."""
    from scipy.integrate import solve_ivp  # slow to import

    ln_s = np.linspace(log(1e-4), log(6.0), 800)

    def slope(x, y):
        D, dD, E, dE = y
        Omega_a = 1 / (1 + np.exp(3 * x))
        friction = 2 - 1.5 * Omega_a
        return dD, 1.5 * Omega_a * D - friction * dD, dE, 1.5 * Omega_a * (E - D**2) - friction * dE

    s = np.exp(ln_s[0])
    start = (s, s, -3 / 7 * s**2, -6 / 7 * s**2)
    solution = solve_ivp(slope, ln_s[[0, -1]], start, method="DOP853", t_eval=ln_s, rtol=1e-11, atol=1e-20)
    D, dD, E, dE = solution.y
    ln_D = np.log(D)
    curves = {"D": (ln_s, ln_D), "E": (ln_D, E / D**2), "dE_dD": (ln_D, dE / dD / D)}
    return {name: CubicSpline(*curve) for name, curve in curves.items()}


def bullfrog(G, D0, D1):
    """alpha and beta of v1 = alpha v0 + beta A(x at the middle), from the first two orders of growth at both ends."""
    middle, half = (D0 + D1) / 2, (D1 - D0) / 2
    b = (G.E(D0) + G.dE_dD(D0) * half) / middle - middle
    alpha = (G.dE_dD(D1) - b) / (G.dE_dD(D0) - b)
    return float(alpha), float((1 - alpha) / middle)


def white_noise(n, seed):
    """Modes (n, n, n//2+1), complex64, of a real white field with <|w|^2> = 1; the mean and Nyquist modes are 0.

    Modes are drawn in shells of max(|m_x|, |m_y|, |m_z|): a larger n keeps those of a smaller one and adds to them.
    """
    if isinstance(seed, bool) or not isinstance(seed, (int, np.integer)) or seed < 0:
        raise ValueError(f"seed is {seed!r}; give a whole number, 0 or more.")
    own, mirrored, original = _drawing_order(n)
    draws = np.random.default_rng(seed).standard_normal((len(own), 2), dtype=np.float32)
    modes = np.zeros((n, n, n // 2 + 1), dtype=np.complex64)
    flat = modes.reshape(-1)
    flat[own] = draws.view(np.complex64)[:, 0] * np.float32(0.5**0.5)
    flat[mirrored] = flat[original].conj()
    return torch.from_numpy(modes)


@lru_cache(maxsize=4)
def _drawing_order(n):
    """Where, in the flat half-complex grid: independent modes in drawing order, mirrored modes, their originals."""
    M = (n - 1) // 2
    m_x = np.arange(-M, M + 1)
    m = np.stack(np.meshgrid(m_x, m_x, m_x[M:], indexing="ij")).reshape(3, -1)
    m = m[:, (m[2] * n + m[1]) * n + m[0] > 0]  # one of m and -m
    m = m[:, np.lexsort((*m[::-1], abs(m).max(0)))]
    place = partial(np.ravel_multi_index, dims=(n, n, n // 2 + 1), mode="wrap")
    own, plane = place(m), m[2] == 0
    return own, place(-m[:, plane]), own[plane]


def linear_modes(theta, seed, grid):
    """Modes of the linear density contrast today, (n, n, n//2+1), on a lattice of grid.n^3 points."""
    P = linear_power(theta)(grid.shells(dtype=torch.float64).k.numpy())
    amplitude = torch.from_numpy(np.sqrt(P / grid.box_size**3) * grid.n**3).float()
    return white_noise(grid.n, seed).mul_(amplitude[grid.shells().index])


def lagrangian(delta_k, grid, D, E, dE_dD):
    """2LPT positions and v = dx/dD, (n^3, 3), of a lattice of particles with linear modes delta_k.

    x = q - D grad phi1 + E grad phi2, lap phi1 = delta, lap phi2 = sum_{i>j} (phi1,ii phi1,jj - phi1,ij^2).
    """
    phi1 = delta_k * inverse_laplacian(grid)
    k = odd_wavevector(grid)

    def second(i, j):
        return backward(phi1 * (-k[i] * k[j]), grid)

    xx, yy, zz = (second(i, i) for i in range(3))
    source = xx * (yy + zz) + yy * zz
    for i, j in ((0, 1), (0, 2), (1, 2)):
        source -= second(i, j).square_()
    phi2 = forward(source).mul_(inverse_laplacian(grid))
    q = torch.arange(grid.n, dtype=torch.float32) * grid.cell_size
    x = torch.stack(torch.meshgrid(q, q, q, indexing="ij"), -1).reshape(-1, 3)
    v = torch.empty_like(x)
    for axis in range(3):
        x[:, axis] += gradient(torch.sub(phi2 * float(E), phi1, alpha=float(D)), grid, axis).flatten()
        v[:, axis] = gradient(torch.sub(phi2 * float(dE_dD), phi1), grid, axis).flatten()
    return x, v


def force(positions, mesh, particles):
    """A = -grad(inverse laplacian of delta) on a mesh, three fields (m, m, m), from particles painted by CIC."""
    delta_k = forward(counts(positions, mesh.n, mesh.n / mesh.box_size, 2))
    delta_k.mul_(green_function(mesh, particles))
    return [gradient(delta_k, mesh, axis) for axis in range(3)]


@lru_cache(maxsize=4)
def green_function(mesh, particles):
    """1/k^2, softened, without the CIC of painting and reading, over the mean count of a cell: (m, m, m//2+1)."""
    k = mesh.shells(dtype=torch.float64).k
    x2 = (k / Grid(particles, mesh.box_size).k_nyq) ** 2
    soft = torch.exp(-SOFTENING[0] * x2 - SOFTENING[1] * x2**2)[mesh.shells().index]
    window = Grid(mesh.n, mesh.box_size, "CIC").window(dtype=torch.float64)
    green = (-inverse_laplacian(mesh) * soft / window**2 * (mesh.n / particles) ** 3).float()
    return green.permute(1, 2, 0).contiguous().permute(2, 0, 1)  # in memory as `forward` leaves its modes


@lru_cache(maxsize=8)
def inverse_laplacian(grid):
    """-1/k^2, 0 for the mean: (n, n, n//2+1)."""
    shells = grid.shells(dtype=torch.float64)
    return (-1 / torch.where(shells.k > 0, shells.k, torch.inf) ** 2).float()[shells.index]


@lru_cache(maxsize=8)
def odd_wavevector(grid):
    """The wavevector with 0 at Nyquist, where an odd function of k has no real counterpart."""
    return [torch.where(k.abs() > grid.k_nyq * (1 - 1e-6), 0, k) for k in grid.wavevector()]


def gradient(modes, grid, axis):
    """Derivative along one axis of the field with these modes: (n, n, n)."""
    return backward(modes * (1j * odd_wavevector(grid)[axis]), grid)


def forward(field):
    """rfftn of one real field, in two parts: whole 3D transforms change their last bits with the number of threads."""
    return torch.fft.fft(torch.fft.rfftn(field, dim=(1, 2)), dim=0)


def backward(modes, grid):
    """The field (n, n, n) of these modes."""
    return torch.fft.irfftn(modes, s=grid.shape)
