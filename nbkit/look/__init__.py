"""A trained mark taken apart: its terms on one box, how much each matters, and what it costs to do without.

What it is like in familiar words is in `likeness`, the space it is trained in in `latent`.
"""
# ruff: noqa: F401

from copy import deepcopy
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch.nn.functional import softplus

from nbkit.forecast import forecast
from nbkit.look import latent
from nbkit.look.likeness import WEB_CLASSES, against_density, environments, nearest_classical, peaks, stack, web_class
from nbkit.mark import identity
from nbkit.mark.invariants import mlp_inputs
from nbkit.mark.learned import LearnedMark
from nbkit.measure.bundled import Bundle
from nbkit.mesh.grid import Grid
from nbkit.universe.suite import suite

# What the cross term h_x sees, in the order of its weights.
CROSSED = ("E0", "E2", "I3")


@dataclass(frozen=True)
class Anatomy:
    """Every map of a mark on one box, all (n, n, n): eta = bias + sum of the terms, exactly, and M = softplus(eta)."""

    mark: LearnedMark
    grid: Grid
    delta: torch.Tensor
    bias: float  # the constant of eta
    invariants: dict  # {"E0": map, ...} those the mark sees
    terms: dict  # {"h_E0": map, ..., "h_x": map}
    # {"h_E0": mean, ..., "E0": mean, ...} of the terms, and of the invariants as the responses see them: what either is
    # replaced by when it is switched off.
    means: dict

    @property
    def mean_eta(self):
        """The mean of eta: bias and means of all terms."""
        return self.bias + sum(self.means[name] for name in self.terms)

    def eta(self, off=()):
        """The sum of all terms; those named in `off` are replaced by their means."""
        unknown = [name for name in off if name not in self.terms]
        if unknown:
            raise ValueError(f"No such term: {', '.join(unknown)}; this mark has {', '.join(self.terms)}.")
        maps = [torch.full_like(h, self.means[name]) if name in off else h for name, h in self.terms.items()]
        return self.bias + sum(maps)

    def M(self, off=()):
        """softplus(eta)."""
        return softplus(self.eta(off))


@torch.no_grad()
def anatomy(mark, delta, grid=None):
    """The Anatomy of a learned mark on a density contrast (n, n, n); default grid that of the mark."""
    grid = grid or mark.grid
    invariants = mark.invariants(delta, grid)
    terms = mark.responses.terms(invariants)
    means = {name: float(x.double().mean()) for name, x in (terms | mlp_inputs(invariants)).items()}
    return Anatomy(mark, grid, delta, float(mark.responses.bias), invariants, terms, means)


def is_learned(run):
    """Whether a run has a learned mark with terms to look at: not one that is 1 everywhere, as training begins."""
    responses = getattr(run.mark, "responses", None)
    return responses is not None and bool(responses.v.any() or (responses.crossed and responses.cross_v.any()))


def without(mark, means, names):
    """A copy of a mark in which what is named is replaced by its mean: a mark like any other.

    Parameters
    ----------
    means : of all terms and invariants, as an `Anatomy` has them.
    names : of terms ("h_E0", ..., "h_x"), or invariants ("E0", ...), which are silenced in the cross term as well.
    """
    silent = deepcopy(mark).requires_grad_(False)
    responses = silent.responses
    for name in names:
        if name == "h_x":
            responses.cross_v.zero_()
            responses.bias += means[name]
            continue
        responses.v[responses.names.index(name.removeprefix("h_"))] = 0
        responses.bias += means[f"h_{name.removeprefix('h_')}"]
        if name in CROSSED and responses.crossed:
            weights = responses.cross_w[:, CROSSED.index(name)]
            responses.cross_b += means[name] * weights
            weights.zero_()
    return silent


def term_means(mark, simulations):
    """The `means` of an Anatomy, over eight simulations and to three decimals, so that they are the same everywhere.

    Parameters
    ----------
    simulations : a set; or the name of a preset for its fiducial set, at once where the means come with the kit.
    """
    if isinstance(simulations, str):
        bundle = Bundle.of(simulations, ("fiducial",))
        if bundle is not None and identity(mark) in bundle.means:
            return bundle.means[identity(mark)]
        simulations = suite(simulations, sets=("fiducial",))["fiducial"]
    boxes = [anatomy(mark, simulations[i], simulations.grid) for i in range(min(8, len(simulations)))]
    return {name: round(sum(box.means[name] for box in boxes) / len(boxes), 3) for name in boxes[0].means}


def variants(mark, means):
    """{label: mark}: with "all" terms, "without" each of them, and without each invariant of the cross term anywhere.

    Without its only term a mark is a constant, which says no more than P_dd: a mark of one term has no variants.
    """
    terms = [name for name in means if name.startswith("h_")]
    if len(terms) == 1:
        return {"all": mark}
    off = terms + (list(CROSSED) if mark.responses.crossed else [])
    return {"all": mark} | {f"without {name}": without(mark, means, [name]) for name in off}


def error_growth(power, labels, kmax=0.3, count=200):
    """{label: Interval (5,) of sigma over that of the mark with "all" terms}: above 1 where information is lost.

    Parameters
    ----------
    power : {set: Measurement} for the sets around the fiducial point, measured with the labels and "all".
    count : resamples of the simulations behind the 95 % intervals; the same for all labels.
    """
    forecasts = forecast(centre(power), kmax, ("all", *labels), count=count)
    return {label: forecasts[label] / forecasts["all"] for label in labels}


def centre(power):
    """The same spectra for marks M / m - 1, with one number m a mark that takes most of delta out of Delta.

    An affine map of the mark tells the same, but where M varies little about its mean, only the centred spectra have a
    covariance that can be inverted to many digits: P_dm / m - P_dd, and P_mm / m^2 - 2 P_dm / m + P_dd.
    """
    fiducial, change = power["fiducial"], {}
    for label, P in fiducial.marked.items():
        m = P[:, 0].mean() / fiducial.P_dd.mean()
        change[label] = np.array([[-1, 1 / m, 0], [1, -2 / m, 1 / m**2]])

    marked = {name: {label: A @ each[label] for label, A in change.items()} for name, each in power.items()}
    return {name: replace(each, marked=marked[name], identities={}) for name, each in power.items()}


def variance_shares(parts):
    """{term: cov(h_a, eta) / var(eta)}: how much of the variance of eta comes with each term; they add up to 1."""
    eta = parts.eta().double()
    away = eta - eta.mean()
    return {name: float((h * away).mean() / (away * away).mean()) for name, h in parts.terms.items()}


@torch.no_grad()
def changes_of_M(parts):
    """{term or invariant: rms change of M without it / rms of M about its mean}."""
    M, others = parts.M().double(), {name: parts.M((name,)) for name in parts.terms}
    others |= {name: without(parts.mark, parts.means, (name,))(parts.delta, parts.grid) for name in parts.invariants}
    return {name: float((other - M).square().mean().sqrt() / M.std()) for name, other in others.items()}


@torch.no_grad()
def response_curves(parts, points=200):
    """{invariant: (f, h_a(f))}, h_a less its mean over the voxels, where all but a thousandth of them are."""
    at = {}
    for name, field in parts.invariants.items():
        low, high = np.quantile(field.numpy(), (0.001, 0.999))
        at[name] = torch.linspace(float(low), float(high), points)
    terms = parts.mark.responses.terms(at)
    return {name: (f.numpy(), (terms[f"h_{name}"] - parts.means[f"h_{name}"]).numpy()) for name, f in at.items()}


@torch.no_grad()
def cross_response(parts, I3, points=60):
    """h_x less its mean over cells of E0 and E2 at one I3 (+-0.1), NaN without voxels: edges, edges, (E2, E0)."""
    E0, E2 = (parts.invariants[name] for name in ("E0", "E2"))
    edges = [np.linspace(*np.quantile(x.numpy(), (0.0005, 0.9995)), points + 1) for x in (E0, E2)]
    near = (parts.invariants["I3"] - I3).abs() < 0.1
    voxels = np.histogram2d(E2[near].numpy(), E0[near].numpy(), bins=edges[::-1])[0]
    x, y = np.meshgrid(*((e[1:] + e[:-1]) / 2 for e in edges))
    x, y = (torch.from_numpy(each).to(E0) for each in (x, y))
    maps = {"E0": x, "E1": torch.zeros_like(x), "E2": y, "I3": torch.full_like(x, I3)}
    h = (parts.mark.responses.terms(maps)["h_x"] - parts.means["h_x"]).numpy()
    return *edges, np.where(voxels > 0, h, np.nan)
