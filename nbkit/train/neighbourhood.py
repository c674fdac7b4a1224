"""Simulations at the fiducial point and one step around it: who trains, who judges, and the spectra of all of them.

The gradient of anything that depends on all spectra at once is exact with the memory of a few simulations: `table` has
all spectra, the gradient with respect to it is algebra of small matrices, and `backpropagate` sends each simulation's
row of it back through the mark.
"""

import hashlib
from functools import cached_property

import torch

from nbkit.mesh.spectra import marked_spectra
from nbkit.mesh.threads import generator
from nbkit.train.data import HELD_OUT, Fields, micro_batch, slices, split
from nbkit.train.information import cross_validated, sample_of
from nbkit.universe.cosmology import PARAMETERS
from nbkit.universe.store import fingerprint
from nbkit.universe.suite import DERIVATIVES, FIDUCIAL_SETS

# Divisions into halves behind a loss that is reported; a step makes do with fewer.
REPORTED_SPLITS = 10
# Boxes whose mean mark is taken off.
CENTRED_ON = 4


class Joined:
    """Several sets of simulations as one: the fiducial ones first, then all of Om_p, Om_m, ... s8_m."""

    def __init__(self, sets):
        self.grid, self.sets = sets["fiducial"].grid, [sets[name] for name in FIDUCIAL_SETS]
        self.fiducial, self.pairs = len(self.sets[0]), len(self.sets[1])
        for name, each in zip(FIDUCIAL_SETS[1:], self.sets[1:], strict=True):
            same = getattr(each, "seeds", None), getattr(self.sets[1], "seeds", None)
            if len(each) != self.pairs or (same[0] is not None and (same[0] != same[1]).any()):
                raise ValueError(
                    f"{name} has other seeds than {FIDUCIAL_SETS[1]}; derivatives need the same in all ten sets: call "
                    "suite(preset) to finish them."
                )

    @property
    def seeds(self):
        """First and last seed of the fiducial set and of the derivative sets, if they tell."""
        named = {"fiducial": self.sets[0], "derivatives": self.sets[1]}
        return {
            name: [int(each.seeds.min()), int(each.seeds.max())]
            for name, each in named.items()
            if hasattr(each, "seeds")
        }

    @property
    def fingerprint(self):
        """16 letters that change with any of the sets."""
        return hashlib.sha256("".join(map(fingerprint, self.sets)).encode()).hexdigest()[:16]

    def name(self, row):
        """Set and place in it of a row."""
        which, within = self._place(row)
        return f"{FIDUCIAL_SETS[which]} {within}"

    def _place(self, row):
        which, within = (0, row) if row < self.fiducial else divmod(row - self.fiducial, self.pairs)
        return which + (row >= self.fiducial), within

    def __len__(self):
        return self.fiducial + len(DERIVATIVES) * self.pairs

    def __getitem__(self, rows):
        fields = torch.empty(len(rows), *self.grid.shape)
        for place, row in enumerate(rows):
            which, within = self._place(row)
            fields[place] = self.sets[which][within]
        return fields


class Neighbourhood:
    """The simulations of a training on information, split into training and held out, and the spectra of all of them.

    Parameters
    ----------
    simulations : a suite, or a dict, with the set "fiducial" and the ten derivative sets.
    kmax : largest k of a bin [h/Mpc].
    validation : share of the fiducial simulations and of the pairs that is held out.
    seed : of the split.
    processes : the Processes that share the work.
    memory : most bytes of fields to keep in memory.
    """

    def __init__(self, simulations, kmax, validation, seed, processes, memory=None):
        self.joined, self.kmax, self.processes = Joined(simulations), kmax, processes
        self.grid, self.bins = self.joined.grid, len(self.joined.grid.bins(kmax).k)
        if self.bins < len(PARAMETERS):
            raise ValueError(
                f"kmax is {kmax:g} h/Mpc, which leaves {self.bins} bins; P_dd alone, the reference, needs "
                f"{len(PARAMETERS)} or more for as many parameters: choose a higher kmax."
            )
        self._memory, self.centre = memory, 0.0
        self._micro = micro_batch(self.grid, processes.device)
        counts = self.joined.fiducial, self.joined.pairs
        self.training, self.held_out = zip(*(split(n, validation, seed, i) for i, n in enumerate(counts)), strict=True)
        for name, (fiducial, pairs) in (("training", self.training), ("validation", self.held_out)):
            if len(fiducial) < 2 * (3 * self.bins + 3) or len(pairs) < 4:
                raise ValueError(
                    f"{name} has {len(fiducial)} fiducial simulations and {len(pairs)} pairs; the covariance of "
                    f"{3 * self.bins} spectra needs {2 * (3 * self.bins + 3)} and their derivatives 4 pairs or more."
                )

    @cached_property
    def fields(self):
        """The density fields; read when first asked for, so that a finished run never touches them."""
        return Fields(self.joined, self.processes.device, self._memory)

    def rows(self, fiducial, pairs):
        """Rows of the table of these fiducial simulations and of the ten boxes of each of these pairs."""
        first = self.joined.fiducial + self.joined.pairs * torch.arange(len(DERIVATIVES))
        return torch.cat([fiducial, (first[:, None] + pairs).flatten()])

    def sample(self, table, fiducial, pairs):
        """The Sample of these fiducial simulations and pairs."""
        return sample_of(table[self.rows(fiducial, pairs)], len(fiducial), len(pairs))

    def loss(self, table, rows, wanted, seed):
        """log(sigma / sigma of P_dd alone) from boxes (fiducial, pairs), on average over the wanted rows of theta."""
        sample = self.sample(table, *rows)
        marked, plain = (
            cross_validated(each, generator(seed, HELD_OUT), REPORTED_SPLITS)
            for each in (sample, sample.first(self.bins))
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
        table = torch.zeros(len(self.joined), 3 * self.bins, dtype=torch.float64)
        for part, s in self._spectra(mark, torch.arange(len(self.joined)) if rows is None else rows):
            table[part] = s.double().cpu()
        return self.processes.summed(table.to(self.processes.device)).cpu()

    def backpropagate(self, mark, rows, cotangents):
        """Add to the gradients of the mark this process's share of those of sum(cotangents * spectra) over `rows`.

        Parameters
        ----------
        rows : (m,) boxes that are sent through the mark.
        cotangents : (boxes, 3 b) gradient with respect to the table.
        """
        for part, s in self._spectra(mark, rows):
            (s * cotangents[part].to(s)).sum().backward()

    def _spectra(self, mark, rows):
        """Yield (rows, spectra) of a few boxes at a time: this process's share."""
        mine = rows[self.processes.share(len(rows))]
        parts = [mine[some] for some in slices(len(mine), self._micro)]
        for part, delta in zip(parts, self.fields.parts(parts), strict=True):
            try:
                power = marked_spectra(mark, delta, grid=self.grid, kmax=self.kmax, centre=self.centre)
            except ValueError as problem:
                bad = part[~torch.isfinite(delta).flatten(1).all(1).cpu()]
                names = ", ".join(map(self.joined.name, (bad if len(bad) else part)[:16].tolist()))
                raise ValueError(f"{problem} (simulations {names})") from problem
            yield part, torch.cat([power.P_dd, power.P_dm, power.P_mm], dim=-1)
