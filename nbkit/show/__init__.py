"""All of it as figures, tables and explorers; a module is loaded when something in it is asked for."""

# ruff: noqa: F401
import lazy_loader

from nbkit.show.looks import SYMBOLS, colour_range, pretty, save, slice_of, style, table

NAMES = {
    "maps": ["Maps"],
    "curves": ["Curves", "Ellipses"],
    "controls": ["Explorer", "Picker"],
    "fields": ["slices", "kernels", "kernel_panels", "universe_explorer", "kernel_explorer", "invariant_explorer"],
    "mark": ["anatomy", "anatomy_explorer", "surface_explorer"],
    "training": ["Monitor"],
    "forecast": [
        *("triangle", "mark_map", "ratio_map", "sigma_against_kmax", "convergence", "data_health", "fisher_explorer"),
        *("true_against_predicted", "mse_map", "learning_curves", "corner", "coverage"),
    ],
    "latent": ["latent_explorer"],
    "studio": ["Studio"],
}
__getattr__, __dir__, _ = lazy_loader.attach(__name__, list(NAMES), NAMES)
