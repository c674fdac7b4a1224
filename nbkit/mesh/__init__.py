"""Fields on a mesh, their transforms and spectra."""

from nbkit.mesh.grid import Grid, to_fourier, to_real
from nbkit.mesh.spectra import Spectra, marked_field, marked_spectra, spectra

__all__ = ["Grid", "Spectra", "marked_field", "marked_spectra", "spectra", "to_fourier", "to_real"]
