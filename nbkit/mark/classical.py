"""Marks: the field M(x) that weighs the density, and the marked field Delta of eq. 1."""

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
    p : exponent.
    delta_s : saturation, at least 0.
    R : smoothing scale of delta_R [Mpc/h].
    smoothing : "gaussian", exp(-k^2 R^2 / 2), or "tophat", a ball of radius R.
    """

    p: float
    delta_s: float
    R: float = 10.0
    smoothing: str = "gaussian"

    def __post_init__(self):
        if self.delta_s < 0:
            raise ValueError(f"delta_s is {self.delta_s}; it must be at least 0.")
        if not self.R > 0:
            raise ValueError(f"R is {self.R}; it must be a positive length in Mpc/h.")
        if self.smoothing not in ("gaussian", "tophat"):
            raise ValueError(f'smoothing is {self.smoothing!r}; allowed are "gaussian" and "tophat".')

    def __call__(self, delta, grid):
        """M(x), shape (..., n, n, n), of a density contrast of that shape."""
        return self.of_modes(to_fourier(grid.check(delta), grid), grid)

    def of_modes(self, delta_k, grid):
        """As the call, for a field already transformed: many marks share one FFT."""
        return self.of_smoothed(to_real(delta_k * smoothing_kernel(self.smoothing, self.R, grid, delta_k), grid))

    def of_smoothed(self, delta_R):
        """As the call, for a field already smoothed: marks of one R share that too."""
        base = 1 + self.delta_s + delta_R
        low = 0 if base.is_meta else int((base < BASE_FLOOR).sum())
        if low:
            warnings.warn(
                f"1 + delta_s + delta_R falls below {BASE_FLOOR} in {low} of {base.numel()} voxels of {self}; "
                f"there it was set to {BASE_FLOOR}. A larger delta_s or R avoids this.",
                stacklevel=2,
            )
            base = base.clamp(min=BASE_FLOOR)
        return ((1 + self.delta_s) / base) ** self.p


def smoothing_kernel(smoothing, R, grid, like):
    """Fourier transform of a smoothing kernel on every mode of the grid, in the precision and place of `like`."""
    shells = grid.shells(like.device, like.real.dtype)
    x = shells.k * R
    if smoothing == "gaussian":
        profile = torch.exp(-(x**2) / 2)
    else:
        # Below x = 0.1 the closed form cancels; there 1 - x^2/10 + x^4/280 is exact to 1e-10.
        safe = x.clamp(min=0.1)
        ball = 3 * (torch.sin(safe) - safe * torch.cos(safe)) / safe**3
        profile = torch.where(x < 0.1, 1 - x**2 / 10 + x**4 / 280, ball)
    return profile[shells.index]


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
