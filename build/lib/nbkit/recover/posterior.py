"""Posteriors p(theta | spectra) by neural posterior estimation with sbi, and tests of whether to trust them.

The networks read the features of the regressor. Nothing is written to disk: no logs, no pickles.
"""

from contextlib import redirect_stdout
from dataclasses import dataclass
from io import StringIO
from types import SimpleNamespace

import numpy as np
import torch
from scipy.stats import binom

from nbkit.mesh.spectra import marked_summary, unmarked_summary
from nbkit.mesh.threads import seeded
from nbkit.universe.cosmology import PRIOR_BSQ

FEWEST = 200  # simulations to train on: below, a density of five parameters is a guess
AT_ONCE, MOST = 20_000, 2_000_000  # samples drawn in one go, of all boxes; tried for one box
TRAINED, DRAWN, REFERENCES = 20, 21, 22  # first words of seeds, see `nbkit.train.data`
# Chosen on `demo` by the log-probability of held-out simulations; principal components in place of features lost by it.
NETWORK = {"hidden_features": 32, "num_transforms": 2}
TRAINING = {"training_batch_size": 100, "learning_rate": 5e-3, "stop_after_epochs": 20, "max_num_epochs": 300}


def features(spectra):
    """Table 4's inputs log10 P_dd, log10(P_mm / P_dd), r(k): (N, 3b), from spectra (N, 3, b)."""
    P_dd, P_dm, P_mm = torch.as_tensor(spectra).unbind(-2)
    return torch.cat([unmarked_summary(P_dd), marked_summary(P_dd, P_dm, P_mm)], dim=-1)


class Posterior:
    """p(theta | spectra) under a uniform prior: an equal mixture of normalising flows.

    Parameters
    ----------
    estimators : density estimators of sbi, trained on the standardised features that `kept` names.
    mean, scatter, kept : (3b,) of the features of the training simulations, and which of them vary at all.
    prior : (5, 2) lower and upper bounds.
    """

    def __init__(self, estimators, mean, scatter, kept, prior):
        self.estimators, self.prior = estimators, np.asarray(prior)
        self._mean, self._scatter, self._kept = mean, scatter, kept

    def within(self, prior):
        """The same posterior under a uniform prior (5, 2) that lies inside its own: cut off, and nothing else."""
        prior = np.asarray(prior)
        if (prior[:, 0] < self.prior[:, 0]).any() or (prior[:, 1] > self.prior[:, 1]).any():
            raise ValueError(
                f"prior is {prior.tolist()}, which reaches beyond {self.prior.tolist()}, where this posterior was "
                "trained; give one inside, or train on simulations that cover it."
            )
        return Posterior(self.estimators, self._mean, self._scatter, self._kept, prior)

    def samples(self, spectra, count=1000, seed=0):
        """(N, count, 5) samples for spectra (N, 3, b)."""
        return self._drawn(self._seen(spectra), count, seed).transpose(0, 1).double().numpy()

    @torch.no_grad()
    def log_prob(self, spectra, theta):
        """(N,) log of the density of theta (N, 5) for spectra (N, 3, b), under the prior of the training."""
        x, theta = self._seen(spectra), torch.as_tensor(np.asarray(theta)).float()
        each = torch.stack([estimator.log_prob(theta[None], x)[0] for estimator in self.estimators])
        return (each.logsumexp(0) - np.log(len(each))).double().numpy()

    def coverage(self, spectra, theta, count=500, seed=0):
        """Whether posteriors of N simulations drawn from the prior hold their truths as often as they say.

        Parameters
        ----------
        spectra, theta : (N, 3, b) and (N, 5), never used in training.
        count : samples of each posterior.
        """
        from sbi.diagnostics import check_tarp, run_tarp

        x, theta = self._seen(spectra), torch.as_tensor(np.asarray(theta)).float()
        low, high = self.prior.T
        if ((theta.numpy() < low - 1e-6) | (theta.numpy() > high + 1e-6)).any():
            raise ValueError(
                f"Some theta lie outside the prior {self.prior.tolist()}: coverage needs truths drawn from the prior; "
                "choose it with `within`, or test on simulations inside it."
            )
        samples = self._drawn(x, count, seed)
        held = SimpleNamespace(sample_batched=lambda *_, **__: samples)  # all that is asked of a posterior there
        with seeded(seed, REFERENCES):
            expected, alpha = run_tarp(theta, x, held, num_posterior_samples=count, show_progress_bar=False)
        ranks = (samples < theta).double().mean(0)
        return Coverage(ranks.numpy(), alpha.numpy(), expected.numpy(), check_tarp(expected, alpha)[0])

    def _seen(self, spectra):
        return ((features(spectra).double() - self._mean) / self._scatter)[:, self._kept].float()

    @torch.no_grad()
    def _drawn(self, x, count, seed):
        """(count, N, 5) samples for standardised features: those of the mixture that fall inside the prior.

        sbi's own rejection goes on until *every* round has accepted something for the box that accepts least, which
        with hundreds of boxes may never be; here a box that has enough is left alone.
        """
        low, high = torch.as_tensor(np.array(self.prior)).float().T
        kept, each = [torch.empty(0, len(low)) for _ in x], -(-count // len(self.estimators))
        wanting, tried = list(range(len(x))), 0
        with seeded(seed, DRAWN):
            while wanting:
                if tried > MOST:
                    raise ValueError(
                        f"Of {tried:,} samples for box {wanting[0]} fewer than {count} lie inside the prior "
                        f"{self.prior.tolist()}: its posterior is elsewhere; choose a wider prior, or leave it out."
                    )
                drawn = torch.stack([estimator.sample((each,), x[wanting]) for estimator in self.estimators], dim=1)
                drawn = drawn.flatten(0, 1)  # in turn from all members
                inside = ((drawn >= low) & (drawn <= high)).all(-1)
                for place, box in enumerate(wanting):
                    kept[box] = torch.cat([kept[box], drawn[inside[:, place], place]])[:count]
                tried += len(drawn)
                wanting = [box for box in wanting if len(kept[box]) < count]
                each = AT_ONCE // max(1, len(wanting))
        return torch.stack(kept, dim=1)


@dataclass(frozen=True)
class Coverage:
    """Where truths fell among samples of their posteriors.

    Attributes
    ----------
    ranks : (N, 5), the share of samples below the truth: uniform if posteriors are calibrated (SBC).
    alpha, expected : credibility and how often regions of it hold the truth (TARP, all parameters at once).
    area : between that curve and the diagonal for alpha > 1/2: below 0 for posteriors too narrow, above for too wide.
    """

    ranks: np.ndarray
    alpha: np.ndarray
    expected: np.ndarray
    area: float

    def share(self, level=0.68):
        """(5,) share of truths inside the central interval of `level`."""
        return (np.abs(self.ranks - 0.5) < level / 2).mean(0)

    def band(self, level=0.68, confidence=0.99):
        """Shares between which calibrated posteriors would fall with `confidence`, given so many tests."""
        count = len(self.ranks)
        return tuple(x / count for x in binom.interval(confidence, count, level))


def posterior(spectra, theta, prior=PRIOR_BSQ, members=1, seed=0):
    """Train a Posterior on simulations drawn from a uniform prior.

    Parameters
    ----------
    spectra, theta : (N, 3, b) and (N, 5).
    prior : (5, 2) that theta was drawn from.
    members : flows of the mixture, from different weights and validation parts; more are better calibrated.
    """
    from sbi.inference import NPE
    from sbi.neural_nets import posterior_nn

    x, theta = features(spectra).double(), torch.as_tensor(np.asarray(theta)).float()
    if len(x) < FEWEST:
        raise ValueError(
            f"There are {len(x)} simulations; a posterior needs at least {FEWEST} to train on: make a larger set, e.g. "
            'with suite("demo").'
        )
    mean, scatter = x.mean(0), x.std(0)
    kept = scatter > 1e-6  # r = 1 of M = 1 never varies and must not be divided by its rounding
    found = Posterior([], mean, scatter, kept, prior)
    for member in range(members):
        # The flow lives where the prior has no edges, so that none of it leaks out.
        flow = posterior_nn("zuko_maf", z_score_theta="transform_to_unconstrained", x_dist=_box(prior), **NETWORK)
        with seeded(seed, TRAINED, member), redirect_stdout(StringIO()):
            trainer = NPE(prior=_box(prior), density_estimator=flow, tracker=_NoLog(), show_progress_bars=False)
            found.estimators.append(trainer.append_simulations(theta, found._seen(spectra)).train(**TRAINING))
    return found


def _box(prior):
    from sbi.utils import BoxUniform

    low, high = torch.as_tensor(np.array(prior)).float().T
    return BoxUniform(low, high)


class _NoLog:
    """The tracker sbi asks for, which tracks nothing: its default writes files into the working directory."""

    log_dir = None

    def __getattr__(self, name):
        return lambda *_, **__: None
