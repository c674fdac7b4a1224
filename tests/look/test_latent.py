"""Latent geometry: components, alignment, retrieval and metric against answers known beforehand."""

from copy import copy
from dataclasses import replace

import numpy as np
import pytest
import torch
from fake import FakeSet

from nbkit.look import latent
from nbkit.mark.classical import UnitMark
from nbkit.measure import Measurement
from nbkit.mesh.spectra import marked_spectra
from nbkit.train import RECIPES, Training, train
from nbkit.train.contrast import Heads, Negatives, normalised
from nbkit.train.data import Prior
from nbkit.train.fit import Processes
from nbkit.universe.cosmology import FIDUCIAL, PRIOR_BSQ
from nbkit.universe.suite import PRESETS


def thetas(count, seed=0):
    low, high = PRIOR_BSQ.T
    return low + np.random.default_rng(seed).random((count, 5)) * (high - low)


def spectra_of(simulations, mark):
    with torch.no_grad():
        power = marked_spectra(mark, simulations[list(range(len(simulations)))], grid=simulations.grid)
    P_dd, P_dm, P_mm = (x.double().numpy() for x in power[1:4])
    seeds = np.arange(len(simulations))
    marked = {"mark": np.stack([P_dm, P_mm], 1)}
    return Measurement(power.k.double().numpy(), power.modes.numpy(), simulations.theta, seeds, P_dd, marked)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    simulations = FakeSet(64)
    recipe = replace(
        RECIPES["tuned"], epochs=1, pretrain_epochs=2, negatives=Negatives(n_real=8, n_global=8, n_local=2)
    )
    training = Training(recipe=recipe)
    run = train(training, simulations, tmp_path_factory.mktemp("run"), device="cpu", progress=False)
    return run, simulations


def test_embeddings_from_spectra_are_those_of_the_run(trained, monkeypatch, tmp_path):
    monkeypatch.setenv("NBKIT_RUNS", str(tmp_path))
    run, simulations = trained
    boxes = latent.embed(run, spectra_of(simulations, run.mark), "mark")
    data = Prior(simulations, run.recipe, run.kmax, 0, Processes(torch.device("cpu")))
    data.load_summaries(run.mark)
    theta, heads = normalised(simulations.theta, PRIOR_BSQ).float(), run.heads
    z = heads.z_perp(data.S_M, data.S_delta), heads.z_d(data.S_delta), heads.z_theta(theta)
    for got, expected in zip((boxes.z_perp, boxes.z_d, boxes.z_theta), z, strict=True):
        np.testing.assert_allclose(got, expected.double(), atol=1e-5)
        np.testing.assert_allclose(np.linalg.norm(got, axis=1), 1, atol=1e-5)
    np.testing.assert_array_equal(boxes.L, run.heads.metric().double())


def test_spectra_of_other_boxes_or_too_few_are_refused(trained):
    run, simulations = trained
    power = spectra_of(simulations, run.mark)
    other = Measurement(power.k * 1.1, power.modes, power.theta, power.seeds, power.P_dd, power.marked)
    with pytest.raises(ValueError, match=r"boxes of 12\^3 cells"):
        latent.embed(run, other, "mark")
    few = Measurement(power.k, power.modes, power.theta[:9], power.seeds[:9], power.P_dd[:9], power.marked)
    with pytest.raises(ValueError, match="There are 9 simulations; latent geometry needs at least 32"):
        latent.embed(run, few, "mark")


def test_runs_with_embeddings_are_of_the_presets_boxes_and_by_contrast(trained):
    run = copy(trained[0])
    assert not latent.has_embeddings(run, "demo")
    run.grid = PRESETS["demo"].grid
    assert latent.has_embeddings(run, "demo") and not latent.has_embeddings(run, "mini")
    run.heads = None
    assert not latent.has_embeddings(run, "demo")


def test_unit_run_has_the_settings_of_the_run_and_no_mark(trained, monkeypatch, tmp_path):
    run, simulations = trained
    monkeypatch.setenv("NBKIT_RUNS", str(tmp_path))
    unit = latent.unit_run(run, simulations, device="cpu", progress=False)
    assert unit.mark == UnitMark() and unit.recipe == run.recipe and unit.kmax == run.kmax and unit.finished
    assert unit.training.residual == run.training.residual and unit.folder.parent == tmp_path / "train"
    changed = copy(run)
    changed.training = replace(run.training, seed=7)
    assert latent.unit_run(changed, simulations, device="cpu", progress=False).folder != unit.folder


def test_components_of_a_cloud_made_of_two_parameters():
    """z = 3 u_s8 a - u_Om b + small noise, a and b orthogonal: two components, each on its parameter, signs fixed."""
    theta = thetas(3000)
    u = normalised(theta, PRIOR_BSQ).numpy()
    a, b = np.linalg.qr(np.random.default_rng(1).standard_normal((6, 2)))[0].T
    z = 3 * u[:, 4:] * a - u[:, :1] * b + 1e-3 * np.random.default_rng(2).standard_normal((3000, 6))
    pca = latent.principal_components(z, theta)
    np.testing.assert_allclose(np.abs(pca.axes[:2] @ np.stack([a, b]).T), np.eye(2), atol=0.02)
    np.testing.assert_allclose(pca.explained[:2], [0.9, 0.1], atol=0.01)
    for component, parameter in ((0, 4), (1, 0)):
        assert np.corrcoef(pca.scores[:, component], theta[:, parameter])[0, 1] > 0.99
    mirrored = latent.principal_components(-z, theta)
    np.testing.assert_allclose(mirrored.scores[:, :2], pca.scores[:, :2], atol=1e-9)

    R2, angle = latent.alignment(z, theta, 2)
    assert R2.shape == angle.shape == (2, 5)
    assert R2[0, 4] > 0.99 and R2[1, 0] > 0.99 and R2[0, 0] < 0.01
    assert angle[0, 4] < 2 and angle[1, 0] < 2 and angle[0, 0] > 88


def test_effective_rank_counts_equal_directions():
    assert latent.effective_rank([2, 2, 2, 0]) == pytest.approx(3)
    assert latent.effective_rank([5, 0, 0]) == pytest.approx(1)
    assert 1 < latent.effective_rank([0.9, 0.1]) < 2


def test_ranks_of_known_distances():
    z_theta = np.array([[0.0, 0.0], [1.0, 0.0], [0.0, 3.0]])
    z = np.array([[0.6, 0.0], [1.0, 0.1], [0.0, 1.0]])
    np.testing.assert_array_equal(latent.ranks(z, z_theta), [1, 0, 2])
    # A metric blind to the second axis cannot tell the first candidate from the third: ties count against us.
    np.testing.assert_array_equal(latent.ranks(z, z_theta, L=np.diag([1.0, 0.0])), [2, 0, 1])
    np.testing.assert_array_equal(latent.ranks(z, z_theta, others=np.array([[0.0, 1.2]])), [1, 0, 3])
    assert (latent.ranks(np.zeros((3, 2)), np.ones((3, 2))) == 2).all()


def test_recall_at_chance_and_its_intervals():
    many = [latent.recall(rank, 10) for rank in np.random.default_rng(0).integers(0, 200, (2000, 200))]
    covered = np.mean([low < 0.05 < high for _, low, high in many])
    assert 0.93 < covered < 0.98 and np.mean([share for share, _, _ in many]) == pytest.approx(0.05, abs=0.002)
    _, low, high = latent.recall(np.full(50, 99), 10)
    assert low == pytest.approx(0, abs=1e-12) and high > 0.05
    _, low, high = latent.recall(np.repeat([0, 99], 50), 10)
    assert high - low == pytest.approx(2 * 1.96 * 0.05, rel=0.03)
    gain, low, high = latent.recall_gain(np.array([0, 0, 9, 9] * 50), np.array([0, 9, 9, 9] * 50), 1)
    assert gain == pytest.approx(0.25) and low == pytest.approx(0.25 - 1.96 * np.sqrt(3 / 16 / 199), rel=1e-4)
    assert high == pytest.approx(0.5 - low)


def test_recall_among_fewer_candidates_is_the_mean_over_choices():
    rng = np.random.default_rng(3)
    rank, total, n, k = rng.integers(0, 30, 60), 30, 12, 2
    exact = latent.recall(rank, k, total, [n, total])
    drawn = [(np.sum(rng.permutation(total - 1)[: n - 1] < r) < k) for r in rank for _ in range(400)]
    assert exact[0, 0] == pytest.approx(np.mean(drawn), abs=0.015)
    np.testing.assert_allclose(exact[1], latent.recall(rank, k))


def test_interval_of_a_mean_over_choices_holds_the_truth():
    """Chances of a hit between 0 and 1 scatter less than hits and misses, so 95 % is the least to expect."""
    rng, truth = np.random.default_rng(4), latent.recall(np.arange(30), 2, 30, [6])[0, 0]
    intervals = [latent.recall(rng.integers(0, 30, 50), 2, 30, [6])[0, 1:] for _ in range(400)]
    assert np.mean([low < truth < high for low, high in intervals]) > 0.94


def test_theta_metric_is_the_second_derivative_of_the_score():
    torch.manual_seed(0)
    heads = Heads(4, 8, 16)
    heads.metric.log_diagonal.data.normal_(0, 0.3)
    heads.metric.below.data.normal_(0, 0.3)
    heads.requires_grad_(False)
    G = latent.theta_metric(heads, FIDUCIAL, temperature=0.05)
    u = normalised(FIDUCIAL, PRIOR_BSQ)
    heads.double()
    step = torch.tensor([1.0, -2.0, 0.5, 1.0, 3.0], dtype=torch.float64) * 1e-4
    moved = (heads.z_theta(u + step) - heads.z_theta(u)) @ heads.metric()
    expected = float((moved**2).sum()) / 0.05
    assert step.numpy() @ G @ step.numpy() == pytest.approx(expected, rel=2e-3)
    plain = (heads.z_theta(u + step) - heads.z_theta(u)).square().sum() / 0.05
    heads.float()
    G = latent.theta_metric(heads, FIDUCIAL, temperature=0.05, learned=False)
    assert step.numpy() @ G @ step.numpy() == pytest.approx(float(plain), rel=2e-3)
