"""What comes with the kit, put there: spectra made small, runs, recoveries; `figures/experiment.py` calls it.

How spectra are kept is said in `nbkit.measure.bundled`, which reads them.
"""

import hashlib
import io
import json

import numpy as np

from nbkit import disk
from nbkit.mark import identity
from nbkit.measure import VERSION
from nbkit.measure.bundled import FAMILIES, FORMAT
from nbkit.train import load
from nbkit.universe import SETS, Preset

# Largest k of the spectra that are kept [h/Mpc]: that of the trainings.
KMAX = 0.3
# Rms error of a number of any mark, at unit covariance, that dropped components and rounded scores may make together;
# rounded axes add half of it in quadrature. Around the fiducial point, and over the prior.
TOLERANCES = (0.01, 0.05, 0.02)
# Scatter of log10 P_mm/P_dd or r, given all before it, that is rounding of the spectra: for M = 1 there is no other.
ROUNDING = 1e-6
# Folder of the recoveries, in `runs()` and in what comes with the kit, and the files of a run that is finished.
RECOVERIES, RUN = "recovery", ("run.json", "marked.safetensors", "history.csv")


def write(power, marks, preset, path, means=None, tolerances=TOLERANCES):
    """Write a bundle; gives how many components each family took.

    Parameters
    ----------
    power : {set: Measurement} for all of `suite.SETS`, cut to the kmax that is wanted; the sets of a family have the
        same marks, and the fiducial set has all of them.
    marks : {label: mark} of all that are in any of them.
    preset : its name, or a Preset: the simulations are all of those it plans.
    means : {label: means} of the terms of some of the marks.
    tolerances : see `TOLERANCES`.
    """
    labels = [power[family[0]].labels for family in FAMILIES]
    if missing := set().union(*labels) - set(labels[0]):
        raise ValueError(f"The fiducial set lacks {', '.join(sorted(missing))}; measure all marks there as well.")
    fiducial = power["fiducial"]
    arrays = {"k": fiducial.k, "modes": fiducial.modes} | _unit(fiducial)
    taken = []
    for number, family in enumerate(FAMILIES):
        z = np.concatenate([_whitened(power[name], labels[number], labels[0], arrays) for name in family])
        packed = _packed(z, tolerances[number])
        taken.append(len(packed["scores"]))
        arrays |= {f"{name}_{number}": value for name, value in packed.items()}
    about = {"marks": [[identity(marks[label]) for label in each] for each in labels]}
    about["means"] = {identity(marks[label]): each for label, each in (means or {}).items()}
    write_arrays(path, arrays, about, source(preset, power))
    return taken


def source(preset, power):
    """What the spectra of all sets are made from, for JSON: settings, {set: [fingerprint, count]}, version of the code.

    The fingerprints hold the settings too, with the version of the simulator; apart they tell a reader what differs.
    """
    contents = {name: Preset.of(preset).contents(name) for name in SETS}
    for name, each in contents.items():
        if not np.array_equal(power[name].seeds, each.seeds):
            raise ValueError(f"The spectra of {name} are not of the simulations that the preset plans.")
    sets = {name: [each.fingerprint, len(each.seeds)] for name, each in contents.items()}
    return {"settings": contents["fiducial"].settings, "sets": sets, "spectra": VERSION}


def write_arrays(path, arrays, about, source):
    """Write the file of a bundle: {name: array}, its marks and means, and where the spectra come from."""
    digest = hashlib.sha256(b"".join(arrays[name].tobytes() for name in sorted(arrays))).hexdigest()[:16]
    about = about | {"format": FORMAT, "source": source, "digest": digest}
    file = io.BytesIO()
    np.savez_compressed(file, about=np.array(json.dumps(about)), **arrays)
    disk.write_atomically(path, file.getvalue())


def _numbers(power, label):
    """(N, 2 b): log10(P_mm / P_dd) and r of a mark."""
    P_dd, P_dm, P_mm = power[label].transpose(1, 0, 2)
    return np.concatenate([np.log10(P_mm / P_dd), P_dm / np.sqrt(P_dd * P_mm)], axis=1)


def _unit(fiducial):
    """What brings numbers to unit covariance: x = mean + root z, of log10 P_dd, and of each mark given that."""
    density = np.log10(fiducial.P_dd)
    means, roots = [], []
    for label in fiducial.labels:
        x = np.concatenate([density, _numbers(fiducial, label)], axis=1)
        C = np.cov(x, rowvar=False) + ROUNDING**2 * np.eye(x.shape[1])
        means.append(x.mean(0))
        roots.append(np.linalg.cholesky(C).astype(np.float32))
    bins = density.shape[1]
    arrays = {"mean": means[0][:bins], "root": roots[0][:bins, :bins]}
    return arrays | {"means": np.stack(means)[:, bins:], "roots": np.stack(roots)[:, bins:]}


def _whitened(power, labels, all_labels, unit):
    """(N, b + 2 b marks) numbers of boxes at unit covariance: one after the other those of P_dd and of each mark."""
    bins = len(unit["mean"])
    density = np.linalg.solve(unit["root"].astype(np.float64), (np.log10(power.P_dd) - unit["mean"]).T).T
    rows = [density]
    for label in labels:
        mean, root = (unit[name][all_labels.index(label)].astype(np.float64) for name in ("means", "roots"))
        left = _numbers(power, label) - mean - density @ root[:, :bins].T
        rows.append(np.linalg.solve(root[:, bins:], left.T).T)
    return np.concatenate(rows, axis=1)


def _packed(z, tolerance):
    """Scores (c, N) and components (c, F), both in whole steps, and the middle (F,), of z (N, F)."""
    middle = z.mean(0)
    U, s, V = np.linalg.svd(z - middle, full_matrices=False)
    # Mean square error of each number when the first c components are kept in steps of a size, for every c.
    left = np.cumsum((s[:, None] * V)[::-1] ** 2, axis=0)[::-1] / len(z)
    count = int(np.argmax(left.max(1) < tolerance**2 / 2)) if left[-1].max() < tolerance**2 / 2 else len(s)
    rounded = (V[:count] ** 2).sum(0).max() / 12  # error of the worst number from steps of 1
    step = np.array(tolerance * np.sqrt(0.5 / rounded), np.float32)
    # Errors of a component count as much as its scores are large; half as much as those of the scores are allowed.
    size = tolerance * np.sqrt(3 * len(z) / count) / s[:count, None]
    # A row a component: numbers of one size stand together, and most of them are small.
    packed = {"scores": _whole((U[:, :count] * s[:count] / step).T), "axes": _whole(V[:count] / size)}
    return packed | {"step": step, "size": size.astype(np.float32), "middle": middle.astype(np.float32)}


def _whole(x):
    x = np.rint(x)
    return np.ascontiguousarray(x, np.int16 if np.abs(x).max() < 2**15 else np.int32)


def bundle_run(folder, name):
    """Copy a finished run to what comes with the kit, under a name of its own."""
    if not load(folder).finished:
        raise ValueError(f"The run in {folder} is not finished; call `train` again, then bundle it.")
    for file in RUN:
        disk.write_atomically(disk.BUNDLED / name / file, (folder / file).read_bytes())


def bundle_recoveries(marks, boxes):
    """Copy recoveries from `runs()` to what comes with the kit, and drop from there those of marks that are no more.

    Parameters
    ----------
    marks : {label: mark} that there are.
    boxes : recoveries with so many boxes to test on are meant.
    """
    known, folder = {identity(mark) for mark in marks.values()}, disk.BUNDLED / RECOVERIES
    for path in (disk.runs() / RECOVERIES).glob("*.safetensors"):
        tested, of = boxes_and_marks(path)
        if tested == boxes and of <= known:
            disk.write_atomically(folder / path.name, path.read_bytes())
    for path in folder.glob("*.safetensors"):
        if not boxes_and_marks(path)[1] <= known:
            path.unlink()


def boxes_and_marks(path):
    """Number of boxes that a kept recovery was tested on, and the identities of its marks."""
    tensors, key = disk.read_tensors(path)
    return tensors["predicted"].shape[2], {which for each in key["sets"] for which in each["marks"]}
