"""The symmetric-pyramid regressor of table 4, many at once: one row of weights a model, one `bmm` a layer."""

from dataclasses import dataclass
from itertools import pairwise
from math import inf

import torch
from torch.nn.functional import gelu, layer_norm

from nbkit.mesh.threads import generator

# First words of the seeds of what is random here; see `nbkit.train.data`.
START, EPOCH = 10, 11
BETAS, ADAM_EPS = (0.9, 0.999), 1e-8


@dataclass(frozen=True)
class RegressionRecipe:
    """How a regressor is trained; what table 4 leaves open is taken from table 1, or was chosen on `demo`.

    Parameters
    ----------
    dropout : share of hidden units left out of a training step.
    learning_rate, weight_decay : of AdamW.
    batch : fewest simulations of a step.
    gamma, plateau_patience, floor : the rate times gamma after so many epochs without progress, down to the floor.
    patience, min_delta, epochs : epochs without a gain of min_delta in validation loss before it ends, and most of all.
    eps : of the loss, in units of the variance of the prior.
    """

    dropout: float = 0.1
    learning_rate: float = 5e-3
    weight_decay: float = 1e-4
    batch: int = 128
    gamma: float = 0.5
    plateau_patience: int = 8
    floor: float = 1e-7
    patience: int = 20
    min_delta: float = 1e-5
    epochs: int = 400
    eps: float = 1e-6

    def __post_init__(self):
        if not 0 <= self.dropout < 1:
            raise ValueError(f"dropout is {self.dropout!r}; it must be at least 0 and below 1.")
        for name in ("learning_rate", "gamma", "eps"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} is {getattr(self, name)!r}; it must be positive.")
        for name in ("batch", "patience", "epochs"):
            if not (isinstance(getattr(self, name), int) and getattr(self, name) >= 1):
                raise ValueError(f"{name} is {getattr(self, name)!r}; it must be a whole number of at least 1.")


class Pyramid:
    """Shape of the network: (Lin LN GELU Drop) of widths B 2B 4B 4B 2B B, and a Lin to the parameters."""

    def __init__(self, inputs, outputs=5):
        B = inputs
        widths = (B, B, 2 * B, 4 * B, 4 * B, 2 * B, B, outputs)
        self.layers = list(pairwise(widths))
        self.sizes = [size for a, b in self.layers for size in (a * b, b, b, b)][:-2]  # the last layer has no LN
        self.hidden = widths[1:-1]

    def start(self, draw, dtype=torch.float32):
        """A row (p,) of weights as torch starts them: uniform within 1 / sqrt(inputs), gains 1, their offsets 0."""
        parts = []
        for a, b in self.layers:
            uniform = (2 * torch.rand(a * b + b, generator=draw, dtype=torch.float64) - 1) / a**0.5
            parts += [uniform, torch.ones(b), torch.zeros(b)]
        return torch.cat(parts[:-2]).to(dtype)

    def __call__(self, weights, x, kept=None):
        """Outputs (m, batch, outputs) of m models.

        Parameters
        ----------
        weights : (m, p), a row a model.
        x : (m, batch, B) inputs.
        kept : masks (batch, width) of the hidden layers, 0 or 1 / (1 - dropout); None to leave nothing out.
        """
        parts = iter(weights.split(self.sizes, dim=1))
        for i, (a, b) in enumerate(self.layers):
            W, c = next(parts).view(-1, a, b), next(parts)[:, None]
            x = torch.baddbmm(c, x, W)
            if i < len(self.hidden):
                gain, offset = next(parts)[:, None], next(parts)[:, None]
                x = gelu(torch.addcmul(offset, layer_norm(x, (b,)), gain))
                x = x if kept is None else x * kept[i]
        return x


def log_mse(predicted, theta, eps):
    """sum_d log(MSE_d + eps) of each model, shape (m,); both (m, n, d)."""
    return ((predicted - theta).square().mean(1) + eps).log().sum(-1)


class _AdamW:
    """torch's AdamW on rows of weights, each with a learning rate of its own."""

    def __init__(self, weights, recipe):
        self.decay, self.steps = recipe.weight_decay, 0
        self.mean, self.square = torch.zeros_like(weights), torch.zeros_like(weights)

    def step(self, weights, gradient, rate):
        """Move the weights (m, p) in place along their gradient, at rate (m, 1)."""
        self.steps += 1
        c = (1 - BETAS[1] ** self.steps) ** 0.5
        self.mean.lerp_(gradient, 1 - BETAS[0])
        self.square.mul_(BETAS[1]).addcmul_(gradient, gradient, value=1 - BETAS[1])
        change = self.mean / self.square.sqrt().add_(ADAM_EPS * c)
        weights.mul_(1 - rate * self.decay).sub_(change.mul_(rate * c / (1 - BETAS[0] ** self.steps)))

    def keep(self, rows):
        """Go on with some of the models."""
        self.mean, self.square = self.mean[rows], self.square[rows]


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
    pyramid = Pyramid(x.shape[-1], theta.shape[-1])
    weights = pyramid.start(generator(seed, START, number), x.dtype).to(x.device).repeat(len(x), 1)
    alive, adam = torch.arange(len(x), device=x.device), _AdamW(weights, recipe)
    best, loss, ended = weights.clone(), x.new_full((len(x),), inf), torch.zeros_like(alive)
    factor, plateau, stale = torch.ones_like(loss), torch.zeros_like(alive), torch.zeros_like(alive)
    for epoch in range(recipe.epochs):
        rate = (recipe.learning_rate * factor[alive]).clamp(min=recipe.floor)[:, None]
        for places, kept in _steps(generator(seed, EPOCH, number, epoch), pyramid, len(train), recipe):
            rows, kept = train[places], [mask.to(x) for mask in kept]
            predicted = pyramid(weights.requires_grad_(), x[alive[:, None], rows], kept)
            (gradient,) = torch.autograd.grad(log_mse(predicted, theta[rows], recipe.eps).sum(), weights)
            adam.step(weights.detach_(), gradient, rate)
        value = log_mse(pyramid(weights, x[alive[:, None], held]), theta[held], recipe.eps)
        better = value < loss[alive] - recipe.min_delta
        best[alive[better]], loss[alive[better]] = weights[better], value[better]
        stale[alive] = torch.where(better, 0, stale[alive] + 1)
        plateau[alive] = torch.where(better, 0, plateau[alive] + 1)
        late = plateau > recipe.plateau_patience
        factor[late], plateau[late] = factor[late] * recipe.gamma, 0
        ended[alive] = epoch + 1
        going = stale[alive] < recipe.patience
        if not going.all():
            alive, weights = alive[going], weights[going]
            adam.keep(going)
        if not len(alive):
            break
    return pyramid(best, x), loss, ended


def _steps(draw, pyramid, count, recipe):
    """Steps of one epoch: places of a batch among `count` training rows, and its dropout masks, one a hidden layer."""
    steps, kept = max(1, count // recipe.batch), 1 - recipe.dropout
    batch = count // steps  # evened out, so that at most `steps - 1` rows sit out an epoch
    for places in torch.randperm(count, generator=draw)[: steps * batch].split(batch):
        drawn = torch.rand(batch, sum(pyramid.hidden), generator=draw)
        yield places, ((drawn < kept) / kept).split(pyramid.hidden, dim=1)
