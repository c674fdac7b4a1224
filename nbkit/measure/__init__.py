"""Fields -> spectra of whole suites for many marks."""

from nbkit.measure.bundled import archived
from nbkit.measure.measure import Measured as Measurement
from nbkit.measure.measure import measured
from nbkit.universe.suite import PRESETS, SETS, Preset, Suite, suite

__all__ = ["Measurement", "measure"]


def measure(simulations, marks, sets=None, data_root=None, client=None, progress=True):
    """{set: spectra} P_dd, P_dm and P_mm of every box for every mark: at once where they come with the kit.

    Parameters
    ----------
    simulations : name of a preset, a Preset, a Suite, or {name: set}.
    marks : {label: mark}.
    sets : names of those wanted; default all there are.
    data_root : folder with Quijote's files, see `suite`.
    client, progress : see `nbkit.universe.farm.farm`.
    """
    if isinstance(simulations, (str, Preset)):
        preset = PRESETS[simulations] if isinstance(simulations, str) else simulations
        names = SETS if sets is None else tuple(sets)
        archive = None if data_root else archived(preset.name)
        if archive is not None and archive.holds(names, marks):
            return archive.measured(names, marks)
        simulations = suite(preset, sets=names, data_root=data_root)
    names = simulations.names if isinstance(simulations, Suite) else tuple(simulations)
    chosen = {name: simulations[name] for name in (names if sets is None else sets)}
    return measured(chosen, marks, client=client, progress=progress)
