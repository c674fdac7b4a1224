"""Spectra -> parameters: regressors that are trained once and kept, and posteriors."""

from dataclasses import asdict

import numpy as np
import torch

from nbkit import disk
from nbkit.forecast import UNMARKED
from nbkit.recover.posterior import Posterior, posterior
from nbkit.recover.pyramid import RegressionRecipe
from nbkit.recover.regression import MIDDLE, SCATTER, Recovery, checked_kmax, recovery, recovery_elsewhere, unmarked

__all__ = ["Posterior", "Recovery", "checked_kmax", "posterior", "recover", "spectra_by_mark"]

VERSION = 1  # of the code that trains regressors; another one trains them anew


def recover(power, labels, kmax, train_on="latin_hypercube", repeats=1, train=None, seed=0):
    """The Recovery of theta from the spectra of marks, and of P_dd alone: read, if it was made before.

    Regressors are tested on all of the Latin hypercube, which no mark was trained on; see `recovery` for how they are
    trained on it as well, fold by fold, and `recovery_elsewhere` for those that are trained on another set.

    Parameters
    ----------
    power : {set: Measurement} with "latin_hypercube", and "BSQ" to train there.
    labels : of the marks.
    kmax : largest k [h/Mpc].
    train_on : "latin_hypercube" or "BSQ".
    repeats : times everything is trained, on other splits and from other weights.
    train : most simulations to train on; default all there are.
    seed : of all that is random.
    """
    if train_on not in ("latin_hypercube", "BSQ"):
        raise ValueError(f"train_on is {train_on!r}; allowed are latin_hypercube, BSQ.")
    labels = (labels,) if isinstance(labels, str) else tuple(labels)
    sets = [power[name].cut(kmax) for name in dict.fromkeys((train_on, "latin_hypercube"))]
    spectra = [(spectra_by_mark(each, labels), each.theta) for each in sets]
    asked = {"repeats": repeats, "train": train, "seed": seed}

    def make():
        found = recovery(*spectra[0], **asked) if len(sets) == 1 else recovery_elsewhere(*spectra, **asked)
        # Three digits, in units of the prior, are more than a regressor knows.
        predicted = ((found.predicted - MIDDLE) / SCATTER).astype(np.float16)
        arrays = {"predicted": predicted, "val_loss": found.val_loss, "epochs": found.epochs, "train": found.train}
        return {name: torch.as_tensor(array) for name, array in arrays.items()}

    key = recovery_key(sets, labels, **asked)
    kept = {name: tensor.double().numpy() for name, tensor in disk.kept("recovery", key, make).items()}
    predicted, train = MIDDLE + SCATTER * kept["predicted"], int(kept["train"])
    return Recovery((UNMARKED, *labels), sets[-1].theta, predicted, kept["val_loss"], kept["epochs"], train, seed)


def recovery_key(sets, labels, **asked):
    """All that decides a Recovery: what the spectra of each set are and how far they reach, the marks, the training."""
    about = [
        {"spectra": each.key, "bins": len(each.k), "marks": [each.identities[label] for label in labels]}
        for each in sets
    ]
    return {"version": VERSION, "sets": about, "recipe": asdict(RegressionRecipe())} | asked


def spectra_by_mark(power, labels=None):
    """{label: (N, 3, b)} of a Measurement, with P_dd alone in front."""
    marked = {label: power[label] for label in (power.labels if labels is None else labels)}
    return {UNMARKED: unmarked(power.P_dd)} | marked
