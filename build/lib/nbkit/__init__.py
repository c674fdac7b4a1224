"""nbkit: learned, interpretable, rotation-equivariant marks of the cosmic density field.

Shapes, everywhere: `...` any batch axes, `n` cells along a side of the grid, `b` bins of k, `s` distinct |k|,
`9` = (l, m) channels of l = 0, 1, 2. Lengths in Mpc/h, wavenumbers in h/Mpc, power in (Mpc/h)^3.

Some verbs share the name of their room: `nbkit.measure` is the function, `from nbkit.measure.bundled import ...` finds
the room.
"""

# ruff: noqa: F401 (the names that a notebook types)

from nbkit.forecast import forecast
from nbkit.mark.classical import ClassicalMark, classical_marks
from nbkit.mark.learned import LearnedMark
from nbkit.measure import measure
from nbkit.mesh.grid import Grid
from nbkit.mesh.spectra import Spectra, marked_field, spectra
from nbkit.notebook import notebook
from nbkit.recover import recover
from nbkit.train import Training, load, train
from nbkit.universe import field, save, suite

__version__ = "0.2.0"
