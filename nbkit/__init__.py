"""nbkit: learned, interpretable, rotation-equivariant marks of the cosmic density field.

Shapes, everywhere: `...` any batch axes, `n` cells along a side of the grid, `b` bins of k, `s` distinct |k|,
`9` = (l, m) channels of l = 0, 1, 2. Lengths in Mpc/h, wavenumbers in h/Mpc, power in (Mpc/h)^3.
"""

from nbkit.mark.classical import ClassicalMark, classical_marks
from nbkit.mark.learned import LearnedMark, load_mark
from nbkit.mesh.grid import Grid
from nbkit.mesh.spectra import Spectra, marked_field, spectra

__version__ = "0.1.0"
__all__ = ["ClassicalMark", "Grid", "LearnedMark", "Spectra", "classical_marks", "load_mark", "marked_field", "spectra"]
