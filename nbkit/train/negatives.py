"""Anchors to candidate cosmologies: the in-batch, real, global and local negatives of section 2.3 and table 2.

Everything here lives in normalised theta: each parameter runs from 0 to 1 over the prior.
"""

from dataclasses import dataclass, fields
from math import sqrt
from typing import NamedTuple

import numpy as np
import torch

# Draws of global negatives before giving up: each round replaces only what fell too close to an anchor.
MOST_ROUNDS = 100


@dataclass(frozen=True)
class Negatives:
    """How many negatives of each kind, and how near they may come, table 2.

    Parameters
    ----------
    n_real : cosmologies of the training set, shared by the batch.
    n_global : cosmologies drawn over the whole prior, shared by the batch.
    n_local : cosmologies drawn in a shell around each anchor; the batch shares those of all its anchors.
    exclusion : nearer than this to an anchor nothing counts as its negative [diagonal of the prior, sqrt(5)].
    neighbourhood : outer radius of the local shell [diagonal of the prior]; `exclusion` is the inner one.
    """

    n_real: int = 128
    n_global: int = 384
    n_local: int = 32
    exclusion: float = 0.03
    neighbourhood: float = 0.15

    def __post_init__(self):
        for field in fields(self)[:3]:
            value = getattr(self, field.name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 0:
                raise ValueError(f"{field.name} is {value!r}; it must be a whole number, 0 or more.")
        if not 0 <= self.exclusion < self.neighbourhood:
            raise ValueError(
                f"exclusion is {self.exclusion} and neighbourhood {self.neighbourhood}; they must satisfy "
                "0 <= exclusion < neighbourhood."
            )
        if not self.neighbourhood * sqrt(5) <= 0.5:
            raise ValueError(
                f"neighbourhood is {self.neighbourhood}; at most {0.5 / sqrt(5):.4f} fits a shell inside the prior."
            )

    def total(self, batch):
        """Candidates that a batch of anchors shares, the anchors included: 1,040 for 16 with the paper's counts."""
        return batch + self.n_real + self.n_global + batch * self.n_local


class Candidates(NamedTuple):
    """Cosmologies that a batch of B anchors is compared with; row i < B is the true one of anchor i."""

    theta: torch.Tensor  # (c, 5) in normalised theta: anchors, real, global, local
    excluded: torch.Tensor  # (B, c) bool: nearer to that anchor than the exclusion, yet not its own


def normalised(theta, prior):
    """Theta (..., 5) in units of the prior (5, 2): 0 at its lower edges, 1 at its upper ones; float64."""
    theta, prior = (torch.from_numpy(np.array(x, dtype=np.float64)) for x in (theta, prior))
    u = (theta - prior[:, 0]) / (prior[:, 1] - prior[:, 0])
    outside = ((u < -1e-9) | (u > 1 + 1e-9)).any(-1) | ~torch.isfinite(u).all(-1)
    if outside.any():
        raise ValueError(
            f"{int(outside.sum())} of {outside.numel()} cosmologies lie outside the prior, for one "
            f"{theta[outside][0].tolist()}; give simulations of the prior {prior.tolist()}."
        )
    return u


def candidates(anchors, pool, negatives, generator):
    """The candidates of one batch, `negatives.total(B)` of them, drawn with `generator`.

    Parameters
    ----------
    anchors : (B, 5) float64 cosmologies of the batch, normalised.
    pool : (N, 5) float64 cosmologies of the training set, normalised, from which real negatives come.
    """
    theta = torch.cat(
        [
            anchors,
            _real(anchors, pool, negatives, generator),
            _global(anchors, negatives, generator),
            _local(anchors, negatives, generator),
        ]
    )
    # A shell's inner edge is the exclusion itself; rounding must not throw such candidates out.
    excluded = _distances(anchors, theta) < _radius(negatives.exclusion, anchors) * (1 - 1e-9)
    excluded[:, : len(anchors)].fill_diagonal_(False)
    return Candidates(theta, excluded)


def _real(anchors, pool, negatives, generator):
    eligible = torch.nonzero(_far(pool, anchors, negatives)).flatten()
    if len(eligible) < negatives.n_real:
        raise ValueError(
            f"n_real is {negatives.n_real}, but only {len(eligible)} of {len(pool)} training cosmologies are far "
            "enough from the batch; use fewer real negatives or more simulations."
        )
    return pool[eligible[torch.randperm(len(eligible), generator=generator)[: negatives.n_real]]]


def _global(anchors, negatives, generator):
    kept = anchors[:0]
    for _ in range(MOST_ROUNDS):
        missing = negatives.n_global - len(kept)
        if missing == 0:
            return kept
        drawn = torch.rand(missing, anchors.shape[1], generator=generator, dtype=anchors.dtype)
        kept = torch.cat([kept, drawn[_far(drawn, anchors, negatives)]])
    raise ValueError(
        f"After {MOST_ROUNDS} rounds only {len(kept)} of {negatives.n_global} global negatives are farther than the "
        f"exclusion {negatives.exclusion} from {len(anchors)} anchors; use a smaller exclusion or batch."
    )


def _local(anchors, negatives, generator):
    shape = (len(anchors), negatives.n_local, anchors.shape[1])
    direction = torch.randn(shape, generator=generator, dtype=anchors.dtype)
    inner, outer = (_radius(x, anchors) for x in (negatives.exclusion, negatives.neighbourhood))
    radius = inner + (outer - inner) * torch.rand(*shape[:2], 1, generator=generator, dtype=anchors.dtype)
    step = radius * direction / direction.norm(dim=-1, keepdim=True)
    # A step that would leave the prior along an axis goes the other way along it: the distance stays what it was.
    there = anchors[:, None] + step
    step = torch.where((there < 0) | (there > 1), -step, step)
    return (anchors[:, None] + step).flatten(0, 1)


def _radius(scale, anchors):
    return scale * sqrt(anchors.shape[1])


def _distances(a, b):
    return torch.cdist(a, b, compute_mode="donot_use_mm_for_euclid_dist")


def _far(theta, anchors, negatives):
    return (_distances(theta, anchors) >= _radius(negatives.exclusion, anchors)).all(1)
