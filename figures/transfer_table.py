"""The table of linear transfer functions that comes with the kit: `python figures/transfer_table.py`.

204 runs of CAMB at twice its default accuracy, 8 minutes on a core; it keeps what it has under runs() and goes on from
there when run again. What the table is, and how it is read, see `nbkit.universe.cosmology`.
"""

import io

import numpy as np
import torch
from scipy.interpolate import CubicSpline
from tqdm import tqdm

from nbkit import disk
from nbkit.universe.cosmology import TABLE, X, camb_transfer, sound_scale, table_nodes, template


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
    np.savez_compressed(file, ratios=np.array([row["ratio"].numpy() for row in rows], dtype=np.float32))
    disk.write_atomically(path, file.getvalue())


if __name__ == "__main__":
    table(list(table_nodes()))
