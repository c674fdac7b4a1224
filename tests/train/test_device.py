"""The path on a GPU, proved without one: all runs where its tensors are, gives what the CPU gives, and resumes."""

import bench
import numpy as np
import pretend as pretend_gpu
import pytest
import torch
from pretend import pretend
from test_contrast import batch_of, objective_of
from test_train import same_run
from training_process import CASES, GRID, RECIPE, Boxes, fake, stirred, trained

from nbkit import ClassicalMark, LearnedMark, load, measure
from nbkit.mark import AdditiveMark, UnitMark
from nbkit.mark.additive import channels_of
from nbkit.measure.cross import cross_spectra
from nbkit.mesh.spectra import spectra_of_modes
from nbkit.mesh.threads import choose_device
from nbkit.show.training import Monitor
from nbkit.train.data import Fields, Simulations
from nbkit.train.fit import Processes
from nbkit.universe.cosmology import FIDUCIAL

pytestmark = pytest.mark.filterwarnings("ignore:kmax is 0.38")
GPU = torch.device("cuda", 0)


def test_the_pretended_machine_refuses_what_a_real_one_does():
    with pretend() as counts:
        here, there = torch.ones(3), torch.ones(3, device=GPU)
        for call in (lambda: here + there, lambda: there[here.to(GPU) > 0] + here, lambda: there.numpy()):
            with pytest.raises((RuntimeError, TypeError)):
                call()
        before = counts["waits"]
        assert float((there + there).sum()) == 6 and there.device == GPU and counts["waits"] == before + 1
        x = torch.ones(3, device=GPU, requires_grad=True)
        (x**2).sum().backward()
        assert x.grad.tolist() == [2, 2, 2]


@pytest.fixture(scope="module", params=CASES)
def on_a_gpu(request, tmp_path_factory):
    """A case's name, and the folder of its training on a GPU; with what it drew on the way."""
    folder, pictures = tmp_path_factory.mktemp(request.param), []
    monitor = Monitor()
    monitor._live = True

    def on_epoch(objective, now):
        monitor.on_epoch(objective, now)
        pictures.append(monitor._image.value)
        assert {x.device for x in objective.state_dict().values()} == {GPU}

    with pretend():
        trained(request.param, folder, device="cuda", on_epoch=on_epoch)
    assert len(set(map(bytes, pictures))) > 1 and bytes(pictures[-1]).startswith(b"\x89PNG")
    return request.param, folder


def test_training_on_a_gpu_is_that_on_the_cpu(on_a_gpu, tmp_path):
    case, folder = on_a_gpu
    run, other = load(folder), trained(case, tmp_path)
    # From M = 1 itself, as in the paper, a mark hears little but rounding at first.
    near = {"rel": 2e-3 if case == "paper" else 1e-5, "abs": 1e-5}
    for a, b in zip(run.history, other.history, strict=True):
        assert (a["stage"], a["epoch"]) == (b["stage"], b["epoch"])
        assert [a[loss] for loss in ("train_loss", "val_loss")] == pytest.approx(
            [b["train_loss"], b["val_loss"]], **near
        )


def test_stopped_on_a_gpu_and_continued_is_bit_for_bit_the_same(on_a_gpu, tmp_path):
    case, folder = on_a_gpu
    with pretend():
        for steps in (3, 5, 6):
            asked = iter([False] * steps + [True] * 100)
            assert not trained(case, tmp_path, device="cuda", stop=lambda asked=asked: next(asked)).finished
        assert trained(case, tmp_path, device="cuda", memory=0).finished
    same_run(folder, tmp_path)


OPTIONS = [{"l_max": 0}, {"l_max": 1}, {"cross": False}, {"radial": "gaussians"}, {"shared": True}, {}]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_plain_and_compiled_loss_and_gradients_are_the_same(options):
    batch, results = batch_of(6, torch.float32), []
    torch.manual_seed(1)
    objective = objective_of(mark=stirred(LearnedMark(GRID, **options)))
    for device in ("cpu", GPU):
        with pretend():
            objective.to(device).zero_grad()
            loss = objective(type(batch)(*(x.to(device) for x in batch)))
            loss.backward()
            gradients = {name: p.grad.cpu() for name, p in objective.named_parameters() if p.grad is not None}
            results.append((float(loss.detach()), gradients))
    (loss, wanted), (other, found) = results
    assert other == pytest.approx(loss, rel=1e-6) and found.keys() == wanted.keys()
    for part in ("mark.profiles", "mark.responses", "heads"):
        g, g_found = (torch.cat([x.flatten() for n, x in g.items() if n.startswith(part)]) for g in (wanted, found))
        assert (g_found - g).norm() <= 1e-5 * g.norm(), part


def test_spectra_on_a_gpu_are_those_on_the_cpu():
    a, b = torch.fft.rfftn(torch.randn(2, 3, *GRID.shape), dim=(-3, -2, -1))
    on_cpu = spectra_of_modes(a, b, grid=GRID)
    with pretend():
        found = [x.cpu() for x in spectra_of_modes(a.to(GPU), b.to(GPU), grid=GRID)]
    for x, y in zip(found, on_cpu, strict=True):
        torch.testing.assert_close(x, y, rtol=1e-6, atol=1e-5)


def test_marks_are_measured_on_a_gpu_as_on_the_cpu(monkeypatch, tmp_path):
    """Learned, classical and additive marks, and cross spectra; the mark itself stays where it is."""
    simulations, learned = Boxes(FIDUCIAL, range(4)), stirred(LearnedMark(GRID)).requires_grad_(False)
    simulations.name, channels, ends = "fiducial", channels_of(2, 8.0), ((-0.5, 0.6), (0.02, 0.3), (0.02, 0.4))
    additive = AdditiveMark(((1.0, 0.5, 0.0, 0.0, 0.2, 0.0, 1.0),) * 3, ends, channels, 4.0)
    marks = {"learned": learned, "p = 2": ClassicalMark(2.0, 0.3), "M = 1": UnitMark(), "additive": additive}
    found = []
    for device in ("cpu", "cuda"):
        monkeypatch.setenv("NBKIT_RUNS", str(tmp_path / device))
        with pretend():
            power = measure({"fiducial": simulations}, marks, progress=False, device=device)["fiducial"]
            data = Simulations(simulations, RECIPE, 0.3, 3, Processes(choose_device(device)))
            cross = cross_spectra(data, torch.arange(4), channels, ends)
        found.append([*(power[label] for label in marks), cross.numpy()])
    for on_cpu, on_gpu in zip(*found, strict=True):
        np.testing.assert_allclose(on_gpu, on_cpu, rtol=1e-4, atol=1e-5 * abs(on_cpu).max())
    assert learned.responses.w.device.type == "cpu"


def test_fields_that_do_not_fit_a_gpu_stay_in_the_memory_of_its_host(monkeypatch):
    simulations, wanted = fake(40), [[3, 1], [39], [0, 2, 4]]
    for memory, place in ((pretend_gpu.MEMORY, "all"), (100_000, "host")):
        monkeypatch.setattr(pretend_gpu, "MEMORY", memory)
        with pretend():
            fields = Fields(simulations, GPU)
            assert [name for name in ("all", "host") if getattr(fields, name) is not None] == [place]
            found = list(fields.parts(wanted))
            assert all(each.device == GPU for each in found)
            for part, each in zip(wanted, found, strict=True):
                assert torch.equal(each.cpu(), simulations[part])


def test_several_processes_on_gpus_without_nccl_are_told(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setattr(torch.distributed, "is_nccl_available", lambda: False)
    with pretend(), pytest.raises(ValueError, match="2 processes on GPUs need NCCL, which this build of torch lacks"):
        Processes(choose_device("cuda"))


def test_a_gpu_that_is_not_there_is_told():
    with pretend(), pytest.raises(ValueError, match="device is 'cuda:3', but 1 GPU is usable here"):
        choose_device("cuda:3")


def test_a_step_at_128_is_few_operations_and_waits():
    counts = bench.gpu()
    assert counts["gpu_ops_a_step"] <= 2000 and counts["gpu_syncs_a_step"] <= 3
