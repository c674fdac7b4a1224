"""Cross spectra of the parts of additive marks, M = sum_a sum_j c_aj B_j(f_a) of the invariants f_a.

Such a mark is linear in c: P_dm = sum_i c_i P_di and P_mm = sum_ij c_i c_j P_ij. The cross spectra of the fields
B_i (1 + delta) are measured once, and the spectra of a mark are then a function of some twenty numbers.
"""

import hashlib

import torch

from nbkit import disk
from nbkit.mark.additive import BUMPS, NODES, bumps, channel_maps
from nbkit.measure import VERSION
from nbkit.mesh.grid import to_fourier
from nbkit.universe.store import fingerprint


@torch.no_grad()
def cross_spectra(data, rows, channels, ends):
    """(m, b, T) spectra of all T pairs of delta and the fields B_i (1 + delta) of boxes, by row of `data`.

    Parameters
    ----------
    data : anything with a `grid`, a `kmax` [h/Mpc], and `fields.parts(rows)`, which gives the fields one by one.
    rows : (m,) tensor.
    channels, ends : of the AdditiveMarks.
    """
    first, second = _pairs(NODES * len(ends))
    table = torch.empty(len(rows), len(data.grid.bins(data.kmax).k), len(first), dtype=torch.float64)
    for row, delta in zip(table, data.fields.parts(rows[:, None]), strict=True):
        delta, bins = delta[0], data.grid.bins(data.kmax, delta.device)
        mode, root = bins.mode[bins.order].long(), bins.weight[bins.order].sqrt()
        delta_k = to_fourier(delta, data.grid)
        seen = channel_maps(delta_k, data.grid, channels)
        fields = torch.cat([bumps(t, *between) for t, between in zip(seen, ends, strict=True)]) * (1 + delta)
        modes = torch.cat([delta_k[None], to_fourier(fields, data.grid)]).flatten(1)[:, mode] * root
        products = ((x @ x.conj().T).real for x in modes.split(bins.sizes.tolist(), dim=1))
        row[:] = torch.stack([each[first, second] for each in products])
    return table


def keep_cross_spectra(simulations, data, rows, channels, ends, dtype=torch.float64, device="cpu"):
    """`cross_spectra`, measured once: kept in `nbkit.disk.runs()` for whoever asks for the same.

    Parameters
    ----------
    simulations : what `data` has the fields of.
    data, rows, channels, ends : see `cross_spectra`.
    dtype : in which they are kept.
    device : where they are wanted.
    """
    key = {"simulations": contents_key(simulations), "rows": rows.tolist(), "kmax": data.kmax, "channels": channels}
    key |= {"ends": ends, "nodes": NODES, "bumps": BUMPS, "spectra": VERSION, "dtype": str(dtype)}
    table = disk.kept("cross", key, lambda: {"cross": cross_spectra(data, rows, channels, ends).to(dtype)}, device)
    return table["cross"]


def contents_key(simulations):
    """What tells a set from another in a cache; without a fingerprint of its own, all its fields count."""
    if sets := getattr(simulations, "sets", None):  # several as one
        return hashlib.sha256("".join(map(contents_key, sets)).encode()).hexdigest()[:16]
    digest = hashlib.sha256(fingerprint(simulations).encode())
    if not hasattr(simulations, "fingerprint"):
        for i in range(len(simulations)):
            digest.update(simulations[[i]].numpy())
    return digest.hexdigest()[:16]


def spectra_of(table, c):
    """(m, 3 b) P_dd, P_dm and P_mm of the mark with coefficients c, one after the other, from `cross_spectra`."""
    first, second = (index.to(c.device) for index in _pairs(len(c)))
    c = torch.cat([c.new_zeros(1), c])
    twice = torch.where(first == second, 1, 2)
    return torch.cat([table[..., 0], table[..., first == 0] @ c, table @ (twice * c[first] * c[second])], dim=-1)


def _pairs(count):
    return torch.triu_indices(count + 1, count + 1)
