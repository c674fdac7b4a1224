"""theta, seed -> a universe; sets of them on disk."""

from nbkit.universe.cosmology import FIDUCIAL, LATEX, PARAMETERS, PRIOR_BSQ, PRIOR_LATIN_HYPERCUBE, QUIJOTE_NAMES, STEPS
from nbkit.universe.simulate import Simulator
from nbkit.universe.suite import FIDUCIAL_SETS, PRESETS, SETS, Preset, suite

__all__ = [
    "FIDUCIAL",
    "FIDUCIAL_SETS",
    "LATEX",
    "PARAMETERS",
    "PRESETS",
    "PRIOR_BSQ",
    "PRIOR_LATIN_HYPERCUBE",
    "QUIJOTE_NAMES",
    "SETS",
    "STEPS",
    "Preset",
    "Simulator",
    "suite",
]
