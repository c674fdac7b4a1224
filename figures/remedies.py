"""What would help up to 0.3 h/Mpc: writes remedies_demo.csv, which notebook 08 prints.

The paper explains that its mark loses there by the taper, which takes from the filters what pixel-space marks keep.
Two remedies are tried where no luck of a training interferes: in the best *sum of functions*, found from cross spectra,
with and without them. And the explanation itself is tested: the best classical marks see the density through the taper.

Run `python figures/remedies.py` (a quarter of an hour on two free cores). Suites and spectra are kept in runs/.
"""

from dataclasses import dataclass

from ablation_table import write
from nbkit.train.train_information import INFORMATION, WANTED
from objective_table import best_classical, judges

from nbkit import ClassicalMark
from nbkit.disk import figures
from nbkit.forecast.bootstrap import resampled, resamples
from nbkit.forecast.fisher import ingredients
from nbkit.mark.additive import DENSITY, channels_of
from nbkit.mark.classical import classical_marks
from nbkit.measure import measure
from nbkit.train.neighbourhood import Neighbourhood
from nbkit.train.processes import Processes, choose_device
from nbkit.train.search import SCALES, best_function
from nbkit.universe.cosmology import QUIJOTE_NAMES
from nbkit.universe.suite import FIDUCIAL_SETS, PRESETS, suite

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
        return ClassicalMark(self.p, self.delta_s).of_modes(delta_k * grid.taper(shells.k)[shells.index], grid)


def functions():
    """{label: AdditiveMark} found on boxes that judge nothing."""
    near = suite(PRESETS[PRESET].near, sets=FIDUCIAL_SETS)
    data = Neighbourhood(near, KMAX, INFORMATION.validation, 0, Processes(choose_device("cpu")))
    plain = [channels_of(2, R) for R in SCALES]
    choices = {PLAIN: plain}
    choices["and the density as painted, without taper"] = [(*each, DENSITY) for each in plain]
    choices[f"and a second filter of {WIDE:g} Mpc/h"] = [(*each, *channels_of(2, WIDE)) for each in plain]
    return {label: best_function(data, WANTED, each) for label, each in choices.items()}


def main():
    """Find, judge, write."""
    found, boxes = functions(), suite(judges(PRESET), sets=FIDUCIAL_SETS)
    boxes = {name: boxes[name] for name in FIDUCIAL_SETS}
    rivals = set(best_classical(boxes, KMAX).values())
    classical = {label: classical_marks()[label] for label in sorted(rivals)}
    tapered = {f"{label}, tapered": TaperedMark(mark.p, mark.delta_s) for label, mark in classical.items()}
    spectra = measure(boxes, found | classical | tapered)
    given = {label: ingredients(spectra, label, KMAX) for label in found | classical | tapered}
    weights = resamples(given[PLAIN].n_s, given[PLAIN].pairs)
    forecast = {label: resampled(each, weights) for label, each in given.items()}
    pairs = [(label, PLAIN) for label in found if label != PLAIN]
    pairs += [(label, rival) for label in found for rival in classical]
    pairs += [(label, label.removesuffix(", tapered")) for label in tapered]
    rows = []
    for label, over in pairs:
        ratio = forecast[label].ratio(forecast[over])
        for parameter in ("Om", "s8"):
            numbers = (float(x[QUIJOTE_NAMES.index(parameter)]) for x in (ratio.value, ratio.low, ratio.high))
            rows.append(dict(zip(COLUMNS, (label, over, parameter, *numbers), strict=True)))
    write(rows, figures() / f"remedies_{PRESET}.csv", COLUMNS)


if __name__ == "__main__":
    main()
