"""Section 2.3 and table 2: anchors to candidate cosmologies; summaries and thetas to embeddings, residual, Mahalanobis
score and InfoNCE.

Candidates live in normalised theta: each parameter runs from 0 to 1 over the prior.
"""

from dataclasses import dataclass
from math import sqrt
from typing import NamedTuple

import numpy as np
import torch
from torch import nn
from torch.nn.functional import cross_entropy, normalize

# The diagonal of the prior, the unit of distances between cosmologies.
DIAGONAL = sqrt(5)
# Draws of global negatives before giving up: each round replaces only what fell too close to an anchor.
MOST_ROUNDS = 100
# Added to the variances by which S_M is standardised: at M = 1 it has none.
LEAST_VARIANCE = 1e-4


@dataclass(frozen=True)
class Negatives:
    """How many negatives of each kind, and how near they may come [diagonal of the prior, sqrt(5)], table 2."""

    n_real: int = 128  # cosmologies of the training set, shared by the batch
    n_global: int = 384  # drawn over the whole prior, shared by the batch
    n_local: int = 32  # drawn in a shell around each anchor; the batch shares those of all its anchors
    exclusion: float = 0.03  # nearer than this to an anchor nothing counts as its negative
    neighbourhood: float = 0.15  # outer radius of the local shell; `exclusion` is the inner one
    # Draw n_global for every anchor, as table 2 says, 6,800 candidates in a batch of 16; or once for the batch, as the
    # released code does, 1,040. Scores of either are nothing beside the mark.
    per_anchor: bool = False

    def __post_init__(self):
        for name in ("n_real", "n_global", "n_local"):
            if type(value := getattr(self, name)) is not int or value < 0:
                raise ValueError(f"{name} is {value!r}; it must be a whole number, 0 or more.")
        if not 0 <= self.exclusion < self.neighbourhood <= 0.5 / DIAGONAL:
            raise ValueError(
                f"exclusion is {self.exclusion} and neighbourhood {self.neighbourhood}; they must satisfy "
                f"0 <= exclusion < neighbourhood <= {0.5 / DIAGONAL:.4f}: a larger shell does not fit inside the prior."
            )

    def total(self, batch):
        """Candidates that a batch of anchors shares, the anchors included."""
        return batch + self.n_real + self.over_prior(batch) + batch * self.n_local

    def over_prior(self, batch):
        """How many of them are drawn over the whole prior."""
        return self.n_global * (batch if self.per_anchor else 1)


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
    """The candidates of a batch of anchors (B, 5), `negatives.total(B)` of them, drawn with `generator`; the real ones
    from the pool (N, 5), cosmologies of the training set. All are float64, normalised."""
    eligible = torch.nonzero(_far(pool, anchors, negatives)).flatten()
    if len(eligible) < negatives.n_real:
        raise ValueError(
            f"n_real is {negatives.n_real}, but only {len(eligible)} of {len(pool)} training cosmologies are far "
            "enough from the batch; use fewer real negatives or more simulations."
        )
    real = pool[eligible[torch.randperm(len(eligible), generator=generator)[: negatives.n_real]]]
    theta = torch.cat([anchors, real, *(draw(anchors, negatives, generator) for draw in (_global, _local))])
    # A shell's inner edge is the exclusion itself; rounding must not throw such candidates out.
    excluded = _distances(anchors, theta) < negatives.exclusion * DIAGONAL * (1 - 1e-9)
    excluded[:, : len(anchors)].fill_diagonal_(False)
    return Candidates(theta, excluded)


def _global(anchors, negatives, generator):
    kept, wanted = anchors[:0], negatives.over_prior(len(anchors))
    for _ in range(MOST_ROUNDS):
        missing = wanted - len(kept)
        if missing == 0:
            return kept
        drawn = torch.rand(missing, anchors.shape[1], generator=generator, dtype=anchors.dtype)
        kept = torch.cat([kept, drawn[_far(drawn, anchors, negatives)]])
    raise ValueError(
        f"After {MOST_ROUNDS} rounds only {len(kept)} of {wanted} global negatives are farther than the "
        f"exclusion {negatives.exclusion} from {len(anchors)} anchors; use a smaller exclusion or batch."
    )


def _local(anchors, negatives, generator):
    shape = (len(anchors), negatives.n_local, anchors.shape[1])
    direction = torch.randn(shape, generator=generator, dtype=anchors.dtype)
    inner, outer = negatives.exclusion * DIAGONAL, negatives.neighbourhood * DIAGONAL
    radius = inner + (outer - inner) * torch.rand(*shape[:2], 1, generator=generator, dtype=anchors.dtype)
    step = radius * direction / direction.norm(dim=-1, keepdim=True)
    # A step that would leave the prior along an axis goes the other way along it: the distance stays what it was.
    there = anchors[:, None] + step
    step = torch.where((there < 0) | (there > 1), -step, step)
    return (anchors[:, None] + step).flatten(0, 1)


def _distances(a, b):
    return torch.cdist(a, b, compute_mode="donot_use_mm_for_euclid_dist")


def _far(theta, anchors, negatives):
    return (_distances(theta, anchors) >= negatives.exclusion * DIAGONAL).all(1)


def residual(z_m, z_d, eps=1e-9):
    """z_perp = z_m - (z_m . z_d) / (z_d . z_d + eps) z_d: what z_m (..., D) says beyond z_d (..., D)."""
    along = (z_m * z_d).sum(-1, keepdim=True) / ((z_d * z_d).sum(-1, keepdim=True) + eps)
    return z_m - along * z_d


def mahalanobis_scores(z, z_theta, L, temperature):
    """s = -(z - z_theta)^T L L^T (z - z_theta) / tau of every z (B, D) with every z_theta (c, D): (B, c)."""
    z, z_theta = z @ L, z_theta @ L
    squared = (z * z).sum(-1, keepdim=True) + (z_theta * z_theta).sum(-1) - 2 * z @ z_theta.T
    return -squared / temperature


def info_nce(scores, positive, excluded=None):
    """-log of the share of exp(score) that the true cosmology holds among all candidates, shape (B,).

    Embeddings that cannot tell the candidates apart give log(number of candidates): chance. Perfection gives 0.

    Parameters
    ----------
    scores : (B, c) of each anchor with each candidate.
    positive : (B,) column of each anchor's true cosmology.
    excluded : (B, c) bool, candidates too near an anchor to be called wrong; they are left out of its sum.
    """
    if excluded is not None:
        scores = scores.masked_fill(excluded, -torch.inf)
    return cross_entropy(scores, positive, reduction="none")


class Projector(nn.Sequential):
    """(Linear, LayerNorm, GELU) twice and a Linear: summaries (..., b) to embeddings (..., D)."""

    def __init__(self, inputs, width=64, dimension=16):
        hidden = [(nn.Linear(a, width), nn.LayerNorm(width), nn.GELU()) for a in (inputs, width)]
        super().__init__(*hidden[0], *hidden[1], nn.Linear(width, dimension))


class Metric(nn.Module):
    """The lower-triangular L of the score, positive on its diagonal by an exponential; the identity at the start."""

    def __init__(self, dimension=16):
        super().__init__()
        self.log_diagonal = nn.Parameter(torch.zeros(dimension))
        self.below = nn.Parameter(torch.zeros(dimension, dimension))

    def forward(self):
        """L, shape (D, D)."""
        return torch.diag(self.log_diagonal.exp()) + self.below.tril(-1)


class Heads(nn.Module):
    """Projectors of P_dd (b bins), of the marked summary (2b) and of theta into one space of D dimensions, and its
    metric. Where `residualised`, what lies along z_d is removed from z_m; else z_m itself is compared with theta."""

    def __init__(self, bins, width=64, dimension=16, residualised=True):
        super().__init__()
        self.residualised = residualised
        self.unmarked = Projector(bins, width, dimension)
        self.marked = Projector(2 * bins, width, dimension)
        self.theta = nn.Linear(5, dimension)
        self.metric = Metric(dimension)
        # What the projectors see is (S - mean) / sqrt(variance); (0, 1) shows them the summaries as they are.
        for which, size in (("unmarked", bins), ("marked", 2 * bins)):
            self.register_buffer(f"{which}_mean", torch.zeros(size))
            self.register_buffer(f"{which}_variance", torch.ones(size))

    @torch.no_grad()
    def standardise(self, which, S):
        """From now on see the "unmarked" or "marked" summaries with the mean and variance of S (N, ...) taken out."""
        S = S.double()
        getattr(self, f"{which}_mean").copy_(S.mean(0))
        getattr(self, f"{which}_variance").copy_(S.var(0) + (LEAST_VARIANCE if which == "marked" else 0))

    def z_d(self, S_delta):
        """Embedding of the unmarked summary (..., b), length 1."""
        return normalize(self.unmarked((S_delta - self.unmarked_mean) * self.unmarked_variance.rsqrt()), dim=-1)

    def z_m(self, S_M):
        """Embedding of the marked summary (..., 2b), length 1."""
        return normalize(self.marked((S_M - self.marked_mean) * self.marked_variance.rsqrt()), dim=-1)

    def z_perp(self, S_M, S_delta):
        """What the marked summary adds to the unmarked one, length 1; z_m itself when not residualised."""
        z_m = self.z_m(S_M)
        return normalize(residual(z_m, self.z_d(S_delta)), dim=-1) if self.residualised else z_m

    def z_theta(self, theta):
        """Embedding of cosmologies (..., 5) in normalised theta, length 1."""
        return normalize(self.theta(2 * theta - 1), dim=-1)
