"""What `fit` minimises: both stages of contrast, heads alone, and information at the fiducial point."""

from math import inf, log

import torch

from nbkit.mesh.spectra import marked_summary
from nbkit.mesh.threads import generator
from nbkit.train.contrast import LEAST_VARIANCE, Heads, Metric, info_nce, mahalanobis_scores
from nbkit.train.data import DRAWN, micro_batch
from nbkit.train.fit import Objective
from nbkit.train.information import fisher, halves, linearised, weights

# Fewest fiducial simulations and pairs of a step on information: both halves of it must tell a covariance of five.
LEAST = (32, 6)


def heads_for(data, residualised):
    """New Heads for a Prior with its summaries loaded, which see S_delta as the recipe wants it."""
    recipe = data.recipe
    heads = Heads(data.bins, recipe.width, recipe.dimension, residualised)
    if recipe.standardise:
        heads.standardise("unmarked", data.S_delta[data.training])
    return heads.to(data.device)


class OverPrior(Objective):
    """Heads on a Prior with its summaries loaded, `batch` anchors a step with their candidates."""

    stream = 0  # of random orders and candidates: another one for every stage
    micro = None  # anchors whose fields go through the mark together; None where summaries are enough

    def __init__(self, data, heads, batch, epochs):
        super().__init__()
        self.data, self.heads, self.recipe = data, heads, data.recipe
        self.batch, self.epochs, self.steps = batch, epochs, len(data.training) // batch
        # The InfoNCE of embeddings that cannot tell the candidates apart.
        self.chance = log(self.recipe.negatives.total(self.recipe.batch))

    def groups(self):
        return [(self.learning, self.recipe.pretrain_rate, self.recipe.weight_decay)]

    def begin(self, epoch, step):
        self._ids, drawn = self.data.epoch(self.stream, epoch, self.batch)
        self._batches = self.data.batches(self._ids, drawn, self.micro, step)

    def step(self, i):
        """Gradients of the batch's mean InfoNCE, micro-batch by micro-batch: each anchor needs its own box alone."""
        self.at, total = f" (simulations {self._ids[i].tolist()[:16]})", 0.0
        for micro in next(self._batches):
            loss = self(micro) / self.batch
            loss.backward()
            total = total + loss.detach()
        return total

    def validate(self):
        ids, drawn = self.data.validation
        total = 0.0
        for i, batch in enumerate(self.data.batches(ids, drawn, self.micro)):
            self.at = f" (simulations {ids[i].tolist()[:16]})"
            total += sum(float(self(micro)) for micro in batch)
        return None, self.data.processes.total(total) / len(self.data.held_out)

    def forward(self, batch):
        """The sum of the anchors' InfoNCE, of embeddings z (m, D) that `embed` gives with the metric L (D, D)."""
        z, L = self.embed(batch)
        scores = mahalanobis_scores(z, self.heads.z_theta(batch.theta), L, self.recipe.temperature)
        return info_nce(scores, batch.positive, batch.excluded).sum()


class UnmarkedHeads(OverPrior):
    """Stage one: z_d against z_theta, with a metric of its own."""

    name = "unmarked"

    def __init__(self, data, heads):
        super().__init__(data, heads, data.recipe.pretrain_batch, data.recipe.pretrain_epochs)
        self.metric = Metric(self.recipe.dimension).to(data.device)
        self.learning = heads.unmarked, heads.theta, self.metric

    def embed(self, batch):
        return self.heads.z_d(batch.S_delta), self.metric()

    def end(self):
        if self.recipe.keep_metric:
            self.heads.metric.load_state_dict(self.metric.state_dict())


class Contrast(OverPrior):
    """Stage two, z_perp of the marked summary against z_theta: heads and mark together; where the mark does not change
    (None), heads alone learn to read the S_M of `data`.

    Where the heads see standardised summaries it remembers the S_M of a step, and moves their mean and variance towards
    them after it: within a step these are constants, so each anchor's loss still depends on its own simulation alone.

    `start_loss` is the validation loss of the mark as it starts with heads that can read it, if they were trained.
    """

    name, stream = "marked", 1

    def __init__(self, data, heads, mark=None, start_loss=inf):
        recipe = data.recipe
        # Heads of a mark that stays are trained as those of one that learns are before it begins to.
        alone = mark is None and recipe.head_epochs
        super().__init__(data, heads, recipe.batch, alone or recipe.epochs)
        self.mark, self._start_loss, self._seen = mark, start_loss, []
        self._rate = recipe.pretrain_rate if alone else recipe.learning_rate
        self.micro = None if mark is None else micro_batch(data.grid, data.device)

    def groups(self):
        recipe, heads, rate, decay = self.recipe, self.heads, self._rate, self.recipe.weight_decay
        groups = [([heads.marked, heads.metric], rate, decay), ([heads.theta], rate * recipe.theta_rate, decay)]
        if self.mark is not None:
            own = decay if recipe.mark_decay is None else recipe.mark_decay
            groups.append(([self.mark], rate * recipe.mark_rate, own))
        return groups

    def start(self):
        return None if self._start_loss == inf else (None, self._start_loss)

    def embed(self, batch):
        S_M = batch.marked if self.mark is None else self.S_M(batch.marked)
        return self.heads.z_perp(S_M, batch.S_delta), self.heads.metric()

    def S_M(self, marked):
        """Marked summaries (m, 2b) of fields (m, n, n, n)."""
        S_M = marked_summary(*self.data.spectra(self.mark, marked)[1:4])
        if self.recipe.standardise and torch.is_grad_enabled():
            self._seen.append(S_M.detach())
        return S_M

    @torch.no_grad()
    def moved(self, factor):
        if not self._seen:
            return
        S_M = torch.cat(self._seen).double()
        self._seen.clear()
        sums = torch.cat([S_M.new_full((1,), len(S_M)), S_M.sum(0), (S_M**2).sum(0)])
        count, *sums = self.data.processes.summed(sums).split([1, S_M.shape[1], S_M.shape[1]])
        mean, square = (x / count for x in sums)
        share = self.recipe.newest * factor
        self.heads.marked_mean.lerp_(mean.float(), share)
        self.heads.marked_variance.lerp_((square - mean**2 + LEAST_VARIANCE).float(), share)


class MarkedHeads(OverPrior):
    """Before it: heads learn to read the mark that training starts from, the S_M of `data`; it is kept with them."""

    name, stream = "heads", 2

    def __init__(self, data, heads, mark):
        super().__init__(data, heads, data.recipe.pretrain_batch, data.recipe.head_epochs)
        self.mark, self.learning = mark, (heads.marked, heads.metric, heads.theta)

    def embed(self, batch):
        return self.heads.z_perp(batch.marked, batch.S_delta), self.heads.metric()


class Information(Objective):
    """log(sigma / sigma of P_dd alone) of a mark on a Neighbourhood, on average over the `wanted` rows of theta.

    An epoch begins with a table of the spectra of all boxes. Each step draws two halves of the training boxes: the
    table of one half gives the weights W, and a batch from the other half, measured anew, what they are worth. The
    gradient with respect to the spectra of the batch then goes back through the mark, box by box: memory does not grow.
    W is taken as given, for at the best W the information does not change with it to first order.
    """

    name = "marked"

    def __init__(self, data, mark, wanted):
        super().__init__()
        self.data, self.mark, self.learning, self.recipe, self.wanted = data, mark, [mark], data.recipe, wanted
        self.batch, self.epochs = self.recipe.batch, self.recipe.epochs
        boxes = sum(len(rows) * each for rows, each in zip(data.training, (1, 10), strict=True))
        self.steps = max(1, round(boxes / self.batch))
        few = [len(rows) // self.steps for rows in data.training]
        if few[0] < LEAST[0] or few[1] < LEAST[1]:
            raise ValueError(
                f"batch is {self.batch}, which makes {self.steps} steps of {few[0]} fiducial boxes and {few[1]} "
                f"pairs; a step needs {LEAST[0]} and {LEAST[1]}, so use a larger batch or more simulations."
            )

    def start(self):
        return self.validate()

    def begin(self, epoch, step):
        orders = (self.data.order(rows, stream, epoch) for stream, rows in enumerate(self.data.training))
        self._epoch, self._chunks = epoch, [order.tensor_split(self.steps) for order in orders]

    def step(self, i):
        batch, everyone = [chunk[i] for chunk in self._chunks], self.data.training
        rows = self.data.rows(*batch)
        spectra = self.data.table(self.mark, rows).requires_grad_(True)
        sample, F, F_few = self.data.sample(self._table, *everyone), 0, 0
        A, B = halves(sample, generator(self.data.seed, DRAWN, self._epoch, i))
        for half, other in ((A, B), (B, A)):
            W = weights(sample.rows(*other))
            F = F + fisher(sample.rows(*half), W) / 2
            mine = (x[torch.isin(x, all_of[y])] for x, all_of, y in zip(batch, everyone, half, strict=True))
            F_few = F_few + fisher(self.data.sample(spectra, *mine), W) / 2
        loss = linearised(F_few, F)[self.wanted].mean()
        (cotangents,) = torch.autograd.grad(loss, spectra)
        for parameter in self.mark.parameters():
            parameter.grad = torch.zeros_like(parameter)
        self.data.backpropagate(self.mark, rows, cotangents)
        return loss / self.data.processes.size  # every process has all of it

    def validate(self):
        self.data.centre_on(self.mark)
        self._table = self.data.table(self.mark)
        return [self.data.loss(self._table, rows, self.wanted) for rows in (self.data.training, self.data.held_out)]

    def state(self):
        return {"table": self._table, "centre": torch.tensor(self.data.centre, dtype=torch.float64)}

    def restore(self, state):
        self._table, self.data.centre = state["table"].cpu(), float(state["centre"])
