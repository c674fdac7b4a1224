"""The shape of the linear power spectrum in any flat universe of the prior, from a table instead of CAMB.

With massless neutrinos the shape of T(k), k in 1/Mpc, depends only on omega_m = Omega_m h^2 and f_b = Omega_b / Omega_m
(to 4e-5; a cosmological constant changes the height only). At fixed x = k s, s near the sound horizon, and over a
smooth template it is a gentle function of both, which Gaussian-process interpolation between 204 nodes follows.

`python -m nbkit.universe.transfer` makes the table anew: 204 runs of CAMB at twice its default accuracy, 8 minutes on a
core; it keeps what it has under runs() and goes on from there when run again.
"""

import uuid
from functools import lru_cache
from importlib import resources
from math import e, log

import numpy as np
from scipy.interpolate import CubicSpline
from scipy.linalg import cho_factor, cho_solve

from nbkit import disk

T_CMB = 2.7255  # [K]
TABLE = "tables/transfer.npz"
# Where the BSQ prior and a hair around it lies: omega_m, omega_b, and their ratio f_b.
OMEGA_M, OMEGA_B, F_B = (0.0249, 0.4055), (0.00498, 0.0650), (0.0395, 0.805)
NODES = 17, 12
# Length scales of the interpolation in ln omega_m and f_b, and its noise: chosen by leaving nodes out one by one.
SCALES, NOISE = (1.8, 0.2), 1e-9
X = np.concatenate([np.geomspace(0.04, 4, 60)[:-1], np.linspace(4, 120, 240)[:-1], np.geomspace(120, 400, 40)])


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
    nodes = np.array(list(_nodes()))
    with resources.as_file(resources.files("nbkit") / TABLE) as path, np.load(path) as file:
        ratios = file["ratios"].astype(float)
    return nodes, cho_factor(_covariance(nodes, nodes) + NOISE * np.eye(len(nodes))), ratios


def _nodes():
    """(omega_b, omega_m) where CAMB is run, densest at the edges of the region."""
    u, v = (0.5 - 0.5 * np.cos(np.pi * (np.arange(n) + 0.5) / n) for n in NODES)
    for omega_m in np.exp(np.interp(u, (0, 1), np.log(OMEGA_M))):
        low, high = max(OMEGA_B[0], F_B[0] * omega_m), min(OMEGA_B[1], F_B[1] * omega_m)
        for omega_b in np.exp(np.interp(v, (0, 1), (log(low), log(high)))):
            yield omega_b, omega_m


def _ratio(omega_b, omega_m, path):
    """T over its template on X at one node, from the file it was kept in or from CAMB."""
    if not path.exists():
        k, T = camb_transfer(omega_b, omega_m)
        k_x = X / sound_scale(omega_b, omega_m)
        ratio = CubicSpline(np.log(k), T)(np.log(k_x)) / template(k_x, omega_b, omega_m)
        own = path.with_name(f".{uuid.uuid4().hex}.npy")
        np.save(own, ratio)
        own.replace(path)
    return np.load(path)


def make():
    """Run CAMB at every node and write the table into the package."""
    from tqdm import tqdm

    folder = disk.runs() / "transfer_nodes"
    folder.mkdir(parents=True, exist_ok=True)
    ratios = [_ratio(*node, folder / f"{i}.npy") for i, node in enumerate(tqdm(list(_nodes())))]
    with resources.as_file(resources.files("nbkit")) as root:
        (root / TABLE).parent.mkdir(exist_ok=True)
        np.savez_compressed(root / TABLE, ratios=np.array(ratios, dtype=np.float32))


if __name__ == "__main__":
    make()
