"""theta, seed -> a universe; sets of them on disk."""

# ruff: noqa: F401 (the names of this room that notebooks and studies type)

from nbkit.universe.cosmology import FIDUCIAL, LATEX, PARAMETERS, PRIOR_BSQ, PRIOR_LATIN_HYPERCUBE, QUIJOTE_NAMES, STEPS
from nbkit.universe.field import field, save
from nbkit.universe.simulate import Simulator
from nbkit.universe.suite import FIDUCIAL_SETS, PRESETS, SETS, Preset, suite
