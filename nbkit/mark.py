"""Marks: the field M(x) that weighs the density, and the marked field Delta of eq. 1."""

import json
import os
import warnings
from dataclasses import asdict, dataclass
from math import e, log
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import nn
from torch.nn.functional import gelu, softplus
from torch.utils.checkpoint import checkpoint

from nbkit.filters import RadialProfiles, filtered
from nbkit.fused import FusedResponse, cubics
from nbkit.grid import Grid, to_fourier, to_real
from nbkit.invariants import invariants, names, transformed

# The smallest 1 + delta_s + delta_R a classical mark divides by.
BASE_FLOOR = 0.01
FORMAT = "nbkit-mark-1"
# How many voxels the plain path takes at a time: bounds its memory to some 200 MB.
VOXELS_AT_ONCE = 1 << 18


def marked_field(M, delta):
    """Delta = M (1 + delta) - <M (1 + delta)>, eq. 1; M and delta of shape (..., n, n, n)."""
    weighted = M * (1 + delta)
    return weighted - weighted.mean(dim=(-3, -2, -1), keepdim=True)


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
        return self.of_modes(to_fourier(grid.checked(delta), grid), grid)

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
    """The 48 marks of the paper's comparison: p = +-1, 1.5, 2, 2.5 and delta_s = 0, 0.1, ... 0.5 at R = 10 Mpc/h."""
    exponents = (-2.5, -2.0, -1.5, -1.0, 1.0, 1.5, 2.0, 2.5)
    return [ClassicalMark(p, delta_s) for p in exponents for delta_s in (0.0, 0.1, 0.2, 0.3, 0.4, 0.5)]


class Responses(nn.Module):
    """eta = bias + sum_a h_a(f_a) + h_x(E0, E2, I3), eq. 9: a small MLP (Lin GELU Lin) an invariant, and a cross term.

    The output layers start at 0 and the bias at log(e - 1), so that M = softplus(eta) starts at 1.

    Parameters
    ----------
    l_max : which invariants there are; the cross term needs l_max = 2.
    """

    def __init__(self, l_max=2, cross=True, width=16, cross_width=8):
        super().__init__()
        self.names = names(l_max)
        self.crossed = cross and l_max == 2
        self.w = nn.Parameter(_uniform(len(self.names), width, fan_in=1))
        self.b = nn.Parameter(_uniform(len(self.names), width, fan_in=1))
        self.v = nn.Parameter(torch.zeros(len(self.names), width))
        if self.crossed:
            self.cross_w = nn.Parameter(_uniform(cross_width, 3, fan_in=3))
            self.cross_b = nn.Parameter(_uniform(cross_width, fan_in=3))
            self.cross_v = nn.Parameter(torch.zeros(cross_width))
        self.bias = nn.Parameter(torch.tensor(log(e - 1)))

    def terms(self, maps):
        """Every term of eta on its own, from the invariants: h_E0 ... h_I3, and h_x where there is a cross term."""
        seen = transformed(maps)
        terms = {}
        for name, w, b, v in zip(self.names, self.w, self.b, self.v, strict=True):
            terms[f"h_{name}"] = gelu(seen[name][..., None] * w + b) @ v.to(seen[name].dtype)
        if self.crossed:
            three = torch.stack([seen["E0"], seen["E2"], seen["I3"]], dim=-1)
            hidden = gelu(three @ self.cross_w.T.to(three.dtype) + self.cross_b)
            terms["h_x"] = hidden @ self.cross_v.to(three.dtype)
        return terms

    def forward(self, f_lm):
        """eta of the filtered maps: compiled on the CPU in float32, else plain torch in pieces to bound the memory."""
        if f_lm[0].device.type == "cpu" and all(x.dtype == torch.float32 for x in (f_lm[0], self.w)):
            tables = cubics(f_lm, self.w, self.b, self.v)
            none = torch.empty(0, 3), torch.empty(0), torch.empty(0)
            cross = (self.cross_w, self.cross_b, self.cross_v) if self.crossed else none
            return self.bias + FusedResponse.apply(*tables, *cross, *f_lm)
        pieces = zip(*(f.reshape(-1).split(VOXELS_AT_ONCE) for f in f_lm), strict=True)
        eta = [checkpoint(self._plain, *piece, use_reentrant=False) for piece in pieces]
        return torch.cat(eta).reshape(f_lm[0].shape)

    def _plain(self, *f_lm):
        return self.bias + sum(self.terms(invariants(f_lm)).values())


class LearnedMark(nn.Module):
    """M = softplus(eta) of the rotation invariants of the filtered density: the paper's mark.

    It is a local rule and applies on any grid: its filters are functions of k / k_Nyq with the k_Nyq of the grid it was
    made for, and the taper ends there, or at the k_Nyq of a coarser grid.

    Parameters
    ----------
    grid : the Grid it is made for (trained on).
    l_max : 0, 1 or 2: which multipoles, hence which invariants, it sees.
    radial, shared : form of the radial profiles, see `RadialProfiles`.
    cross : with the cross term h_x(E0, E2, I3), or without.
    """

    def __init__(self, grid, l_max=2, radial="fourier", cross=True, shared=False):
        super().__init__()
        self.grid = grid
        self.settings = {"l_max": l_max, "radial": radial, "cross": cross, "shared": shared}
        self.profiles = RadialProfiles(l_max, radial, shared)
        self.responses = Responses(l_max, cross)

    def forward(self, delta, grid=None):
        """M(x), shape (..., n, n, n), of a density contrast of that shape."""
        grid = grid or self.grid
        return self.of_modes(to_fourier(grid.checked(delta), grid), grid)

    def of_modes(self, delta_k, grid=None):
        """As the call, for a field that `to_fourier` has already transformed."""
        return softplus(self.responses(self.filtered(delta_k, grid or self.grid)))

    def G_l(self, k):
        """Radial profiles without the taper at k [h/Mpc], shape (l_max + 1, len(k))."""
        x = k / self.grid.k_nyq
        return self.profiles(x.to(self.responses.bias.dtype)).to(x.dtype)

    def filtered(self, delta_k, grid):
        """The maps f_lm of eq. 5."""
        k = grid.shells(delta_k.device, delta_k.real.dtype).k
        return filtered(delta_k, self.G_l(k), grid, k_cut=self.grid.k_nyq)

    def invariants(self, delta, grid=None):
        """Maps of the invariants the mark sees, by name."""
        grid = grid or self.grid
        return invariants(self.filtered(to_fourier(grid.checked(delta), grid), grid))

    def contributions(self, delta, grid=None):
        """Every term of eta, by name (h_E0, ..., h_x, bias), and last their sum eta and the mark M."""
        maps = self.invariants(delta, grid)
        terms = self.responses.terms(maps) | {"bias": self.responses.bias.expand_as(maps["E0"])}
        eta = sum(terms.values())
        return terms | {"eta": eta, "M": softplus(eta)}

    def save(self, path):
        """Write weights, settings and grid to one safetensors file; an older file stays whole until the new one is."""
        path = Path(path)
        about = {"format": FORMAT, "settings": json.dumps(self.settings), "grid": json.dumps(asdict(self.grid))}
        unfinished = path.with_name(f".{path.name}.{os.getpid()}")
        save_file({name: x.contiguous() for name, x in self.state_dict().items()}, unfinished, metadata=about)
        unfinished.replace(path)


def load_mark(path, grid=None):
    """The LearnedMark in a file that `save` wrote.

    Parameters
    ----------
    grid : the Grid it is going to be used on; a warning says if it was trained on another one.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"There is no mark at {path}.")
    try:
        with safe_open(path, framework="pt") as file:
            about = file.metadata() or {}
            state = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
    except SafetensorError as error:
        raise ValueError(f"{path} is damaged or not a safetensors file ({error}).") from error
    if about.get("format") != FORMAT:
        raise ValueError(f"{path} has the format {about.get('format')!r}; this version of nbkit reads {FORMAT!r}.")
    trained_on = Grid(**json.loads(about["grid"]))
    mark = LearnedMark(trained_on, **json.loads(about["settings"]))
    mark.load_state_dict(state)
    if grid is not None and grid != trained_on:
        warnings.warn(
            f"{path} was trained on {trained_on} and is going to be used on {grid}; its filters keep their scales in "
            f"h/Mpc, in units of the k_Nyq = {trained_on.k_nyq:.4g} h/Mpc it was trained at.",
            stacklevel=2,
        )
    return mark


def _uniform(*shape, fan_in):
    """The usual start of a linear layer: uniform within +-1 / sqrt(fan_in)."""
    return (2 * torch.rand(*shape) - 1) / fan_in**0.5
