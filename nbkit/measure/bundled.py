"""Spectra that come with the kit: those of a whole suite, for many marks, in a few megabytes.

The spectra of one box for fifty marks are thousands of numbers that say much the same. Each mark's numbers are first
brought to unit covariance over the fiducial boxes, because that is how forecasts weigh them: there an error of some
per cent costs a forecast nothing, while in the spectra themselves, which are nearly copies of each other, it would be
all that the mark has to say. What is kept then are principal components, in whole steps. `figures/bundle.py` does it.
"""

import json
import warnings

import numpy as np

from nbkit import disk
from nbkit.mark import identity
from nbkit.measure import VERSION, Measurement
from nbkit.universe.suite import SETS, Preset

FORMAT = "nbkit archive 3"
# Sets with components, and marks, of their own: around the fiducial point, and two over the prior.
FAMILIES = (SETS[2:], SETS[1:2], SETS[:1])


def family(name):
    """Number of the family that a set belongs to."""
    return next(number for number, names in enumerate(FAMILIES) if name in names)


class Bundle:
    """A file of `figures/bundle.py`.

    Attributes
    ----------
    marks : identities of those it holds, a tuple for each of `FAMILIES`.
    means : {identity: means} of the terms of marks that are taken apart, see `look.term_means`.
    """

    def __init__(self, path, preset):
        with np.load(path, allow_pickle=False) as file:
            self._held = {name: file[name] for name in file.files}
        about = json.loads(str(self._held.pop("about")))
        if about["format"] != FORMAT:
            raise ValueError(f"{path} has the format {about['format']!r}; this version of nbkit reads {FORMAT!r}.")
        self.preset, self.means = preset, about["means"]
        # Settings of the simulations, {set: [fingerprint, count]}, version of the code, and hash of all that is kept.
        self._source, self._digest = about["source"], about["digest"]
        self.marks = tuple(map(tuple, about["marks"]))

    @classmethod
    def of(cls, preset, sets=SETS):
        """The Bundle of a preset; None if none comes with the kit, or, with a warning, if it is of something else.

        Parameters
        ----------
        preset : its name, or a Preset.
        sets : names of those it has to fit.
        """
        preset = Preset.of(preset)
        path = disk.BUNDLED / f"{preset.name}_spectra.npz"
        if preset.particles is None or not path.is_file():
            return None
        bundle = cls(path, preset)
        difference = next(filter(None, map(bundle.difference, sets)), "")
        if difference:
            warnings.warn(f"Bundled spectra of {preset.name!r} are measured anew: {difference}.", stacklevel=3)
        return None if difference else bundle

    def difference(self, name):
        """What tells a set of the preset from the one that was measured, in words; "" if nothing does."""
        if self._source["spectra"] != VERSION:
            return f"version {self._source['spectra']} of the code measured them, this is version {VERSION}"
        held, count = self._source["sets"][name]
        words = self.preset.contents(name).difference(self._source["settings"], count, held)
        return words and f"{name}: {words}"

    def holds(self, sets, marks):
        """Whether all of {label: mark} are in it for all of these sets."""
        wanted = {identity(mark) for mark in marks.values()}
        return all(wanted <= set(self.marks[family(name)]) for name in sets)

    def spectra(self, sets, marks):
        """{set: Measurement} as `nbkit.measure` gives it for the suite, up to the kmax of the bundle."""
        identities = {label: identity(mark) for label, mark in marks.items()}
        return {name: self._set(name, identities) for name in sets}

    def _set(self, name, identities):
        number, about = family(name), self.preset.contents(name)
        before = FAMILIES[number][: FAMILIES[number].index(name)]
        first = sum(self._source["sets"][other][1] for other in before)
        held = {what: self._held[f"{what}_{number}"] for what in ("scores", "step", "axes", "size", "middle")}
        scores = held["scores"][:, first : first + len(about.seeds)].T * held["step"].astype(np.float64)
        bins = len(self._held["k"])

        def whitened(where):
            return held["middle"][where] + scores @ (held["axes"][:, where] * held["size"].astype(np.float64))

        density = whitened(np.arange(bins))
        P_dd, marked = 10 ** (self._held["mean"] + density @ self._held["root"].T), {}
        for label, which in identities.items():
            column = self.marks[number].index(which)
            own = whitened(bins + 2 * bins * column + np.arange(2 * bins))
            row = self.marks[0].index(which)
            x = self._held["means"][row] + np.concatenate([density, own], axis=1) @ self._held["roots"][row].T
            P_mm = P_dd * 10 ** x[:, :bins]
            marked[label] = np.stack([x[:, bins:] * np.sqrt(P_dd * P_mm), P_mm], axis=1)
        key = json.dumps({"simulations": about.fingerprint, "spectra": VERSION, "bundle": self._digest})
        k, modes = self._held["k"], self._held["modes"]
        return Measurement(k, modes, about.theta, about.seeds, P_dd, marked, key, identities)
