"""Spectra -> parameters: how well a regressor finds theta from the spectra of a mark, and how sure we are of that.

The regressor and its training are in `pyramid`, posteriors in `posterior`. Errors are in units of the variance of the
prior: always guessing its middle gives 1, perfection 0.
"""

from dataclasses import asdict, dataclass
from functools import cached_property

import numpy as np
import torch

from nbkit import disk
from nbkit.forecast import UNMARKED
from nbkit.forecast.bootstrap import LEVEL, resamples
from nbkit.mesh.threads import generator
from nbkit.recover.posterior import features, posterior  # noqa: F401
from nbkit.recover.pyramid import RegressionRecipe, fitted
from nbkit.universe.cosmology import PARAMETERS, PRIOR_LATIN_HYPERCUBE

VERSION = 1  # of the code that trains regressors; another one trains them anew
FOLDS = 5
VALIDATION = 0.15  # of all simulations, as in table 1
FEWEST = 50  # simulations: below, the folds hold too few to train, validate and test on
RESAMPLED = 2000  # bootstrap draws behind an interval
FOLD, SUBSET = 12, 13  # first words of seeds, see `nbkit.train.data`
# Units of the errors: middle and scatter of the uniform prior of the simulations that are tested on.
MIDDLE, SCATTER = PRIOR_LATIN_HYPERCUBE.mean(1), np.ptp(PRIOR_LATIN_HYPERCUBE, axis=1) / 12**0.5


def recover(power, labels, kmax, train_on="latin_hypercube", repeats=1, train=None, seed=0):
    """The Recovery of theta from the spectra of marks, and of P_dd alone: read, if it was made before.

    Regressors are tested on all of the Latin hypercube, which no mark was trained on; see `recovery`.

    Parameters
    ----------
    power : {set: Measurement} with "latin_hypercube", and "BSQ" to train there.
    labels : of the marks.
    kmax : largest k [h/Mpc].
    train_on : "latin_hypercube", fold by fold, or "BSQ".
    repeats : times the simulations are dealt anew, with new weights.
    train : most simulations to train on, for learning curves; default all that are left.
    """
    if train_on not in ("latin_hypercube", "BSQ"):
        raise ValueError(f"train_on is {train_on!r}; allowed are latin_hypercube, BSQ.")
    labels = (labels,) if isinstance(labels, str) else tuple(labels)
    sets = [power[name].cut(kmax) for name in dict.fromkeys((train_on, "latin_hypercube"))]
    spectra = [(spectra_by_mark(each, labels), each.theta) for each in sets]
    asked = {"repeats": repeats, "train": train, "seed": seed}

    def make():
        found = recovery(*spectra, **asked)
        # Three digits, in units of the prior, are more than a regressor knows.
        predicted = ((found.predicted - MIDDLE) / SCATTER).astype(np.float16)
        arrays = {"predicted": predicted, "val_loss": found.val_loss, "train": found.train}
        return {name: torch.as_tensor(array) for name, array in arrays.items()}

    # All that decides it: what the spectra of each set are and how far they reach, the marks, the training.
    marks = [[each.identities[label] for label in labels] for each in sets]
    about = [{"spectra": each.key, "bins": len(each.k), "marks": of} for each, of in zip(sets, marks, strict=True)]
    key = {"version": VERSION, "sets": about, "recipe": asdict(RegressionRecipe())} | asked
    kept = {name: tensor.double().numpy() for name, tensor in disk.kept("recovery", key, make).items()}
    predicted = MIDDLE + SCATTER * kept["predicted"]
    return Recovery((UNMARKED, *labels), sets[-1].theta, predicted, kept["val_loss"], int(kept["train"]), seed)


def spectra_by_mark(power, labels):
    """{label: (N, 3, b)} of a Measurement, in front P_dd alone: as spectra of M = 1, which tell a regressor no more."""
    return {UNMARKED: np.repeat(power.P_dd[:, None], 3, axis=1)} | {label: power[label] for label in labels}


@dataclass(frozen=True)
class Recovery:
    """Predictions for simulations that the regressor never saw, by mark and repeat."""

    labels: tuple  # of the marks
    theta: np.ndarray  # (N, 5) true parameters
    predicted: np.ndarray  # (marks, repeats, N, 5)
    val_loss: np.ndarray  # (marks,) best validation loss, mean over all trainings: to choose a mark without its test
    train: int  # simulations a regressor was trained on
    seed: int  # of the resampling

    def mse(self, label):
        """(3, 5): the mean squared error of each parameter and its 95 % interval, low and high."""
        return _interval(self._resampled(label))

    def ratio(self, label, over):
        """(3, 5): MSE of one mark over that of another and its 95 % interval; above 1 the other is better.

        Simulations and repeats are resampled, the same for both marks; the training simulations are not.
        """
        return _interval(self._resampled(label) / self._resampled(over))

    def chosen(self, labels):
        """The one of some marks with the lowest validation loss."""
        return min(labels, key=lambda label: self.val_loss[self.labels.index(label)])

    def _resampled(self, label):
        """(1 + draws, 5) MSE over the variance of the prior: of all, and of resamples, alike for every mark."""
        if label not in self.labels:
            raise KeyError(f"{label!r} is not among the marks {', '.join(self.labels)}.")
        error = ((self.predicted[self.labels.index(label)] - self.theta) / SCATTER) ** 2
        simulations, repeats = self._weights
        return np.einsum("rs,rsd->rd", repeats, np.tensordot(simulations, error, (1, 1)))

    @cached_property
    def _weights(self):
        """(1 + draws, N) and (1 + draws, repeats): how often each counts, over their number; first each once."""
        drawn = resamples(*self.predicted.shape[2:0:-1], RESAMPLED, self.seed)
        return [np.vstack([np.ones(counts.shape[1]), counts]) / counts.shape[1] for counts in drawn]


def _interval(values):
    """(3, 5): the first of (1 + draws, 5), and the ends of the middle 95 % of the others."""
    return np.stack([values[0], *np.quantile(values[1:], [(1 - LEVEL) / 2, (1 + LEVEL) / 2], axis=0)])


def recovery(training, test=None, repeats=1, train=None, recipe=None, seed=0):
    """Every simulation predicted by regressors that never saw it, for every mark: five-fold splits, repeated.

    In each fold a fifth of the simulations are the test, 15 % stop the training, the rest train. With another set to
    test on, 15 % of the first stop the training, the rest train. Splits, first weights, batches and dropout are the
    same for all marks.

    Parameters
    ----------
    training, test : ({label: (N, 3, b)}, theta (N, 5)): P_dd, P_dm and P_mm of every mark, and the truth.
    """
    labels, count, first = tuple(training[0]), len(training[1]), 0 if test is None else len(training[1])
    sets = (training,) if test is None else (training, test)
    x = torch.cat([torch.stack([features(spectra[label]) for label in labels]) for spectra, _ in sets], dim=1).float()
    theta = np.concatenate([theta for _, theta in sets])
    splits = [split for repeat in range(repeats) for split in folds(count, train, seed, repeat, test is None)]
    target, rows = torch.from_numpy((theta - MIDDLE) / SCATTER).to(x.dtype), [split[:2] for split in splits]
    predicted, loss, _ = (part.double().numpy() for part in fitted(x, target, rows, recipe, seed))
    tested = np.empty((len(x), repeats, *theta.shape))
    for number, (_, _, rows) in enumerate(splits):
        tested[:, number * repeats // len(splits), rows] = MIDDLE + SCATTER * predicted[:, number, rows]
    return Recovery(labels, theta[first:], tested[:, :, first:], loss.mean(1), len(splits[0][0]), seed)


def folds(count, train=None, seed=0, repeat=0, tested=True):
    """Rows (train, validate, test) of each of five folds, every simulation in one test, or of one to test other sets.

    Parameters
    ----------
    train : most rows to train on; default all that are left.
    tested : whether the `count` simulations are tested themselves, or those in the rows after them.
    """
    if count < FEWEST:
        raise ValueError(
            f"There are {count} simulations; recovery of {', '.join(PARAMETERS)} needs at least {FEWEST} to train, "
            'validate and test on: make a larger set, e.g. with suite("demo").'
        )
    held = round(VALIDATION * count)
    most = count - held - tested * -(-count // FOLDS)
    if train is not None and not 10 <= train <= most:
        raise ValueError(f"train is {train}; with a validation part set aside it must lie in 10 ... {most}.")
    order = torch.randperm(count, generator=generator(seed, FOLD if tested else SUBSET, repeat))
    splits = []
    for number, test in enumerate(order.tensor_split(FOLDS) if tested else [slice(count, None)]):
        rest = order[~torch.isin(order, test)].roll(-number * held) if tested else order
        splits.append((rest[held : held + (train or most)], rest[:held], test))
    return splits
