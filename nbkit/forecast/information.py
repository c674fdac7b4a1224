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

from nbkit.universe.cosmology import PARAMETERS, STEPS

# Divisions into A and B that one value of the objective is the mean of.
SPLITS = 4


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
    count, n, size = len(t), len(dt), W.shape[1]
    # In units of their scatter: W is in those of 1 / s, and s in large ones.
    scale = t.detach().std(0)
    t, dt = t / scale, dt / scale
    precision = (count - size - 2) / (count - 1) * torch.linalg.inv(torch.cov(t.T))
    mean = dt.mean(0)
    apart = dt - mean
    noise = torch.einsum("iap,pq,ibq->ab", apart, precision, apart) / (n - 1)
    return mean @ precision @ mean.T - noise / n


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


def naive(sample):
    """log sigma (5,) where the same simulations weigh and judge, and no noise is taken off: what a mark can inflate."""
    dmu, (count, size) = derivatives(sample.pairs).mean(0), sample.fiducial.shape
    return log_sigmas((count - size - 2) / (count - 1) * dmu @ weights(sample))


def wanted_rows(parameters):
    """Where parameters, given by name, stand in theta."""
    if not parameters or any(name not in PARAMETERS for name in parameters):
        raise ValueError(f"parameters is {parameters!r}; give one or more of {', '.join(PARAMETERS)}.")
    return [PARAMETERS.index(name) for name in parameters]
