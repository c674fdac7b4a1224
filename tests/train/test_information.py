"""Information as an objective: right in closed form, exact in its gradient, and nothing that noise can raise."""

import numpy as np
import pytest
import torch
from training_process import GRID, INFORMATION, boxes, noise_only, trained

from nbkit import LearnedMark
from nbkit.disk import read_tensors
from nbkit.mesh.spectra import marked_spectra
from nbkit.train import Recipe
from nbkit.train.fit import Processes
from nbkit.train.information import (
    Neighbourhood,
    Sample,
    cross_validated,
    derivatives,
    fisher,
    halves,
    linearised,
    log_sigmas,
    weights,
)
from nbkit.train.objectives import Information
from nbkit.universe.cosmology import STEPS

pytestmark = pytest.mark.filterwarnings("ignore:kmax is 0.38")
KMAX = INFORMATION.kmax  # five bins


def naive(sample):
    """log sigma (5,) where the same simulations weigh and judge, and no noise is taken off: what a mark can inflate."""
    dmu, (count, size) = derivatives(sample.pairs).mean(0), sample.fiducial.shape
    return log_sigmas((count - size - 2) / (count - 1) * dmu @ weights(sample))


def around(sets, validation=0.4):
    return Neighbourhood(sets, Recipe(validation=validation), KMAX, 0, Processes(torch.device("cpu")))


def mark_with_slopes(seed=0, l_max=2):
    """M about 1, as a training on information from "unit" begins."""
    torch.manual_seed(seed)
    mark = LearnedMark(GRID, l_max)
    torch.nn.init.normal_(mark.responses.v, 0, 0.1)
    return mark


def linear_sample(count, pairs, generator, noise=0.0, signal=1.0, size=9):
    """Data that follow theta on a straight line, its scatter C and dmu known: dmu in units of the steps."""
    fixed = torch.Generator().manual_seed(7)
    root = torch.eye(size, dtype=torch.float64) + 0.3 * torch.randn(size, size, generator=fixed, dtype=torch.float64)
    dmu = signal * torch.randn(5, size, generator=fixed, dtype=torch.float64)

    def draw(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    up = dmu[:, None] + noise * draw(5, pairs, size) @ root.T
    return Sample(draw(count, size) @ root.T, torch.stack([up, -up], 1)), dmu, root @ root.T


def test_closed_form_of_a_straight_line():
    """Without noise in the derivatives sigma is that of dmu C^-1 dmu^T to a few per cent."""
    drawn = torch.Generator().manual_seed(1)
    sample, dmu, C = linear_sample(20_000, 10, drawn)
    sigma = torch.linalg.inv(dmu @ torch.linalg.inv(C) @ dmu.T).diagonal().sqrt() * torch.tensor(STEPS.tolist())
    for found in (cross_validated(sample, drawn), naive(sample)):
        assert torch.allclose(found.exp(), sigma, rtol=0.02)


def test_affine_marks_have_the_same_information():
    """P_dm -> a P_dm + b P_dd, P_mm -> a^2 P_mm + 2 a b P_dm + b^2 P_dd leaves every sigma as it was."""
    data = around(boxes())
    table = data.table(mark_with_slopes())
    P_dd, P_dm, P_mm = table.split(data.bins, dim=1)
    other = torch.cat([P_dd, 3 * P_dm - 2 * P_dd, 9 * P_mm - 12 * P_dm + 4 * P_dd], dim=1)
    one, two = (
        cross_validated(data.sample(t, *data.training), torch.Generator().manual_seed(0)) for t in (table, other)
    )
    assert torch.allclose(one, two, rtol=0, atol=1e-6)


def test_noise_adds_nothing_on_average_but_much_to_the_naive_matrix():
    """Derivatives without any signal: F has mean 0 within its own error, the uncorrected one a large positive one."""
    honest, plain = [], []
    for seed in range(300):
        drawn = torch.Generator().manual_seed(seed)
        A, _, _ = linear_sample(60, 6, drawn, noise=1.0, signal=0.0)
        B, _, _ = linear_sample(60, 6, drawn, noise=1.0, signal=0.0)
        honest.append(fisher(B, weights(A)).diagonal())
        plain.append((derivatives(B.pairs).mean(0) @ weights(B)).diagonal())
    honest, plain = torch.stack(honest), torch.stack(plain)
    error = honest.std(0) / len(honest) ** 0.5
    assert (honest.mean(0).abs() < 3.5 * error).all()
    assert (plain.mean(0) > 10 * error).all()


def test_two_passes_give_the_gradient_of_one():
    """The table's gradient, sent back box by box, is that of autograd through all boxes at once."""
    data = around(boxes())
    mark, drawn = mark_with_slopes(), torch.Generator()
    with torch.no_grad():
        mark.responses.v *= 10  # the closer M is to 1, the more digits of float32 spectra cancel
    table = data.table(mark).requires_grad_(True)
    loss = cross_validated(data.sample(table, *data.training), drawn.manual_seed(3))[[0, 4]].mean()
    (cotangents,) = torch.autograd.grad(loss, table)
    loss = loss.item()
    data.backpropagate(mark, data.rows(*data.training), cotangents)
    found = [p.grad.clone() for p in mark.parameters()]

    mark.zero_grad(set_to_none=True)
    power = marked_spectra(mark, data.simulations[list(range(len(data.simulations)))], grid=GRID, kmax=KMAX)
    whole = torch.cat([power.P_dd, power.P_dm, power.P_mm], dim=-1).double()
    full = cross_validated(data.sample(whole, *data.training), drawn.manual_seed(3))[[0, 4]].mean()
    full.backward()
    assert full.item() == pytest.approx(loss, abs=1e-5)
    wanted = [p.grad for p in mark.parameters()]
    size = torch.cat([g.flatten() for g in wanted]).norm()
    assert torch.cat([(f - w).flatten() for f, w in zip(found, wanted, strict=True)]).norm() < 1e-3 * size


def test_gradient_of_the_objective_is_that_of_finite_differences():
    drawn = torch.Generator().manual_seed(2)
    sample, _, _ = linear_sample(20, 4, drawn, noise=0.2, size=5)

    def objective(fiducial, pairs):
        return cross_validated(Sample(fiducial, pairs), torch.Generator().manual_seed(5), splits=1)

    inputs = tuple(x.clone().requires_grad_(True) for x in sample)
    assert torch.autograd.gradcheck(objective, inputs, eps=1e-6, atol=1e-5)


def trace(F):
    return F.diagonal().sum()


def honest(sample, seed):
    """Tr F of half against half."""
    A, B = (sample.rows(*rows) for rows in halves(sample, torch.Generator().manual_seed(seed)))
    return trace(fisher(A, weights(B)) + fisher(B, weights(A))) / 2


def self_confirmed(sample, _):
    """Tr F where the same boxes weigh and judge."""
    return trace(derivatives(sample.pairs).mean(0) @ weights(sample))


def gained(objective, steps=10, judges=16):
    """Change of Tr F by training on derivatives without signal: as the objective has it, and on other boxes."""
    mine, *others = (around(noise_only(first=first * 500_000), 0.3) for first in range(judges + 1))
    everyone = torch.arange(150), torch.arange(20)
    mark = mark_with_slopes(l_max=0)
    optimizer = torch.optim.Adam(mark.parameters(), lr=0.03)

    def values():
        judged = [other.sample(other.table(mark), *everyone) for other in others]
        own = objective(mine.sample(mine.table(mark), *everyone), 0).item()
        return own, torch.tensor([np.mean([honest(sample, seed).item() for seed in range(4)]) for sample in judged])

    before = values()
    for step in range(steps):
        table = mine.table(mark).requires_grad_(True)
        (cotangents,) = torch.autograd.grad(-objective(mine.sample(table, *everyone), step), table)
        optimizer.zero_grad()
        mine.backpropagate(mark, torch.arange(len(mine.simulations)), cotangents)
        optimizer.step()
    after = values()
    return after[0] - before[0], after[1] - before[1]


@pytest.mark.parametrize("objective", [self_confirmed, honest])
def test_a_mark_trained_on_noise_gains_nothing(objective):
    """Whatever such a training thinks it has found, boxes it has not seen know nothing of it."""
    claimed, found = gained(objective)
    error = float(found.std() / len(found) ** 0.5)
    assert (claimed > 4 * error) == (objective is self_confirmed)
    assert abs(float(found.mean())) < 4 * error


def test_few_boxes_count_to_first_order_in_how_they_differ():
    """Exact where they do not, and of the gradient that the error itself has."""
    root = torch.randn(5, 8, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    F = root @ root.T
    few, same = F.clone().requires_grad_(True), F.clone().requires_grad_(True)
    assert torch.allclose(linearised(few, F), log_sigmas(F))
    linearised(few, F)[[0, 4]].mean().backward()
    log_sigmas(same)[[0, 4]].mean().backward()
    assert torch.allclose(few.grad, same.grad)


def test_the_start_is_kept_if_held_out_boxes_like_nothing_better(tmp_path, monkeypatch):
    held_out, start = iter([-0.5, -0.4, -0.49]), mark_with_slopes(l_max=0)
    before, seen, really = {name: x.clone() for name, x in start.state_dict().items()}, [], Information.validate
    monkeypatch.setattr(Information, "validate", lambda self: (really(self)[0], next(held_out)))
    settings = {**vars(INFORMATION), "epochs": 2}
    run = trained(
        type(INFORMATION)(**settings),
        tmp_path,
        mark=start,
        on_epoch=lambda t, _: seen.append(t.mark.state_dict()["responses.v"].clone()),
    )
    assert (run.best_epoch, run.best_loss) == (0, -0.5) and len(seen) == 3
    assert not torch.equal(seen[2], before["responses.v"])
    assert all(torch.equal(x, before[name]) for name, x in run.mark.state_dict().items())
    assert all(
        torch.equal(read_tensors(tmp_path / "marked.safetensors")[0][f"weights.mark.{k}"], x) for k, x in before.items()
    )
