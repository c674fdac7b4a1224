"""Posteriors p(theta | spectra) by neural posterior estimation with sbi, and tests of whether to trust them.

The networks read the features of the regressor. Nothing is written to disk: no logs, no pickles.
"""

from contextlib import redirect_stdout
from dataclasses import dataclass, field, replace
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


@dataclass(frozen=True, eq=False)
class Posterior:
    """p(theta | spectra) under a uniform prior: an equal mixture of normalising flows."""

    prior: np.ndarray  # (5, 2) lower and upper bounds
    mean: torch.Tensor  # (3b,) of the features of the training simulations
    scatter: torch.Tensor  # (3b,)
    kept: torch.Tensor  # (3b,) bool, which features vary at all
    estimators: list = field(default_factory=list)  # density estimators of sbi, trained on these, standardised

    def within(self, prior):
        """The same posterior under a uniform prior (5, 2) that lies inside its own: cut off, and nothing else."""
        if (prior[:, 0] < self.prior[:, 0]).any() or (prior[:, 1] > self.prior[:, 1]).any():
            raise ValueError(
                f"prior is {prior.tolist()}, which reaches beyond {self.prior.tolist()}, where this posterior was "
                "trained; give one inside, or train on simulations that cover it."
            )
        return replace(self, prior=prior)

    def samples(self, spectra, count=1000, seed=0):
        """(N, count, 5) samples for spectra (N, 3, b)."""
        return self._drawn(self.seen(spectra), count, seed).transpose(0, 1).double().numpy()

    def coverage(self, spectra, theta, count=500, seed=0):
        """Whether posteriors of N simulations hold their truths as often as they say, from `count` samples of each.

        Parameters
        ----------
        spectra, theta : (N, 3, b) and (N, 5), drawn from the prior and never used in training.
        """
        from sbi.diagnostics import run_tarp

        low, high = self.prior.T
        if ((theta < low - 1e-6) | (theta > high + 1e-6)).any():
            raise ValueError(
                f"Some theta lie outside the prior {self.prior.tolist()}: coverage needs truths drawn from the prior; "
                "choose it with `within`, or test on simulations inside it."
            )
        x, theta = self.seen(spectra), torch.tensor(theta).float()
        samples = self._drawn(x, count, seed)
        held = SimpleNamespace(sample_batched=lambda *_, **__: samples)  # all that is asked of a posterior there
        with seeded(seed, REFERENCES):
            expected, alpha = run_tarp(theta, x, held, num_posterior_samples=count, show_progress_bar=False)
        return Coverage((samples < theta).double().mean(0).numpy(), alpha.numpy(), expected.numpy())

    def seen(self, spectra):
        """What the flows read of spectra (N, 3, b): the features that vary, standardised."""
        return ((features(spectra).double() - self.mean) / self.scatter)[:, self.kept].float()

    @torch.no_grad()
    def _drawn(self, x, count, seed):
        """(count, N, 5) samples for standardised features: those of the mixture that fall inside the prior.

        sbi's own rejection goes on until *every* round has accepted something for the box that accepts least, which
        with hundreds of boxes may never be; here a box that has enough is left alone.
        """
        low, high = torch.tensor(self.prior).float().T
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
    """Where truths fell among samples of their posteriors."""

    ranks: np.ndarray  # (N, 5), the share of samples below the truth: uniform if posteriors are calibrated (SBC)
    alpha: np.ndarray  # credibility (TARP, all parameters at once)
    expected: np.ndarray  # how often regions of that credibility hold the truth

    def share(self, level=0.68):
        """(5,) share of truths inside the central interval of `level`."""
        return (np.abs(self.ranks - 0.5) < level / 2).mean(0)

    def band(self, level=0.68, confidence=0.99):
        """Shares between which calibrated posteriors would fall with `confidence`, given so many tests."""
        return tuple(x / len(self.ranks) for x in binom.interval(confidence, len(self.ranks), level))


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
    from sbi.utils import BoxUniform

    x, theta = features(spectra).double(), torch.tensor(theta).float()
    if len(x) < FEWEST:
        raise ValueError(
            f"There are {len(x)} simulations; a posterior needs at least {FEWEST} to train on: make a larger set, e.g. "
            'with suite("demo").'
        )
    # r = 1 of M = 1 never varies and must not be divided by its rounding.
    found = Posterior(prior, x.mean(0), x.std(0), x.std(0) > 1e-6)
    box = BoxUniform(*torch.tensor(prior).float().T)
    # sbi's own tracker writes files into the working directory; this one tracks nothing.
    tracker = SimpleNamespace(log_metric=lambda *_, **__: None, flush=lambda: None)
    for member in range(members):
        # The flow lives where the prior has no edges, so that none of it leaks out.
        flow = posterior_nn("zuko_maf", z_score_theta="transform_to_unconstrained", x_dist=box, **NETWORK)
        with seeded(seed, TRAINED, member), redirect_stdout(StringIO()):
            trainer = NPE(prior=box, density_estimator=flow, tracker=tracker, show_progress_bars=False)
            found.estimators.append(trainer.append_simulations(theta, found.seen(spectra)).train(**TRAINING))
    return found
