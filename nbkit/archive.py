"""Spectra that come with the kit: those of a whole suite, for many marks, in a few megabytes.

The spectra of one box for fifty marks are thousands of numbers that say much the same. What is kept are their
principal components, in units of each number's scatter, as many as are needed to give every number back to a small
part of that scatter. The sets around the fiducial point and those over the prior have components of their own.
"""

import io
import json
from pathlib import Path

import numpy as np

from nbkit.checkpoint import write_atomically
from nbkit.measured import Measured, identity, measured
from nbkit.suite import PRESETS, SETS, contents, suite

FOLDER = Path(__file__).parent / "trained"
FORMAT = "nbkit archive 1"
# Sets with components, and marks, of their own: around the fiducial point, and two over the prior.
FAMILIES = (SETS[2:], SETS[1:2], SETS[:1])
# Largest k of the spectra that are kept [h/Mpc]: that of the trainings.
KMAX = 0.3
# Largest rms error of any number, in units of its scatter over the boxes of its family.
TOLERANCE = 2e-3


def suite_spectra(preset, names, marks, data_root=None, **options):
    """{set: Measured} of sets of a preset: at once where they come with the kit, else measured on its suite.

    Parameters
    ----------
    preset : "demo", "mini" or "quijote".
    names : of the sets.
    marks : {label: mark}.
    data_root : see `nbkit.suite.suite`.
    options : passed to `nbkit.measured.measured`.
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

    `means` has {identity: means} of the terms of marks that are taken apart, see `nbkit.introspection.suite_means`.
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
        """{set: Measured} as `nbkit.measured.measured` gives it for the suite, up to the kmax of the archive."""
        which = {label: identity(mark) for label, mark in marks.items()}
        return {name: self._set(name, which) for name in names}

    def _set(self, name, which):
        number, about = _family(name), contents(self.preset, name)
        before = FAMILIES[number][: FAMILIES[number].index(name)]
        first = sum(self.preset.count(other) for other in before)
        rows = slice(first, first + len(about.seeds))
        columns = {label: self.marks[number].index(mark) for label, mark in which.items()}
        held = {name: self._held[f"{name}_{number}"] for name in ("scores", "step", "axes", "mean", "scatter")}
        scores = held["scores"][:, rows].T * held["step"].astype(np.float64)
        bins = len(self._held["k"])
        wanted = np.concatenate([np.arange(bins), *(_columns(column, bins) for column in columns.values())])
        axes, mean, scatter = (held[name][..., wanted].astype(np.float64) for name in ("axes", "mean", "scatter"))
        x = np.split(mean + scores @ axes * scatter, np.arange(1, 1 + 2 * len(columns)) * bins, axis=1)
        P_dd, marked = 10 ** x[0], {}
        for label, ratio, r in zip(columns, x[1::2], x[2::2], strict=True):
            P_mm = P_dd * 10**ratio
            marked[label] = np.stack([r * np.sqrt(P_dd * P_mm), P_mm], axis=1)
        return Measured(self._held["k"], self._held["modes"], about.theta, about.seeds, P_dd, marked)


def write(power, marks, preset, path, means=None, tolerance=TOLERANCE):
    """Write an archive; gives how many components each family took.

    Parameters
    ----------
    power : {set: Measured} for all of `nbkit.suite.SETS`, cut to the kmax that is wanted.
    marks : {label: mark} of all that are in any of them; the sets of a family have the same.
    preset : name.
    means : {label: means} of the terms of some of the marks.
    tolerance : see `TOLERANCE`.
    """
    labels = [power[family[0]].labels for family in FAMILIES]
    about = {"format": FORMAT, "preset": preset, "marks": [[identity(marks[x]) for x in each] for each in labels]}
    about["means"] = {identity(marks[label]): each for label, each in (means or {}).items()}
    any_set = power[SETS[0]]
    arrays, taken = {"about": np.array(json.dumps(about)), "k": any_set.k, "modes": any_set.modes}, []
    for number, family in enumerate(FAMILIES):
        x = np.concatenate([_numbers(power[name], labels[number]) for name in family])
        packed = _packed(x, tolerance)
        taken.append(len(packed["scores"]))
        arrays |= {f"{name}_{number}": value for name, value in packed.items()}
    write_atomically(path, _compressed(arrays))
    return taken


def _family(name):
    return next(number for number, family in enumerate(FAMILIES) if name in family)


def _numbers(power, labels):
    """(N, b + 2 b marks): log10 P_dd, and log10(P_mm / P_dd) and r of every mark."""
    rows = [np.log10(power.P_dd)]
    for label in labels:
        P_dd, P_dm, P_mm = power[label].transpose(1, 0, 2)
        rows += [np.log10(P_mm / P_dd), P_dm / np.sqrt(P_dd * P_mm)]
    return np.concatenate(rows, axis=1)


def _columns(column, bins):
    """Where the numbers of a mark stand in a row."""
    return bins + 2 * bins * column + np.arange(2 * bins)


def _packed(x, tolerance):
    """Scores (c, N) in whole steps, the components (c, F) they belong to, and mean and scatter (F,) of x (N, F)."""
    mean, scatter = x.mean(0), x.std(0)
    scatter = np.where(scatter > 1e-12, scatter, 1.0)  # of M = 1 some are the same for all boxes
    z = (x - mean) / scatter
    U, s, V = np.linalg.svd(z, full_matrices=False)
    # rms error of each number when the first c components are kept, for every c
    left = np.sqrt(np.cumsum((s[:, None] * V)[::-1] ** 2, axis=0)[::-1] / len(x)).max(1)
    count = int(np.argmax(left < tolerance)) if left[-1] < tolerance else len(s)
    # Rounding adds step / sqrt(12) at most, half of the tolerance.
    step = np.array(tolerance * np.sqrt(3), np.float32)
    # A row a component: numbers of one size stand together, and most of them are small.
    scores = np.rint(U[:, :count] * s[:count] / step).T
    kind = np.int16 if np.abs(scores).max() < 2**15 else np.int32
    packed = {"scores": np.ascontiguousarray(scores, kind), "axes": V[:count].astype(np.float16)}
    return packed | {"step": step, "mean": mean, "scatter": scatter}


def _compressed(arrays):
    file = io.BytesIO()
    np.savez_compressed(file, **arrays)
    return file.getvalue()
