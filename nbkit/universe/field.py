"""Your own universe: a cube, or a catalogue of positions that is painted -> its density contrast, and what was read."""

from pathlib import Path
from typing import NamedTuple

import h5py
import numpy as np
import psutil
import torch

from nbkit.disk import OneSentence, replacing
from nbkit.mesh.grid import MAS_ORDER, Grid, is_number
from nbkit.universe.particles import paint

CELL = 7.8125  # side of the cells of Quijote's 128^3 grids, and of all presets [Mpc/h]


class UnusableField(OneSentence, ValueError):
    """A file that holds neither a density on a cube nor positions in a box."""


class Field(NamedTuple):
    """A density contrast delta (n, n, n), float32, the Grid it lives on, and what was read, in words."""

    delta: torch.Tensor
    grid: Grid
    about: str

    def __repr__(self):
        return self.about


def field(path, box_size, n=None, mas=None):
    """The Field in a file: a cube of density contrast, 1 + delta or counts, or the positions of a catalogue.

    Parameters
    ----------
    path : .npy, .hdf5 or .h5 of a cube (n, n, n) or of positions (N, 3) [Mpc/h], or text with a position a line; of an
        HDF5 file with several such datasets, `file.hdf5:name`.
    box_size : side of the box [Mpc/h].
    n : cells along a side to paint positions on; default cells of 7.8 Mpc/h.
    mas : scheme that made the cube (CIC, PCS, ...; default what its name says, else none is taken out of the spectra),
        or is to paint positions [PCS].
    """
    if not (is_number(box_size) and 0 < box_size < np.inf):
        raise UnusableField(f"box_size is {box_size!r}: give the side of the box of {path} in Mpc/h, such as 1000.")
    data = read_array(path)
    if data.ndim == 2 and data.shape[1] == 3 and len(data):
        grid = Grid(n or max(4, round(box_size / CELL)), box_size, mas or "PCS")
        delta = paint_catalogue(data.astype(np.float32), grid, path)
        kind = f"{len(data)} positions, shot noise {grid.box_size**3 / len(data):.4g} (Mpc/h)^3"
    else:
        contrast, kind = density_contrast(data, path)
        words = Path(path).stem.split("_")
        grid = Grid(len(data), box_size, mas or next((word for word in words if word in MAS_ORDER), "none"))
        delta = torch.from_numpy(contrast.astype(np.float32))
    kind += f", on {grid.n}^3 cells of {grid.cell_size:.2f} Mpc/h, mass assignment {grid.mas}"
    mean, low = float(delta.mean(dtype=torch.float64)), float(delta.min())
    return Field(delta, grid, f"{kind}; delta has mean {mean:.3f}, smallest {low:.3f}")


def density_contrast(data, path):
    """The density contrast of a cube (n, n, n) that holds it, 1 + delta or counts; and which it held, in words."""
    if data.ndim != 3 or len(set(data.shape)) != 1:
        raise UnusableField(f"{path} has shape {data.shape}; a cube (n, n, n) or positions (N, 3) are needed.")
    mean, low = float(data.mean(dtype=np.float64)), float(data.min())
    if low < 0 and abs(mean) > 0.01:
        raise UnusableField(f"{path} has mean {mean:.4g} and smallest value {low:.4g}: negative counts, or no density.")
    if low < -1.001 or mean == low:
        problem = "a contrast cannot be below -1" if low < -1.001 else "it is the same everywhere"
        raise UnusableField(f"{path} is no density: its smallest value is {low:.4g}, and {problem}.")
    return (data, "density contrast") if low < 0 else (data / mean - 1, f"counts or 1 + delta with mean {mean:.4g}")


def paint_catalogue(positions, grid, path):
    """Density contrast (n, n, n) of positions (N, 3) [Mpc/h], float32, all inside the box but for rounding."""
    low, high = np.min(positions, initial=np.inf), np.max(positions, initial=-np.inf)
    if not (low >= 0 and high <= grid.box_size * (1 + 1e-6)):
        raise UnusableField(
            f"{path} has positions from {low:.4g} to {high:.4g}; 0 to {grid.box_size:g} Mpc/h are in the box: shift or "
            "scale them, or give another box_size."
        )
    return paint(torch.from_numpy(positions), grid)


def read_array(path):
    """The real and finite numbers of an .npy file, a dataset of HDF5 (`file.hdf5:name`), or three columns of text."""
    path = str(path)
    name, _, wanted = path.partition(":") if not Path(path).is_file() else (path, "", "")
    if not Path(name).is_file():
        raise UnusableField(f"There is no file {name}; give the path of a cube or a catalogue.")
    try:
        if name.endswith(".npy"):
            array = _whole(np.load(name, mmap_mode="r", allow_pickle=False), name)
        elif name.endswith((".hdf5", ".h5")):
            with h5py.File(name, "r", locking=False) as file:
                array = _whole(_dataset(file, name, wanted), name)
        else:
            array = np.loadtxt(name, ndmin=2, usecols=(0, 1, 2))
    except UnusableField:
        raise
    except Exception as error:  # numpy alone has six ways to say that a header is none
        raise UnusableField(
            f"{name} is not .npy, HDF5 or text with three columns of numbers ({' '.join(str(error).split())})."
        ) from error
    if bad := array.size - int(np.count_nonzero(np.isfinite(array))):
        raise UnusableField(f"{path} has {bad} of {array.size} values that are not finite; remove or replace them.")
    return array


def _dataset(file, name, wanted):
    """The dataset of that name, or the only one that could be a cube or positions."""
    if not wanted:
        found = []
        file.visititems(lambda key, x: found.append(key) if isinstance(x, h5py.Dataset) and x.ndim in (2, 3) else None)
        if len(found) != 1:
            raise UnusableField(f"{name} has the datasets {', '.join(found) or 'none'}; name one: {name}:<dataset>.")
        wanted = found[0]
    held = file[wanted]
    if not isinstance(held, h5py.Dataset) or held.external or held.file.filename != file.filename:
        raise UnusableField(f"{wanted} of {name} is no dataset of this file; links to others are not followed.")
    return held


def _whole(array, name):
    """All of an array on disk, if it holds real numbers and there is memory for it."""
    if array.dtype.kind not in "fiu":
        raise UnusableField(f"{name} holds {array.dtype}; real numbers are needed.")
    free = psutil.virtual_memory().available
    if 4 * array.nbytes > free:  # it is copied on its way
        raise UnusableField(f"{name} holds {array.nbytes / 1e9:.3g} GB; {free / 1e9:.3g} GB of memory are free.")
    return np.array(array[...] if isinstance(array, h5py.Dataset) else array)


def save(path, **results):
    """Take results home in one file: nb.save("home.npz", M=M, spectra=nb.spectra(...)), or .h5.

    Parameters
    ----------
    results : arrays or tensors by name; of Spectra, k [h/Mpc], P_dd, P_dm, P_mm [(Mpc/h)^3] and modes are kept apart.
    """
    if Path(path).suffix not in (".npz", ".h5", ".hdf5"):
        raise ValueError(f"{path}: give a name that ends in .npz, .h5 or .hdf5.")
    arrays = {}
    for name, value in results.items():
        arrays |= value._asdict() if isinstance(value, tuple) else {name: value}
    arrays = {name: np.asarray(value) for name, value in arrays.items() if value is not None}
    with replacing(path) as part, part.open("wb") as file:
        if Path(path).suffix == ".npz":
            np.savez(file, **arrays)
        else:
            with h5py.File(file, "w") as into:
                into.update(arrays)
