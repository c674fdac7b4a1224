"""Performance table: ratios of times taken in one run, so that noisy machines can be compared.

Every function below marked @measures adds numbers to the table; `make bench` prints it and writes runs/bench.json.
Name some of them on the command line to run only those.
"""

import contextlib
import io
import itertools
import json
import multiprocessing
import subprocess
import sys
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import Pk_library
import torch
from fake import FakeSet
from pretend import held, pretend

from nbkit import Grid, LearnedMark, Training, load, look, marked_field, show, spectra, train
from nbkit.mesh.threads import choose_device
from nbkit.train import RECIPES
from nbkit.train.data import Prior
from nbkit.train.fit import Processes, fit
from nbkit.train.objectives import Contrast, heads_for
from nbkit.universe import simulate
from nbkit.universe.cosmology import FIDUCIAL, sobol_thetas

MEASURES = {}


def measures(function):
    MEASURES[function.__name__] = function
    return function


def seconds(*calls, repeats=7):
    """Median time of each call; they take turns, so that all see the same load on the machine."""
    times = [[] for _ in calls]
    for round in range(repeats + 1):
        for call, taken in zip(calls, times, strict=True):
            start = time.perf_counter()
            call()
            if round > 0:  # the first warms caches and compiles
                taken.append(time.perf_counter() - start)
    return [sorted(taken)[len(taken) // 2] for taken in times]


def quiet(call):
    """The call without what it prints: Pylians reports its own times."""

    def silent():
        with contextlib.redirect_stdout(io.StringIO()):
            return call()

    return silent


@measures
def power_spectra():
    grid = Grid(128, 1000.0, "PCS")
    delta, other = torch.randn(2, *grid.shape)
    ours, ffts, pylians = seconds(
        lambda: spectra(delta, other, grid=grid),
        lambda: (torch.fft.rfftn(delta), torch.fft.rfftn(other)),
        quiet(lambda: Pk_library.XPk([delta.numpy(), other.numpy()], 1000.0, axis=0, MAS=["PCS", "PCS"], threads=2)),
    )
    return {"spectra_over_2fft": ours / ffts, "pylians_over_spectra": pylians / ours}


def _training_step(n):
    """Forward and backward of mark and spectra for one simulation, as training runs it."""
    grid = Grid(n, 1000.0 * n / 128, "PCS")
    density = torch.randn(grid.shape, generator=torch.Generator().manual_seed(1)).exp()
    delta, mark = density / density.mean() - 1, LearnedMark(grid)
    for parameter in mark.parameters():
        parameter.data += 0.1 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(2))

    def step():
        P = spectra(delta, marked_field(mark(delta), delta), grid=grid, kmax=0.3)
        ((P.P_mm / P.P_dd).log() + P.P_dm / (P.P_dd * P.P_mm).sqrt()).sum().backward()

    return step


def _twenty_ffts(n):
    """Ten transforms there and ten back, each of another field."""
    fields = list(torch.randn(10, n, n, n))
    modes = [torch.fft.rfftn(x) for x in fields]

    def ffts():
        for x in fields:
            torch.fft.rfftn(x)
        for x in modes:
            torch.fft.irfftn(x, s=(n, n, n), dim=(-3, -2, -1))

    return ffts


@measures
def mark_step():
    table = {}
    for n in (64, 128):
        step, ffts = seconds(_training_step(n), _twenty_ffts(n), repeats=11)
        table[f"step_over_20fft_{n}"] = step / ffts
    return table


_PEAK_SCRIPT = """
import pathlib, sys
sys.path.insert(0, sys.argv[1])
import bench
proc = pathlib.Path("/proc/self")
peak = lambda: int(next(x for x in (proc / "status").read_text().splitlines() if x.startswith("VmHWM")).split()[1])
bench._training_step(16)()
step = bench._training_step(128)
(proc / "clear_refs").write_text("5")
before = peak()
step()
one = peak() - before
for _ in range(3):
    step()
print(one / 1024, (peak() - before) / 1024)
"""


@measures
def mark_memory():
    """Peak memory that training steps at 128^3 add (cached wavevectors included), after one step and after four."""
    command = [sys.executable, "-c", _PEAK_SCRIPT, str(Path(__file__).parent)]
    one, four = map(float, subprocess.run(command, capture_output=True, text=True, check=True).stdout.split())
    return {"step_extra_mb_128": four, "four_steps_over_one_mb_128": four / one}


@measures
def sliders():
    """Milliseconds in the kernel from a change of a control to what it changes, at 64^3."""
    grid = Grid(64, 500.0, "PCS")
    density = torch.randn(grid.shape).exp()
    delta = density / density.mean() - 1
    scale, r0 = show.invariant_explorer(delta, grid).controls[0], show.kernel_explorer(grid.k_nyq).controls[2]
    parts = look.anatomy(load("demo_l2").mark, delta, grid)
    maps = show.anatomy_explorer(parts).panels[0]

    def moved(widget, first, second, name="value"):
        return lambda: setattr(widget, name, second if getattr(widget, name) == first else first)

    filtering, kernel, terms, voxel = seconds(
        moved(scale, 1.2, 1.4),
        moved(r0, 0.2, 0.3),
        moved(maps, maps.on, maps.on[1:], "on"),
        moved(maps, [1, 2, 3], [3, 2, 1], "pinned"),
    )
    table = {"filter": filtering, "kernel": kernel, "spectra": terms, "voxel": voxel}
    return {f"slider_{name}_ms": 1e3 * value for name, value in table.items()}


BROWSER = {
    "fields": """import numpy as np
import torch
import nbkit as nb
from nbkit import show
n = {n}
grid = nb.Grid(n, 7.8125 * n)
names = ["delta", "E0", "E1", "E2", "I3", "Delta", "h_E0", "h_E1", "h_E2", "h_I3", "h_x"]
fields = dict(zip(names, torch.randn(11, n, n, n)))
fields["delta"] = fields["delta"].exp() - 1""",
    "maps": "show.Maps(fields, grid, terms=names[6:], bias=0.5)",
    "nodes": "show.Curves({{}}, nodes=[(0, 1), (1, 0), (2, 1), (3, 0)], bounds=(-2, 2), limits=(None, (-2, 2)))",
    "filter": "show.invariant_explorer(fields['delta'], grid)",
    "solid": """from nbkit.mesh.grid import to_fourier, to_real
smooth = to_real(to_fourier(fields["E0"], grid) * torch.exp(-((grid.shells().k * 15) ** 2))[grid.shells().index], grid)
show.Maps({{"smooth": smooth / smooth.std()}}, grid, solid="smooth", level=1.0, axis="x")""",
}


@measures
def in_the_browser():
    """Milliseconds from a key or a move of the pointer to the picture that follows, in JupyterLab at 64^3.

    `first` and `open_128` are from the start of a cell in the kernel to its first picture: twelve maps of 64^3, 128^3.
    """
    import tempfile

    from browser import TIMED, Notebook, jupyterlab, open_browser

    cells = [cell.format(n=64) for cell in BROWSER.values()]
    opened = {"first": 64, "open_128": 128}
    notebooks = {name: [BROWSER["fields"].format(n=n), BROWSER["maps"]] for name, n in opened.items()}
    notebooks["all"] = cells
    with tempfile.TemporaryDirectory() as place, jupyterlab(Path(place), notebooks) as lab, open_browser() as browser:
        small = Notebook(browser, lab, "all").page
        small.locator(".nbkit-nodes").scroll_into_view_if_needed()
        plot = small.locator(".nbkit-nodes canvas").bounding_box()
        drags = [["pointermove", {"clientX": plot["x"] + 200, "clientY": plot["y"] + 90 + 5 * i}] for i in range(15)]
        name_them = "names => document.querySelectorAll('.nbkit').forEach((it, i) => it.classList.add(names[i]))"
        small.evaluate(name_them, [f"the-{name}" for name in BROWSER if name != "fields"])
        slider = small.locator(".widget-slider", has=small.get_by_text("filter scale")).locator(".noUi-handle")
        slider.evaluate("it => it.classList.add('the-scale')")
        keys = {
            "curve_drag": (".the-nodes .nbkit-node", ".the-nodes", drags),
            "maps": (".the-maps canvas", ".the-maps", [["keydown", {"key": "."}]] * 21),
            "cursor": (".the-maps canvas", ".the-maps", [["keydown", {"key": "ArrowUp"}]] * 21),
            "filter": (".the-scale", ".the-filter", [["keydown", {"key": "ArrowRight"}]] * 9),
            "3d": (".the-solid .nbkit-solid", ".the-solid", [["keydown", {"key": "ArrowLeft"}]] * 15),
            "3d_slice": (".the-solid canvas", ".the-solid", [["keydown", {"key": "."}]] * 15),
            "3d_level": (".the-solid .nbkit-grip:not([hidden])[aria-label*=level]", ".the-solid",
                         [["keydown", {"key": "ArrowRight"}]] * 15),
        }  # fmt: skip
        table = {f"browser_{name}_ms": small.evaluate(TIMED, [*about]) for name, about in keys.items()}
        small.close()
        for name in opened:
            page = Notebook(browser, lab, name).page
            table[f"browser_{name}_ms"] = page.evaluate("window.seen.picture - window.seen.started[1]")
            page.close()
    return table


@measures
def simulation():
    """A 64^3, B = 2, 6-step run on one thread over the very transforms it makes; two worker processes over one."""
    torch.set_num_threads(1)
    done = []
    forward, backward = simulate.forward, simulate.backward
    simulate.forward = lambda field: (done.append((forward, field.clone())), forward(field))[1]
    simulate.backward = lambda modes, grid: (done.append((backward, modes.clone(), grid)), backward(modes, grid))[1]
    _simulate(0)
    simulate.forward, simulate.backward = forward, backward
    whole, ffts = seconds(lambda: _simulate(0), lambda: [transform(*given) for transform, *given in done])
    spawn = multiprocessing.get_context("spawn")
    with spawn.Pool(1, torch.set_num_threads, (1,)) as one, spawn.Pool(2, torch.set_num_threads, (1,)) as two:
        single, double = seconds(
            lambda: one.map(_simulate, range(4), chunksize=1), lambda: two.map(_simulate, range(8), chunksize=1)
        )
    torch.set_num_threads(2)
    return {"simulate_seconds": whole, "simulate_over_fft": whole / ffts, "workers_2_over_1": 2 * single / double}


def _simulate(seed):
    simulate.Simulator(Grid(64, 500.0, "PCS"), particles=64, force_factor=2, steps=6)(FIDUCIAL, seed)


@measures
def training():
    """Time of an epoch beyond mark and spectra (data, candidates, heads, optimiser, bookkeeping), in percent of it."""
    spent, seen = [0.0], Contrast.S_M

    def timed(self, delta):
        # Forward and, through a hook that cuts the graph here, backward of mark and spectra alone.
        start = time.perf_counter()
        S_M = seen(self, delta)
        spent[0] += time.perf_counter() - start
        if not S_M.requires_grad:
            return S_M
        cut = S_M.detach().requires_grad_()

        def back(gradient):
            start = time.perf_counter()
            S_M.backward(gradient)
            spent[0] += time.perf_counter() - start

        cut.register_hook(back)
        return cut

    ends = []

    def on_epoch(objective, now):
        if now.stage == "marked":
            ends.append((time.perf_counter(), spent[0]))

    training = Training(recipe=replace(RECIPES["tuned"], pretrain_epochs=1, epochs=4))
    Contrast.S_M = timed
    try:
        with TemporaryDirectory() as folder:
            train(training, FakeSet(256, n=32), Path(folder), device="cpu", on_epoch=on_epoch)
    finally:
        Contrast.S_M = seen
    epochs = [(b[0] - a[0], b[1] - a[1]) for a, b in itertools.pairwise(ends)]
    return {"train_overhead_percent": min(100 * (1 - inside / whole) for whole, inside in epochs)}


@measures
def gpu():
    """Operations and waits of a training step at 128^3 on a GPU, and what it keeps of a box for backward [MB]."""
    moments, grid = [], Grid(128, 1000.0, "PCS")

    class Empty:
        theta = sobol_thetas(400)

        def __len__(self):
            return len(self.theta)

        def __getitem__(self, rows):
            return torch.zeros(len(rows), *grid.shape)

    Empty.grid = grid

    with pretend(values=False) as counts, TemporaryDirectory() as folder:
        data = Prior(Empty(), RECIPES["paper"], 0.3, 0, Processes(choose_device("cuda")), memory=0)
        data.S_delta = torch.zeros(400, data.bins, device=data.device)
        mark, heads = LearnedMark(grid).to(data.device), heads_for(data, True)
        stage = Contrast(data, heads, mark)

        def stop():
            moments.append(Counter(counts))
            return len(moments) == 3

        fit(stage, Path(folder), data.processes, stop=stop, checkpoint_every=float("inf"))
        stage.begin(0, 0)
        (batch,) = next(stage._batches)
        before, loss = held(), stage(batch)
        saved = (held() - before) / 1e6 / stage.batch
        loss.backward()
    step = moments[2] - moments[1]
    return {"gpu_ops_a_step": step["operations"], "gpu_syncs_a_step": step["waits"], "gpu_saved_mb_a_simulation": saved}


def main(names):
    unknown = set(names) - set(MEASURES)
    if unknown:
        sys.exit(f"No such measure: {', '.join(sorted(unknown))}; there are {', '.join(MEASURES)}.")
    torch.set_num_threads(2)
    out = Path(__file__).parents[1] / "runs" / "bench.json"
    table = json.loads(out.read_text()) if out.exists() else {}
    for name in names or MEASURES:
        for key, value in MEASURES[name]().items():
            table[key] = float(f"{value:.4g}")
            print(f"{key:32s} {value:10.3g}", flush=True)
    out.parent.mkdir(exist_ok=True)
    out.write_text(json.dumps(table, indent=2) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
