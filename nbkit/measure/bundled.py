"""Spectra that come with the kit: those of a whole suite, for many marks, in a few megabytes.

The spectra of one box for fifty marks are thousands of numbers that say much the same. Each mark's numbers are first
brought to unit covariance over the fiducial boxes, because that is how forecasts weigh them: there an error of some
per cent costs a forecast nothing, while in the spectra themselves, which are nearly copies of each other, it would be
all that the mark has to say. What is kept then are principal components, in whole steps.
"""

import io
import json

import numpy as np

from nbkit.disk import BUNDLED, write_atomically
from nbkit.mark.settings import identity
from nbkit.measure.measure import Measured, measured
from nbkit.universe.suite import PRESETS, SETS, contents, suite

FOLDER = BUNDLED
FORMAT = "nbkit archive 2"
# Sets with components, and marks, of their own: around the fiducial point, and two over the prior.
FAMILIES = (SETS[2:], SETS[1:2], SETS[:1])
# Largest k of the spectra that are kept [h/Mpc]: that of the trainings.
KMAX = 0.3
# Rms error of a number of any mark, at unit covariance, that dropped components and rounded scores may make together;
# rounded axes add half of it in quadrature. Around the fiducial point, and over the prior.
TOLERANCES = (0.01, 0.05, 0.02)
# Scatter of log10 P_mm/P_dd or r, given all before it, that is rounding of the spectra: for M = 1 there is no other.
ROUNDING = 1e-6


def suite_spectra(preset, names, marks, data_root=None, **options):
    """{set: Measured} of sets of a preset: at once where they come with the kit, else measured on its suite.

    Parameters
    ----------
    preset : "demo", "mini" or "quijote".
    names : of the sets.
    marks : {label: mark}.
    data_root : see `nbkit.universe.suite.suite`.
    options : passed to `nbkit.measure.measure.measured`.
    """
    archive = None if data_root else archived(preset)
    if archive is not None and archive.holds(names, marks):
        return archive.measured(names, marks)
    simulations = suite(preset, sets=names, data_root=data_root)
    return measured({name: simulations[name] for name in names}, marks, **options)


def archived(preset):
    """The Archive of a preset, or None if none comes with the kit."""
    path = FOLDER / f"{preset}_spectra.npz"
    return Archive(path) if path.is_file() else None


class Archive:
    """A file of `write`; `marks` has the identities of those it holds, a tuple for each of `FAMILIES`.

    `means` has {identity: means} of the terms of marks that are taken apart, see `introspection.suite_means`.
    """

    def __init__(self, path):
        with np.load(path, allow_pickle=False) as file:
            self._held = {name: file[name] for name in file.files}
        about = json.loads(str(self._held.pop("about")))
        if about["format"] != FORMAT:
            raise ValueError(f"{path} has the format {about['format']!r}; this version of nbkit reads {FORMAT!r}.")
        self.preset, self.marks = PRESETS[about["preset"]], tuple(map(tuple, about["marks"]))
        self.means = about["means"]

    def holds(self, names, marks):
        """Whether all of {label: mark} are in it for all of these sets."""
        wanted = {identity(mark) for mark in marks.values()}
        return all(wanted <= set(self.marks[_family(name)]) for name in names)

    def measured(self, names, marks):
        """{set: Measured} as `nbkit.measure.measure.measured` gives it for the suite, up to the kmax of the archive."""
        which = {label: identity(mark) for label, mark in marks.items()}
        return {name: self._set(name, which) for name in names}

    def _set(self, name, which):
        number, about = _family(name), contents(self.preset, name)
        before = FAMILIES[number][: FAMILIES[number].index(name)]
        first = sum(self.preset.count(other) for other in before)
        held = {what: self._held[f"{what}_{number}"] for what in ("scores", "step", "axes", "size", "middle")}
        scores = held["scores"][:, first : first + len(about.seeds)].T * held["step"].astype(np.float64)
        bins = len(self._held["k"])

        def whitened(columns):
            return held["middle"][columns] + scores @ (held["axes"][:, columns] * held["size"].astype(np.float64))

        density = whitened(np.arange(bins))
        P_dd, marked = 10 ** (self._held["mean"] + density @ self._held["root"].T), {}
        for label, mark in which.items():
            own = whitened(_columns(self.marks[number].index(mark), bins))
            row = self.marks[0].index(mark)
            x = self._held["means"][row] + np.concatenate([density, own], axis=1) @ self._held["roots"][row].T
            P_mm = P_dd * 10 ** x[:, :bins]
            marked[label] = np.stack([x[:, bins:] * np.sqrt(P_dd * P_mm), P_mm], axis=1)
        key = json.dumps({"preset": self.preset.name, "set": name, "spectra": 1})
        return Measured(self._held["k"], self._held["modes"], about.theta, about.seeds, P_dd, marked, key, which)


def write(power, marks, preset, path, means=None, tolerances=TOLERANCES):
    """Write an archive; gives how many components each family took.

    Parameters
    ----------
    power : {set: Measured} for all of `suite.SETS`, cut to the kmax that is wanted; the sets of a family have the
        same marks, and the fiducial set has all of them.
    marks : {label: mark} of all that are in any of them.
    preset : name.
    means : {label: means} of the terms of some of the marks.
    tolerances : see `TOLERANCES`.
    """
    labels = [power[family[0]].labels for family in FAMILIES]
    if missing := set().union(*labels) - set(labels[0]):
        raise ValueError(f"The fiducial set lacks {', '.join(sorted(missing))}; measure all marks there as well.")
    about = {"format": FORMAT, "preset": preset, "marks": [[identity(marks[x]) for x in each] for each in labels]}
    about["means"] = {identity(marks[label]): each for label, each in (means or {}).items()}
    fiducial = power["fiducial"]
    arrays = {"about": np.array(json.dumps(about)), "k": fiducial.k, "modes": fiducial.modes} | _unit(fiducial)
    taken = []
    for number, family in enumerate(FAMILIES):
        z = np.concatenate([_whitened(power[name], labels[number], labels[0], arrays) for name in family])
        packed = _packed(z, tolerances[number])
        taken.append(len(packed["scores"]))
        arrays |= {f"{name}_{number}": value for name, value in packed.items()}
    write_atomically(path, _compressed(arrays))
    return taken


def _family(name):
    return next(number for number, family in enumerate(FAMILIES) if name in family)


def _numbers(power, label):
    """(N, 2 b): log10(P_mm / P_dd) and r of a mark."""
    P_dd, P_dm, P_mm = power[label].transpose(1, 0, 2)
    return np.concatenate([np.log10(P_mm / P_dd), P_dm / np.sqrt(P_dd * P_mm)], axis=1)


def _columns(column, bins):
    """Where the numbers of a mark stand in a row."""
    return bins + 2 * bins * column + np.arange(2 * bins)


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


def _compressed(arrays):
    file = io.BytesIO()
    np.savez_compressed(file, **arrays)
    return file.getvalue()
