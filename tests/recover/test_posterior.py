"""Posteriors of a model whose posterior is known, their calibration, and their silence."""

import numpy as np
import pytest
import torch
from scipy.stats import truncnorm

from nbkit.recover.posterior import Coverage, Posterior, posterior
from nbkit.universe.cosmology import PRIOR_BSQ, PRIOR_LATIN_HYPERCUBE

NOISE = 0.1


def unmarked(P_dd):
    """Spectra (N, 3, b) of M = 1."""
    return np.repeat(P_dd[:, None], 3, axis=1)


def measured(count, seed, prior=PRIOR_BSQ):
    """P_dd in two bins that know Omega_m and sigma_8 up to Gaussian noise, as spectra (N, 3, 2) of M = 1; theta."""
    rng = np.random.default_rng(seed)
    unit = rng.random((count, 5))
    theta = prior[:, 0] + unit * (prior[:, 1] - prior[:, 0])
    seen = (theta[:, [0, 4]] - PRIOR_BSQ[[0, 4], 0]) / (PRIOR_BSQ[[0, 4], 1] - PRIOR_BSQ[[0, 4], 0])
    return unmarked(10 ** (seen + NOISE * rng.standard_normal((count, 2)))), theta


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A posterior, and the folder it was trained in."""
    folder = tmp_path_factory.mktemp("working")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        found = posterior(*measured(2000, 0))
        found.samples(measured(2, 9)[0], 10)
    return found, folder


def test_posterior_is_the_known_one(trained):
    """A known parameter in the middle of the prior: a Gaussian of the noise; an unknown one: the prior."""
    width = PRIOR_BSQ[:, 1] - PRIOR_BSQ[:, 0]
    middle = unmarked(np.full((1, 2), 10**0.5))
    samples = (trained[0].samples(middle, 2000)[0] - PRIOR_BSQ[:, 0]) / width
    assert samples.shape == (2000, 5)
    np.testing.assert_allclose(samples[:, [0, 4]].mean(0), 0.5, atol=0.05)
    np.testing.assert_allclose(samples[:, [0, 4]].std(0), NOISE, rtol=0.3)
    np.testing.assert_allclose(samples[:, 1:4].std(0), 12**-0.5, rtol=0.15)


def test_density_is_normalised(trained):
    """Its mean over the prior, times the volume of the prior, is 1."""
    found, _ = trained
    rng = np.random.default_rng(3)
    theta = PRIOR_BSQ[:, 0] + rng.random((20_000, 5)) * (PRIOR_BSQ[:, 1] - PRIOR_BSQ[:, 0])
    x = found.seen(unmarked(np.full((20_000, 2), 10**0.5)))
    with torch.no_grad():
        density = found.estimators[0].log_prob(torch.tensor(theta[None]).float(), x)[0].exp().double().numpy()
    assert density.mean() * np.prod(PRIOR_BSQ[:, 1] - PRIOR_BSQ[:, 0]) == pytest.approx(1, abs=0.1)


def test_samples_stay_inside_a_smaller_prior(trained):
    found, _ = trained
    samples = found.within(PRIOR_LATIN_HYPERCUBE).samples(measured(5, 1)[0], 200)
    assert (samples >= PRIOR_LATIN_HYPERCUBE[:, 0]).all() and (samples <= PRIOR_LATIN_HYPERCUBE[:, 1]).all()
    low, high = found.samples(measured(5, 1)[0], 200)[..., 1].min(), found.samples(measured(5, 1)[0], 200)[..., 1].max()
    assert low < 0.03 and high > 0.07
    with pytest.raises(ValueError, match="reaches beyond"):
        found.within(PRIOR_LATIN_HYPERCUBE).within(PRIOR_BSQ)


def test_same_seed_same_samples_and_the_callers_generator_is_left_alone(trained):
    found, _ = trained
    spectra, _ = measured(3, 1)
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    first = found.samples(spectra, 50, seed=2)
    assert torch.equal(torch.rand(3), expected)
    np.testing.assert_array_equal(first, found.samples(spectra, 50, seed=2))
    assert not np.array_equal(first, found.samples(spectra, 50, seed=3))


class Narrow:
    """A density estimator: uniform over the prior of the training but for Omega_b, of which x says where it is."""

    def sample(self, shape, condition):
        """(count, N, 5)."""
        low, high = torch.as_tensor(np.array(PRIOR_BSQ)).float().T
        theta = low + torch.rand(*shape, len(condition), 5) * (high - low)
        theta[..., 1] = condition[:, 0] + 1e-3 * torch.randn(*shape, len(condition))
        return theta


def test_boxes_whose_posterior_hardly_reaches_into_the_prior_are_drawn_all_the_same():
    """One box in 300 accepts a sample in 1,000; nothing of what the others accept waits for it."""
    x = torch.full((300, 1), 0.05)
    x[7] = 0.0731  # 3.1 sigma above the edge
    found = Posterior(PRIOR_LATIN_HYPERCUBE, 0, 1, [True], [Narrow(), Narrow()])
    drawn = found._drawn(x, 201, 0).numpy()
    low, high = PRIOR_LATIN_HYPERCUBE.T
    assert drawn.shape == (201, 300, 5) and (drawn > low - 1e-6).all() and (drawn < high + 1e-6).all()
    assert drawn[:, 7, 1].min() > 0.0685 and abs(drawn[:, 0, 1].std() - 1e-3) < 3e-4
    x[7] = 0.09
    with pytest.raises(ValueError, match=r"samples for box 7 fewer than 201 lie inside the prior .*: its posterior is"):
        found._drawn(x, 201, 0)


class Exact(Posterior):
    """The exact posterior of `measured`, or one that believes in another noise."""

    def __init__(self, noise=NOISE):
        super().__init__(PRIOR_LATIN_HYPERCUBE, torch.zeros(6), torch.ones(6), torch.ones(6, dtype=bool), [noise])

    def _drawn(self, x, count, seed):
        rng = np.random.default_rng(seed)
        low, high = self.prior.T
        samples = low + rng.random((count, len(x), 5)) * (high - low)
        for column, i in enumerate((0, 4)):
            start, width = PRIOR_BSQ[i, 0], np.ptp(PRIOR_BSQ[i])
            middle, noise = start + width * x[:, column].numpy(), width * self.estimators[0]
            edges = (low[i] - middle) / noise, (high[i] - middle) / noise
            samples[..., i] = truncnorm.rvs(*edges, middle, noise, size=(count, len(x)), random_state=rng)
        return torch.from_numpy(samples).float()


@pytest.mark.filterwarnings("error")
def test_coverage_tells_an_exact_posterior_from_proud_and_timid_ones():
    spectra, theta = measured(300, 7, PRIOR_LATIN_HYPERCUBE)
    exact, proud, timid = (Exact(noise).coverage(spectra, theta, 200) for noise in (NOISE, NOISE / 3, 3 * NOISE))
    low, high = exact.band(0.68, 0.999)
    assert (exact.share(0.68) > low).all() and (exact.share(0.68) < high).all()
    assert np.abs(exact.expected - exact.alpha).max() < 0.12  # KS distance of 300 draws at 99.9 %: 0.113, and bins
    assert (proud.share(0.68)[[0, 4]] < low).all()
    assert (timid.share(0.68)[[0, 4]] > high).all()
    assert (proud.share(0.68)[1:4] > low).all() and (timid.share(0.68)[1:4] < high).all()
    ranks = (Exact().samples(spectra, 200) < theta[:, None]).mean(1)
    np.testing.assert_allclose(exact.ranks, ranks, atol=0.011)  # those of sbi, but for ties in single precision


def test_trained_posteriors_are_not_proud(trained):
    found = trained[0].within(PRIOR_LATIN_HYPERCUBE)
    covered = found.coverage(*measured(200, 7, PRIOR_LATIN_HYPERCUBE), 200)
    assert (covered.share(0.68) > covered.band(0.68, 0.999)[0]).all()
    assert (covered.share(0.68) < 0.85).all()


def test_truths_outside_the_prior_have_no_coverage(trained):
    spectra, theta = measured(20, 7)
    with pytest.raises(ValueError, match="outside the prior"):
        trained[0].within(PRIOR_LATIN_HYPERCUBE).coverage(spectra, theta)


def test_band_is_binomial():
    made = Coverage(np.random.default_rng(0).random((200, 5)), np.zeros(1), np.zeros(1))
    low, high = made.band(0.68, 0.95)
    assert low == pytest.approx(0.68 - 1.96 * (0.68 * 0.32 / 200) ** 0.5, abs=0.01)
    assert high == pytest.approx(0.68 + 1.96 * (0.68 * 0.32 / 200) ** 0.5, abs=0.01)


def test_nothing_is_printed_or_written(trained, capsys, tmp_path, monkeypatch):
    _, folder = trained
    assert list(folder.iterdir()) == []
    monkeypatch.chdir(tmp_path)
    spectra, theta = measured(200, 0)
    two = posterior(spectra, theta, members=2)
    assert isinstance(two, Posterior) and len(two.estimators) == 2
    assert two.samples(spectra[:2], 30).shape == (2, 30, 5)
    assert capsys.readouterr() == ("", "")
    assert list(tmp_path.iterdir()) == []


def test_too_few_simulations_are_refused_in_one_sentence():
    with pytest.raises(
        ValueError, match=r"There are 50 simulations; a posterior needs at least 200 .*suite\(\"demo\"\)"
    ):
        posterior(*measured(50, 0))
