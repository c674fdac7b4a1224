"""Information at the fiducial point as an objective: a Fisher matrix of {P_dd, P_dm, P_mm} that noise cannot raise.

F = dmu C^-1 dmu^T from few simulations grows with the noise of dmu and C, and a mark can learn to make it grow. Here
one half of the simulations, A, chooses how to weigh the spectra, W = C_A^-1 dmu_A^T, and the other half, B, tells what
these five numbers t = W^T s are worth:

    F = h dt_B T_B^-1 dt_B^T - bias,    dt = dmu W,    T = W^T C W,    bias_ab = h / n_B Tr[T_B^-1 cov(dt_a, dt_b)].

Whatever A chose, the expectation of F is the information of t, which is at most that of all spectra: noise in A costs
information and noise in B averages out. F does not change when M becomes a M + b.
"""

from typing import NamedTuple

import torch

from nbkit.forecast.fisher import fisher_matrix, hartlap
from nbkit.mesh.threads import generator
from nbkit.train.data import DRAWN, ORDER
from nbkit.train.fit import Objective
from nbkit.universe.cosmology import PARAMETERS, STEPS

# Divisions into A and B that one value of the objective is the mean of.
SPLITS = 4
# Fewest fiducial simulations and pairs of a step: both halves of it must tell a covariance of five numbers.
LEAST = (32, 6)


class Sample(NamedTuple):
    """Spectra of simulations at the fiducial point and around it."""

    fiducial: torch.Tensor  # (N, d) float64
    pairs: torch.Tensor  # (5, 2, n, d) float64: one step of each parameter up and down, n seeds each

    def rows(self, fiducial, pairs):
        """The part with these simulations and pairs."""
        return Sample(self.fiducial[fiducial], self.pairs[:, :, pairs])

    def first(self, count):
        """The part with the first spectra alone: of three times b the first b are P_dd."""
        return Sample(self.fiducial[:, :count], self.pairs[..., :count])


def sample_of(spectra, fiducial, pairs):
    """The Sample in (fiducial + 10 pairs, d) spectra: the fiducial ones, then all of Om_p, of Om_m, ... of s8_m."""
    first, rest = spectra.split([fiducial, 2 * len(PARAMETERS) * pairs])
    return Sample(first, rest.reshape(len(PARAMETERS), 2, pairs, -1))


def derivatives(pairs):
    """(n, 5, d) change of the spectra over one step of each parameter, a seed at a time."""
    return (pairs[:, 0] - pairs[:, 1]).transpose(0, 1) / 2


def weights(sample):
    """W = C^-1 dmu^T, (d, 5): the linear combinations that hold the information, were the sample without noise."""
    count, size = sample.fiducial.shape
    scale = sample.fiducial.detach().std(0)  # correlation units: spectra at different k differ by powers of ten
    root, failed = torch.linalg.cholesky_ex(torch.cov((sample.fiducial / scale).T))
    if count <= size + 2 or failed:
        raise ValueError(
            f"The covariance of {size} spectra from {count} simulations has no inverse; use more simulations, a lower "
            "kmax, or a mark that is not constant."
        )
    return torch.cholesky_solve((derivatives(sample.pairs).mean(0) / scale).T, root) / scale[:, None]


def fisher(sample, W):
    """F (5, 5) of t = W^T s in units of the steps, from simulations that W does not know; see above."""
    t, dt = sample.fiducial @ W, derivatives(sample.pairs) @ W
    # In units of their scatter: W is in those of 1 / s, and s in large ones.
    scale = t.detach().std(0)
    precision = hartlap(*t.shape) * torch.linalg.inv(torch.cov((t / scale).T))
    return fisher_matrix(dt / scale, precision)


def log_sigmas(F):
    """Natural logarithm of the marginalised errors (5,) from a Fisher matrix in units of the steps."""
    scale = F.detach().diagonal().clamp(min=0).sqrt()
    # In units of its diagonal, and not merely above 0: rounding makes a singular matrix positive as often as not.
    if not bool((scale > 0).all() and (torch.linalg.eigvalsh(F.detach() / torch.outer(scale, scale)) > 1e-9).all()):
        raise ValueError(
            "The derivatives of the spectra are mostly noise: when it is taken off, nothing is left of the information "
            "on some parameter. Use more pairs or a higher kmax."
        )
    return 0.5 * torch.linalg.inv(F).diagonal().log() + F.new_tensor(STEPS.tolist()).log()


def halves(sample, generator):
    """Rows of two disjoint halves drawn at random, each as (fiducial, pairs)."""
    both = []
    for count in (len(sample.fiducial), sample.pairs.shape[2]):
        order = torch.randperm(count, generator=generator)
        both.append((order[: count // 2], order[count // 2 :]))
    return list(zip(*both, strict=True))


def cross_validated(sample, generator, splits=SPLITS):
    """log sigma (5,) of the mean F over random divisions into halves; each half weighs what the other judges.

    Parameters
    ----------
    sample : the Sample, at least a few times more simulations than spectra and some ten pairs.
    generator : torch.Generator that draws the halves.
    splits : how many divisions.
    """
    F = 0
    for _ in range(splits):
        A, B = (sample.rows(*rows) for rows in halves(sample, generator))
        F = F + fisher(B, weights(A)) + fisher(A, weights(B))
    return log_sigmas(F / (2 * splits))


def linearised(F_few, F):
    """log sigma (5,) to first order in how F from few simulations differs from F, which is not differentiated.

    F of a few pairs may be so noisy that it has no inverse; to first order none is needed, and noise averages out.
    """
    F = F.detach()
    C = torch.linalg.inv(F)
    return log_sigmas(F) - 0.5 * (C @ (F_few - F) @ C).diagonal() / C.diagonal()


class Information(Objective):
    """log(sigma / sigma of P_dd alone), on average over the wanted parameters, of a learned mark.

    An epoch begins with a table of the spectra of all boxes. Each step draws two halves of the training boxes: the
    table of one half gives the weights W, and a batch from the other half, measured anew, what they are worth. The
    gradient with respect to the spectra of the batch then goes back through the mark, box by box: memory does not grow.
    W is taken as given, for at the best W the information does not change with it to first order.

    Parameters
    ----------
    data : Neighbourhood.
    mark : what is trained.
    recipe : of it `batch` (boxes a step), `epochs`, the rate and its schedule, decay, clip, patience are used.
    wanted : rows of theta whose errors count.
    seed : of all that is drawn.
    """

    name = "marked"

    def __init__(self, data, mark, recipe, wanted, seed):
        super().__init__()
        self.data, self.mark, self.recipe, self.wanted, self.seed = data, mark, recipe, wanted, seed
        self.batch, self.epochs = recipe.batch, recipe.epochs
        boxes = sum(len(rows) * each for rows, each in zip(data.training, (1, 10), strict=True))
        self.steps = max(1, round(boxes / recipe.batch))
        few = [len(rows) // self.steps for rows in data.training]
        if few[0] < LEAST[0] or few[1] < LEAST[1]:
            raise ValueError(
                f"batch is {recipe.batch}, which makes {self.steps} steps of {few[0]} fiducial boxes and {few[1]} "
                f"pairs; a step needs {LEAST[0]} and {LEAST[1]}, so use a larger batch or more simulations."
            )

    def groups(self):
        """The mark."""
        return [([self.mark], self.recipe.learning_rate, self.recipe.weight_decay)]

    def start(self):
        """Both losses of the mark as it starts."""
        return self.validate()

    def begin(self, epoch, step):
        """Fiducial simulations and pairs of every step of an epoch."""
        self._epoch, self._chunks = epoch, []
        for stream, rows in enumerate(self.data.training):
            order = torch.randperm(len(rows), generator=generator(self.seed, ORDER, stream, epoch))
            self._chunks.append(rows[order].tensor_split(self.steps))

    def step(self, i):
        """Gradients of log sigma, to first order in what the batch says beyond the table; see the class."""
        batch, everyone = [chunk[i] for chunk in self._chunks], self.data.training
        rows = self.data.rows(*batch)
        spectra = self.data.table(self.mark, rows).requires_grad_(True)
        sample, F, F_few = self.data.sample(self._table, *everyone), 0, 0
        A, B = halves(sample, generator(self.seed, DRAWN, self._epoch, i))
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
        """log(sigma / sigma of P_dd alone) on training and on held-out boxes, from a new table."""
        self.data.centre_on(self.mark)
        self._table = self.data.table(self.mark)
        return [
            self.data.loss(self._table, rows, self.wanted, self.seed)
            for rows in (self.data.training, self.data.held_out)
        ]

    def state(self):
        """The table of the epoch that is under way."""
        return {"table": self._table, "centre": torch.tensor(self.data.centre, dtype=torch.float64)}

    def restore(self, state):
        """Go on with that table."""
        self._table, self.data.centre = state["table"].cpu(), float(state["centre"])


def wanted_rows(parameters):
    """Where parameters, given by name, stand in theta."""
    if not parameters or any(name not in PARAMETERS for name in parameters):
        raise ValueError(f"parameters is {parameters!r}; give one or more of {', '.join(PARAMETERS)}.")
    return [PARAMETERS.index(name) for name in parameters]
