"""Summaries and thetas to embeddings, residual, Mahalanobis score and InfoNCE, section 2.3 and table 2."""

import torch
from torch import nn
from torch.nn.functional import cross_entropy, normalize


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
        super().__init__(
            nn.Linear(inputs, width),
            nn.LayerNorm(width),
            nn.GELU(),
            nn.Linear(width, width),
            nn.LayerNorm(width),
            nn.GELU(),
            nn.Linear(width, dimension),
        )


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
    """Projectors of P_dd, of the marked summary and of theta into one space, and its metric.

    Parameters
    ----------
    bins : number b of k bins: S_delta has b entries, S_M 2 b.
    width, dimension : hidden width of the projectors and dimension D of the embeddings.
    residualised : remove from z_m what lies along z_d; False compares z_m itself with theta.
    """

    def __init__(self, bins, width=64, dimension=16, residualised=True):
        super().__init__()
        self.residualised = residualised
        self.unmarked = Projector(bins, width, dimension)
        self.marked = Projector(2 * bins, width, dimension)
        self.theta = nn.Linear(5, dimension)
        self.metric = Metric(dimension)
        # What the projectors see is (S - mean) / sqrt(variance); (0, 1) shows them the summaries as they are.
        self.register_buffer("unmarked_mean", torch.zeros(bins))
        self.register_buffer("unmarked_variance", torch.ones(bins))
        self.register_buffer("marked_mean", torch.zeros(2 * bins))
        self.register_buffer("marked_variance", torch.ones(2 * bins))

    @torch.no_grad()
    def standardise(self, which, S, least=0.0):
        """From now on see the "unmarked" or "marked" summaries with the mean and variance of S (N, ...) taken out.

        Parameters
        ----------
        least : added to the variance.
        """
        S = S.double()
        getattr(self, f"{which}_mean").copy_(S.mean(0))
        getattr(self, f"{which}_variance").copy_(S.var(0) + least)

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
