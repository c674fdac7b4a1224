"""Embeddings to geometry, section 3.3: principal components, alignment with theta, retrieval, the learned metric."""

import hashlib
import json
from typing import NamedTuple

import numpy as np
import torch
from scipy.stats import hypergeom
from sklearn.decomposition import PCA

from nbkit import disk
from nbkit.mark.classical import UnitMark
from nbkit.mesh.spectra import marked_summary, unmarked_summary
from nbkit.train.contrast import mahalanobis_scores
from nbkit.train.negatives import normalised
from nbkit.train.run import load_run
from nbkit.train.shipped import run_folder, shipped_runs
from nbkit.train.train import train
from nbkit.universe.cosmology import PARAMETERS, PRIOR_BSQ
from nbkit.universe.store import fingerprint
from nbkit.universe.suite import PRESETS, suite

# Fewer simulations than twice the dimensions of the space say nothing about its spectrum.
FEWEST = 32
# Half-width of a 95 % interval of a normal variable.
TWO_SIGMA = 1.96


def check_preset(run, preset):
    """Raise if a run has no heads, or was trained on other boxes than a preset's: heads read their bins of k alone."""
    grid = PRESETS[preset].grid
    if run.heads is None:
        raise ValueError(
            f"The run {run.folder.name} was not trained by contrast and has no embeddings; name one that was: "
            f"`papermill notebooks/03_train.ipynb out.ipynb -p preset {preset} -p kmax {run.kmax:g}` makes one."
        )
    if (run.grid.n, run.grid.box_size) != (grid.n, grid.box_size):
        raise ValueError(
            f"The run {run.folder.name} was trained on boxes of {run.grid.n}^3 cells in {run.grid.box_size:g} Mpc/h; "
            f"preset {preset!r} has {grid.n}^3 in {grid.box_size:g}. Name a run of that preset; "
            f"`papermill notebooks/03_train.ipynb out.ipynb -p preset {preset} -p kmax {run.kmax:g}` makes one."
        )


class Embedded(NamedTuple):
    """N simulations in the space of a run; all embeddings are (N, D) float64 of length 1."""

    theta: np.ndarray  # (N, 5)
    z_perp: np.ndarray  # what the mark adds to P_dd
    z_d: np.ndarray  # P_dd alone
    z_theta: np.ndarray  # the simulations' own cosmologies
    L: np.ndarray  # (D, D) factor of the learned metric L L^T


def embedded(run, power, label):
    """The Embedded simulations whose spectra were measured with the run's mark.

    Parameters
    ----------
    run : a Run; its heads read the spectra up to its own kmax.
    power : Measurement of simulations on the run's grid.
    label : of the run's mark in `power`, or of any mark that is to be seen through the same heads.
    """
    if len(power.theta) < FEWEST:
        raise ValueError(f"There are {len(power.theta)} simulations; latent geometry needs at least {FEWEST}.")
    power, k = power.cut(run.kmax), run.grid.bins(run.kmax).k.numpy()
    if len(power.k) != len(k) or not np.allclose(power.k, k, rtol=1e-4):
        raise ValueError(
            f"The spectra have {len(power.k)} bins up to {run.kmax:g} h/Mpc; this run's heads read {len(k)}, those of "
            f"boxes of {run.grid.n}^3 cells in {run.grid.box_size:g} Mpc/h: measure such boxes."
        )
    device = run.heads.theta.weight.device
    P_dd, P_dm, P_mm = torch.from_numpy(power[label]).float().to(device).unbind(1)
    S_delta, S_M = unmarked_summary(P_dd), marked_summary(P_dd, P_dm, P_mm)
    with torch.no_grad():
        z_perp, z_d, L = run.heads.z_perp(S_M, S_delta), run.heads.z_d(S_delta), run.heads.metric()
    z_perp, z_d, L = (x.double().cpu().numpy() for x in (z_perp, z_d, L))
    return Embedded(np.asarray(power.theta), z_perp, z_d, theta_embedding(run, power.theta), L)


def unit_run(run, simulations, **options):
    """The Run of M = 1 with heads trained as those of `run` were: what the method makes of P_dd without a mark.

    Parameters
    ----------
    simulations : the set that `run` was trained on.
    options : passed to `train`, such as `device` or `progress`.
    """
    asked = {name: run.settings[name] for name in ("recipe", "kmax", "residual", "seed")}
    # Runs that differ in nothing but the mark share one.
    about = json.dumps([asked, len(simulations), fingerprint(simulations)], sort_keys=True)
    folder = disk.runs() / "train" / f"unit_{hashlib.sha256(about.encode()).hexdigest()[:12]}"
    return train(simulations, folder, mark=UnitMark(), **asked | {"recipe": run.recipe}, **options)


def suite_unit_run(run, preset, data_root=None, **options):
    """As `unit_run` for the training set of a preset: at once where it comes with the kit."""
    asked = ("recipe", "kmax", "residual", "seed", "grid")
    for name in shipped_runs():
        kept = load_run(run_folder(name))
        if kept.mark == UnitMark() and all(kept.settings[each] == run.settings[each] for each in asked):
            return kept
    return unit_run(run, suite(preset, sets=("BSQ",), data_root=data_root)["BSQ"], **options)


def theta_embedding(run, theta):
    """z_theta (c, D) of cosmologies theta (c, 5): candidates for retrieval, which need no simulation."""
    u = normalised(theta, PRIOR_BSQ).float().to(run.heads.theta.weight.device)
    with torch.no_grad():
        return run.heads.z_theta(u).double().cpu().numpy()


class Principal(NamedTuple):
    """Principal components of a cloud of embeddings, the widest first."""

    axes: np.ndarray  # (c, D) unit vectors, each pointing to where the parameter it follows best grows
    scores: np.ndarray  # (N, c) the cloud along them, about its mean
    explained: np.ndarray  # (c,) shares of the variance


def principal(z, theta):
    """PCA of embeddings z (N, D), with signs fixed by the cosmologies theta (N, 5)."""
    pca = PCA(svd_solver="full").fit(z)
    scores = pca.transform(z)
    r = _correlations(scores, theta)
    sign = np.where(r[np.arange(len(r)), np.abs(r).argmax(1)] < 0, -1.0, 1.0)
    return Principal(pca.components_ * sign[:, None], scores * sign, pca.explained_variance_ratio_)


def effective_rank(spectrum):
    """exp of the entropy of a spectrum normalised to 1: how many equal directions would be as rich."""
    p = np.asarray(spectrum, np.float64)
    p = p[p > 0] / p.sum()
    return float(np.exp(-(p * np.log(p)).sum()))


class Alignment(NamedTuple):
    """How principal components and parameters go together."""

    R2: np.ndarray  # (c, 5) squared correlation of each component with each parameter
    R2_theta: np.ndarray  # (c,) share of each component's variance that is linear in all five parameters
    angle: np.ndarray  # (c, 5) between each component and the way z moves with each parameter [degrees], 0 to 90
    between: np.ndarray  # (5, 5) angle between the ways of two parameters [degrees], 0 to 180


def alignment(z, theta, components=None):
    """Alignment of the first `components` of embeddings z (N, D) with cosmologies theta (N, 5).

    The way of a parameter is the slope dz/dtheta_p of a linear fit of z to all five, so it stays apart from those of
    parameters that happen to correlate with it in the sample.
    """
    pca = principal(z, theta)
    axes, scores = pca.axes[:components], pca.scores[:, :components]
    design = np.column_stack([np.ones(len(theta)), normalised(theta, PRIOR_BSQ).numpy()])
    slopes = np.linalg.lstsq(design, z, rcond=None)[0][1:]
    ways = slopes / np.linalg.norm(slopes, axis=1, keepdims=True)
    left = scores - design @ np.linalg.lstsq(design, scores, rcond=None)[0]
    return Alignment(
        _correlations(scores, theta) ** 2,
        1 - left.var(0) / scores.var(0),
        _degrees(np.abs(axes @ ways.T)),
        _degrees(ways @ ways.T),
    )


def ranks(z, z_theta, others=None, L=None):
    """How many candidates are nearer to each z (N, D) than its own cosmology z_theta (N, D): 0 is a hit, (N,).

    Candidates as near as the own one count as nearer: embeddings that tell nothing apart must not look perfect.

    Parameters
    ----------
    others : (c, D) candidates besides the N own cosmologies; a candidate needs no simulation.
    L : (D, D) factor of the metric; default the identity, Euclidean distance.
    """
    L = np.eye(z.shape[1]) if L is None else L
    candidates = z_theta if others is None else np.concatenate([z_theta, others])
    score = mahalanobis_scores(*(torch.from_numpy(x) for x in (z, candidates, L)), 1.0).numpy()
    own = score[np.arange(len(z)), np.arange(len(z))]
    return (score >= own[:, None]).sum(1) - 1


def wilson(hits, trials, sigmas=TWO_SIGMA):
    """(low, high) Wilson interval of a share; honest also at 0 and 1."""
    share, z2 = hits / trials, sigmas**2
    middle = (share + z2 / (2 * trials)) / (1 + z2 / trials)
    half = sigmas * np.sqrt(share * (1 - share) / trials + z2 / (4 * trials**2)) / (1 + z2 / trials)
    return middle - half, middle + half


def recall(rank, k):
    """R@k, the share of ranks (N,) below k, and its 95 % interval: (share, low, high)."""
    hits = int((rank < k).sum())
    return hits / len(rank), *wilson(hits, len(rank))


def recall_gain(rank, other, k):
    """R@k of ranks (N,) minus that of others (N,) of the same simulations, and its paired 95 % interval."""
    gained = (rank < k).astype(float) - (other < k)
    mean, half = gained.mean(), TWO_SIGMA * gained.std(ddof=1) / np.sqrt(len(gained))
    return mean, mean - half, mean + half


def recall_against_candidates(rank, k, candidates, sizes):
    """R@k if only n of the candidates had been there, (len(sizes), 3): mean, and its 95 % interval over simulations.

    Averaged over every choice of n candidates that holds the own one: of the others, the number that are nearer is
    hypergeometric, so nothing has to be drawn.

    Parameters
    ----------
    rank : (N,) from `ranks`, among `candidates` candidates.
    sizes : numbers n of candidates, from 1 to `candidates`.
    """
    rows = []
    for n in sizes:
        if not 1 <= n <= candidates:
            raise ValueError(f"n is {n}; a choice holds 1 ... {candidates} candidates.")
        chance_of_hit = hypergeom.cdf(k - 1, candidates - 1, rank, n - 1)
        mean = chance_of_hit.mean()
        # As for hits and misses: an average over choices scatters less, never more.
        low, high = wilson(mean * len(rank), len(rank))
        rows.append((mean, low, high))
    return np.array(rows)


def theta_metric(heads, theta, temperature, learned=True):
    """G (5, 5) of ds = -du^T G du: how fast the score falls as a cosmology moves away from theta (5,).

    G = J^T L L^T J / tau with J = dz_theta/du, u each parameter in units of its prior's width. A step of
    1 / sqrt(eigenvalue) along an eigenvector costs one unit of score, a factor e in the odds of InfoNCE.

    Parameters
    ----------
    heads : of a run.
    temperature : tau of its recipe.
    learned : False takes L = 1: the stretching by the theta head alone.
    """
    u = normalised(theta, PRIOR_BSQ).float().to(heads.theta.weight.device)
    J = torch.autograd.functional.jacobian(heads.z_theta, u).double()
    A = heads.metric().detach().double().T @ J if learned else J
    return (A.T @ A / temperature).cpu().numpy()


def stretched(G):
    """Eigenvalues (5,) of a metric G (5, 5), the most stretched first, and eigenvectors (5, 5), a row each.

    Each row is signed so that its largest entry is positive.
    """
    values, vectors = np.linalg.eigh(G)
    rows = vectors.T[::-1]
    largest = np.abs(rows).argmax(1)
    return values[::-1], rows * np.sign(rows[np.arange(len(rows)), largest])[:, None]


def table(values, rows, digits=2):
    """Text of (r, 5) numbers, a column for each parameter."""
    head = " " * 14 + "".join(f"{name:>9s}" for name in PARAMETERS)
    body = (f"{row:14s}" + "".join(f"{x:9.{digits}f}" for x in line) for row, line in zip(rows, values, strict=True))
    return "\n".join([head, *body])


def _correlations(a, b):
    """(c, d) Pearson correlations of the columns of a (N, c) with those of b (N, d)."""
    a, b = (x - x.mean(0) for x in (a, b))
    norms = np.linalg.norm(a, axis=0)[:, None] * np.linalg.norm(b, axis=0)
    return a.T @ b / np.where(norms > 0, norms, 1.0)


def _degrees(cosine):
    return np.degrees(np.arccos(np.clip(cosine, -1, 1)))
