"""Sets of simulations with Quijote's names: which there are, how large, and how they come to be on disk."""

import errno
import json
import shutil
import sys
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, replace
from itertools import groupby
from operator import itemgetter
from pathlib import Path

import numpy as np
from tqdm.auto import tqdm

from nbkit import disk
from nbkit.mesh.grid import Grid
from nbkit.mesh.threads import keep_freed
from nbkit.universe.cosmology import FIDUCIAL, derivative_thetas, latin_hypercube_thetas, sobol_thetas
from nbkit.universe.farm import farm, is_watched
from nbkit.universe.quijote import Files
from nbkit.universe.simulate import A_START, SOFTENING, VERSION, Simulator
from nbkit.universe.store import Contents, SimulationSet, Writer

DERIVATIVES = tuple(derivative_thetas())
SETS = ("BSQ", "latin_hypercube", "fiducial", *DERIVATIVES)
# What a forecast needs, and a training on information: the fiducial point and one step around it.
FIDUCIAL_SETS = ("fiducial", *DERIVATIVES)
# Ranges of a million seeds that never meet; the derivative sets share theirs, so that their phases are the same.
FIRST_SEED = {"fiducial": 0, "latin_hypercube": 1_000_000, "BSQ": 2_000_000, **dict.fromkeys(DERIVATIVES, 3_000_000)}
SECONDS_A_CELL = 3e-6  # that a simulation takes on one core


@dataclass(frozen=True)
class Preset:
    """The size of a suite and, unless it is of real data, how its universes are made.

    Parameters
    ----------
    name : folder of the suite.
    grid : mesh, box and mass assignment of the fields.
    BSQ, latin_hypercube, fiducial, pairs : simulations to train on, to test on, at the fiducial cosmology, and in each
        derivative set.
    particles, force_factor, steps : of the embedded `Simulator`; None for real data.
    near_sizes : fiducial simulations and pairs of `near`; default as many as this has itself.
    skipped : realisations of the fiducial set, and of each derivative set, that are passed over.
    """

    name: str
    grid: Grid
    BSQ: int
    latin_hypercube: int
    fiducial: int
    pairs: int
    particles: int | None = None
    force_factor: int | None = None
    steps: int | None = None
    near_sizes: tuple | None = None
    skipped: tuple = (0, 0)

    def __post_init__(self):
        if self.name in ("", "..") or Path(self.name).name != self.name:
            raise ValueError(f"name is {self.name!r}; it must be fit to name a folder.")
        for what in ("BSQ", "latin_hypercube", "fiducial", "pairs"):
            if not 1 <= getattr(self, what) <= 1_000_000:
                raise ValueError(f"{what} is {getattr(self, what)}; a set holds 1 ... 1000000 simulations.")

    def count(self, name):
        """How many simulations a set has."""
        return getattr(self, name, self.pairs)

    def first(self, name):
        """Number of the first realisation of a set."""
        return 0 if name in ("BSQ", "latin_hypercube") else self.skipped[name != "fiducial"]

    @property
    def near(self):
        """Further realisations around the fiducial point, to train on: forecasts judge a mark on those of `self`.

        Quijote has no more derivatives than its preset uses; there the last half is shared, and `fisher.unseen`
        keeps it out of forecasts.
        """
        fiducial, pairs = self.near_sizes or (self.fiducial, self.pairs)
        skipped = self.fiducial, self.pairs if self.particles else self.pairs - pairs
        return replace(self, name=f"{self.name}_near", fiducial=fiducial, pairs=pairs, skipped=skipped, near_sizes=None)

    @property
    def simulator(self):
        """The embedded simulator of this preset."""
        if self.particles is None:
            raise ValueError(
                f"Preset {self.name!r} is of real data and has no simulator; pass data_root, the folder that holds "
                "Quijote's 3D_cubes or Snapshots, or choose a preset with one: "
                f"{', '.join(name for name, preset in PRESETS.items() if preset.particles)}."
            )
        return Simulator(self.grid, self.particles, self.force_factor, self.steps)

    def contents(self, name):
        """Thetas, seeds and settings of a set of embedded universes, made or not."""
        count, simulator = self.count(name), self.simulator
        if name == "BSQ":
            theta = sobol_thetas(count)
        elif name == "latin_hypercube":
            theta = latin_hypercube_thetas(count)
        else:
            theta = np.tile(derivative_thetas().get(name, FIDUCIAL), (count, 1))
        settings = {"source": "nbkit"} | asdict(self.grid)
        settings |= {what: getattr(simulator, what) for what in ("particles", "force_factor", "steps")}
        settings |= {"a_start": A_START, "softening": list(SOFTENING), "simulator": VERSION}
        return Contents(theta, FIRST_SEED[name] + self.first(name) + np.arange(count), settings)

    # The next two, and `contents`, are what a source of suites has to offer: `nbkit.universe.quijote.Files` is another.
    def calls(self, name, contents, rows):
        """{row: arguments of `field`} for those of the rows that can be made: all."""
        return {row: (contents.theta[row], int(contents.seeds[row])) for row in rows}

    def field(self, theta, seed):
        """A density contrast as float32 array; a string instead would say why there is none."""
        return self.simulator(theta, seed).numpy()

    @classmethod
    def of(cls, preset):
        """A preset by its name, or the Preset that is given."""
        if isinstance(preset, cls):
            return preset
        if preset not in PRESETS:
            raise ValueError(f"preset is {preset!r}; allowed are {', '.join(PRESETS)}, or a Preset of your own.")
        return PRESETS[preset]


PRESETS = {
    preset.name: preset
    for preset in (
        # name, Grid(n, box_size, mas), BSQ, latin_hypercube, fiducial, pairs, particles, force_factor, steps, near
        Preset("demo", Grid(32, 250.0, "PCS"), 2000, 200, 600, 60, 32, 2, 6, (2400, 240)),
        Preset("mini", Grid(64, 500.0, "PCS"), 2000, 500, 2000, 250, 64, 2, 6, (1200, 120)),
        # Its first 2,000 training boxes are those of mini: what more of them are worth (notebook 08).
        Preset("mini_more", Grid(64, 500.0, "PCS"), 6000, 500, 2000, 250, 64, 2, 6, (1200, 120)),
        Preset("quijote", Grid(128, 1000.0, "PCS"), 5000, 2000, 10000, 500, near_sizes=(5000, 250)),
    )
}


class Suite(dict):
    """Sets of simulations on one grid, by name: `suite["fiducial"][3]` is a density contrast, (n, n, n)."""

    def __init__(self, preset, sets):
        super().__init__(sets)
        self.preset, self.grid = preset, preset.grid

    def __missing__(self, name):
        raise KeyError(f"{name!r} is not in this suite; it holds {', '.join(self)}.")

    def __repr__(self):
        sizes = ", ".join(f"{name} {len(each)}" for name, each in self.items())
        return f"<suite {self.preset.name}: {self.grid.n}^3 in {self.grid.box_size:g} Mpc/h; {sizes}>"


def set_names(sets=None):
    """Names of sets as a tuple, of one or several; all by default."""
    names = (sets,) if isinstance(sets, str) else SETS if sets is None else tuple(sets)
    if unknown := [name for name in names if name not in SETS]:
        raise ValueError(f"sets has {', '.join(map(repr, unknown))}; allowed are {', '.join(SETS)}.")
    return names


def suite(preset="demo", sets=None, root=None, data_root=None, client=None, progress=True):
    """The suite of a preset, found on disk or made; what an earlier run left unfinished is finished.

    Parameters
    ----------
    preset : "demo", "mini", "mini_more", "quijote", or a `Preset` of your own.
    sets : names of the sets you need, default all 13: "BSQ" (training), "latin_hypercube" (test), "fiducial", and
        "Om_p", "Om_m", ... "s8_m" (derivatives).
    root : folder that keeps suites; default `suites` in `nbkit.disk.runs()`.
    data_root : folder with Quijote's `3D_cubes` or `Snapshots`: the sets are imported from there, not simulated.
    client : a `dask.distributed.Client` to do the work; default all cores of this machine.
    progress : show a bar with the time left.
    """
    preset, names = Preset.of(preset), set_names(sets)
    folder = (disk.runs() / "suites" if root is None else Path(root).expanduser()) / preset.name
    files = {name: folder / f"{name}.h5" for name in names}
    # Imported sets are complete as they are: without data_root there is nothing to finish them from.
    if not (data_root is None and preset.particles is None and all(path.exists() for path in files.values())):
        source = preset if data_root is None else Files(preset, Path(data_root).expanduser().absolute())
        _finish(source, preset.grid.n, files, client, progress)
    return Suite(preset, {name: SimulationSet(path) for name, path in files.items()})


def _finish(source, n, files, client, progress):
    """Make what is missing of {set: file}, fields of n^3 cells, all sets in one go."""
    embedded, hidden = isinstance(source, Preset), not (progress and is_watched())
    with ExitStack() as stack:
        writers, calls, refused = {}, {}, []
        for name, path in files.items():
            contents = source.contents(name)
            done = SimulationSet(path, contents).done if path.exists() else np.zeros(len(contents.seeds), bool)
            if todo := source.calls(name, contents, np.flatnonzero(~done).tolist()):
                writers[name] = stack.enter_context(Writer(path, contents))
                if embedded:
                    _copy(writers[name], hidden)
                calls |= {(name, row): todo[row] for row in todo if not writers[name].done[row]}
        if not calls:
            return
        keep_freed()  # for simulations made in this process, by a client without others
        folder, size = path.parent, len(calls) * 4 * n**3
        if size > (free := shutil.disk_usage(folder).free):
            numbers = f"{free / 1e6:.0f} MB free and {size / 1e6:.0f} MB are needed"
            raise OSError(errno.ENOSPC, f"{folder} has {numbers}; make room or choose another root")
        if embedded and not hidden:
            from dask.system import CPU_COUNT  # slow to import, and `farm` does it anyway

            cores = sum(client.nthreads().values()) if client else CPU_COUNT
            minutes = max(1, round(len(calls) * n**3 * SECONDS_A_CELL / cores / 60))
            work = f"{len(calls):,} simulations to make, about {minutes} min on {cores} cores"
            tqdm.write(f"{folder.name}: {work}, {size / 1e6:.0f} MB in {folder}", file=sys.stderr)

        def receive(results):
            for name, keys in groupby(results, itemgetter(0)):
                fields = {row: results[name, row] for _, row in keys}
                writers[name].write({row: field for row, field in fields.items() if not isinstance(field, str)})
                refused.extend(field for field in fields.values() if isinstance(field, str))

        # Eight simulations of 32^3, or one of 64^3, keep a core busy for about a second.
        batch = min(max(1, 2**18 // n**3), 8)
        farm(source.field, calls, receive, batch, client, progress)
    if refused:
        more = f" and {len(refused) - 5} more" if len(refused) > 5 else ""
        raise ValueError(
            f"{len(refused)} of {len(calls)} files were not imported, the others were: {'; '.join(refused[:5])}{more}. "
            "Replace them, or remove them to leave these realisations out, and run again."
        )


def _copy(writer, hidden):
    """Take over what the other suites of the same root have of this set: mini_more begins with the boxes of mini."""
    settings, theta = json.loads(json.dumps(writer.contents.settings)), writer.contents.theta
    row_of = {seed: row for row, seed in enumerate(writer.contents.seeds.tolist())}
    for path in sorted(writer.path.parent.parent.glob(f"*/{writer.path.name}")):
        with suppress(ValueError):  # what cannot be read there, or is damaged, is made here
            other = SimulationSet(path)
            if (other.settings, other.versions) != (settings, writer.held.versions):
                continue
            for i, seed in enumerate(tqdm(other.seeds.tolist(), "copied", disable=hidden, leave=False)):
                row = row_of.get(seed)
                if row is not None and not writer.done[row] and np.array_equal(other.theta[i], theta[row]):
                    writer.write({row: other[i].numpy()})
