"""The table of linear transfer functions that comes with the kit: `python figures/transfer_table.py`.

204 runs of CAMB at twice its default accuracy, 8 minutes on a core; it keeps what it has under runs() and goes on from
there when run again. What the table is, and how it is read, see `nbkit.universe.cosmology`.
"""

import io
from math import log

import numpy as np
import torch
from scipy.interpolate import CubicSpline
from tqdm import tqdm

from nbkit import disk
from nbkit.universe.cosmology import F_B, OMEGA_B, OMEGA_M, TABLE, X, camb_transfer, sound_scale, template

NODES = 17, 12


def table_nodes():
    """(omega_b, omega_m) where CAMB is run, densest at the edges of the region."""
    u, v = (0.5 - 0.5 * np.cos(np.pi * (np.arange(n) + 0.5) / n) for n in NODES)
    for omega_m in np.exp(np.interp(u, (0, 1), np.log(OMEGA_M))):
        low, high = max(OMEGA_B[0], F_B[0] * omega_m), min(OMEGA_B[1], F_B[1] * omega_m)
        for omega_b in np.exp(np.interp(v, (0, 1), (log(low), log(high)))):
            yield omega_b, omega_m


def ratio(omega_b, omega_m):
    """T over its template on X at one node, (len(X),)."""
    k, T = camb_transfer(omega_b, omega_m)
    k_x = X / sound_scale(omega_b, omega_m)
    return CubicSpline(np.log(k), T)(np.log(k_x)) / template(k_x, omega_b, omega_m)


def table(nodes, path=TABLE):
    """Run CAMB at every (omega_b, omega_m) and write their ratios to a file, in the package unless told otherwise."""
    rows = []
    for node in tqdm(nodes):
        key = {"node": node, "version": 1}
        rows.append(disk.kept("transfer_nodes", key, lambda node=node: {"ratio": torch.from_numpy(ratio(*node))}))
    file = io.BytesIO()
    np.savez_compressed(
        file, nodes=np.array(nodes), ratios=np.array([row["ratio"].numpy() for row in rows], dtype=np.float32)
    )
    disk.write_atomically(path, file.getvalue())


if __name__ == "__main__":
    table(list(table_nodes()))
