"""The mesh: wavevectors, distinct shells, mode weights, mass-assignment windows, taper, bins."""

from dataclasses import dataclass
from functools import lru_cache
from math import inf, pi
from numbers import Real
from typing import NamedTuple

import numpy as np
import torch

# Order of the piecewise-polynomial cloud of each mass-assignment scheme; its window is sinc^order.
MAS_ORDER = {"none": 0, "NGP": 1, "CIC": 2, "TSC": 3, "PCS": 4}

LARGEST = 2048  # cells along a side: a field of so many takes 32 GB


def is_number(value):
    """Whether a value is a real number, and neither True nor False."""
    return isinstance(value, Real) and not isinstance(value, bool)


class Shells(NamedTuple):
    """The distinct values of |k|: a function of |k| need only be evaluated on these."""

    k: torch.Tensor  # (s,) [h/Mpc], ascending
    index: torch.Tensor  # (n, n, n//2+1): k[index] is |k| of every mode


class Bins(NamedTuple):
    """Shells of width k_F as in Pylians, and the sum over modes that turns a b* into P_ab."""

    k: torch.Tensor  # (b,) [h/Mpc] mean |k| of the modes in a bin
    modes: torch.Tensor  # (b,) independent modes in a bin: +k and -k of a real field count once
    mode: torch.Tensor  # (m,) flat position, in the half-complex grid, of every mode in a bin
    bin: torch.Tensor  # (m,) the bin it falls in
    weight: torch.Tensor  # (m,) P_ab[bin] = sum of weight * Re(a b*)  [(Mpc/h)^3]
    order: torch.Tensor  # (m,) puts modes in the order of their bins
    sizes: torch.Tensor  # (b,) how many modes a bin has


@dataclass(frozen=True)
class Grid:
    """A periodic cubic mesh and the scheme that put the density on it.

    Parameters
    ----------
    n : cells along a side, even or odd.
    box_size : side of the box [Mpc/h].
    mas : mass-assignment scheme of the density: "NGP", "CIC", "TSC", "PCS", or "none" for a field that was
        sampled on the mesh and needs no deconvolution.
    """

    n: int
    box_size: float
    mas: str = "none"

    def __post_init__(self):
        if isinstance(self.n, bool) or not isinstance(self.n, (int, np.integer)) or not 4 <= self.n <= LARGEST:
            raise ValueError(f"n is {self.n!r}; the grid needs a whole number of 4 ... {LARGEST} cells a side.")
        if not (is_number(self.box_size) and 0 < self.box_size < inf):
            raise ValueError(f"box_size is {self.box_size!r}; it must be a positive length in Mpc/h.")
        if not isinstance(self.mas, str) or self.mas not in MAS_ORDER:
            raise ValueError(f"mas is {self.mas!r}; allowed are {', '.join(MAS_ORDER)}.")
        object.__setattr__(self, "n", int(self.n))
        object.__setattr__(self, "box_size", float(self.box_size))

    @property
    def shape(self):
        """Shape of a real field."""
        return (self.n,) * 3

    @property
    def half_shape(self):
        """Shape of its half-complex transform, `torch.fft.rfftn`."""
        return (self.n, self.n, self.n // 2 + 1)

    @property
    def cell_size(self):
        """Side of a cell [Mpc/h]."""
        return self.box_size / self.n

    @property
    def k_f(self):
        """Fundamental wavenumber 2 pi / L [h/Mpc]."""
        return 2 * pi / self.box_size

    @property
    def k_nyq(self):
        """Nyquist wavenumber pi n / L [h/Mpc]."""
        return pi * self.n / self.box_size

    def wavenumbers(self):
        """Whole wavenumbers m of k = k_F m along x, y and z (z half), as arrays that broadcast."""
        m = np.fft.fftfreq(self.n, 1 / self.n).round().astype(np.int64)
        m_z = np.arange(self.n // 2 + 1)
        return m[:, None, None], m[None, :, None], m_z[None, None, :]

    @lru_cache(maxsize=16)
    def wavevector(self, device="cpu", dtype=torch.float32):
        """(k_x, k_y, k_z) [h/Mpc], shapes (n, 1, 1), (1, n, 1), (1, 1, n//2+1)."""
        return tuple(_tensor(self.k_f * m, device, dtype) for m in self.wavenumbers())

    @lru_cache(maxsize=16)
    def shells(self, device="cpu", dtype=torch.float32):
        """The distinct |k| and, for every mode, which one it has."""
        m2 = self._squared_wavenumbers()
        present = np.bincount(m2.ravel()) > 0
        rank = np.cumsum(present) - 1
        k = self.k_f * np.sqrt(np.flatnonzero(present))
        return Shells(_tensor(k, device, dtype), _tensor(rank[m2], device, torch.int32))

    @lru_cache(maxsize=16)
    def mode_weights(self, device="cpu", dtype=torch.float32):
        """(1, 1, n//2+1): how many modes of the full grid each half-complex mode stands for (1 or 2)."""
        return _tensor(self._multiplicity()[None, None, :], device, dtype)

    @lru_cache(maxsize=16)
    def window(self, device="cpu", dtype=torch.float32):
        """W_MAS(k) = prod_i sinc(k_i L / 2n)^order, shape (n, n, n//2+1)."""
        w_x, w_y, w_z = (np.sinc(m / self.n) ** MAS_ORDER[self.mas] for m in self.wavenumbers())
        return _tensor(w_x * w_y * w_z, device, dtype)

    def taper(self, k, k_pass=0.85):
        """Tukey roll-off: 1 up to k_pass k_Nyq, half a cosine down to 0 at k_Nyq, 0 beyond.

        Parameters
        ----------
        k : tensor of any shape [h/Mpc].
        k_pass : where the roll-off begins, in units of k_Nyq.
        """
        edge = (k / self.k_nyq - k_pass) / (1 - k_pass)
        return 0.5 * (1 + torch.cos(pi * edge.clamp(0, 1)))

    @lru_cache(maxsize=16)
    def bins(self, kmax=None, device="cpu", dtype=torch.float32):
        """Shells of width k_F whose mean |k| is at most `kmax` (default: k_Nyq), mass assignment deconvolved."""
        kmax = self.k_nyq if kmax is None else kmax
        if not is_number(kmax):
            raise TypeError(f"kmax is {kmax!r}; give a number in h/Mpc.")
        # Rounding of a kmax that a caller worked out as pi n / L must not count as "beyond".
        if not 0 < kmax <= self.k_nyq * (1 + 1e-9):
            raise ValueError(
                f"kmax is {kmax:.4g} h/Mpc; this grid (n = {self.n}, L = {self.box_size:g} Mpc/h) holds no modes "
                f"beyond its k_Nyq = {self.k_nyq:.4g} h/Mpc, so choose 0 < kmax <= {self.k_nyq:.4g}."
            )
        m_abs = np.sqrt(self._squared_wavenumbers()).ravel()
        multiplicity = np.broadcast_to(self._multiplicity(), self.half_shape).ravel()
        shell = m_abs.astype(np.int64)  # 0 is the mean and belongs to no bin
        total = np.bincount(shell, multiplicity)
        k_mean = self.k_f * np.bincount(shell, multiplicity * m_abs) / np.maximum(total, 1)
        last = int(np.searchsorted(k_mean[1:], kmax, side="right"))
        if last == 0:
            raise ValueError(f"kmax is {kmax:.4g} h/Mpc, below the first bin at k = {k_mean[1]:.4g} h/Mpc.")
        mode = np.flatnonzero((shell >= 1) & (shell <= last))
        window = self.window(dtype=torch.float64).numpy().ravel()[mode]
        norm = self.box_size**3 / float(self.n) ** 6
        weight = norm * multiplicity[mode] / total[shell[mode]] / window**2
        return Bins(
            _tensor(k_mean[1 : last + 1], device, dtype),
            _tensor(total[1 : last + 1] / 2, device, dtype),
            _tensor(mode, device, torch.int32),
            _tensor(shell[mode] - 1, device, torch.int32),
            _tensor(weight, device, dtype),
            _tensor(np.argsort(shell[mode], kind="stable"), device, torch.int64),
            _tensor(np.bincount(shell[mode] - 1), device, torch.int64),
        )

    def check(self, field, name="delta", contrast=True):
        """The field itself, if its last three axes fit this grid: the one door that all fields pass.

        Parameters
        ----------
        field : (..., n, n, n), float32 or float64.
        name : what messages call it.
        contrast : whether it must be a density contrast: finite, neither counts nor 1 + delta. (A linear field may be
            below -1.) It takes a pass over the field.
        """
        if not isinstance(field, torch.Tensor) or field.dtype not in (torch.float32, torch.float64):
            kind = f"{field.dtype} tensor" if isinstance(field, torch.Tensor) else type(field).__name__
            raise TypeError(f"{name} is a {kind}; give a torch tensor of float32 or float64.")
        if tuple(field.shape[-3:]) != self.shape or not field.numel():
            raise ValueError(
                f"{name} has shape {tuple(field.shape)}; this grid needs {self.n} x {self.n} x {self.n} as its last "
                "three axes (any batch axes before them)."
            )
        if contrast and not field.is_meta:
            low, mean = (f(field.detach(), dim=(-3, -2, -1)) for f in (torch.amin, torch.mean))
            if not mean.isfinite().all():
                bad = int((~field.isfinite()).sum())
                raise ValueError(f"{name} has {bad} of {field.numel()} values that are not finite or overflow.")
            if (wrong := (mean.abs() > 0.5) | (low >= 0) & (mean > 0)).any():
                raise ValueError(
                    f"{name} has mean {float(mean[wrong][0]):.4g} and smallest value {float(low[wrong][0]):.4g}; a "
                    "density contrast has mean 0: of counts or 1 + delta, take x / x.mean() - 1."
                )
        return field

    def _squared_wavenumbers(self):
        m_x, m_y, m_z = self.wavenumbers()
        return m_x**2 + m_y**2 + m_z**2

    def _multiplicity(self):
        m_z = np.arange(self.n // 2 + 1)
        return np.where((m_z == 0) | (2 * m_z == self.n), 1, 2)


class _ToFourier(torch.autograd.Function):
    """rfftn with a half-complex backward; autograd's own pads the gradient to a full complex FFT."""

    @staticmethod
    def forward(ctx, field, grid):
        ctx.grid = grid
        return torch.fft.rfftn(field, dim=(-3, -2, -1))

    @staticmethod
    def backward(ctx, grad):
        # irfftn counts interior modes twice and divides by n^3; undo both.
        grid = ctx.grid
        scale = grid.n**3 / grid.mode_weights(grad.device, grad.real.dtype)
        return torch.fft.irfftn(grad * scale, s=grid.shape, dim=(-3, -2, -1)), None


def to_fourier(field, grid):
    """Half-complex transform of real fields (..., n, n, n), unnormalised."""
    return _ToFourier.apply(field, grid)


def to_real(modes, grid):
    """Inverse of `to_fourier`: real fields (..., n, n, n)."""
    return torch.fft.irfftn(modes, s=grid.shape, dim=(-3, -2, -1))


def _tensor(array, device, dtype):
    # A cached tensor must stay usable in autograd even if it was first asked for under inference_mode.
    with torch.inference_mode(False):
        return torch.from_numpy(np.ascontiguousarray(array)).to(device=device, dtype=dtype)
