"""What would help up to 0.3 h/Mpc: writes remedies_demo.csv, which notebook 08 prints.

The paper explains that its mark loses there by the taper, which takes from the filters what pixel-space marks keep.
Two remedies are tried where no luck of a training interferes: in the best *sum of functions*, found from cross spectra,
with and without them. And the explanation itself is tested: the best classical marks see the density through the taper.

Run `python figures/remedies.py` (a quarter of an hour on two free cores). Suites and spectra are kept in runs/.
"""

from dataclasses import dataclass

from ablations import PARAMETERS, write
from info_nce import CPU
from objectives import judges

import nbkit as nb
from nbkit import disk
from nbkit.forecast import BEST
from nbkit.mark.additive import DENSITY, channels_of
from nbkit.train.information import Neighbourhood
from nbkit.train.search import SCALES, best_function
from nbkit.universe import FIDUCIAL_SETS, PRESETS, QUIJOTE_NAMES

PRESET, KMAX = "demo", 0.3
WIDE = 10.0  # second filter of each invariant [Mpc/h]
PLAIN = "one filter an invariant, as the learned mark"
COLUMNS = ("mark", "over", "parameter", "ratio", "low", "high")


@dataclass(frozen=True)
class TaperedMark:
    """A classical mark that sees the density through the taper of the learned mark's filters."""

    p: float
    delta_s: float

    def of_modes(self, delta_k, grid):
        """M(x) of a field already transformed."""
        shells = grid.shells(delta_k.device, delta_k.real.dtype)
        return nb.ClassicalMark(self.p, self.delta_s).of_modes(delta_k * grid.taper(shells.k)[shells.index], grid)


def functions():
    """{label: AdditiveMark} found on boxes that judge nothing."""
    training, near = nb.Training(PRESET, "information", kmax=KMAX), nb.suite(PRESETS[PRESET].near, sets=FIDUCIAL_SETS)
    data = Neighbourhood(near, training.recipe_for(PRESETS[PRESET].grid), KMAX, 0, CPU)
    plain = [channels_of(2, R) for R in SCALES]
    choices = {PLAIN: plain}
    choices["and the density as painted, without taper"] = [(*each, DENSITY) for each in plain]
    choices[f"and a second filter of {WIDE:g} Mpc/h"] = [(*each, *channels_of(2, WIDE)) for each in plain]
    folder = disk.runs() / "experiment" / "remedies"
    return {
        label: best_function(data, training, folder / str(i), each, show=False)
        for i, (label, each) in enumerate(choices.items())
    }


def main():
    """Find, judge, write."""
    found, boxes = functions(), nb.suite(judges(PRESET), sets=FIDUCIAL_SETS)
    best = nb.forecast(nb.measure(boxes, nb.classical_marks()), KMAX)[BEST].labels
    classical = {label: nb.classical_marks()[label] for label in sorted({best[name] for name in PARAMETERS})}
    tapered = {f"{label}, tapered": TaperedMark(mark.p, mark.delta_s) for label, mark in classical.items()}
    forecasts = nb.forecast(nb.measure(boxes, found | classical | tapered), KMAX)
    pairs = [(label, PLAIN) for label in found if label != PLAIN]
    pairs += [(label, rival) for label in found for rival in classical]
    pairs += [(label, label.removesuffix(", tapered")) for label in tapered]
    rows = []
    for label, over in pairs:
        ratio = forecasts[over] / forecasts[label]
        for parameter in PARAMETERS:
            numbers = (float(x[QUIJOTE_NAMES.index(parameter)]) for x in (ratio.value, ratio.low, ratio.high))
            rows.append(dict(zip(COLUMNS, (label, over, parameter, *numbers), strict=True)))
    write(rows, disk.figures() / f"remedies_{PRESET}.csv", COLUMNS)


if __name__ == "__main__":
    main()
