"""Recoveries that were made here come with the kit; `figures/experiment.py` calls this after notebook 07."""

from nbkit import disk
from nbkit.mark import identity

KIND = "recovery"


def bundle_recoveries(marks, boxes):
    """Copy recoveries from `runs()` to what comes with the kit, and drop from there those of marks that are no more.

    Parameters
    ----------
    marks : {label: mark} that there are.
    boxes : recoveries with so many boxes to test on are meant.
    """
    known, folder = {identity(mark) for mark in marks.values()}, disk.BUNDLED / KIND
    for path in (disk.runs() / KIND).glob("*.safetensors"):
        tested, of = asked(path)
        if tested == boxes and of <= known:
            disk.write_atomically(folder / path.name, path.read_bytes())
    for path in folder.glob("*.safetensors"):
        if not asked(path)[1] <= known:
            path.unlink()


def asked(path):
    """Number of boxes that a kept recovery was tested on, and the identities of its marks."""
    tensors, key = disk.read_tensors(path)
    return tensors["predicted"].shape[2], {which for each in key["sets"] for which in each["marks"]}
