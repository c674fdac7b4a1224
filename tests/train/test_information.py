"""Information as an objective: right in closed form, exact in its gradient, and nothing that noise can raise."""

import os
import signal
from dataclasses import replace

import numpy as np
import pytest
import torch
from nbkit.forecast.information import Sample, cross_validated, derivatives, fisher, halves, naive, weights
from nbkit.train.information_trainer import InformationTrainer
from nbkit.train.recipe import recipe_named
from nbkit.train.train_information import INFORMATION, held_out_losses, start_mark, train_information, unit_mark
from nbkit.train.trainer import TrainingDiverged

from nbkit import ClassicalMark, Grid
from nbkit.disk import read_tensors
from nbkit.mark.additive import DENSITY, LEAST, NODES, AdditiveMark, channel_maps, channels_of, imitation
from nbkit.measure.cross import cross_spectra, spectra_of
from nbkit.mesh.grid import to_fourier
from nbkit.mesh.spectra import marked_spectra
from nbkit.train.neighbourhood import Neighbourhood
from nbkit.train.processes import Processes
from nbkit.train.run import load_run
from nbkit.train.search import best_function
from nbkit.universe.cosmology import FIDUCIAL, STEPS, derivative_thetas

CPU = torch.device("cpu")
GRID = Grid(12, 12 * 7.8125, "none")
KMAX = 0.38  # five bins
QUICK = recipe_named(INFORMATION, batch=100, epochs=3)


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


class Boxes:
    """Skewed fields at one theta, the same phases for the same seeds: power in five shells, and skewness."""

    grid = GRID

    def __init__(self, theta, seeds, phases=None):
        self.seeds, self.theta = np.asarray(seeds), np.tile(theta, (len(seeds), 1))
        shift = 0.2 * (theta - FIDUCIAL) / STEPS
        phases = self.seeds if phases is None else phases
        noise = np.stack([np.random.default_rng(seed).standard_normal(GRID.shape) for seed in phases])
        shells = GRID.shells()
        shell = (shells.k / GRID.k_f).floor().clamp(1, 5)
        power = sum((1 + each) * (shell == i + 1) for i, each in enumerate(shift)) / shell
        modes = torch.fft.rfftn(torch.from_numpy(noise).float(), dim=(1, 2, 3)) * power.float()[shells.index]
        smooth = torch.fft.irfftn(modes, s=GRID.shape, dim=(1, 2, 3))
        density = torch.exp(smooth + shift[4] * smooth**2 / 2)
        self.fields = density / density.mean(dim=(1, 2, 3), keepdim=True) - 1

    def __len__(self):
        return len(self.seeds)

    def __getitem__(self, index):
        return self.fields[index]


def boxes(count=150, pairs=30, first=0):
    """Sets around the fiducial point."""
    seeds = range(first + 10_000, first + 10_000 + pairs)
    sets = {name: Boxes(theta, seeds) for name, theta in derivative_thetas().items()}
    return sets | {"fiducial": Boxes(FIDUCIAL, range(first, first + count))}


def noise_only(count=150, pairs=20, first=0):
    """As `boxes`, but up and down are unrelated boxes of the fiducial point: there is no derivative to be found."""
    sets = {"fiducial": Boxes(FIDUCIAL, range(first, first + count))}
    for i, name in enumerate(derivative_thetas()):
        phases = range(first + 10_000 * (i + 1), first + 10_000 * (i + 1) + pairs)
        sets[name] = Boxes(FIDUCIAL, range(pairs), phases)
    return sets


@pytest.fixture(scope="module")
def sets():
    return boxes()


def mark_with_slopes(seed=0, l_max=2):
    return unit_mark(GRID, l_max, seed=seed)


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


def test_affine_marks_have_the_same_information(sets):
    """P_dm -> a P_dm + b P_dd, P_mm -> a^2 P_mm + 2 a b P_dm + b^2 P_dd leaves every sigma as it was."""
    data = Neighbourhood(sets, KMAX, 0.4, 0, Processes(CPU))
    table = data.measured(mark_with_slopes())
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


def test_two_passes_give_the_gradient_of_one(sets):
    """The table's gradient, sent back box by box, is that of autograd through all boxes at once."""
    data = Neighbourhood(sets, KMAX, 0.4, 0, Processes(CPU))
    mark, drawn = mark_with_slopes(), torch.Generator()
    with torch.no_grad():
        mark.responses.v *= 10  # the closer M is to 1, the more digits of float32 spectra cancel
    table = data.measured(mark).requires_grad_(True)
    loss = cross_validated(data.sample(table, *data.training), drawn.manual_seed(3))[[0, 4]].mean()
    (cotangents,) = torch.autograd.grad(loss, table)
    loss = loss.item()
    data.backpropagated(mark, data.rows(*data.training), cotangents)
    found = [p.grad.clone() for p in mark.parameters()]

    mark.zero_grad(set_to_none=True)
    power = marked_spectra(mark, data.joined[list(range(len(data.joined)))], grid=GRID, kmax=KMAX)
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
    mine, *others = (
        Neighbourhood(noise_only(first=first * 500_000), KMAX, 0.3, 0, Processes(CPU)) for first in range(judges + 1)
    )
    everyone = torch.arange(150), torch.arange(20)
    mark = mark_with_slopes(l_max=0)
    optimizer = torch.optim.Adam(mark.parameters(), lr=0.03)

    def values():
        judged = [other.sample(other.measured(mark), *everyone) for other in others]
        own = objective(mine.sample(mine.measured(mark), *everyone), 0).item()
        return own, torch.tensor([np.mean([honest(sample, seed).item() for seed in range(4)]) for sample in judged])

    before = values()
    for step in range(steps):
        table = mine.measured(mark).requires_grad_(True)
        (cotangents,) = torch.autograd.grad(-objective(mine.sample(table, *everyone), step), table)
        optimizer.zero_grad()
        mine.backpropagated(mark, torch.arange(len(mine.joined)), cotangents)
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


def trained(sets, folder, **options):
    recipe = options.pop("recipe", QUICK)
    mark = options.pop("mark", None) or mark_with_slopes(l_max=0)
    return train_information(sets, folder, recipe=recipe, kmax=KMAX, seed=3, device="cpu", mark=mark, **options)


@pytest.fixture(scope="module")
def whole(sets, tmp_path_factory):
    """A training that was left alone."""
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("whole")
    return trained(sets, folder), folder


def test_a_run_without_heads_is_read_like_any_other(whole):
    run, folder = whole
    assert run.finished
    assert run.heads is None
    assert run.column("epoch") == [0, 1, 2, 3]
    assert run.best_loss == min(run.column("val_loss"))
    again = load_run(folder).mark
    assert all(torch.equal(a, b) for a, b in zip(run.mark.parameters(), again.parameters(), strict=True))


def same_training(one, other):
    """Histories but for their seconds, and files but for these."""
    for a, b in zip(load_run(one).history, load_run(other).history, strict=True):
        assert {k: v for k, v in a.items() if k != "seconds"} == {k: v for k, v in b.items() if k != "seconds"}
    for p, q in zip(load_run(one).mark.parameters(), load_run(other).mark.parameters(), strict=True):
        assert torch.equal(p, q)


def test_stopped_and_called_again_gives_the_same_bits(sets, whole, tmp_path):
    asked = iter([False] * 4 + [True])
    part = trained(sets, tmp_path, stop=lambda: next(asked))
    assert not part.finished
    assert trained(sets, tmp_path).finished
    same_training(whole[1], tmp_path)


def test_killed_and_called_again_gives_the_same_bits(sets, whole, tmp_path):
    child = os.fork()
    if not child:
        left = iter(range(5))
        trained(
            sets,
            tmp_path,
            checkpoint_every=0.0,
            stop=lambda: next(left, None) is None and os.kill(os.getpid(), signal.SIGKILL),
        )
        os._exit(0)
    assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGKILL
    assert not load_run(tmp_path).finished
    trained(sets, tmp_path)
    same_training(whole[1], tmp_path)


def test_derivatives_of_pure_noise_are_refused(tmp_path):
    """Where there is no information the training says so instead of finding some."""
    with pytest.raises(TrainingDiverged, match="The derivatives of the spectra are mostly noise"):
        trained(noise_only(), tmp_path)


def test_the_start_is_kept_if_held_out_boxes_like_nothing_better(sets, tmp_path, monkeypatch):
    held_out = iter([-0.5, -0.4, -0.49])
    monkeypatch.setattr(InformationTrainer, "_losses", lambda self, where: (-1.0, next(held_out)))
    mark = mark_with_slopes(l_max=0)
    run = trained(sets, tmp_path, recipe=recipe_named(QUICK, epochs=2), mark=mark)
    assert (run.best_epoch, run.best_loss) == (0, -0.5)
    assert all(torch.equal(a, b) for a, b in zip(run.mark.parameters(), mark.parameters(), strict=True))
    last, _ = read_tensors(tmp_path / "last.safetensors")
    assert not torch.equal(last["weights.mark.responses.v"], mark.responses.v)


def test_two_processes_share_the_boxes(sets, whole, tmp_path):
    """Each sends its share through the mark; losses come out as one process's, but for the order of additions."""
    children = []
    for rank in range(2):
        child = os.fork()
        if not child:
            os.environ |= {"WORLD_SIZE": "2", "RANK": str(rank), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29677"}
            trained(sets, tmp_path)
            os._exit(0)
        children.append(child)
    assert [os.waitpid(child, 0)[1] for child in children] == [0, 0]
    together = load_run(tmp_path)
    for column in ("train_loss", "val_loss"):
        assert np.allclose(together.column(column), whole[0].column(column), rtol=0, atol=2e-3)
    assert max(whole[0].column("train_loss")) - min(whole[0].column("train_loss")) > 0.02


@pytest.mark.parametrize("radial", ["fourier", "gaussians"])
def test_a_classical_mark_is_imitated(sets, radial):
    """The stated error is the rms difference of M over its scatter, also on boxes the fit has not seen."""
    classical, delta = ClassicalMark(2.0, 0.5, 12.0), sets["fiducial"].fields
    mark, error = imitation(classical, delta[:8], GRID, radial=radial)
    assert error < 0.1
    M = classical(delta[8:], GRID)
    with torch.no_grad():
        assert float((mark(delta[8:], GRID) - M).std() / M.std()) < 1.5 * error


def test_starts(sets, whole, tmp_path):
    data = Neighbourhood(sets, KMAX, 0.4, 0, Processes(CPU))
    unit = start_mark("unit", data, seed=1)
    with torch.no_grad():
        M = unit(sets["fiducial"][:1], GRID)
    assert 0.3 < float(M.mean()) < 3
    assert torch.equal(unit.responses.v, unit_mark(GRID, seed=1).responses.v)
    assert not torch.equal(unit.responses.v, unit_mark(GRID, seed=2).responses.v)
    asked = {"recipe": QUICK, "kmax": KMAX, "device": "cpu", "stop": lambda: True}
    run = train_information(sets, tmp_path / "on", start=str(whole[1]), **asked)
    assert torch.equal(run.mark.responses.v, whole[0].mark.responses.v)
    with pytest.raises(FileNotFoundError, match="There is no run 'clasical'"):
        train_information(sets, tmp_path / "off", start="clasical", **asked)


def test_a_start_is_made_once(sets, tmp_path, monkeypatch):
    asked = {"recipe": QUICK, "kmax": KMAX, "device": "cpu", "start": "unit"}
    train_information(sets, tmp_path, **asked)
    monkeypatch.setattr("nbkit.train.train_information.start_mark", None)
    assert train_information(sets, tmp_path, **asked).finished


CHANNELS = channels_of(2, 8.0)


def additive(seed=0, count=3):
    """An AdditiveMark with coefficients at random, and rows of boxes to try it on."""
    c = np.random.default_rng(seed).standard_normal((count, NODES))
    return AdditiveMark(
        tuple(map(tuple, c.tolist())), ((-0.5, 0.6), (0.02, 0.3), (0.02, 0.4))[:count], CHANNELS[:count], 4.0
    )


def test_spectra_of_an_additive_mark_are_quadratic_in_its_coefficients(sets):
    """Cross spectra of the bumps give the spectra that the mark itself gives, up to its shift."""
    data = Neighbourhood(sets, KMAX, 0.4, 0, Processes(CPU))
    mark, rows = additive(), torch.arange(6)
    c = torch.tensor(mark.coefficients, dtype=torch.float64).flatten()
    dd, dm, mm = spectra_of(cross_spectra(data, rows, mark.channels, mark.ends), c).split(data.bins, dim=1)
    P_dd, P_dm, P_mm = data.measured(mark, rows)[rows].split(data.bins, dim=1)
    assert torch.allclose(P_dd, dd, rtol=1e-4)
    assert torch.allclose(P_dm, mark.shift * dd + dm, rtol=1e-3, atol=1e-4 * float(P_dm.abs().max()))
    expected = mark.shift**2 * dd + 2 * mark.shift * dm + mm
    assert torch.allclose(P_mm, expected, rtol=1e-3, atol=1e-4 * float(P_mm.max()))


def test_the_density_channel_is_the_density_as_painted():
    delta = torch.randn(*GRID.shape, generator=torch.Generator().manual_seed(2)).exp()
    seen = channel_maps(to_fourier(delta, GRID), GRID, (("E0", 8.0), DENSITY))
    assert torch.allclose(seen[1], delta.log1p(), atol=1e-5) and float(seen[0].std()) < float(seen[1].std()) / 2


@pytest.mark.parametrize("l_max", [0, 2])
def test_the_best_function_is_better_than_where_the_search_began(sets, l_max):
    data = Neighbourhood(sets, KMAX, 0.4, 0, Processes(CPU))
    best = best_function(data, ("Omega_m", "sigma_8"), [channels_of(l_max, 8.0)])
    assert len(best.coefficients) == l_max + 1
    falling = torch.zeros(l_max + 1, NODES)
    falling[0] = torch.exp(torch.linspace(2, -2, NODES))
    began = replace(best, coefficients=tuple(map(tuple, falling.tolist())))
    sigmas = [
        cross_validated(data.sample(data.measured(mark), *data.training), torch.Generator().manual_seed(0), 10)
        for mark in (began, best)
    ]
    assert (sigmas[0] - sigmas[1])[[0, 4]].mean() > 0.02
    M = best(data.joined[data.training[0][:16].tolist()], GRID)
    assert abs(float(M.std()) - 1) < 1e-3 and 0.0005 < float((M < LEAST).float().mean()) < 0.002


def test_an_additive_mark_is_imitated(sets):
    """Falling with density, rising with gradient and anisotropy: filters are found, and responses up to the bumps.

    The steps at the ends are sharp on these boxes; where marks are trained, on universes, the error is 0.07.
    """
    delta = sets["fiducial"].fields
    slope = np.linspace(-1, 1, NODES)
    mark = replace(additive(), coefficients=tuple(map(tuple, (np.exp(-slope), 0.5 * slope, slope))))
    learned, error = imitation(mark, delta[:8], GRID)
    k = GRID.shells().k[GRID.shells().k < GRID.k_nyq]
    with torch.no_grad():
        assert torch.allclose(learned.G_l(k), torch.exp(-((k * 8.0) ** 2) / 2).expand(3, -1), atol=2e-3)
    assert error < 0.25
    M = mark(delta[8:], GRID)
    with torch.no_grad():
        assert float((learned(delta[8:], GRID) - M).std() / M.std()) < 1.5 * error


def test_held_out_losses_are_those_the_trainer_reports(sets, whole):
    run = whole[0]
    losses = held_out_losses(sets, {"best": run.mark}, kmax=KMAX, seed=run.settings["seed"], device="cpu")
    assert abs(losses["best"] - run.best_loss) < 1e-6


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            {"parameters": ("Omega",)},
            r"parameters is \('Omega',\); give one or more of Omega_m, Omega_b, h, n_s, sigma_8",
        ),
        ({"mark": ClassicalMark(1.0, 0.1)}, "mark is a ClassicalMark, which has nothing to train"),
        ({"recipe": recipe_named(QUICK, batch=4)}, "which makes 75 steps of 1 fiducial boxes and 0 pairs; a step"),
        ({"recipe": recipe_named(QUICK, validation=0.1)}, "validation has 15 fiducial simulations and 3 pairs"),
    ],
)
def test_impossible_requests_get_one_sentence(sets, tmp_path, options, said):
    with pytest.raises((ValueError, TypeError), match=said):
        trained(sets, tmp_path, **options)


def test_sets_of_other_seeds_are_refused(sets, tmp_path):
    other = sets | {"h_m": Boxes(FIDUCIAL, range(30))}
    with pytest.raises(ValueError, match="h_m has other seeds than Om_p"):
        trained(other, tmp_path)
