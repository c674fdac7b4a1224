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
    repeats, train, seed : see `recovery`.
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
        arrays = {"predicted": predicted, "val_loss": found.val_loss, "epochs": found.epochs, "train": found.train}
        return {name: torch.as_tensor(array) for name, array in arrays.items()}

    # All that decides it: what the spectra of each set are and how far they reach, the marks, the training.
    about = [
        {"spectra": each.key, "bins": len(each.k), "marks": [each.identities[label] for label in labels]}
        for each in sets
    ]
    key = {"version": VERSION, "sets": about, "recipe": asdict(RegressionRecipe())} | asked
    kept = {name: tensor.double().numpy() for name, tensor in disk.kept("recovery", key, make).items()}
    predicted, train = MIDDLE + SCATTER * kept["predicted"], int(kept["train"])
    return Recovery((UNMARKED, *labels), sets[-1].theta, predicted, kept["val_loss"], kept["epochs"], train, seed)


def spectra_by_mark(power, labels=None):
    """{label: (N, 3, b)} of a Measurement, with P_dd alone in front."""
    marked = {label: power[label] for label in (power.labels if labels is None else labels)}
    return {UNMARKED: unmarked(power.P_dd)} | marked


def unmarked(P_dd):
    """Spectra (N, 3, b) of M = 1: through them a regressor of the same width sees P_dd (N, b) and nothing else."""
    return np.repeat(np.asarray(P_dd)[:, None], 3, axis=1)


def checked_kmax(run, kmax):
    """kmax [h/Mpc], if the mark of a Run was trained on scales up to there; the paper trains at 0.3, judges at 0.2."""
    if kmax > run.kmax + 1e-9:
        raise ValueError(
            f"kmax is {kmax:g} h/Mpc, and {run.folder.name} was trained on scales up to {run.kmax:g}: choose a smaller "
            f"kmax, or train a mark with `papermill 03_train.ipynb out.ipynb -p kmax {kmax:g}` and give its run."
        )
    return kmax


@dataclass(frozen=True)
class Recovery:
    """Predictions for simulations that the regressor never saw, by mark and repeat.

    Attributes
    ----------
    labels : of the marks.
    theta : (N, 5) true parameters.
    predicted : (marks, repeats, N, 5).
    val_loss : (marks,) mean over repeats and folds of the best validation loss: to choose a mark without its test.
    epochs : (marks,) mean length of the trainings.
    train : simulations a regressor was trained on.
    seed : of the resampling.
    """

    labels: tuple
    theta: np.ndarray
    predicted: np.ndarray
    val_loss: np.ndarray
    epochs: np.ndarray
    train: int
    seed: int

    def squared_error(self, label):
        """(repeats, N, 5), over the variance of the prior."""
        if label not in self.labels:
            raise KeyError(f"{label!r} is not among the marks {', '.join(self.labels)}.")
        return ((self.predicted[self.labels.index(label)] - self.theta) / SCATTER) ** 2

    def mse(self, label):
        """(3, 5): the mean squared error of each parameter and its 95 % interval, low and high."""
        error = self.squared_error(label)
        return self._with_interval(error.mean((0, 1)), self._resampled(error))

    def ratio(self, label, over):
        """(3, 5): MSE of one mark over that of another and its 95 % interval; above 1 the other is better.

        Simulations and repeats are resampled, the same for both marks; the training simulations are not.
        """
        top, low = self.squared_error(label), self.squared_error(over)
        ratios = self._resampled(top) / self._resampled(low)
        return self._with_interval(top.mean((0, 1)) / low.mean((0, 1)), ratios)

    def chosen(self, labels):
        """The one of some marks with the lowest validation loss."""
        return min(labels, key=lambda label: self.val_loss[self.labels.index(label)])

    def _resampled(self, error):
        """(draws, 5) means over simulations and repeats, both drawn with replacement, alike for every mark."""
        simulations, repeats = self._weights
        return np.einsum("rs,rsd->rd", repeats, np.tensordot(simulations, error, (1, 1)))

    @cached_property
    def _weights(self):
        """(draws, N) and (draws, repeats): how often each is drawn, over their number."""
        drawn = resamples(*self.predicted.shape[2:0:-1], RESAMPLED, self.seed)
        return [counts / counts.shape[1] for counts in drawn]

    @staticmethod
    def _with_interval(value, resampled):
        return np.stack([value, *np.quantile(resampled, [(1 - LEVEL) / 2, (1 + LEVEL) / 2], axis=0)])


def recovery(training, test=None, repeats=1, train=None, recipe=None, seed=0):
    """Every simulation predicted by regressors that never saw it, for every mark: five-fold splits, repeated.

    In each fold a fifth of the simulations are the test, 15 % stop the training, the rest train. With another set to
    test on, 15 % of the first stop the training, the rest train. Splits, first weights, batches and dropout are the
    same for all marks.

    Parameters
    ----------
    training, test : ({label: (N, 3, b)}, theta (N, 5)): P_dd, P_dm and P_mm of every mark, and the truth.
    repeats : times the simulations are dealt anew, with new weights.
    train : most simulations to train on, for learning curves; default all that are left.
    recipe : a RegressionRecipe.
    """
    (spectra, theta), count, first = training, len(training[1]), 0
    x, theta = _inputs(spectra), np.asarray(theta, np.float64)
    if test is None:
        splits = [split for repeat in range(repeats) for split in folds(count, train, seed, repeat)]
    else:
        if tuple(spectra) != tuple(test[0]):
            raise ValueError("training and test have different marks; measure the same marks of both sets.")
        x, theta = torch.cat([x, _inputs(test[0])], dim=1), np.concatenate([theta, test[1]])
        splits, first = [(*holdout(count, train, seed, repeat), slice(count, None)) for repeat in range(repeats)], count
    target, rows = torch.from_numpy((theta - MIDDLE) / SCATTER).to(x.dtype), [split[:2] for split in splits]
    predicted, *scores = (part.double().numpy() for part in fitted(x, target, rows, recipe, seed))
    tested = np.empty((len(x), repeats, *theta.shape))
    for number, (_, _, rows) in enumerate(splits):
        tested[:, number * repeats // len(splits), rows] = MIDDLE + SCATTER * predicted[:, number, rows]
    scores = (score.mean(1) for score in scores)
    return Recovery(tuple(spectra), theta[first:], tested[:, :, first:], *scores, len(splits[0][0]), seed)


def folds(count, train=None, seed=0, repeat=0):
    """Rows (train, validate, test) of each of five folds; every simulation is in one test."""
    order, held, most = _deal(count, -(-count // FOLDS), train, (seed, FOLD, repeat))
    found = []
    for number, test in enumerate(order.tensor_split(FOLDS)):
        rest = order[~torch.isin(order, test)].roll(-number * held)
        found.append((rest[held : held + most], rest[:held], test))
    return found


def holdout(count, train=None, seed=0, repeat=0):
    """Rows (train, validate) where all of a set may be seen."""
    order, held, most = _deal(count, 0, train, (seed, SUBSET, repeat))
    return order[held : held + most], order[:held]


def _deal(count, tested, train, words):
    """Simulations in random order, how many of them validate, and how many train."""
    if count < FEWEST:
        raise ValueError(
            f"There are {count} simulations; recovery of {', '.join(PARAMETERS)} needs at least {FEWEST} to train, "
            'validate and test on: make a larger set, e.g. with suite("demo").'
        )
    held = round(VALIDATION * count)
    most = count - tested - held
    if train is not None and not 10 <= train <= most:
        raise ValueError(f"train is {train}; with a validation part set aside it must lie in 10 ... {most}.")
    return torch.randperm(count, generator=generator(*words)), held, train or most


def _inputs(spectra):
    shapes = {label: np.shape(each) for label, each in spectra.items()}
    if len(set(shapes.values())) != 1:
        raise ValueError(f"Marks must have spectra of one shape (N, 3, b); given are {shapes or 'none'}.")
    return torch.stack([features(each) for each in spectra.values()]).float()
