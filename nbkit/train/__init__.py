"""Simulations -> a trained mark."""

from nbkit.train.run import load_run
from nbkit.train.shipped import run_folder


def load(run, preset=None):
    """The Run of a name: one that comes with the kit, one of your own in runs/, or a folder."""
    return load_run(run_folder(run, preset))
