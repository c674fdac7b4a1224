"""What the fault tests share: small jobs that write to disk, each in a process of its own that can be stopped at will.

A job is a function of the folder it writes to; what it gives must be the same to the last bit however often it was
stopped on the way. FAULTS in the environment is how often each fault is tried, once by default; `make faults` says 100.
"""

import hashlib
import os
import random
import resource
import signal
import sys
import time
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import h5py
import numpy as np
import torch
from fake import FakeSet
from training_process import CASES, FORK, shorten, trained

from nbkit import ClassicalMark, Grid, recover
from nbkit.disk import read_json, read_tensors
from nbkit.mark.additive import channels_of, ends_of
from nbkit.measure import Measurement, measure
from nbkit.measure.cross import keep_cross_spectra
from nbkit.mesh.grid import to_fourier
from nbkit.universe import SETS, Preset, suite
from nbkit.universe.cosmology import PRIOR_LATIN_HYPERCUBE, sobol_thetas
from nbkit.universe.store import Contents, SimulationSet, Writer

sys.path.insert(0, str(Path(__file__).parents[2] / "figures"))

N = int(os.environ.get("FAULTS", 1))
# What was tried, for the table at the end: {(kind of fault, job): times}.
TALLY = Counter()
TINY = Preset("tiny", Grid(8, 62.5, "PCS"), 12, 4, 24, 4, particles=8, force_factor=2, steps=2)
REAL = Preset("real", TINY.grid, 12, 4, 24, 4)
MARKS = {"up": ClassicalMark(2.0, 0.1), "down": ClassicalMark(-1.0, 0.2, R=15.0)}


def client():
    """A Dask client that is quick to start: its workers are threads."""
    from distributed import Client

    return Client(processes=False, n_workers=1, threads_per_worker=2, dashboard_address="127.0.0.1:0")


def making_a_suite(root):
    with client() as workers:
        made = suite(TINY, ("fiducial", "Om_p"), root=root, client=workers)
    return [made[name][:] for name in made]


def importing(root):
    data = Path(os.environ["NBKIT_FAULTS_DATA"])
    with client() as workers:
        made = suite(REAL, ("fiducial", "BSQ"), root=root, data_root=data, client=workers)
    return [made[name][:] for name in made]


def measuring(root):
    boxes = SimulationSet(os.environ["NBKIT_FAULTS_DATA"] + "/fiducial.h5")
    power = measure({"fiducial": boxes}, MARKS)["fiducial"]
    return [power[label] for label in MARKS]


def cross_spectra(root):
    boxes, channels = FakeSet(4), channels_of(1, 8.0)
    fields = SimpleNamespace(parts=lambda rows: (boxes[row] for row in rows))
    data = SimpleNamespace(grid=boxes.grid, kmax=0.3, fields=fields)
    ends = ends_of(to_fourier(boxes[[0, 1]], boxes.grid), boxes.grid, channels)
    return [keep_cross_spectra(boxes, data, torch.arange(4), channels, ends)]


def recovery(root):
    rng, (low, high) = np.random.default_rng(0), PRIOR_LATIN_HYPERCUBE.T
    theta = low + rng.random((60, 5)) * (high - low)
    P_dd = theta[:, 4:] ** 2 * rng.lognormal(0, 0.05, (60, 4))
    marked = {"one": np.stack([0.5 * P_dd, P_dd * rng.lognormal(0, 0.05, P_dd.shape)], axis=1)}
    boxes = Measurement(np.linspace(0.05, 0.2, 4), np.ones(4), theta, np.arange(60), P_dd, marked)
    return [recover({"latin_hypercube": boxes}, "one", 0.2).predicted]


def bundling(root):
    import bundle

    power = {}
    for name in SETS:
        about, rng = TINY.contents(name), np.random.default_rng(SETS.index(name))
        P_dd = 1e3 * rng.lognormal(0, 0.1, (len(about.seeds), 3))
        marked = {label: P_dd[:, None] * rng.lognormal(0, 0.1, (len(P_dd), 2, 3)) * [[0.5], [1]] for label in MARKS}
        power[name] = Measurement(np.array([0.1, 0.2, 0.3]), np.ones(3), about.theta, about.seeds, P_dd, marked)
    bundle.write(power, MARKS, TINY, root / "tiny_spectra.npz")
    return [np.frombuffer((root / "tiny_spectra.npz").read_bytes(), np.uint8)]


def training_by_contrast(root, case="warm"):
    shorten()
    run = trained(CASES[case][0], root / case, checkpoint_every=0.0)
    return [torch.cat([p.flatten() for p in run.mark.parameters()]), np.array(run.column("val_loss"))]


def training_on_information(root):
    return training_by_contrast(root, "information")


QUICK = (making_a_suite, importing, measuring, cross_spectra, recovery, bundling)
JOBS = (*QUICK, training_by_contrast, training_on_information)


def write_data(folder):
    """Files like Quijote's, and a set of simulations, for the jobs that read some."""
    boxes = FakeSet(24, n=8)
    for i in range(24):
        path = folder / f"3D_cubes/fiducial/{i}/df_m_8_PCS_z=0.npy"
        path.parent.mkdir(parents=True)
        np.save(path, boxes[i].numpy())
    for i in range(12):
        path = folder / f"3D_cubes/BSQ/{i}/df_m_CIC_z=0.00.hdf5"
        path.parent.mkdir(parents=True)
        with h5py.File(path, "w") as file:
            file["df"] = np.random.default_rng(i).poisson(3.0, (16, 16, 16)).astype("f4")
    np.savetxt(folder / "BSQ_params.txt", sobol_thetas(16), header="Omega_m Omega_b h n_s sigma_8")
    contents = Contents(boxes.theta, np.arange(24), {"n": 8, "box_size": 62.5, "mas": "PCS"})
    with Writer(folder / "fiducial.h5", contents) as writer:
        writer.write({i: boxes[i].numpy() for i in range(24)})


def _work(job, root, end, room):
    """The job in a process of its own; its end is told beside `root`: a digest of what it gave, or what it raised."""
    os.environ["NBKIT_RUNS"] = str(root)
    torch.set_num_threads(1)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs are born deaf to it
    said = end.with_suffix(".said")
    file = said.open("w")
    if room is not None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (room, resource.RLIM_INFINITY))
    try:
        digest = hashlib.sha256(b"".join(np.ascontiguousarray(x).tobytes() for x in job(root))).hexdigest()
    except KeyboardInterrupt:
        os._exit(130)
    except Exception as error:
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)
        file.write(f"{type(error).__name__}: {error}")
        file.close()
        os._exit(3)
    end.write_text(digest)
    os._exit(0)


class Attempts:
    """A job that is tried again and again, and what an undisturbed run of it gives.

    Attributes
    ----------
    seconds : that run took.
    largest : size of the largest file it wrote [bytes].
    """

    def __init__(self, job, folder):
        self.job, self.folder, self.count, self.random = job, folder, 0, random.Random(job.__name__)
        self.expected = None
        self.root = self.fresh()
        self.finish()  # also compiles what is not compiled yet
        self.root, start = self.fresh(), time.perf_counter()
        self.finish()
        self.seconds = time.perf_counter() - start
        self.largest = max(path.stat().st_size for path in self.root.rglob("*") if path.is_file())

    def fresh(self):
        """An empty folder to write to."""
        self.count += 1
        root = self.folder / f"{self.job.__name__} {self.count}"
        root.mkdir()
        return root

    def start(self, room=None):
        """A process at work on what is there."""
        child = FORK.Process(target=_work, args=(self.job, self.root, self.root.with_suffix(".end"), room))
        child.start()
        return child

    def check(self, child):
        """Whether a process came to its end; then that must be the right one, and nothing half-written lies about."""
        child.join(300)
        assert child.exitcode is not None, f"{self.job.__name__} hangs"
        if child.exitcode == 0:
            digest = self.root.with_suffix(".end").read_text()
            self.expected = self.expected or digest
            assert digest == self.expected, f"{self.job.__name__} gave something else"
            assert not list(self.root.rglob("*.part"))
        read_all(self.root)
        return child.exitcode == 0

    def said(self):
        """What the last process raised."""
        path = self.root.with_suffix(".said")
        return path.read_text() if path.exists() else ""

    def finish(self):
        """Run what is left to its right end."""
        child = self.start()
        assert self.check(child), self.said()

    def stop(self, number):
        """Send a signal to one run at a random moment; True if it came in time."""
        child = self.start()
        child.join(self.random.random() * self.seconds)
        if child.exitcode is None:
            os.kill(child.pid, number)
        if not self.check(child):
            interrupted = (1, 130) if number == signal.SIGINT and not self.said() else ()
            assert child.exitcode in (-number, *interrupted), self.said()
            return True
        self.root = self.fresh()
        return False


def read_all(root):
    """Read every file that a reader would take for whole."""
    readers = {
        ".h5": lambda path: SimulationSet(path)[:],
        ".safetensors": read_tensors,
        ".json": read_json,
        ".npy": lambda path: np.array(np.load(path, allow_pickle=False)),
        ".npz": lambda path: [np.load(path, allow_pickle=False)[name] for name in np.load(path).files],
        ".csv": lambda path: [line.split(",")[6] for line in path.read_text().splitlines()],
    }
    for path in root.rglob("*"):
        if path.suffix in readers and not path.name.startswith("."):
            readers[path.suffix](path)
