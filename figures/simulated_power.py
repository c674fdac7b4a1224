"""How good the simulator's P(k) is: its mean without the scatter of a small box, and HMcode-2020 to compare it with."""

import numpy as np
import torch

from nbkit import Grid, spectra
from nbkit.universe.cosmology import Power, camb_parameters, check_theta
from nbkit.universe.simulate import backward, white_noise


def mean_power(simulator, theta, seeds):
    """k (b,) and the mean P(k) (b,) of several seeds, each divided by the spectrum of its own phases.

    The phases of a small box scatter by sqrt(2 / modes) about their mean; what is left shows the simulator's P(k).
    """
    grid = simulator.grid
    noise_grid = Grid(grid.n, grid.box_size)
    powers = []
    for seed in seeds:
        noise = backward(white_noise(grid.n, seed), grid) * (grid.n**3 / grid.box_size**1.5)
        power = spectra(simulator(theta, seed), grid=grid)
        powers.append(power.P_dd / spectra(noise, grid=noise_grid).P_dd)
    return power.k, torch.stack(powers).mean(0)


def nonlinear_power(theta):
    """Power of HMcode-2020 at z = 0, from CAMB (1 s)."""
    import camb

    Omega_m, Omega_b, h, n_s, sigma_8 = check_theta(theta)
    parameters = camb_parameters(Omega_b * h**2, Omega_m * h**2, h, kmax=10.0, accuracy=1.0)
    parameters.InitPower.set_params(As=2e-9, ns=n_s)
    amplitude = 2e-9 * (sigma_8 / camb.get_results(parameters).get_sigma8_0()) ** 2
    parameters.InitPower.set_params(As=amplitude, ns=n_s)
    parameters.NonLinear = camb.model.NonLinear_both
    parameters.NonLinearModel.set_params(halofit_version="mead2020")
    k, _, P = camb.get_results(parameters).get_matter_power_spectrum(minkh=1e-3, maxkh=5.0, npoints=600)
    return Power(k, np.sqrt(P[0]))
