"""Real Quijote files -> the same suites: density cubes, particle counts, snapshots, parameter files.

Four kinds of file are known; a set is read from the first kind of which it has any file:

- `3D_cubes/<set>/<i>/df_m_{n}_{MAS}_z=0.npy`: density contrast on the suite's own grid.
- `3D_cubes/<set>/<i>/df_m_CIC_z=0.00.hdf5`, dataset `df`: CIC particle counts on a finer grid. The contrast is divided
  by the CIC window, cut to the modes of the suite's grid, and multiplied by the suite's own window, so that every set
  of a suite has the window that `grid.mas` tells.
- `Snapshots/<set>/<i>/snapdir_004/snap_004*` and `Snapshots/<set>/<i>/snap_010*`, Gadget-II or HDF5: particles, painted
  by the scheme of the suite.

The seeds of an imported set are Quijote's realisation numbers: sets of equal numbers have equal phases there, the
fiducial one included.
"""

import contextlib
import io
import warnings
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from nbkit.mesh.grid import Grid, to_fourier, to_real
from nbkit.universe.cosmology import FIDUCIAL, PARAMETERS, PRIOR_BSQ, PRIOR_LATIN_HYPERCUBE, derivative_thetas
from nbkit.universe.field import UnusableField, density_contrast, paint_catalogue, read_array
from nbkit.universe.store import Contents

CUBE = "3D_cubes/{set}/{i}/df_m_{n}_{mas}_z=0.npy"
COUNTS = "3D_cubes/{set}/{i}/df_m_CIC_z=0.00.hdf5"
SNAPSHOT = "Snapshots/{set}/{i}/snapdir_004/snap_004"
SINGLE_SNAPSHOT = "Snapshots/{set}/{i}/snap_010"
# What may follow the name of a snapshot, as Pylians tries them.
SNAPSHOT_ENDINGS = ("", ".0", ".hdf5", ".0.hdf5")
PRIORS = {"BSQ": PRIOR_BSQ, "latin_hypercube": PRIOR_LATIN_HYPERCUBE}


@dataclass(frozen=True)
class Files:
    """Quijote's files under a folder that holds `3D_cubes` or `Snapshots`, as a source of the suite of a preset."""

    preset: Any
    data_root: Path

    def __post_init__(self):
        if not any((self.data_root / folder).is_dir() for folder in ("3D_cubes", "Snapshots")):
            raise ValueError(f"data_root is {self.data_root}; a folder that holds 3D_cubes or Snapshots is needed.")

    def contents(self, name):
        """Thetas, realisation numbers and settings of a set."""
        first = self.preset.first(name)
        numbers = np.arange(first, first + self.preset.count(name))
        if name in PRIORS:
            places = ("", name, f"3D_cubes/{name}", f"Snapshots/{name}", "3D_cubes", "Snapshots")
            paths = (self.data_root / place / f"{name}_params.txt" for place in places)
            path = next(filter(Path.is_file, paths), None)
            if path is None:
                raise ValueError(f"{name}_params.txt is missing; put it into {self.data_root}.")
            theta = thetas(path, PRIORS[name], len(numbers))
        else:
            theta = np.tile(derivative_thetas().get(name, FIDUCIAL), (len(numbers), 1))
        kind = next((kind for kind in KINDS if any(self._exists(kind, name, i) for i in numbers)), None)
        if kind is None:
            looked = ", ".join(self._path(kind, name, "<i>") for kind in KINDS)
            raise ValueError(f"{self.data_root} has no realisation of {name} at this grid; looked for {looked}.")
        return Contents(theta, numbers, {"source": "quijote"} | asdict(self.preset.grid) | {"files": kind})

    def calls(self, name, contents, rows):
        """{row: arguments of `field`} for those of the rows that have a file; the others are listed in a warning."""
        kind, numbers = contents.settings["files"], contents.seeds.tolist()
        there = [row for row in rows if self._exists(kind, name, numbers[row])]
        if missing := [numbers[row] for row in sorted({*rows} - {*there})]:
            warnings.warn(
                f"{name}: {len(missing)} of {len(numbers)} realisations have no {self._path(kind, name, '<i>')} "
                f"and are left out: {_ranges(missing)}.",
                stacklevel=5,
            )
        return {row: (kind, str(self.data_root / self._path(kind, name, numbers[row]))) for row in there}

    def field(self, kind, path):
        """Density contrast (n, n, n), a float32 array; or a string that names the file and says why there is none."""
        try:
            return KINDS[kind](path, self.preset.grid)
        except ValueError as reason:
            return str(reason).rstrip(".")

    def _path(self, kind, name, i):
        return kind.format(set=name, i=i, n=self.preset.grid.n, mas=self.preset.grid.mas)

    def _exists(self, kind, name, i):
        path = self.data_root / self._path(kind, name, i)
        return any(Path(f"{path}{ending}").is_file() for ending in SNAPSHOT_ENDINGS)


def thetas(path, prior, count):
    """(count, 5) the first cosmologies of a parameter file: text, a header line that begins with #, five columns."""
    try:
        theta = np.loadtxt(path, ndmin=2)
    except ValueError as error:
        raise ValueError(f"{path} is not a table of numbers ({error}).") from error
    if theta.shape[1] != 5 or len(theta) < count:
        numbers = f"{len(theta)} rows of {theta.shape[1]} numbers"
        raise ValueError(f"{path} has {numbers}; at least {count} rows of {', '.join(PARAMETERS)} are needed.")
    outside = ~((theta >= prior[:, 0]) & (theta <= prior[:, 1])).all(1)
    if outside.any():
        row = int(np.argmax(outside))
        words = f"outside the prior of {', '.join(PARAMETERS)}: {prior.tolist()}"
        raise ValueError(f"{path} row {row} is {theta[row]}, {words}.")
    return theta[:count]


def cube(path, grid):
    """Density contrast of an .npy file on the suite's grid."""
    delta = density_contrast(read_array(path), path)[0]
    return grid.check(torch.from_numpy(np.ascontiguousarray(delta, np.float32)), path).numpy()


def counts(path, grid):
    """Density contrast on the suite's grid, with its window, from CIC counts `df` on one at least as fine."""
    delta = density_contrast(read_array(f"{path}:df").astype(np.float64), path)[0]
    if len(delta) < grid.n:
        raise UnusableField(f"{path} has shape {delta.shape}; a cube of at least {grid.n}^3 cells is needed.")
    fine = Grid(len(delta), grid.box_size, "CIC")
    modes = to_fourier(torch.from_numpy(delta), fine) / fine.window(dtype=torch.float64)
    modes = truncate(modes, grid.n) * (grid.n / fine.n) ** 3
    return to_real(modes * grid.window(dtype=torch.float64), grid).float().numpy()


def truncate(modes, n):
    """The modes of a grid of n^3 cells among those of a finer one; at its Nyquist frequency, the mean of +k and -k."""
    half = n // 2
    for axis in (0, 1):
        low = modes.narrow(axis, 0, (n + 1) // 2)
        high = modes.narrow(axis, modes.shape[axis] - half, half).clone()
        if n % 2 == 0:
            high.narrow(axis, 0, 1).add_(modes.narrow(axis, half, 1)).div_(2)
        modes = torch.cat([low, high], axis)
    return modes[..., : half + 1]


def snapshot(path, grid):
    """Density contrast of the particles of a Gadget-II or HDF5 snapshot at z = 0, positions in kpc/h."""
    import readgadget

    # Pylians prints, and leaves Python altogether, when a file is not what it expects.
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        try:
            header = readgadget.header(path)
            positions = readgadget.read_block(path, "POS ", [1]) / np.float32(1e3)
        except (Exception, SystemExit) as error:
            words = " ".join(printed.getvalue().split()) or error
            raise UnusableField(f"{path} cannot be read as a snapshot ({words}).") from error
    if abs(header.boxsize / 1e3 / grid.box_size - 1) > 1e-4:
        raise UnusableField(f"{path} has a box of {header.boxsize / 1e3:g} Mpc/h; this suite's is {grid.box_size:g}.")
    if abs(header.redshift) > 1e-3:
        raise UnusableField(f"{path} is at redshift {header.redshift:.3g}; 0 is needed.")
    return paint_catalogue(positions, grid, path).numpy()


KINDS = {CUBE: cube, COUNTS: counts, SNAPSHOT: snapshot, SINGLE_SNAPSHOT: snapshot}


def _ranges(numbers):
    """'0-4, 7' for [0, 1, 2, 3, 4, 7]."""
    edges = np.flatnonzero(np.diff(numbers) != 1)
    starts, stops = [numbers[0], *(numbers[i + 1] for i in edges)], [*(numbers[i] for i in edges), numbers[-1]]
    return ", ".join(f"{a}" if a == b else f"{a}-{b}" for a, b in zip(starts, stops, strict=True))
