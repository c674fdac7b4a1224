"""The parameters theta, where they are sampled, their linear power spectrum and their growth.

theta is always a float64 array of shape (5,) in the order of PARAMETERS. Universes are flat, with a cosmological
constant, massless neutrinos and T_CMB = 2.7255 K, as in Quijote.
`python -m nbkit.universe.transfer` makes the shipped table behind linear_power anew.
"""

import hashlib
import uuid
from functools import lru_cache
from math import log, log2, pi
from typing import NamedTuple
from zipfile import BadZipFile

import numpy as np
from scipy.integrate import solve_ivp, trapezoid
from scipy.interpolate import CubicSpline
from scipy.stats import qmc

from nbkit import disk
from nbkit.universe.transfer import camb_parameters, camb_transfer, transfer

PARAMETERS = ("Omega_m", "Omega_b", "h", "n_s", "sigma_8")
LATEX = (r"\Omega_{\rm m}", r"\Omega_{\rm b}", "h", r"n_{\rm s}", r"\sigma_8")
QUIJOTE_NAMES = ("Om", "Ob2", "h", "ns", "s8")  # of the derivative sets: Om_p, Om_m, ...

FIDUCIAL = np.array([0.3175, 0.049, 0.6711, 0.9624, 0.834])
STEPS = np.array([0.010, 0.002, 0.020, 0.020, 0.015])
PRIOR_BSQ = np.array([[0.1, 0.5], [0.02, 0.08], [0.5, 0.9], [0.8, 1.2], [0.6, 1.0]])
PRIOR_LATIN_HYPERCUBE = np.array([[0.1, 0.5], [0.03, 0.07], [0.5, 0.9], [0.8, 1.2], [0.6, 1.0]])
for _constant in (FIDUCIAL, STEPS, PRIOR_BSQ, PRIOR_LATIN_HYPERCUBE):
    _constant.flags.writeable = False


def checked_theta(theta):
    """theta as a float64 array of shape (5,), if it is a universe that can be simulated."""
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
    # Drawn in whole powers of two, the sizes at which the sequence is balanced.
    unit = qmc.Sobol(5, scramble=True, rng=20).random_base2(max(int(np.ceil(log2(max(count, 1)))), 0))[:count]
    return _scaled(unit, PRIOR_BSQ)


def latin_hypercube_thetas(count):
    """(count, 5) test cosmologies: a Latin hypercube over Quijote's prior for it; each count is its own hypercube."""
    return _scaled(qmc.LatinHypercube(5, rng=21).random(count), PRIOR_LATIN_HYPERCUBE)


def derivative_thetas():
    """{"Om_p": theta, "Om_m": theta, "Ob2_p": ..., "s8_m": theta}: the fiducial plus and minus one step."""
    step = np.diag(STEPS)
    pairs = zip(QUIJOTE_NAMES, step, strict=True)
    return {f"{name}_{sign}": FIDUCIAL + s * d for name, d in pairs for sign, s in (("p", 1), ("m", -1))}


def _scaled(unit, prior):
    return prior[:, 0] + unit * (prior[:, 1] - prior[:, 0])


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
    """Linear Power at z = 0 with rms sigma_8: from the shipped table; beyond its reach from CAMB, kept on disk."""
    theta = checked_theta(theta)
    Omega_m, Omega_b, h, n_s, sigma_8 = theta
    shape = transfer(Omega_b * h**2, Omega_m * h**2)
    k, T = _camb_on_disk(theta) if shape is None else shape
    return _normalised(k / h, T, n_s, sigma_8)


def camb_power(theta):
    """As linear_power, straight from CAMB (2 s)."""
    Omega_m, Omega_b, h, n_s, sigma_8 = checked_theta(theta)
    k, T = camb_transfer(Omega_b * h**2, Omega_m * h**2, h)
    return _normalised(k / h, T, n_s, sigma_8)


def nonlinear_power(theta):
    """Power of HMcode-2020 at z = 0, from CAMB (1 s)."""
    import camb

    Omega_m, Omega_b, h, n_s, sigma_8 = checked_theta(theta)
    parameters = camb_parameters(Omega_b * h**2, Omega_m * h**2, h, kmax=10.0, accuracy=1.0)
    parameters.InitPower.set_params(As=2e-9, ns=n_s)
    amplitude = 2e-9 * (sigma_8 / camb.get_results(parameters).get_sigma8_0()) ** 2
    parameters.InitPower.set_params(As=amplitude, ns=n_s)
    parameters.NonLinear = camb.model.NonLinear_both
    parameters.NonLinearModel.set_params(halofit_version="mead2020")
    k, _, P = camb.get_results(parameters).get_matter_power_spectrum(minkh=1e-3, maxkh=5.0, npoints=600)
    return Power(k, np.sqrt(P[0]))


def _normalised(k, T, n_s, sigma_8):
    """Power proportional to k^n_s T^2 with rms sigma_8 in balls of 8 Mpc/h; k in h/Mpc."""
    power = Power(k, k ** (n_s / 2) * T)
    ln_k = np.linspace(np.log(k[0]), np.log(k[-1]), 2000)
    x = 8 * np.exp(ln_k)
    ball = 3 * (np.sin(x) - x * np.cos(x)) / x**3
    # At the ends the logarithm may round to beyond the table.
    inside = np.clip(np.exp(ln_k), k[0], k[-1])
    variance = trapezoid(power(inside) * (inside**3) * ball**2, ln_k) / (2 * pi**2)
    return Power(k, power.root * (sigma_8 / np.sqrt(variance)))


def _camb_on_disk(theta):
    """k [1/Mpc] and T of one cosmology; CAMB is asked once."""
    Omega_m, Omega_b, h = theta[:3]
    folder = disk.runs() / "linear_power"
    path = folder / f"{hashlib.sha256(theta[:3].tobytes()).hexdigest()[:24]}.npz"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        k, T = camb_transfer(Omega_b * h**2, Omega_m * h**2, h)
        # Several processes may want the same cosmology: each writes its own file, renaming is atomic.
        own = folder / f".{uuid.uuid4().hex}.npz"
        np.savez(own, theta=theta[:3], k=k, T=T)
        own.replace(path)
    try:
        with np.load(path) as file:
            if not np.array_equal(file["theta"], theta[:3]):
                raise ValueError("it holds another theta")
            return file["k"], file["T"]
    except (ValueError, KeyError, OSError, BadZipFile) as reason:
        raise ValueError(f"{path} is not a transfer function that nbkit wrote ({reason}); delete it.") from reason


class Growth(NamedTuple):
    """First and second order growth of a flat universe, as functions of a or of D (normalised to D = 1 today).

    D'' + (2 + H'/H) D' = 3/2 Omega_m(a) D  and  E'' + (2 + H'/H) E' = 3/2 Omega_m(a) (E - D^2), primes d/d ln a;
    at early times D -> a and E -> -3/7 D^2, up to the normalisation.
    """

    scale: float  # s / a with s = a (Omega_L / Omega_m)^(1/3): every flat universe lies on one curve in s
    D_today: float  # its height at a = 1, where the curve starts as D = s

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


def growth(Omega_m):
    """Growth of a flat universe with 0.01 <= Omega_m <= 0.99."""
    if not 0.01 <= Omega_m <= 0.99:
        raise ValueError(f"Omega_m is {Omega_m:g}; it must lie in 0.01 ... 0.99.")
    scale = ((1 - Omega_m) / Omega_m) ** (1 / 3)
    return Growth(scale, float(np.exp(_curve()["D"](log(scale)))))


@lru_cache(maxsize=1)
def _curve():
    """Splines of ln D(ln s), E/D^2(ln D), (dE/dD)/D (ln D), where Omega_m(a) = 1 / (1 + s^3)."""
    ln_s = np.linspace(log(1e-4), log(6.0), 800)

    def slope(x, y):
        D, dD, E, dE = y
        Omega_a = 1 / (1 + np.exp(3 * x))
        friction = 2 - 1.5 * Omega_a
        return dD, 1.5 * Omega_a * D - friction * dD, dE, 1.5 * Omega_a * (E - D**2) - friction * dE

    s = np.exp(ln_s[0])
    start = (s, s, -3 / 7 * s**2, -6 / 7 * s**2)
    solved = solve_ivp(slope, ln_s[[0, -1]], start, method="DOP853", t_eval=ln_s, rtol=1e-11, atol=1e-20)
    D, dD, E, dE = solved.y
    ln_D = np.log(D)
    curves = {"D": (ln_s, ln_D), "E": (ln_D, E / D**2), "dE_dD": (ln_D, dE / dD / D)}
    return {name: CubicSpline(*curve) for name, curve in curves.items()}
