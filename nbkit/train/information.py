"""Information at the fiducial point as an objective: a Fisher matrix of {P_dd, P_dm, P_mm} that noise cannot raise.

F = dmu C^-1 dmu^T from few simulations grows with the noise of dmu and C, and a mark can learn to make it grow. Here
one half of the simulations, A, chooses how to weigh the spectra, W = C_A^-1 dmu_A^T, and the other half, B, tells what
these five numbers t = W^T s are worth:

    F = h dt_B T_B^-1 dt_B^T - bias,    dt = dmu W,    T = W^T C W,    bias_ab = h / n_B Tr[T_B^-1 cov(dt_a, dt_b)].

Whatever A chose, the expectation of F is the information of t, which is at most that of all spectra: noise in A costs
information and noise in B averages out. F does not change when M becomes a M + b.
"""

import hashlib
from typing import NamedTuple

import torch

from nbkit.forecast.fisher import fisher_matrix, hartlap
from nbkit.mesh.threads import generator
from nbkit.train.data import HELD_OUT, Simulations, chunks, micro_batch, split
from nbkit.universe.cosmology import PARAMETERS, STEPS
from nbkit.universe.store import fingerprint
from nbkit.universe.suite import DERIVATIVES, FIDUCIAL_SETS

# Divisions into A and B that one value of the objective, and one that is reported, is the mean of.
SPLITS, REPORTED_SPLITS = 4, 10
# Boxes whose mean mark is taken off.
CENTRED_ON = 4


class Sample(NamedTuple):
    """Spectra of simulations at the fiducial point and around it."""

    fiducial: torch.Tensor  # (N, d) float64
    pairs: torch.Tensor  # (5, 2, n, d) float64: one step of each parameter up and down, n seeds each

    def rows(self, fiducial, pairs):
        """The part with these simulations and pairs."""
        return Sample(self.fiducial[fiducial], self.pairs[:, :, pairs])


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

    The Sample needs at least a few times more simulations than spectra and some ten pairs.
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


class Joined:
    """Several sets of simulations as one: the fiducial ones first, then all of Om_p, Om_m, ... s8_m."""

    def __init__(self, sets):
        self.grid, self.sets = sets["fiducial"].grid, [sets[name] for name in FIDUCIAL_SETS]
        # (number of the set, place in it) of every row
        self.places = [(which, row) for which, each in enumerate(self.sets) for row in range(len(each))]
        self.fiducial, self.pairs = len(self.sets[0]), len(self.sets[1])
        for name, each in zip(DERIVATIVES, self.sets[1:], strict=True):
            seeds, others = getattr(each, "seeds", None), getattr(self.sets[1], "seeds", None)
            if len(each) != self.pairs or (seeds is not None and (seeds != others).any()):
                raise ValueError(
                    f"{name} has other seeds than {DERIVATIVES[0]}; derivatives need the same in all ten sets: call "
                    "suite(preset) to finish them."
                )

    def __len__(self):
        return len(self.places)

    def __getitem__(self, rows):
        fields = torch.empty(len(rows), *self.grid.shape)
        for field, row in zip(fields, rows, strict=True):
            which, within = self.places[row]
            field[:] = self.sets[which][within]
        return fields


class Neighbourhood(Simulations):
    """A suite around the fiducial point: which boxes train, which judge, and the spectra of all; see `Simulations`.

    The gradient of anything that depends on all spectra at once is exact with the memory of a few simulations: `table`
    has all spectra, the gradient with respect to it is algebra of small matrices, and `backpropagate` sends each
    simulation's row of it back through the mark.
    """

    def __init__(self, simulations, *about, **options):
        super().__init__(Joined(simulations), *about, **options)
        if self.bins < len(PARAMETERS):
            raise ValueError(
                f"kmax is {self.kmax:g} h/Mpc, which leaves {self.bins} bins; P_dd alone, the reference, needs "
                f"{len(PARAMETERS)} or more for as many parameters: choose a higher kmax."
            )
        self.centre, needed = 0.0, 2 * (3 * self.bins + 3)
        counts = enumerate((self.simulations.fiducial, self.simulations.pairs))
        parts = (split(count, self.recipe.validation, self.seed, i) for i, count in counts)
        self.training, self.held_out = zip(*parts, strict=True)
        for name, (fiducial, pairs) in (("training", self.training), ("validation", self.held_out)):
            if len(fiducial) < needed or len(pairs) < 4:
                raise ValueError(
                    f"{name} has {len(fiducial)} fiducial simulations and {len(pairs)} pairs; the covariance of "
                    f"{3 * self.bins} spectra needs {needed} and their derivatives 4 pairs or more."
                )

    def about(self):
        """What the simulations are, and first and last seed of the fiducial set and of the derivative sets."""
        joined = self.simulations
        digest = hashlib.sha256("".join(map(fingerprint, joined.sets)).encode()).hexdigest()[:16]
        named = {"fiducial": joined.sets[0], "derivatives": joined.sets[1]}
        seeds = {name: [int(x.seeds.min()), int(x.seeds.max())] for name, x in named.items() if hasattr(x, "seeds")}
        return {"simulations": [joined.fiducial, joined.pairs, digest], "seeds": seeds}

    def some(self, count):
        """So many fields (count, n, n, n), of fiducial training boxes."""
        return self.simulations[self.training[0][:count].tolist()]

    def rows(self, fiducial, pairs):
        """Rows of the table of these fiducial simulations and of the ten boxes of each of these pairs."""
        first = self.simulations.fiducial + self.simulations.pairs * torch.arange(len(DERIVATIVES))
        return torch.cat([fiducial, (first[:, None] + pairs).flatten()])

    def sample(self, table, fiducial, pairs):
        """The Sample of these fiducial simulations and pairs."""
        return sample_of(table[self.rows(fiducial, pairs)], len(fiducial), len(pairs))

    def loss(self, table, rows, wanted):
        """log(sigma / sigma of P_dd alone) from boxes (fiducial, pairs), on average over the wanted rows of theta."""
        marked, plain = (
            cross_validated(self.sample(some, *rows), generator(self.seed, HELD_OUT), REPORTED_SPLITS)
            for some in (table, table[:, : self.bins])  # P_dd comes first
        )
        return float((marked - plain)[wanted].mean())

    @torch.no_grad()
    def centre_on(self, mark):
        """From now on measure M - <M> instead of M, <M> being the mean of this mark over a few boxes.

        That changes no information, and saves its digits: of a mark near 1 all three spectra are nearly P_dd.
        """
        delta = next(self.fields.parts([self.training[0][:CENTRED_ON]]))
        self.centre = float(mark(delta, self.grid).double().mean())

    @torch.no_grad()
    def table(self, mark, rows=None):
        """(boxes, 3 b) float64: P_dd, P_dm and P_mm of all boxes, or of those in `rows` with zeros elsewhere."""
        table = torch.zeros(len(self.simulations), 3 * self.bins, dtype=torch.float64)
        for part, s in self._spectra(mark, torch.arange(len(table)) if rows is None else rows):
            table[part] = s.double().cpu()
        return self.processes.summed(table.to(self.device)).cpu()

    def backpropagate(self, mark, rows, cotangents):
        """Add to the gradients of the mark this process's share of those of sum(cotangents * table) (boxes, 3 b)."""
        for part, s in self._spectra(mark, rows):
            (s * cotangents[part].to(s)).sum().backward()

    def _spectra(self, mark, rows):
        """Yield (rows, spectra) of a few boxes at a time: this process's share."""
        mine = rows[self.processes.share(len(rows))]
        parts = chunks(mine, micro_batch(self.grid, self.device))
        for part, delta in zip(parts, self.fields.parts(parts), strict=True):
            try:
                power = self.spectra(mark, delta, centre=self.centre)
            except ValueError as problem:
                bad = part[~torch.isfinite(delta).flatten(1).all(1).cpu()]
                places = (self.simulations.places[i] for i in (bad if len(bad) else part)[:16])
                names = ", ".join(f"{FIDUCIAL_SETS[which]} {row}" for which, row in places)
                raise ValueError(f"{problem} (simulations {names})") from problem
            yield part, torch.cat([power.P_dd, power.P_dm, power.P_mm], dim=-1)
