"""Classical marks M(x), eq. 4: functions of the smoothed density."""

import warnings
from dataclasses import dataclass

import torch

from nbkit.mesh.grid import to_fourier, to_real

# The smallest 1 + delta_s + delta_R a classical mark divides by.
BASE_FLOOR = 0.01


@dataclass(frozen=True)
class ClassicalMark:
    """M = [(1 + delta_s) / (1 + delta_s + delta_R)]^p, eq. 4: p > 0 weighs voids up, p < 0 dense regions.

    Parameters
    ----------
    delta_s : saturation, at least 0.
    R : scale of the Gaussian exp(-k^2 R^2 / 2) that smooths delta to delta_R [Mpc/h].
    """

    p: float
    delta_s: float
    R: float = 10.0

    def __post_init__(self):
        if not self.delta_s >= 0:
            raise ValueError(f"delta_s is {self.delta_s}; it must be at least 0.")
        if not self.R > 0:
            raise ValueError(f"R is {self.R}; it must be a positive length in Mpc/h.")

    def __call__(self, delta, grid):
        """M(x), shape (..., n, n, n), of a density contrast of that shape."""
        return self.of_modes(to_fourier(grid.check(delta), grid), grid)

    def of_modes(self, delta_k, grid):
        """As the call, for a field already transformed: many marks share one FFT."""
        return self.of_smoothed(to_real(delta_k * smoothing_kernel(self.R, grid, delta_k), grid))

    def of_smoothed(self, delta_R):
        """As the call, for a field already smoothed: marks of one R share that too."""
        base = 1 + self.delta_s + delta_R
        if not base.is_meta and base.min() < BASE_FLOOR:
            low = f"{int((base < BASE_FLOOR).sum())} of {base.numel()} voxels of {self}"
            said = f"1 + delta_s + delta_R was below {BASE_FLOOR} in {low} and set to it; choose a larger delta_s or R."
            warnings.warn(said, stacklevel=2)
            base = base.clamp(min=BASE_FLOOR)
        return ((1 + self.delta_s) / base) ** self.p


def smoothing_kernel(R, grid, like):
    """exp(-k^2 R^2 / 2) on every mode of the grid, in the precision and place of `like`; R in Mpc/h."""
    shells = grid.shells(like.device, like.real.dtype)
    return torch.exp(-((shells.k * R) ** 2) / 2)[shells.index]


def classical_marks():
    """{label: mark} of the paper's 48: p = +-1, 1.5, 2, 2.5 and delta_s = 0, 0.1, ... 0.5, R = 10 Mpc/h."""
    exponents, saturations = (-2.5, -2.0, -1.5, -1.0, 1.0, 1.5, 2.0, 2.5), (0.0, 0.1, 0.2, 0.3, 0.4, 0.5)
    return {f"p={p:g} ds={delta_s:g}": ClassicalMark(p, delta_s) for p in exponents for delta_s in saturations}


@dataclass(frozen=True)
class UnitMark:
    """M = 1: the marked field is the density itself."""

    def __call__(self, delta, grid):
        """Ones of the shape of delta."""
        return torch.ones_like(grid.check(delta))
