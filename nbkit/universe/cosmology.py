"""The parameters theta, where they are sampled, and their linear power spectrum.

theta is always a float64 array of shape (5,) in the order of PARAMETERS. Universes are flat, with a cosmological
constant, massless neutrinos and T_CMB = 2.7255 K, as in Quijote.

The shape of the linear power spectrum comes from a table instead of CAMB. With massless neutrinos T(k), k in 1/Mpc,
depends only on omega_m = Omega_m h^2 and f_b = Omega_b / Omega_m (to 4e-5; a cosmological constant changes the height
only). At fixed x = k s, s near the sound horizon, and over a smooth template it is a gentle function of both, which
Gaussian-process interpolation between 204 nodes follows. `python figures/transfer_table.py` makes the table anew.
"""

from functools import lru_cache
from math import e, pi
from pathlib import Path
from typing import NamedTuple

import numpy as np
from scipy.interpolate import CubicSpline
from scipy.linalg import cho_factor, cho_solve
from threadpoolctl import threadpool_limits

PARAMETERS = ("Omega_m", "Omega_b", "h", "n_s", "sigma_8")
LATEX = (r"\Omega_{\rm m}", r"\Omega_{\rm b}", "h", r"n_{\rm s}", r"\sigma_8")
QUIJOTE_NAMES = ("Om", "Ob2", "h", "ns", "s8")  # of the derivative sets: Om_p, Om_m, ...

FIDUCIAL = np.array([0.3175, 0.049, 0.6711, 0.9624, 0.834])
STEPS = np.array([0.010, 0.002, 0.020, 0.020, 0.015])
PRIOR_BSQ = np.array([[0.1, 0.5], [0.02, 0.08], [0.5, 0.9], [0.8, 1.2], [0.6, 1.0]])
PRIOR_LATIN_HYPERCUBE = np.array([[0.1, 0.5], [0.03, 0.07], [0.5, 0.9], [0.8, 1.2], [0.6, 1.0]])
for _constant in (FIDUCIAL, STEPS, PRIOR_BSQ, PRIOR_LATIN_HYPERCUBE):
    _constant.flags.writeable = False

T_CMB = 2.7255  # [K]
TABLE = Path(__file__).parents[1] / "tables" / "transfer.npz"
# Where the BSQ prior and a hair around it lies: omega_m, omega_b, and their ratio f_b.
OMEGA_M, OMEGA_B, F_B = (0.0249, 0.4055), (0.00498, 0.0650), (0.0395, 0.805)
# Length scales of the interpolation in ln omega_m and f_b, and its noise: chosen by leaving nodes out one by one.
SCALES, NOISE = (1.8, 0.2), 1e-9
X = np.concatenate([np.geomspace(0.04, 4, 60)[:-1], np.linspace(4, 120, 240)[:-1], np.geomspace(120, 400, 40)])


def check_theta(theta):
    """Give theta as a float64 array of shape (5,), if it is a universe that can be simulated."""
    theta = np.asarray(theta, dtype=np.float64)
    if theta.shape != (5,):
        raise ValueError(f"theta has shape {theta.shape}; give the five numbers {', '.join(PARAMETERS)}.")
    limits = ((0.01, 0.99), (1e-4, theta[0]), (0.2, 1.5), (0.2, 2.0), (0.01, 3.0))
    for name, value, (low, high) in zip(PARAMETERS, theta, limits, strict=True):
        if not low <= value <= high:
            raise ValueError(f"{name} is {value:g} in theta = {theta.tolist()}; it must lie in {low:g} ... {high:g}.")
    return theta


def sobol_thetas(count):
    """(count, 5) training cosmologies: a scrambled Sobol sequence over the BSQ prior; fewer are the first of more."""
    from scipy.stats import qmc  # takes longer to import than all the rest

    # Drawn in whole powers of two, the sizes at which the sequence is balanced.
    unit = qmc.Sobol(5, scramble=True, rng=20).random_base2((count - 1).bit_length())[:count]
    return qmc.scale(unit, *PRIOR_BSQ.T)


def latin_hypercube_thetas(count):
    """(count, 5) test cosmologies: a Latin hypercube over Quijote's prior for it; each count is its own hypercube."""
    from scipy.stats import qmc

    return qmc.scale(qmc.LatinHypercube(5, rng=21).random(count), *PRIOR_LATIN_HYPERCUBE.T)


def derivative_thetas():
    """{"Om_p": theta, "Om_m": theta, "Ob2_p": ..., "s8_m": theta}: the fiducial plus and minus one step."""
    step = np.diag(STEPS)
    pairs = zip(QUIJOTE_NAMES, step, strict=True)
    return {f"{name}_{sign}": FIDUCIAL + s * d for name, d in pairs for sign, s in (("p", 1), ("m", -1))}


class Power(NamedTuple):
    """P(k) at z = 0; calling it interpolates the root in ln k."""

    k: np.ndarray  # (p,) [h/Mpc], ascending
    root: np.ndarray  # (p,) [(Mpc/h)^1.5]: P = root^2; smooth also where a baryon-rich transfer function changes sign

    def __call__(self, k):
        """P at k of any shape [h/Mpc] -> [(Mpc/h)^3]; P(0) = 0."""
        k = np.asarray(k, dtype=np.float64)
        if not np.all((k == 0) | (k >= self.k[0]) & (k <= self.k[-1])):
            raise ValueError(
                f"k runs from {k[k != 0].min():.3g} to {k.max():.3g} h/Mpc; "
                f"the power spectrum is known from {self.k[0]:.3g} to {self.k[-1]:.3g} h/Mpc."
            )
        root = CubicSpline(np.log(self.k), self.root)(np.log(np.where(k > 0, k, self.k[0])))
        return np.where(k > 0, root**2, 0.0)


def linear_power(theta):
    """Linear Power at z = 0, k^n_s T^2 with rms sigma_8 in balls of 8 Mpc/h: T of the table, or CAMB (2 s)."""
    from scipy.integrate import trapezoid  # slow to import, as all of scipy.integrate

    Omega_m, Omega_b, h, n_s, sigma_8 = check_theta(theta)
    omegas = Omega_b * h**2, Omega_m * h**2
    k, T = transfer(*omegas) or camb_transfer(*omegas, h)
    k = k / h
    power = Power(k, k ** (n_s / 2) * T)
    ln_k = np.linspace(np.log(k[0]), np.log(k[-1]), 2000)
    x = 8 * np.exp(ln_k)
    ball = 3 * (np.sin(x) - x * np.cos(x)) / x**3
    # At the ends the logarithm may round to beyond the table.
    inside = np.clip(np.exp(ln_k), k[0], k[-1])
    variance = trapezoid(power(inside) * (inside**3) * ball**2, ln_k) / (2 * pi**2)
    return Power(k, power.root * (sigma_8 / np.sqrt(variance)))


def transfer(omega_b, omega_m):
    """k [1/Mpc] and T(k), T(0) = 1, of shape (p,); None where the table does not reach. T may cross zero."""
    f_b = omega_b / omega_m
    given = ((omega_m, OMEGA_M), (omega_b, OMEGA_B), (f_b, F_B))
    if not all(low <= value <= high for value, (low, high) in given):
        return None
    nodes, factor, ratios = _table()
    k = X / sound_scale(omega_b, omega_m)
    weights = cho_solve(factor, _covariance(nodes, np.array([[omega_b, omega_m]]))[:, 0])
    return k, weights @ ratios * template(k, omega_b, omega_m)


def sound_scale(omega_b, omega_m):
    """Sound horizon to a few per cent [Mpc] (Eisenstein & Hu 1998, eq. 26): lines up the acoustic wiggles."""
    return 44.5 * np.log(9.83 / omega_m) / np.sqrt(1 + 10 * omega_b**0.75)


def template(k, omega_b, omega_m):
    """T(k) without wiggles (Eisenstein & Hu 1998, eqs. 26-31), k in 1/Mpc."""
    f_b, s = omega_b / omega_m, sound_scale(omega_b, omega_m)
    alpha = 1 - 0.328 * np.log(431 * omega_m) * f_b + 0.38 * np.log(22.3 * omega_m) * f_b**2
    q = k * (T_CMB / 2.7) ** 2 / (omega_m * (alpha + (1 - alpha) / (1 + (0.43 * k * s) ** 4)))
    bulk = np.log(2 * e + 1.8 * q)
    return bulk / (bulk + (14.2 + 731 / (1 + 62.5 * q)) * q**2)


def camb_parameters(omega_b, omega_m, h, kmax, accuracy=2.0):
    """CAMB's settings for a flat universe with massless neutrinos; kmax [1/Mpc].

    By default CAMB samples the wiggles of baryon-rich universes too coarsely (T is off by 0.3 % at f_b = 0.5, and by
    30 % at f_b = 0.8), and its tolerances leave 0.1 % of noise; hence 40 points per e-fold and twice the accuracy.
    """
    import camb  # takes a second, and a table makes it unnecessary in most runs

    parameters = camb.CAMBparams(WantCls=False)
    parameters.set_cosmology(
        H0=100 * h, ombh2=omega_b, omch2=omega_m - omega_b, mnu=0.0, num_massive_neutrinos=0, TCMB=T_CMB, tau=0.06
    )
    parameters.set_accuracy(AccuracyBoost=accuracy)
    parameters.set_matter_power(redshifts=[0.0], kmax=kmax, k_per_logint=40, silent=True)
    return parameters


@lru_cache(maxsize=32)
def camb_transfer(omega_b, omega_m, h=0.67):
    """As `transfer`, straight from CAMB, on CAMB's own k."""
    import camb

    parameters = camb_parameters(omega_b, omega_m, h, 1.05 * X[-1] / sound_scale(omega_b, omega_m))
    data = camb.get_transfer_functions(parameters).get_matter_transfer_data().transfer_data[:, :, 0].astype(float)
    k, T = data[0] * h, data[camb.model.Transfer_tot - 1]
    return k, T / T[0]


def _covariance(a, b):
    """exp(-r^2 / 2) between points (p, 2), (q, 2) of omega_b, omega_m, r in units of SCALES: (p, q)."""
    at, to = (np.stack([np.log(z[:, 1]), z[:, 0] / z[:, 1]], -1) / SCALES for z in (a, b))
    return np.exp(-0.5 * ((at[:, None] - to[None]) ** 2).sum(-1))


@lru_cache(maxsize=1)
def _table():
    """Nodes (204, 2), Cholesky factor of their covariance, and T over its template there (204, len(X))."""
    with np.load(TABLE) as file:
        nodes, ratios = file["nodes"], file["ratios"].astype(float)
    with threadpool_limits(1):  # with more, LAPACK's last bits change, and with them those of every simulation
        return nodes, cho_factor(_covariance(nodes, nodes) + NOISE * np.eye(len(nodes))), ratios
