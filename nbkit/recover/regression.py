"""Parameter recovery: how well a regressor finds theta from the spectra of a mark, and how sure we are of that.

The regressor and its training are in `pyramid`. Errors are in units of the variance of the prior: always guessing
its middle gives 1, perfection 0.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch

from nbkit.mesh.spectra import marked_summary, unmarked_summary
from nbkit.mesh.threads import generator
from nbkit.recover.pyramid import fitted
from nbkit.universe.cosmology import PARAMETERS, PRIOR_LATIN_HYPERCUBE

FOLDS = 5
VALIDATION = 0.15  # of all simulations, as in table 1
FEWEST = 50  # simulations: below, the folds hold too few to train, validate and test on
LEVEL = 0.95  # of intervals
RESAMPLED = 2000  # bootstrap draws behind an interval
FOLD, SUBSET = 12, 13  # first words of seeds, see `nbkit.train.data`
# Units of the errors: middle and scatter of the uniform prior of the simulations that are tested on.
MIDDLE, SCATTER = PRIOR_LATIN_HYPERCUBE.mean(1), np.ptp(PRIOR_LATIN_HYPERCUBE, axis=1) / 12**0.5


def features(spectra):
    """Table 4's inputs log10 P_dd, log10(P_mm / P_dd), r(k): (N, 3b), from spectra (N, 3, b)."""
    P_dd, P_dm, P_mm = torch.as_tensor(spectra).unbind(-2)
    return torch.cat([unmarked_summary(P_dd), marked_summary(P_dd, P_dm, P_mm)], dim=-1)


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
        return _with_interval(error.mean((0, 1)), self._resampled(error))

    def ratio(self, label, over):
        """(3, 5): MSE of one mark over that of another and its 95 % interval; above 1 the other is better.

        Simulations and repeats are resampled, the same for both marks; the training simulations are not.
        """
        top, low = self.squared_error(label), self.squared_error(over)
        return _with_interval(top.mean((0, 1)) / low.mean((0, 1)), self._resampled(top) / self._resampled(low))

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
        rng = np.random.default_rng(self.seed)
        return [rng.multinomial(n, np.full(n, 1 / n), RESAMPLED) / n for n in self.predicted.shape[2:0:-1]]


def recovery(spectra, theta, repeats=1, train=None, recipe=None, seed=0):
    """Every simulation predicted by regressors that never saw it, for every mark: five-fold splits, repeated.

    In each fold a fifth of the simulations are the test, 15 % stop the training, the rest train. Splits, first weights,
    batches and dropout are the same for all marks.

    Parameters
    ----------
    spectra : {label: (N, 3, b)} P_dd, P_dm and P_mm of every mark.
    theta : (N, 5).
    repeats : times the simulations are dealt into folds anew, with new weights.
    train : most simulations to train on, for learning curves; default all that a fold leaves.
    recipe : a RegressionRecipe.
    """
    x, theta = _inputs(spectra), np.asarray(theta, np.float64)
    splits = [split for repeat in range(repeats) for split in folds(len(theta), train, seed, repeat)]
    predicted, *scores = _fitted(x, theta, splits, recipe, seed)
    tested = np.empty((len(x), repeats, *theta.shape))
    for number, (_, _, test) in enumerate(splits):
        tested[:, number // FOLDS, test] = predicted[:, number, test]
    return Recovery(tuple(spectra), theta, tested, *scores, len(splits[0][0]), seed)


def recovery_elsewhere(training, test, train=None, repeats=1, recipe=None, seed=0):
    """As `recovery`, trained and validated on one set of simulations and tested on all of another.

    Parameters
    ----------
    training : (spectra, theta) of the set to train on; `train` of them, and 15 % of the set to validate.
    test : (spectra, theta) of the set to test on, for the same marks.
    """
    (spectra, theta), (others, truth) = training, test
    if tuple(spectra) != tuple(others):
        raise ValueError("training and test have different marks; measure the same marks of both sets.")
    count = len(theta)
    _refuse_few(count)
    x, theta = torch.cat([_inputs(spectra), _inputs(others)], dim=1), np.concatenate([theta, truth])
    held, splits = round(VALIDATION * count), []
    most = _checked_train(train, count - held)
    for repeat in range(repeats):
        order = torch.randperm(count, generator=generator(seed, SUBSET, repeat))
        splits.append((order[held : held + most], order[:held], None))
    predicted, *scores = _fitted(x, theta, splits, recipe, seed)
    return Recovery(tuple(spectra), theta[count:], predicted[:, :, count:], *scores, most, seed)


def folds(count, train=None, seed=0, repeat=0):
    """Rows (train, validate, test) of each of five folds; every simulation is in one test."""
    _refuse_few(count)
    order = torch.randperm(count, generator=generator(seed, FOLD, repeat))
    held = round(VALIDATION * count)
    most = _checked_train(train, count - -(-count // FOLDS) - held)
    found = []
    for number, test in enumerate(order.tensor_split(FOLDS)):
        rest = order[~torch.isin(order, test)].roll(-number * held)
        found.append((rest[held : held + most], rest[:held], test))
    return found


def _fitted(x, theta, splits, recipe, seed):
    """`pyramid.fitted` with theta in units of the prior on the way in and back in its own on the way out."""
    target, rows = torch.from_numpy((theta - MIDDLE) / SCATTER).to(x.dtype), [split[:2] for split in splits]
    predicted, *scores = (part.double().numpy() for part in fitted(x, target, rows, recipe, seed))
    return MIDDLE + SCATTER * predicted, *(score.mean(1) for score in scores)


def _inputs(spectra):
    shapes = {label: np.shape(each) for label, each in spectra.items()}
    if len(set(shapes.values())) != 1:
        raise ValueError(f"Marks must have spectra of one shape (N, 3, b); given are {shapes or 'none'}.")
    return torch.stack([features(each) for each in spectra.values()]).float()


def _with_interval(value, resampled):
    return np.stack([value, *np.quantile(resampled, [(1 - LEVEL) / 2, (1 + LEVEL) / 2], axis=0)])


def _checked_train(train, most):
    if train is not None and not 10 <= train <= most:
        raise ValueError(f"train is {train}; with a validation part set aside it must lie in 10 ... {most}.")
    return train or most


def _refuse_few(count):
    if count < FEWEST:
        raise ValueError(
            f"There are {count} simulations; recovery of {', '.join(PARAMETERS)} needs at least {FEWEST} to train, "
            'validate and test on: make a larger set, e.g. with suite("demo").'
        )
