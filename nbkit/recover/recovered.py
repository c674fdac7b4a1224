"""Recoveries kept on disk: fifty regressors take minutes; those of `make experiment` come with the kit."""

import hashlib
import io
import json
from dataclasses import asdict, replace

import numpy as np

from nbkit import disk
from nbkit.disk import write_atomically
from nbkit.mark import identity
from nbkit.recover.pyramid import RegressionRecipe
from nbkit.recover.regression import Recovery, recovery, recovery_elsewhere, spectra_by_mark

FORMAT = "nbkit recovery 1"
SHIPPED = disk.BUNDLED / "recovery"


def recovered(test, marks, training=None, repeats=1, train=None, seed=0):
    """The Recovery of marks, and of P_dd alone, read if it was made before: in `nbkit.disk.runs()`, or with the kit.

    Parameters
    ----------
    test : Measurement to test regressors on, and to train them on, fold by fold, unless there is `training`.
    marks : {label: mark}, in the order of the spectra.
    training : Measurement to train on.
    repeats, train, seed : see `nbkit.recover.regression.recovery`.
    """
    sets = [each for each in (test, training) if each is not None]
    about = [FORMAT, {label: identity(mark) for label, mark in marks.items()}, [_which(each) for each in sets]]
    about = json.dumps([*about, asdict(RegressionRecipe()), repeats, train, seed])
    name = f"{hashlib.sha256(about.encode()).hexdigest()[:16]}.npz"
    own = disk.runs() / "recovery" / name
    kept = next((path for path in (own, SHIPPED / name) if path.is_file()), None)
    if kept is None:
        spectra = [_of(each, marks) for each in sets]
        asked = {"repeats": repeats, "train": train, "seed": seed}
        if training is None:
            found = recovery(*spectra, test.theta, **asked)
        else:
            found = recovery_elsewhere(spectra[1], training.theta, spectra[0], test.theta, **asked)
        write_atomically(own, _packed(found, about))
        kept = own
    return _read(kept, test.theta)


def ship_recoveries(marks, boxes):
    """Let what was made here come with the kit, and what is there of marks that are no more go.

    Parameters
    ----------
    marks : {label: mark} that there are.
    boxes : recoveries with so many boxes to test on are meant.
    """
    known = {identity(mark) for mark in marks.values()}
    for path in (disk.runs() / "recovery").glob("*.npz"):
        tested, of = _asked(path)
        if tested == boxes and of <= known:
            write_atomically(SHIPPED / path.name, path.read_bytes())
    for path in SHIPPED.glob("*.npz"):
        if not _asked(path)[1] <= known:
            path.unlink()


def _asked(path):
    """Number of boxes that were tested on, and identities of the marks."""
    with np.load(path, allow_pickle=False) as kept:
        return kept["predicted"].shape[2], set(json.loads(str(kept["about"]))[1].values())


def _which(power):
    """What tells the spectra of one set from another's."""
    drawn = hashlib.sha256(np.round(power.theta, 6).tobytes() + np.asarray(power.seeds, np.int64).tobytes())
    # The last tells simulators apart, not roundings.
    return [
        drawn.hexdigest()[:16],
        len(power.k),
        round(float(power.k[-1]), 4),
        round(float(np.log10(power.P_dd).mean()), 2),
    ]


def _of(power, marks):
    return spectra_by_mark(replace(power, marked={label: power.marked[label] for label in marks}))


def _units(prior):
    return prior.mean(1), (prior[:, 1] - prior[:, 0]) / 12**0.5


def _packed(found, about):
    """A Recovery as bytes; predictions in units of the prior, to three digits."""
    middle, scatter = _units(found.prior)
    arrays = {name: getattr(found, name) for name in ("val_loss", "epochs", "train", "prior", "seed")}
    arrays |= {"labels": np.array(found.labels), "about": np.array(about)}
    arrays["predicted"] = ((found.predicted - middle) / scatter).astype(np.float16)
    file = io.BytesIO()
    np.savez_compressed(file, **arrays)
    return file.getvalue()


def _read(path, theta):
    with np.load(path, allow_pickle=False) as file:
        kept = {name: file[name] for name in file.files}
    middle, scatter = _units(kept["prior"])
    predicted = middle + scatter * kept["predicted"].astype(np.float64)
    scores = (kept[name] for name in ("val_loss", "epochs"))
    return Recovery(
        tuple(kept["labels"].tolist()), theta, predicted, *scores, int(kept["train"]), kept["prior"], int(kept["seed"])
    )
