"""Fields on a mesh, their transforms and spectra."""
