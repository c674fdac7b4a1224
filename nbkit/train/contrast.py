"""Summaries and thetas to embeddings, residual, Mahalanobis score and InfoNCE, section 2.3 and table 2; the objectives
of both stages."""

from math import log

import torch
from torch import nn
from torch.nn.functional import cross_entropy, normalize

from nbkit.mesh.spectra import marked_spectra, marked_summary
from nbkit.train.data import micro_batch
from nbkit.train.fit import Objective

# Added to the variances by which S_M is standardised: at M = 1 it has none.
LEAST_VARIANCE = 1e-4


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


def heads_for(data, residualised):
    """New Heads for simulations and their recipe, which see S_delta as the recipe wants it.

    Parameters
    ----------
    data : Prior with its summaries loaded.
    """
    recipe = data.recipe
    heads = Heads(data.S_delta.shape[1], recipe.width, recipe.dimension, residualised)
    if recipe.standardise:
        heads.standardise("unmarked", data.S_delta[data.training])
    return heads.to(data.device)


class OverPrior(Objective):
    """Heads on simulations over the prior, in batches with their candidates.

    Parameters
    ----------
    data : Prior with its summaries loaded.
    heads : Heads.
    """

    stream = 0  # of random orders and candidates: another one for every stage

    def __init__(self, data, heads):
        super().__init__()
        self.data, self.recipe, self.heads = data, data.recipe, heads
        self.batch, self.micro = self.recipe.pretrain_batch, None

    @property
    def steps(self):
        """Optimiser steps of an epoch."""
        return len(self.data.training) // self.batch

    @property
    def chance(self):
        """InfoNCE of embeddings that cannot tell the candidates apart: log of their number."""
        return log(self.recipe.negatives.total(self.recipe.batch))

    def begin(self, epoch, step):
        """Draw the order of the epoch and start reading."""
        self._ids, drawn = self.data.epoch(self.stream, epoch, self.batch)
        self._batches = self.data.batches(self._ids, drawn, self.micro, step, self.micro is not None)

    def step(self, i):
        """Gradients of the batch's mean InfoNCE, micro-batch by micro-batch: each anchor needs its own box alone."""
        self.at, total = f" (simulations {self._ids[i].tolist()[:16]})", 0.0
        for micro in next(self._batches):
            loss = self(micro) / self.batch
            loss.backward()
            total = total + loss.detach()
        return total

    def validate(self):
        """Mean InfoNCE of the held-out simulations, against the same candidates every time."""
        ids, drawn = self.data.validation()
        total = 0.0
        for i, batch in enumerate(self.data.batches(ids, drawn, self.micro, fields=self.micro is not None)):
            self.at = f" (simulations {ids[i].tolist()[:16]})"
            total += sum(float(self(micro)) for micro in batch)
        return None, self.data.processes.total(total)[0] / len(self.data.held_out)

    def _info_nce(self, z, L, batch):
        """The sum of the anchors' InfoNCE."""
        scores = mahalanobis_scores(z, self.heads.z_theta(batch.theta), L, self.recipe.temperature)
        return info_nce(scores, batch.positive, batch.excluded).sum()


class UnmarkedHeads(OverPrior):
    """Stage one: z_d against z_theta, with a metric of its own."""

    name = "unmarked"

    def __init__(self, data, heads):
        super().__init__(data, heads)
        self.epochs, self.metric = self.recipe.pretrain_epochs, Metric(self.recipe.dimension).to(data.device)

    def groups(self):
        """Heads of P_dd and theta."""
        modules = [self.heads.unmarked, self.heads.theta, self.metric]
        return [(modules, self.recipe.pretrain_rate, self.recipe.weight_decay)]

    def forward(self, batch):
        """The sum of the anchors' InfoNCE."""
        return self._info_nce(self.heads.z_d(batch.S_delta), self.metric(), batch)


class MarkedHeads(OverPrior):
    """z_perp of the marked summary against z_theta: heads learn to read a mark that does not change, S_M of `data`.

    Parameters
    ----------
    mark : kept with the heads, if it is a module.
    """

    name, stream = "heads", 2

    def __init__(self, data, heads, mark=None):
        super().__init__(data, heads)
        self.mark, self.epochs = mark, self.recipe.head_epochs

    def groups(self):
        """Heads of the marked summary and theta, and the metric."""
        modules = [self.heads.marked, self.heads.metric, self.heads.theta]
        return [(modules, self.recipe.pretrain_rate, self.recipe.weight_decay)]

    def S_M(self, marked):
        """Marked summaries (m, 2b) from what a batch carries."""
        return marked

    def forward(self, batch):
        """The sum of the anchors' InfoNCE."""
        z_perp = self.heads.z_perp(self.S_M(batch.marked), batch.S_delta)
        return self._info_nce(z_perp, self.heads.metric(), batch)


class Contrast(MarkedHeads):
    """Stage two: heads and mark together. Of a mark that does not change (None), heads alone.

    Where the heads see standardised summaries it remembers the S_M of a step, and moves their mean and variance towards
    them after it: within a step these are constants, so each anchor's loss still depends on its own simulation alone.

    Parameters
    ----------
    mark : the module to train; or None, and `data` holds S_M.
    start_loss : validation loss of the mark as it starts with heads that can read it, if they were trained.
    """

    name, stream = "marked", 1

    def __init__(self, data, heads, mark=None, start_loss=None):
        super().__init__(data, heads, mark)
        self._start_loss, self._seen = start_loss, []
        self.batch, self.epochs = self.recipe.batch, self.recipe.epochs
        if mark is None:
            # As those of a mark that learns are trained before it begins to.
            self.epochs = self.recipe.head_epochs or self.epochs
        else:
            self.micro = micro_batch(data.grid, data.device)

    def groups(self):
        """Heads, theta and mark, each at a rate of its own; the unmarked head is frozen."""
        recipe, heads = self.recipe, self.heads
        rate = recipe.pretrain_rate if self.mark is None and recipe.head_epochs else recipe.learning_rate
        groups = [([heads.marked, heads.metric], rate, recipe.weight_decay)]
        groups.append(([heads.theta], rate * recipe.theta_rate, recipe.weight_decay))
        if self.mark is not None:
            decay = recipe.weight_decay if recipe.mark_decay is None else recipe.mark_decay
            groups.append(([self.mark], rate * recipe.mark_rate, decay))
        return groups

    def start(self):
        """The loss that heads have reached on the mark as it starts."""
        return None if self._start_loss is None else (None, self._start_loss)

    def S_M(self, marked):
        """Marked summaries (m, 2b) of fields (m, n, n, n), or as they are."""
        if self.mark is None:
            return marked
        power = marked_spectra(self.mark, marked, grid=self.data.grid, kmax=self.data.kmax)
        S_M = marked_summary(power.P_dd, power.P_dm, power.P_mm)
        if self.recipe.standardise and torch.is_grad_enabled():
            self._seen.append(S_M.detach())
        return S_M

    @torch.no_grad()
    def moved(self, factor):
        """Move the heads' mean and variance of S_M towards those of the step just made, by a share of the way."""
        if not self._seen:
            return
        S_M = torch.cat(self._seen).double()
        self._seen.clear()
        sums = torch.cat([S_M.new_tensor([len(S_M)]), S_M.sum(0), (S_M**2).sum(0)])
        count, *sums = self.data.processes.summed(sums).split([1, S_M.shape[1], S_M.shape[1]])
        mean, square = (x / count for x in sums)
        share = self.recipe.newest * factor
        self.heads.marked_mean.lerp_(mean.float(), share)
        self.heads.marked_variance.lerp_((square - mean**2 + LEAST_VARIANCE).float(), share)
