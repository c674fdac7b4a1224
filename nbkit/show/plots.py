"""Names that moved: `from nbkit.show import ...` has the look of figures, nbkit.show.filters the kernels."""

import matplotlib.pyplot as plt

from nbkit.show import (
    BLACK,
    BLUE,
    GREEN,
    L_COLOURS,
    LABELS,
    MAPS,
    ORANGE,
    PINK,
    RED,
    SKY,
    YELLOW,
    limits,
    slice_of,
    slices,
    style,
)
from nbkit.show import brightness as shown
from nbkit.show.filters import PLANE, SHOWN, kernel_panel, kernel_panels, kernel_pyramid, kernels, profiles
from nbkit.show.widgets import LiveLines

__all__ = [
    "BLACK",
    "BLUE",
    "GREEN",
    "LABELS",
    "L_COLOURS",
    "MAPS",
    "ORANGE",
    "PINK",
    "PLANE",
    "RED",
    "SHOWN",
    "SKY",
    "YELLOW",
    "LiveLines",
    "kernel_panel",
    "kernel_panels",
    "kernel_pyramid",
    "kernels",
    "limits",
    "plt",
    "profiles",
    "shown",
    "slice_of",
    "slices",
    "style",
]
