"""Where things are kept: never a matter of the working directory."""

import os
from pathlib import Path

_CHECKOUT = Path(__file__).resolve().parents[1]


def runs():
    """Suites, checkpoints and papermill outputs: $NBKIT_RUNS, or `runs/` of the checkout, or ~/.cache/nbkit."""
    if "NBKIT_RUNS" in os.environ:
        return Path(os.environ["NBKIT_RUNS"]).expanduser()
    return _CHECKOUT / "runs" if (_CHECKOUT / "notebooks").is_dir() else Path.home() / ".cache" / "nbkit"


def figures():
    """Publication figures: `figures/` of the checkout, or of `runs()` when the kit is installed without one."""
    return _CHECKOUT / "figures" if (_CHECKOUT / "notebooks").is_dir() else runs() / "figures"
