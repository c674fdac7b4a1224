"""The symmetric-pyramid regressor of table 4, many at once: a row of weights a model, under `torch.func.vmap`."""

from dataclasses import dataclass
from itertools import pairwise
from math import inf

import torch
from torch import nn
from torch.func import functional_call, vmap

from nbkit.mesh.threads import generator

# First words of the seeds of what is random here; see `nbkit.train.data`.
START, EPOCH = 10, 11


@dataclass(frozen=True)
class RegressionRecipe:
    """How a regressor is trained; what table 4 leaves open is taken from table 1, or was chosen on `demo`."""

    dropout: float = 0.1  # share of hidden units left out of a training step
    learning_rate: float = 5e-3  # of AdamW
    weight_decay: float = 1e-4  # of AdamW
    batch: int = 128  # fewest simulations of a step
    gamma: float = 0.5  # what the rate is multiplied with ...
    plateau_patience: int = 8  # ... after so many epochs without progress,
    floor: float = 1e-7  # down to this
    patience: int = 20  # epochs without progress before it ends
    min_delta: float = 1e-5  # of the validation loss: less is no progress
    epochs: int = 400  # most of all
    eps: float = 1e-6  # of the loss, in units of the variance of the prior


class Pyramid(nn.Module):
    """(Lin LN GELU Drop) of widths B 2B 4B 4B 2B B, and a Lin to the parameters."""

    def __init__(self, inputs, outputs=5):
        super().__init__()
        B = inputs
        self.widths = (B, 2 * B, 4 * B, 4 * B, 2 * B, B)
        self.hidden = nn.ModuleList(
            nn.Sequential(nn.Linear(a, b), nn.LayerNorm(b), nn.GELU()) for a, b in pairwise((B, *self.widths))
        )
        self.last = nn.Linear(B, outputs)

    def forward(self, x, kept=None):
        """Outputs (batch, outputs) for x (batch, B), with dropout by masks (batch, width), 0 or 1 / (1 - dropout)."""
        for i, layer in enumerate(self.hidden):
            x = layer(x) if kept is None else layer(x) * kept[i]
        return self.last(x)

    def start(self, draw):
        """Weights as torch starts them: uniform within 1 / sqrt(inputs), gains 1 and their offsets 0; drawn anew."""
        with torch.no_grad():
            for layer in self.modules():
                if isinstance(layer, nn.Linear):
                    a, b = layer.in_features, layer.out_features
                    uniform = (2 * torch.rand(a * b + b, generator=draw, dtype=torch.float64) - 1) / a**0.5
                    layer.weight.copy_(uniform[: a * b].view(a, b).T)
                    layer.bias.copy_(uniform[a * b :])
        return self

    def stacked(self, weights, x, kept=None):
        """Outputs (m, batch, outputs) of m models for x (m, batch, B).

        Parameters
        ----------
        weights : (m, p), a row a model, in the order of `parameters()`.
        kept : as for the call, the same for all models.
        """
        own = dict(self.named_parameters())
        parts = weights.split([each.numel() for each in own.values()], dim=1)
        each = {name: part.view(-1, *own[name].shape) for name, part in zip(own, parts, strict=True)}
        return vmap(lambda weights, x: functional_call(self, weights, (x, kept)))(each, x)


def log_mse(predicted, theta, eps):
    """sum_d log(MSE_d + eps) of each model, shape (m,); both (m, n, d)."""
    return ((predicted - theta).square().mean(1) + eps).log().sum(-1)


def fitted(x, theta, splits, recipe=None, seed=0, at_once=64):
    """Train a pyramid for every input and split, each to its own early stop, and keep its best weights.

    All that is random depends on seed and split alone: models of one split start from the same weights and see the same
    batches and dropout, so that inputs are compared on equal terms, and a model is the same in any company.

    Parameters
    ----------
    x : (inputs, N, B).
    theta : (N, d) targets, of about unit scatter.
    splits : for each split the rows to train on and the rows to validate on.
    at_once : models in one stack: enough to fill the machine, few enough for its memory.

    Returns
    -------
    predicted : (inputs, splits, N, d) of every row, seen in training or not.
    loss : (inputs, splits) best validation loss.
    epochs : (inputs, splits) trained until the early stop.
    """
    recipe, found = recipe or RegressionRecipe(), []
    for number, (train, held) in enumerate(splits):
        stacks = [_stack(some, theta, train, held, recipe, seed, number) for some in x.split(at_once)]
        found.append([torch.cat(part) for part in zip(*stacks, strict=True)])
    return tuple(torch.stack(part, dim=1) for part in zip(*found, strict=True))


def _stack(x, theta, train, held, recipe, seed, number):
    """As `fitted`, for one split, the `number`-th, and inputs that are trained as one stack."""
    mean, scatter = x[:, train].mean(1, keepdim=True), x[:, train].std(1, keepdim=True)
    x = (x - mean) / torch.where(scatter > 1e-6, scatter, 1)  # what never varies, like r = 1 of M = 1, must stay 0
    pyramid = Pyramid(x.shape[-1], theta.shape[-1]).to(x).start(generator(seed, START, number))
    row = nn.utils.parameters_to_vector(pyramid.parameters()).detach()
    weights, alive = nn.Parameter(row.repeat(len(x), 1)), torch.arange(len(x), device=x.device)
    adam = torch.optim.AdamW([weights], recipe.learning_rate, weight_decay=recipe.weight_decay)
    best, loss, ended = weights.detach().clone(), x.new_full((len(x),), inf), torch.zeros_like(alive)
    factor, plateau, stale = torch.ones_like(loss), torch.zeros_like(alive), torch.zeros_like(alive)
    steps = max(1, len(train) // recipe.batch)
    batch = len(train) // steps  # evened out, so that at most `steps - 1` rows sit out an epoch
    for epoch in range(recipe.epochs):
        share = factor[alive].clamp(min=recipe.floor / recipe.learning_rate)[:, None]
        draw = generator(seed, EPOCH, number, epoch)
        for rows in train[torch.randperm(len(train), generator=draw)[: steps * batch]].split(batch):
            masks = (torch.rand(batch, sum(pyramid.widths), generator=draw) < 1 - recipe.dropout) / (1 - recipe.dropout)
            predicted = pyramid.stacked(weights, x[alive[:, None], rows], masks.to(x).split(pyramid.widths, dim=1))
            (weights.grad,) = torch.autograd.grad(log_mse(predicted, theta[rows], recipe.eps).sum(), weights)
            before = weights.detach().clone()
            adam.step()
            # A step is in proportion to its rate, so each model takes its share of one at the first rate.
            weights.data = before.lerp_(weights.detach(), share)
        with torch.no_grad():
            value = log_mse(pyramid.stacked(weights, x[alive[:, None], held]), theta[held], recipe.eps)
        better = value < loss[alive] - recipe.min_delta
        best[alive[better]], loss[alive[better]] = weights.detach()[better], value[better]
        stale[alive] = torch.where(better, 0, stale[alive] + 1)
        plateau[alive] = torch.where(better, 0, plateau[alive] + 1)
        late = plateau > recipe.plateau_patience
        factor[late], plateau[late] = factor[late] * recipe.gamma, 0
        ended[alive] = epoch + 1
        going = stale[alive] < recipe.patience
        if not going.any():
            break
        if not going.all():  # the others go on, and the optimiser keeps what it knows of them
            known, alive, weights = adam.state.pop(weights), alive[going], nn.Parameter(weights.detach()[going])
            adam.state[weights] = {name: part[going] if part.dim() else part for name, part in known.items()}
            adam.param_groups[0]["params"] = [weights]
    with torch.no_grad():
        return pyramid.stacked(best, x), loss, ended
