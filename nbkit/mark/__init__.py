"""Marks: the field M(x) that weighs the density, and what a mark is, in JSON and in 16 letters."""
# ruff: noqa: F401

import hashlib
import json
from dataclasses import asdict, is_dataclass

import torch

from nbkit.mark.additive import AdditiveMark
from nbkit.mark.classical import ClassicalMark, UnitMark, classical_marks
from nbkit.mark.learned import LearnedMark, load_mark
from nbkit.mesh.grid import Grid

FORMAT = "nbkit spectra 1"


def mark_settings(mark):
    """A mark's kind and settings, for JSON."""
    settings = asdict(mark) if is_dataclass(mark) else getattr(mark, "settings", {})
    if isinstance(mark, LearnedMark):
        settings = settings | {"grid": asdict(mark.grid)}
    if isinstance(mark, ClassicalMark):  # there is one smoothing, but spectra on disk are found by its name
        settings["smoothing"] = "gaussian"
    return {"kind": type(mark).__name__, **settings}


def weights_hash(module):
    """A few letters that change with the weights."""
    digest = hashlib.sha256()
    for name, tensor in sorted(module.state_dict().items()):
        digest.update(name.encode() + tensor.detach().cpu().numpy().tobytes())
    return digest.hexdigest()[:16]


def mark_of_settings(settings):
    """A mark, with the weights of its start, from what `mark_settings` gave."""
    settings = dict(settings)
    kind = settings.pop("kind")
    if kind == "LearnedMark":
        return LearnedMark(Grid(**settings.pop("grid")), **settings)
    if settings.pop("smoothing", "gaussian") != "gaussian":
        kind = f"{kind} with another smoothing than a Gaussian"
    kinds = {"AdditiveMark": AdditiveMark, "ClassicalMark": ClassicalMark, "UnitMark": UnitMark}
    if kind not in kinds:
        raise ValueError(f"This run trained a mark of kind {kind!r}, which nbkit does not know; pass one as `mark`.")
    return kinds[kind](**settings)


def identity(mark):
    """16 letters that change with a mark's kind, settings or weights: the name of what was measured with it."""
    about = json.dumps([FORMAT, mark_settings(mark)], sort_keys=True).encode()
    weights = weights_hash(mark).encode() if isinstance(mark, torch.nn.Module) else b""
    return hashlib.sha256(about + weights).hexdigest()[:16]
