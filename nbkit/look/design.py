"""What the mark studio is made of: cross spectra of a preset's boxes in whole steps, and marks fitted into their basis.

The spectra of M = shift + sum_i c_i B_i, see `nbkit.mark.additive`, are quadratic in (shift, c). Of one bin, with the
mean cross spectra P = L L^T over boxes, those of a box are L Q L^T with a Q near the unit matrix: kept in whole
steps, of one or two bytes, it serves every mark alike, however much of its spectra cancels.
"""

from dataclasses import dataclass, replace
from functools import cache, cached_property
from types import SimpleNamespace

import numpy as np
import torch
from tqdm.auto import tqdm

from nbkit import disk
from nbkit.forecast import UNMARKED, Forecasts, forecast
from nbkit.forecast.bootstrap import resampled, resamples
from nbkit.forecast.fisher import Ingredients
from nbkit.mark import identity
from nbkit.mark.additive import BUMPS, NODES, SURVEYED, AdditiveMark, bumps, channel_maps, channels_of, ends_of
from nbkit.mark.classical import ClassicalMark, classical_marks
from nbkit.mark.learned import LearnedMark
from nbkit.measure import VERSION, measure
from nbkit.measure.cross import cross_spectra
from nbkit.mesh.grid import to_fourier
from nbkit.mesh.threads import generator
from nbkit.train import bundled_runs, load
from nbkit.train.information import Joined, Sample, cross_validated
from nbkit.universe.cosmology import STEPS
from nbkit.universe.suite import FIDUCIAL_SETS, Preset, suite

# Smoothing scale of the three channels [Mpc/h] (larger ones tell less), and the largest k there is [h/Mpc].
R, KMAX = 4.0, 0.3
# Fiducial boxes and pairs to search on; those that judge are the preset's own, and others.
TRAINING = (1000, 100)
# What the classical marks of the sliders have as p, delta_s and R [Mpc/h].
SLIDERS = (-2.5, -2.0, -1.5, -1.0, 1.0, 1.5, 2.0, 2.5), (0.0, 0.1, 0.2, 0.3, 0.4, 0.5), (6.0, 8.0, 10.0, 15.0, 20.0)
# Boxes that marks are fitted on, and the version of all this.
FITTED_ON, MADE = 4, 1
RATE = 0.03  # of the search


@dataclass(frozen=True, eq=False)
class Design:
    """What a mark can be designed with.

    Parameters
    ----------
    preset : the Preset.
    channels : of the AdditiveMarks.
    labels : of the `rivals`: P_dd, the 48 classical marks, and those that come with the kit.
    tensors : by name: `ends` (3, 2), `root` (b, 22, 22); q, step and mean of `judging` and `training` boxes; `rivals`
        (labels, b, 5, 5), their F up to each bin, 0 where there are too few; `fits` (marks, 21) and their `errors`, of
        the sliders' classical marks and then of the kit's; `box` (4, n, n, n): delta and what the channels see in it.
    """

    preset: Preset
    channels: tuple
    labels: tuple
    tensors: dict

    @property
    def k(self):
        """(b,) of the bins [h/Mpc]."""
        return self.preset.grid.bins(KMAX).k.double().numpy()

    @property
    def ends(self):
        """(first, last) node of each channel."""
        return tuple(map(tuple, self.tensors["ends"].tolist()))

    @property
    def learned(self):
        """Labels of the marks that come with the kit."""
        return self.labels[1 + len(classical_marks()) :]

    def rivals(self, label):
        """(b, 5, 5) F of a rival up to each bin."""
        return self.tensors["rivals"][self.labels.index(label)].numpy()

    def errors(self, label, bins):
        """(5,) errors of a rival from the first bins."""
        return np.sqrt(np.diagonal(np.linalg.inv(self.rivals(label)[bins - 1])))

    def mark(self, c, shift=1.0):
        """The AdditiveMark of coefficients c (21,)."""
        rows = np.asarray(c, float).reshape(len(self.channels), NODES).tolist()
        return AdditiveMark(tuple(map(tuple, rows)), self.ends, self.channels, shift)

    def values(self, c):
        """(3, 7) values of h_a at the nodes."""
        return (self.at_nodes @ np.reshape(c, (-1, NODES, 1)))[..., 0]

    def coefficients(self, values):
        """(21,) of the curves that have these values (3, 7) at the nodes."""
        return np.linalg.solve(self.at_nodes, np.asarray(values, float)[..., None]).ravel()

    def curve(self, c, a, t):
        """h of invariant number a, as the mark sees it, at t, of coefficients c (21,)."""
        return np.reshape(c, (-1, NODES))[a] @ bumps(torch.as_tensor(t), *self.ends[a]).numpy()

    @cached_property
    def at_nodes(self):
        """(3, 7 nodes, 7 functions) of B_j."""
        nodes = [torch.linspace(*ends, NODES, dtype=torch.float64) for ends in self.ends]
        return np.stack([bumps(t, *ends).T.numpy() for t, ends in zip(nodes, self.ends, strict=True)])

    def fit(self, which):
        """Coefficients (21,) of the mark that is fitted: a ClassicalMark of the `SLIDERS`, or a label; and the error.

        The error is rms, in units of the scatter of M.
        """
        known = [*_sliders(), *self.learned]
        if which not in known:
            raise ValueError(f"{which} was not fitted; there are {', '.join(map(str, known[-4:]))}, and the sliders'.")
        row = known.index(which)
        return self.tensors["fits"][row].double().numpy(), float(self.tensors["errors"][row])

    def spectra(self, boxes, a, bins=None):
        """Fiducial spectra (n_s, 3 b) and derivatives (pairs, 5, 3 b), in steps, of the mark a = (shift, c), a tensor.

        Parameters
        ----------
        boxes : "judging" or "training".
        bins : the first of them [all].
        """
        root, Q, sizes = self.tensors["root"][:bins], self._Q(boxes)[:, :bins], self.sizes[boxes]
        first, second = torch.triu_indices(*root.shape[1:])
        v, u = a @ root, root[:, 0, 0]
        weights = torch.where(first == second, 1, 2) * v[:, first] * v[:, second]
        P_dd, P_dm = u**2 * Q[..., 0], u * (Q[..., first == 0] * v).sum(-1)
        P = torch.cat([P_dd, P_dm, torch.einsum("rbp,bp->rb", Q, weights)], dim=-1)
        return P[: sizes[0]], P[sizes[0] :].reshape(5, sizes[1], -1).transpose(0, 1)

    @cache
    def _Q(self, boxes):
        """(rows, b, pairs) of boxes and derivatives."""
        q, step, mean = (self.tensors[f"{boxes}_{what}"].double() for what in ("q", "step", "mean"))
        which = _groups(self.sizes[boxes])
        return mean[which] + step[which] * q

    @property
    def sizes(self):
        """(fiducial boxes, pairs) that judge, and those to search on."""
        return {"judging": (self.preset.fiducial, self.preset.pairs), "training": TRAINING}

    def ingredients(self, mark, kmax, boxes="judging"):
        """Ingredients of the forecast of an AdditiveMark of this basis, from "judging" or "training" boxes."""
        a = torch.tensor([mark.shift, *sum(mark.coefficients, ())], dtype=torch.float64)
        fiducial, D = self.spectra(boxes, a, int((self.k <= kmax).sum()))
        return Ingredients(fiducial.numpy(), D.numpy() / STEPS[:, None])

    def forecasts(self, marks, kmax, count=200, fixed=()):
        """Forecasts of {label: AdditiveMark of this basis}, as `nb.forecast` makes them of the boxes that judge."""
        given = {label: self.ingredients(mark, kmax) for label, mark in marks.items()}
        weights = resamples(*self.sizes["judging"], count)
        return Forecasts({label: resampled(each, weights) for label, each in given.items()}).hold(*fixed)

    def finish(self, c, kmax, wanted=(0, 4), steps=250, seed=0):
        """(21,) of the mark with the smallest errors on the training boxes, by cross-fitted halves, begun at c (21,).

        Parameters
        ----------
        kmax : largest k of the spectra [h/Mpc].
        wanted : rows of theta whose mean log sigma is made small, marginalised over all five.
        """
        bins, zero = int((self.k <= kmax).sum()), torch.zeros(1, dtype=torch.float64)
        c = torch.tensor(c, dtype=torch.float64, requires_grad=True)
        adam = torch.optim.Adam([c], RATE)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(adam, max(steps, 1))
        for step in range(steps):
            fiducial, D = self.spectra("training", torch.cat([zero, c / c.detach().std()]), bins)
            sample = Sample(fiducial, torch.stack([D, -D]).permute(2, 0, 1, 3))
            adam.zero_grad()
            cross_validated(sample, generator(seed, step), 1)[list(wanted)].mean().backward()
            adam.step()
            schedule.step()
        return (c / c.std()).detach().numpy()


def design(preset="demo", progress=True):
    """The Design of a preset: at once where it comes with the kit or was made before; else its boxes are measured.

    Parameters
    ----------
    preset : a preset with a simulator.
    progress : show bars with the time left.
    """
    preset = Preset.of(preset)
    near = replace(preset.near, name=f"{preset.name}_studio", fiducial=TRAINING[0], pairs=TRAINING[1])
    learned = {name: load(name).mark for name in bundled_runs(preset.name)}
    learned = {name: mark for name, mark in learned.items() if isinstance(mark, LearnedMark)}
    sets = [[each.contents(name).fingerprint for name in FIDUCIAL_SETS] for each in (preset, near)]
    channels = channels_of(2, R)
    key = {"made": MADE, "sets": sets, "channels": channels, "kmax": KMAX, "nodes": NODES, "bumps": BUMPS}
    key |= {"spectra": VERSION, "learned": {name: identity(mark) for name, mark in learned.items()}}
    tensors = disk.kept("design", key, lambda: _make(preset, near, channels, learned, progress))
    return Design(preset, channels, (UNMARKED, *classical_marks(), *learned), tensors)


@torch.no_grad()
def _make(preset, near, channels, learned, progress):
    judging, training = (Joined(suite(each, sets=FIDUCIAL_SETS, progress=progress)) for each in (preset, near))
    grid, delta = judging.grid, judging[list(range(SURVEYED))]
    ends = ends_of(to_fourier(delta, grid), grid, channels)

    def table(joined):
        boxes = tqdm(range(len(joined)), "cross spectra", disable=not progress, leave=False, unit="box")
        fields = SimpleNamespace(parts=lambda _: (joined[[row]] for row in boxes))
        data = SimpleNamespace(grid=grid, kmax=KMAX, fields=fields)
        return cross_spectra(data, torch.arange(len(joined)), channels, ends)

    tables = table(judging), table(training)
    size = 1 + NODES * len(channels)
    first, second = torch.triu_indices(size, size)
    mean = torch.zeros(tables[0].shape[1], size, size, dtype=torch.float64)
    mean[:, first, second] = mean[:, second, first] = tables[0][: judging.fiducial].mean(0)
    tensors = {"ends": torch.tensor(ends), "root": torch.linalg.cholesky(mean)}
    for name, table in zip(("judging", "training"), tables, strict=True):
        # A search can do with less than a judgement.
        sizes, kind = (TRAINING, torch.int8) if name == "training" else ((preset.fiducial, preset.pairs), torch.int16)
        tensors |= {f"{name}_{what}": x for what, x in _whole(table, tensors["root"], sizes, kind).items()}
    power = measure(preset, classical_marks() | learned, sets=FIDUCIAL_SETS, progress=progress)
    k, labels = grid.bins(KMAX).k.double(), (UNMARKED, *classical_marks(), *learned)
    rivals = torch.zeros(len(labels), len(k), 5, 5, dtype=torch.float64)
    for i in range(5, len(k)):
        found = forecast(power, float(k[i]) + 1e-6, count=1)
        rivals[:, i] = torch.tensor(np.stack([found[label].F for label in labels]))
    delta, delta_k = delta[:FITTED_ON], to_fourier(delta[:FITTED_ON], grid)
    seen = channel_maps(delta_k, grid, channels)
    basis = torch.cat([bumps(t, *between) for t, between in zip(seen, ends, strict=True)]).flatten(1).T.double()
    basis = basis - basis.mean(0)
    M = torch.stack([mark(delta, grid).flatten().double() for mark in (*_sliders(), *learned.values())], dim=1)
    M = M - M.mean(0)
    fits = torch.linalg.lstsq(basis, M).solution
    tensors |= {"fits": fits.T.float(), "errors": ((basis @ fits - M).std(0) / M.std(0)).float()}
    box = torch.stack([delta[0], *(t[0] for t in seen)]).half()
    return tensors | {"rivals": rivals, "box": box}


def _whole(table, root, sizes, kind):
    """q, whole numbers of a kind, step and mean of Q = L^-1 P L^-T of the fiducial boxes and of derivatives.

    Derivatives are half of what the two boxes of a seed differ by: what they share is much larger, it would swallow it.
    """
    fiducial, pairs = table.split([sizes[0], len(table) - sizes[0]])
    pairs = pairs.reshape(5, 2, sizes[1], *table.shape[1:])
    rows = torch.cat([fiducial, ((pairs[:, 0] - pairs[:, 1]) / 2).flatten(0, 1)])
    first, second = torch.triu_indices(*root.shape[1:])
    P = torch.zeros(*rows.shape[:2], *root.shape[1:], dtype=torch.float64)
    P[..., first, second] = P[..., second, first] = rows
    half = torch.linalg.solve_triangular(root, P, upper=False)
    Q = torch.linalg.solve_triangular(root, half.mT, upper=False)[..., first, second]
    groups = Q.split([sizes[0], *[sizes[1]] * 5])
    mean = torch.stack([each.mean(0) for each in groups]).float()
    largest = [(each - own).abs().amax(0) for each, own in zip(groups, mean, strict=True)]
    step = (torch.stack(largest) / torch.iinfo(kind).max).float()
    which = _groups(sizes)
    return {"q": ((Q - mean[which]) / step[which]).round().to(kind), "step": step, "mean": mean}


def _groups(sizes):
    """Of each row, whether it is fiducial (0), or of which parameter (1 ... 5)."""
    return torch.repeat_interleave(torch.arange(6), torch.tensor([sizes[0], *[sizes[1]] * 5]))


def _sliders():
    return [ClassicalMark(p, delta_s, scale) for scale in SLIDERS[2] for p in SLIDERS[0] for delta_s in SLIDERS[1]]
