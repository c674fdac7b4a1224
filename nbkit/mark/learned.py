"""The learned mark M(x), eqs. 8-9: a function of the rotation invariants of the filtered density."""

from dataclasses import asdict
from math import e, log

import torch
from torch import nn
from torch.nn.functional import gelu, softplus
from torch.utils.checkpoint import checkpoint

from nbkit.disk import read_tensors, write_tensors
from nbkit.mark.cpu import FusedResponse, cubics
from nbkit.mark.filters import RadialProfiles, filter_maps
from nbkit.mark.invariants import NAMES, invariants, mlp_inputs
from nbkit.mesh.grid import Grid, to_fourier

FORMAT = "nbkit-mark-2"
# How many voxels the plain path takes at a time, which bounds its memory: two boxes of 128^3; on a GPU as many as fill
# this share of it at so many bytes each: of the whole card, not of what is free, so that sums always come out alike.
VOXELS_AT_ONCE, SHARE_OF_GPU, BYTES_A_VOXEL = 2**22, 1 / 4, 1000


class Responses(nn.Module):
    """eta = bias + sum_a h_a(f_a) + h_x(E0, E2, I3), eq. 9: a small MLP (Lin GELU Lin) an invariant, and a cross term.

    The output layers start at 0 and the bias at log(e - 1), so that M = softplus(eta) starts at 1.

    l_max says which invariants there are; the cross term needs l_max = 2.
    """

    def __init__(self, l_max=2, cross=True, width=16, cross_width=8):
        super().__init__()
        # Linear layers start uniform within +-1 / sqrt(numbers that come in).
        self.names = NAMES[: (1, 2, 4)[l_max]]
        self.crossed = cross and l_max == 2
        self.w = nn.Parameter(torch.empty(len(self.names), width).uniform_(-1, 1))
        self.b = nn.Parameter(torch.empty(len(self.names), width).uniform_(-1, 1))
        self.v = nn.Parameter(torch.zeros(len(self.names), width))
        if self.crossed:
            self.cross_w = nn.Parameter(torch.empty(cross_width, 3).uniform_(-1, 1) / 3**0.5)
            self.cross_b = nn.Parameter(torch.empty(cross_width).uniform_(-1, 1) / 3**0.5)
            self.cross_v = nn.Parameter(torch.zeros(cross_width))
        self.bias = nn.Parameter(torch.tensor(log(e - 1)))

    def terms(self, maps):
        """Every term of eta on its own, from the invariants: h_E0 ... h_I3, and h_x where there is a cross term."""
        seen = mlp_inputs(maps)
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
        if f_lm[0].device.type == "cpu" and f_lm[0].dtype == self.w.dtype == torch.float32:
            places, table = cubics(f_lm, self.w, self.b, self.v)
            none = torch.empty(0, 3), torch.empty(0), torch.empty(0)
            cross = (self.cross_w, self.cross_b, self.cross_v) if self.crossed else none
            eta = self.bias + FusedResponse.apply(places, table, *cross, *(f.reshape(-1) for f in f_lm))
            return eta.reshape(f_lm[0].shape)
        at_once = VOXELS_AT_ONCE
        if f_lm[0].device.type == "cuda":
            memory = torch.cuda.get_device_properties(f_lm[0].device).total_memory
            at_once = int(SHARE_OF_GPU * memory / BYTES_A_VOXEL)
        pieces = zip(*(f.reshape(-1).split(at_once) for f in f_lm), strict=True)
        eta = [checkpoint(self._plain, *piece, use_reentrant=False, preserve_rng_state=False) for piece in pieces]
        return torch.cat(eta).reshape(f_lm[0].shape)

    def _plain(self, *f_lm):
        return self.bias + sum(self.terms(invariants(f_lm)).values())


class LearnedMark(nn.Module):
    """M = softplus(eta) of the rotation invariants of the filtered density: the paper's mark.

    It is a local rule and applies on any grid: its filters are functions of k / k_Nyq with the k_Nyq of the grid it was
    made for, and the taper ends there, or at the k_Nyq of a coarser grid.

    Parameters
    ----------
    grid : the Grid it is made for (trained on); any other can be given with a field.
    l_max, cross : multipoles it sees, 0, 1 or 2, hence which invariants; with the term h_x(E0, E2, I3) or without.
    radial, shared, r0 : form and start of the radial profiles, see `RadialProfiles`.
    """

    def __init__(self, grid, l_max=2, radial="fourier", cross=True, shared=False, r0=None):
        super().__init__()
        self.grid = grid
        self.settings = {"l_max": l_max, "radial": radial, "cross": cross, "shared": shared}
        self.settings |= {} if r0 is None else {"r0": r0}
        self.profiles = RadialProfiles(l_max, radial, shared, r0)
        self.responses = Responses(l_max, cross)

    def forward(self, delta, grid=None):
        """M(x), shape (..., n, n, n), of a density contrast of that shape."""
        grid = grid or self.grid
        return self.of_modes(to_fourier(grid.check(delta), grid), grid)

    def of_modes(self, delta_k, grid=None):
        """As the call, for a field that `to_fourier` has already transformed."""
        return softplus(self.responses(self.filter_maps(delta_k, grid or self.grid)))

    def G_l(self, k):
        """Radial profiles without the taper at k [h/Mpc], shape (l_max + 1, len(k))."""
        x = k / self.grid.k_nyq
        return self.profiles(x.to(self.responses.bias.dtype)).to(x.dtype)

    def filter_maps(self, delta_k, grid):
        """The maps f_lm of eq. 5."""
        k = grid.shells(delta_k.device, delta_k.real.dtype).k
        return filter_maps(delta_k, self.G_l(k), grid, k_cut=self.grid.k_nyq)

    def invariants(self, delta, grid=None):
        """Maps of the invariants the mark sees, by name."""
        grid = grid or self.grid
        return invariants(self.filter_maps(to_fourier(grid.check(delta), grid), grid))

    def save(self, path):
        """Write weights, settings and grid to one safetensors file; an older file stays whole until the new one is."""
        write_tensors(path, self.state_dict(), {"format": FORMAT, "settings": self.settings, "grid": asdict(self.grid)})


def load_mark(path):
    """The LearnedMark in a file that `save` wrote."""
    state, about = read_tensors(path)
    if (there := about.get("format") if isinstance(about, dict) else None) != FORMAT:
        raise ValueError(f"{path} has the format {there!r}; this version of nbkit reads {FORMAT!r}.")
    mark = LearnedMark(Grid(**about["grid"]), **about["settings"])
    mark.load_state_dict(state)
    return mark
