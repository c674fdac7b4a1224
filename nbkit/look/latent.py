"""Embeddings to geometry, section 3.3: principal components, alignment with theta, retrieval, the learned metric."""

from typing import NamedTuple

import numpy as np
import torch
from scipy.spatial.distance import cdist
from scipy.stats import binomtest, entropy, hypergeom, norm, sem
from sklearn.decomposition import PCA
from sklearn.linear_model import LinearRegression

from nbkit.mark.classical import UnitMark
from nbkit.mesh.spectra import marked_summary, unmarked_summary
from nbkit.train import Training, train
from nbkit.train.contrast import mahalanobis_scores, normalised
from nbkit.universe.cosmology import PRIOR_BSQ
from nbkit.universe.suite import PRESETS

# Fewer simulations than twice the dimensions of the space say nothing about its spectrum.
FEWEST = 32


def has_embeddings(run, preset):
    """Whether a run was trained by contrast, on boxes like those of a preset: heads read their bins of k alone."""
    grid = PRESETS[preset].grid
    return run.heads is not None and (run.grid.n, run.grid.box_size) == (grid.n, grid.box_size)


class Embeddings(NamedTuple):
    """N simulations in the space of a run; all embeddings are (N, D) float64 of length 1."""

    theta: np.ndarray  # (N, 5)
    z_perp: np.ndarray  # what the mark adds to P_dd
    z_d: np.ndarray  # P_dd alone
    z_theta: np.ndarray  # the simulations' own cosmologies
    L: np.ndarray  # (D, D) factor of the learned metric L L^T


def embed(run, power, label):
    """The Embeddings of a Measurement up to the kmax of a run, of its mark or any other seen through the same heads."""
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
    return Embeddings(np.asarray(power.theta), z_perp, z_d, theta_embedding(run, power.theta), L)


def theta_embedding(run, theta):
    """z_theta (c, D) of cosmologies theta (c, 5): candidates for retrieval, which need no simulation."""
    u = normalised(theta, PRIOR_BSQ).float().to(run.heads.theta.weight.device)
    with torch.no_grad():
        return run.heads.z_theta(u).double().cpu().numpy()


def unit_run(run, simulations=None, **options):
    """The Run of M = 1 with heads trained as those of `run`, with options of `train`: what P_dd says without a mark."""
    names = ("preset", "kmax", "residual", "recipe", "epochs", "head_epochs", "seed")
    asked = Training(**{name: getattr(run.training, name) for name in names})  # the same whatever the mark is
    return train(asked, simulations, fixed=UnitMark(), **options)


class PrincipalComponents(NamedTuple):
    """Principal components of a cloud of embeddings, the widest first."""

    axes: np.ndarray  # (c, D) unit vectors, each pointing to where the parameter it follows best grows
    scores: np.ndarray  # (N, c) the cloud along them, about its mean
    explained: np.ndarray  # (c,) shares of the variance


def principal_components(z, theta):
    """PCA of embeddings z (N, D), with signs fixed by the cosmologies theta (N, 5)."""
    pca = PCA(svd_solver="full").fit(z)
    scores = pca.transform(z)
    r = _correlations(scores, theta)
    sign = np.where(r[np.arange(len(r)), np.abs(r).argmax(1)] < 0, -1.0, 1.0)
    return PrincipalComponents(pca.components_ * sign[:, None], scores * sign, pca.explained_variance_ratio_)


def effective_rank(spectrum):
    """exp of the entropy of a spectrum normalised to 1: how many equal directions would be as rich."""
    return float(np.exp(entropy(spectrum)))


def alignment(z, theta, components=None):
    """How the first principal components of embeddings z (N, D) and the cosmologies theta (N, 5) go together.

    The way of a parameter is the slope dz/dtheta_p of a linear fit of z to all five, so it stays apart from those of
    parameters that happen to correlate with it in the sample.

    Returns
    -------
    R2 : (c, 5) squared correlation of each component with each parameter.
    angle : (c, 5) between each component and the way of each parameter [degrees], 0 to 90.
    """
    pca = principal_components(z, theta)
    slopes = LinearRegression().fit(normalised(theta, PRIOR_BSQ).numpy(), z).coef_.T
    ways = slopes / np.linalg.norm(slopes, axis=1, keepdims=True)
    cosine = np.abs(pca.axes[:components] @ ways.T).clip(max=1)
    return _correlations(pca.scores[:, :components], theta) ** 2, np.degrees(np.arccos(cosine))


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
    return (score >= score.diagonal()[:, None]).sum(1) - 1


def recall(rank, k, candidates=None, sizes=None):
    """R@k, the share of ranks (N,) below k, and its 95 % Wilson interval, honest also at 0 and 1: (share, low, high).

    With `sizes` n (c,) the same, (c, 3), if only n of the candidates had been there, averaged over every choice of n
    that holds the own one: of the others, the number that are nearer is hypergeometric, so nothing has to be drawn. An
    average over choices scatters less than hits and misses of the same mean, never more, so their interval holds it at
    least as often.

    Parameters
    ----------
    rank : (N,) from `ranks`, among `candidates` candidates.
    """
    hits = (rank < k).sum()
    if sizes is not None:
        hits = hypergeom.cdf(k - 1, candidates - 1, rank, np.asarray(sizes)[:, None] - 1).sum(1)
    whole = np.unique([np.floor(hits), np.ceil(hits)]).astype(int)
    low, high = np.transpose([binomtest(x, len(rank)).proportion_ci(method="wilson") for x in whole])
    # Between whole numbers the ends of the interval are straight.
    return np.stack([hits / len(rank), np.interp(hits, whole, low), np.interp(hits, whole, high)], axis=-1)


def recall_gain(rank, other, k):
    """R@k of ranks (N,) minus that of others (N,) of the same simulations, and its paired 95 % interval."""
    gains = (rank < k).astype(float) - (other < k)
    mean, half = gains.mean(), norm.ppf(0.975) * sem(gains)
    return mean, mean - half, mean + half


def theta_metric(heads, theta, temperature, learned=True):
    """G (5, 5) of ds = -du^T G du: how fast the score falls as a cosmology moves away from theta (5,).

    G = J^T L L^T J / tau with J = dz_theta/du, u each parameter in units of its prior's width. A step of
    1 / sqrt(eigenvalue) along an eigenvector costs one unit of score, a factor e in the odds of InfoNCE. If it is not
    to be `learned`, L = 1: the stretching by the theta head alone.
    """
    u = normalised(theta, PRIOR_BSQ).float().to(heads.theta.weight.device)
    J = torch.autograd.functional.jacobian(heads.z_theta, u).double()
    A = heads.metric().detach().double().T @ J if learned else J
    return (A.T @ A / temperature).cpu().numpy()


def _correlations(a, b):
    """(c, d) Pearson correlations of the columns of a (N, c) with those of b (N, d), 0 where a column is constant."""
    return np.nan_to_num(1 - cdist(a.T, b.T, "correlation"))
