"""theta, seed -> a universe; sets of them on disk."""

# ruff: noqa: F401 (the names of this room)

from nbkit.universe.cosmology import (
    FIDUCIAL,
    LATEX,
    PARAMETERS,
    PRIOR_BSQ,
    PRIOR_LATIN_HYPERCUBE,
    QUIJOTE_NAMES,
    STEPS,
    derivative_thetas,
    latin_hypercube_thetas,
    linear_power,
    nonlinear_power,
    sobol_thetas,
)
from nbkit.universe.field import Field, UnusableField, field, save
from nbkit.universe.particles import paint
from nbkit.universe.simulate import Simulator, growth, mean_power
from nbkit.universe.store import SimulationSet, fingerprint
from nbkit.universe.suite import DERIVATIVES, FIDUCIAL_SETS, PRESETS, SETS, Preset, Suite, suite
