"""Suites: sizes, seeds, farming out, and runs that are killed."""

import errno
import json
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from itertools import combinations

import dask
import h5py
import numpy as np
import psutil
import pytest
import torch

from nbkit.mesh.grid import Grid
from nbkit.universe import farm as farm_module
from nbkit.universe.cosmology import FIDUCIAL, PRIOR_BSQ, PRIOR_LATIN_HYPERCUBE, STEPS
from nbkit.universe.farm import farm
from nbkit.universe.store import SimulationSet, Writer
from nbkit.universe.suite import DERIVATIVES, FIRST_SEED, PRESETS, SETS, Preset, suite

suite_module = sys.modules[suite.__module__]  # its name in `nbkit.universe` is that of the function
TINY = Preset("tiny", Grid(16, 125.0, "PCS"), 2, 2, 96, 3, particles=16, force_factor=2, steps=4)
SOME = ("fiducial", "Om_p", "Om_m")


@pytest.fixture(scope="module")
def threads():
    """A client without processes, quick to start."""
    from distributed import Client

    with Client(processes=False, n_workers=1, threads_per_worker=2, dashboard_address="127.0.0.1:0") as client:
        yield client


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory, threads):
    return suite(TINY, SOME, root=tmp_path_factory.mktemp("undisturbed"), client=threads)


def same(one, other):
    return list(one) == list(other) and all(one[name].fingerprint == other[name].fingerprint for name in one)


def test_sizes_of_the_presets():
    sizes = {
        name: (
            p.grid,
            *(p.count(s) for s in ("BSQ", "latin_hypercube", "fiducial")),
            *{p.count(s) for s in DERIVATIVES},
        )
        for name, p in PRESETS.items()
    }
    assert sizes == {
        "demo": (Grid(32, 250.0, "PCS"), 2000, 200, 600, 60),
        "mini": (Grid(64, 500.0, "PCS"), 2000, 500, 2000, 250),
        "mini_more": (Grid(64, 500.0, "PCS"), 6000, 500, 2000, 250),
        "quijote": (Grid(128, 1000.0, "PCS"), 5000, 2000, 10000, 500),
    }
    assert {(p.grid.cell_size, p.grid.k_nyq) for p in PRESETS.values()} == {(7.8125, PRESETS["mini"].grid.k_nyq)}
    for name, particles in (("demo", 32), ("mini", 64)):
        simulator = PRESETS[name].simulator
        assert (simulator.particles, simulator.force_factor, simulator.steps) == (particles, 2, 6)


def test_more_boxes_begin_with_those_of_mini():
    few, more = (PRESETS[name].contents("BSQ") for name in ("mini", "mini_more"))
    assert few.settings == more.settings
    np.testing.assert_array_equal(more.theta[: len(few.theta)], few.theta)
    np.testing.assert_array_equal(more.seeds[: len(few.seeds)], few.seeds)


def test_boxes_that_another_suite_has_are_copied(undisturbed, tmp_path, threads, monkeypatch):
    more = replace(TINY, name="more", fiducial=98)
    root = undisturbed["fiducial"].path.parent.parent
    made = []
    monkeypatch.setattr(suite_module, "farm", lambda f, calls, *rest: made.extend(calls) or farm(f, calls, *rest))
    fiducial = suite(more, "fiducial", root=root, client=threads)["fiducial"]
    assert len(fiducial) == 98 and len(made) == 2
    torch.testing.assert_close(fiducial[:96], undisturbed["fiducial"][:], rtol=0, atol=0)
    fiducial[:]
    for other in (replace(more, name="steps", steps=5), replace(more, name="later", skipped=(96, 0))):
        made.clear()
        suite(replace(other, fiducial=2), "fiducial", root=root, client=threads)
        assert len(made) == (2 if other.name == "steps" else 0)


def test_damaged_boxes_are_not_copied(tmp_path, threads):
    few = suite(replace(TINY, fiducial=3), "fiducial", root=tmp_path, client=threads)["fiducial"]
    field = few[1].numpy().tobytes()
    data = few.path.read_bytes()
    few.path.write_bytes(data.replace(field, b"\0" * len(field)))
    more = suite(replace(TINY, name="more", fiducial=4), "fiducial", root=tmp_path, client=threads)["fiducial"]
    more[:]
    assert len(more) == 4 and more[1].numpy().tobytes() == field


def test_sets_are_named_as_in_quijote():
    assert DERIVATIVES == ("Om_p", "Om_m", "Ob2_p", "Ob2_m", "h_p", "h_m", "ns_p", "ns_m", "s8_p", "s8_m")
    assert SETS[:3] == ("BSQ", "latin_hypercube", "fiducial")
    assert SETS[3:] == DERIVATIVES


@pytest.mark.parametrize("preset", ["demo", "mini"])
def test_thetas_and_seeds(preset):
    source = PRESETS[preset]
    held = {name: source.contents(name) for name in SETS}
    seeds = {name: set(held[name].seeds.tolist()) for name in SETS}
    assert all(len(seeds[name]) == PRESETS[preset].count(name) == len(held[name].theta) for name in SETS)
    for one, other in combinations(("BSQ", "latin_hypercube", "fiducial", "Om_p"), 2):
        assert not seeds[one] & seeds[other]
    for name in DERIVATIVES:
        np.testing.assert_array_equal(held[name].seeds, held["Om_p"].seeds)
    for name, prior in (("BSQ", PRIOR_BSQ), ("latin_hypercube", PRIOR_LATIN_HYPERCUBE)):
        assert ((held[name].theta > prior[:, 0]) & (held[name].theta < prior[:, 1])).all()
        assert len(np.unique(held[name].theta, axis=0)) == len(held[name].theta)
    np.testing.assert_array_equal(held["fiducial"].theta, np.tile(FIDUCIAL, (PRESETS[preset].fiducial, 1)))
    for i, name in enumerate(DERIVATIVES):
        step = np.zeros(5)
        step[i // 2] = STEPS[i // 2] * (1 if i % 2 == 0 else -1)
        np.testing.assert_allclose(held[name].theta - FIDUCIAL, np.tile(step, (PRESETS[preset].pairs, 1)), atol=1e-15)


def test_seed_ranges_hold_the_largest_set():
    starts = sorted(set(FIRST_SEED.values()))
    assert min(np.diff(starts)) >= max(p.fiducial for p in PRESETS.values())
    with pytest.raises(ValueError, match="a set holds 1"):
        Preset("large", Grid(8, 10.0), 1_000_001, 1, 1, 1)


def test_training_around_the_fiducial_point_has_realisations_of_its_own(undisturbed, tmp_path, threads):
    for preset in PRESETS.values():
        shared = {}
        for name in ("fiducial", "Om_p", "s8_m"):
            mine, its = (range(p.first(name), p.first(name) + p.count(name)) for p in (preset, preset.near))
            shared[name] = len(set(mine) & set(its))
        # Quijote has 500 pairs in all; `nbkit.forecast.fisher.unseen` keeps the shared half out of forecasts.
        assert shared == {"fiducial": 0, "Om_p": 250 * (preset.name == "quijote"), "s8_m": shared["Om_p"]}
    near = replace(TINY, near_sizes=(4, 2)).near
    made = suite(near, SOME, root=tmp_path, client=threads)
    assert near.name == "tiny_near" and near.near_sizes is None
    assert made["fiducial"].seeds.tolist() == [96, 97, 98, 99]
    assert made["Om_p"].seeds.tolist() == made["Om_m"].seeds.tolist() == [3_000_003, 3_000_004]
    assert torch.equal(made["Om_p"][1], TINY.simulator(made["Om_p"].theta[1], 3_000_004))


def test_a_suite_holds_what_the_simulator_makes(undisturbed):
    assert tuple(undisturbed) == SOME
    assert undisturbed.grid == undisturbed["Om_p"].grid == TINY.grid
    assert [len(undisturbed[name]) for name in SOME] == [96, 3, 3]
    for name, i in (("fiducial", 95), ("Om_p", 0), ("Om_m", 2)):
        held = undisturbed[name]
        torch.testing.assert_close(held[i], TINY.simulator(held.theta[i], int(held.seeds[i])), rtol=0, atol=0)
    assert repr(undisturbed) == "<suite tiny: 16^3 in 125 Mpc/h; fiducial 96, Om_p 3, Om_m 3>"
    with pytest.raises(KeyError, match="'BSQ' is not in this suite; it holds fiducial, Om_p, Om_m"):
        undisturbed["BSQ"]


# A script as users write them: no guard, so worker processes that imported it would start everything again.
SCRIPT = """
import json, sys, time
import psutil
from nbkit.mesh.grid import Grid
from nbkit.universe.suite import Preset, suite

assert "distributed" not in sys.modules
start = time.perf_counter()
made = suite(PRESET, SETS, root=sys.argv[1])
seconds = time.perf_counter() - start
left = [" ".join(p.cmdline()) for p in psutil.Process().children(recursive=True)]
said = {"names": list(made), "prints": [made[name].fingerprint for name in made], "seconds": seconds}
said |= {"dask": "distributed" in sys.modules, "left": [x for x in left if "resource_tracker" not in x]}
said |= {"zombies": [p.pid for p in psutil.Process().children() if p.status() == "zombie"], "main": bool(__file__)}
print(json.dumps(said))
"""


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "script.py"
    path.write_text(SCRIPT.replace("PRESET", repr(TINY)).replace("SETS", repr(SOME)))
    return [sys.executable, str(path), str(tmp_path / "suites")]


def test_a_killed_run_is_finished_to_the_same_bits_and_then_opens_at_once(script, undisturbed, tmp_path):
    """kill -9 of the writer while its workers work; they leave by themselves, and the next run is none the wiser."""
    path, deadline = tmp_path / "suites" / "tiny" / "fiducial.h5", time.monotonic() + 300
    with subprocess.Popen(script, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        workers = []
        while not (path.exists() and len(SimulationSet(path))) and time.monotonic() < deadline:
            workers = psutil.Process(process.pid).children(recursive=True)
        os.kill(process.pid, signal.SIGKILL)
    assert len(workers) >= 2
    assert psutil.wait_procs(workers, timeout=60)[1] == []
    left = SimulationSet(path)
    assert 0 < len(left) < 96
    torch.testing.assert_close(left[:], undisturbed["fiducial"][left.seeds - FIRST_SEED["fiducial"]], rtol=0, atol=0)

    finished = subprocess.run(script, capture_output=True, text=True)
    assert finished.stderr == ""
    said = json.loads(finished.stdout)
    assert said["prints"] == [undisturbed[name].fingerprint for name in SOME]
    assert said["dask"]
    assert said["left"] == said["zombies"] == []
    assert said["main"]

    opened = subprocess.run(script, capture_output=True, text=True)
    assert opened.stderr == ""
    again = json.loads(opened.stdout)
    assert again["prints"] == said["prints"]
    assert not again["dask"]
    assert again["seconds"] < 0.5


def test_a_killed_worker_is_replaced_and_nothing_is_lost(undisturbed, tmp_path):
    from distributed import Client, LocalCluster

    settings = {"threads_per_worker": 1, "dashboard_address": "127.0.0.1:0", "silence_logs": 50}
    with LocalCluster(n_workers=2, **settings) as cluster, Client(cluster) as client:
        before = client.run(os.getpid)
        victim = next(iter(before.values()))
        path, killed = tmp_path / "tiny" / "fiducial.h5", []

        def kill_in_the_midst():
            while not (path.exists() and len(SimulationSet(path)) > 0):
                time.sleep(0.002)
            killed.append(len(SimulationSet(path)))
            os.kill(victim, signal.SIGKILL)

        killer = threading.Thread(target=kill_in_the_midst)
        killer.start()
        made = suite(TINY, SOME, root=tmp_path, client=client)
        killer.join()
        assert 0 < killed[0] < 96
        assert same(made, undisturbed)
        client.wait_for_workers(2, timeout=60)
        after = client.run(os.getpid)
        assert len(after) == 2
        assert victim not in after.values()
        client.run(torch.set_num_threads, 3)
        threads = {}
        farm(torch.get_num_threads, {0: ()}, threads.update, client=client)
        assert threads == {0: 1}


def test_the_number_of_workers_does_not_matter(undisturbed, tmp_path):
    from distributed import Client

    with Client(processes=False, n_workers=1, threads_per_worker=5, dashboard_address="127.0.0.1:0") as client:
        assert same(suite(TINY, SOME, root=tmp_path, client=client), undisturbed)


def test_finishing_makes_only_what_is_missing(undisturbed, tmp_path, threads, monkeypatch):
    first = suite(TINY, "Om_p", root=tmp_path, client=threads)
    assert list(first) == ["Om_p"]
    calls = []

    def counting(function, some, *arguments):
        calls.append(sorted(some))
        return farm(function, some, *arguments)

    monkeypatch.setattr(suite_module, "farm", counting)
    both = suite(TINY, ["Om_p", "Om_m"], root=tmp_path, client=threads)
    assert calls == [[("Om_m", 0), ("Om_m", 1), ("Om_m", 2)]]
    assert both["Om_m"].fingerprint == undisturbed["Om_m"].fingerprint
    suite(TINY, ["Om_p", "Om_m"], root=tmp_path, client=threads)
    assert len(calls) == 1


BEGUN = []


def begun(i):
    BEGUN.append(i)
    return i


def test_few_results_are_under_way_at_a_time(threads):
    got, ahead = {}, []

    def receive(results):
        time.sleep(0.01)  # a slow disk
        got.update(results)
        ahead.append(len(BEGUN) - len(got))

    farm(begun, {i: (i,) for i in range(300)}, receive, batch=3, client=threads)
    assert got == {i: i for i in range(300)}
    assert 3 <= max(ahead) <= 8 * 3


def test_errors_of_the_work_reach_the_caller(threads):
    def work(i):
        if i == 7:
            raise ZeroDivisionError("seven")
        return i

    got = {}
    with pytest.raises(ZeroDivisionError, match="seven"):
        farm(work, {i: (i,) for i in range(20)}, got.update, client=threads)
    assert threads.submit(lambda: 1).result() == 1  # the client is still of use


def test_torch_threads_of_the_caller_are_left_alone(threads):
    before = torch.get_num_threads()
    farm(torch.get_num_threads, {i: () for i in range(4)}, dict().update, client=threads)
    assert torch.get_num_threads() == before


def test_workers_that_keep_dying_are_explained():
    from distributed import Client, LocalCluster

    settings = {"threads_per_worker": 1, "dashboard_address": "127.0.0.1:0", "silence_logs": 50}
    said = r"Workers died again and again .* fewer workers or more memory"
    with (
        dask.config.set({"distributed.scheduler.allowed-failures": 0}),
        LocalCluster(n_workers=1, **settings) as cluster,
        Client(cluster) as client,
        pytest.raises(RuntimeError, match=said),
    ):
        farm(os._exit, {0: (1,)}, dict().update, client=client)


def test_bar_tells_the_time_left(threads, monkeypatch, capfd):
    farm(time.sleep, {i: (0.02,) for i in range(30)}, dict().update, client=threads)
    assert capfd.readouterr().err == ""  # no terminal, no bar
    monkeypatch.setattr(farm_module, "is_watched", lambda: True)
    farm(time.sleep, {i: (0.05,) for i in range(30)}, dict().update, client=threads)
    shown = capfd.readouterr().err
    assert "/30 [" in shown
    assert "<00:0" in shown
    farm(time.sleep, {i: (0.0,) for i in range(3)}, dict().update, client=threads, progress=False)
    assert capfd.readouterr().err == ""


def test_only_a_person_is_shown_a_bar(monkeypatch):
    class Kernel:
        _allow_stdin = True

    class Shell:
        kernel = Kernel()

    class IPython:
        get_ipython = Shell

    monkeypatch.setitem(sys.modules, "IPython", IPython)
    assert farm_module.is_watched()
    monkeypatch.setattr(Kernel, "_allow_stdin", False)  # papermill, nbval
    assert not farm_module.is_watched()
    monkeypatch.setattr(IPython, "get_ipython", lambda: None)  # imported, but this is a plain script
    for terminal in (True, False):
        monkeypatch.setattr(sys.stderr, "isatty", lambda terminal=terminal: terminal)
        assert farm_module.is_watched() == terminal


def test_time_and_room_are_told_before_a_suite_is_made(tmp_path, monkeypatch, threads, capfd):
    monkeypatch.setattr(suite_module, "is_watched", lambda: True)
    suite(TINY, "Om_p", root=tmp_path, client=threads)
    words = f"tiny: 3 simulations to make, about 1 min on 2 cores, 0 MB in {tmp_path / 'tiny'}\n"
    assert words in capfd.readouterr().err
    suite(TINY, "Om_p", root=tmp_path, client=threads)
    suite(TINY, "Om_m", root=tmp_path, client=threads, progress=False)
    assert capfd.readouterr().err == ""


def test_too_full_a_disk_is_refused_before_work(tmp_path, monkeypatch, threads):
    monkeypatch.setattr("shutil.disk_usage", lambda _: type("Usage", (), {"free": 1e5}))
    with pytest.raises(OSError, match="0 MB free and 2 MB are needed; make room") as raised:
        suite(TINY, "fiducial", root=tmp_path, client=threads)
    assert raised.value.errno == errno.ENOSPC
    assert len(SimulationSet(tmp_path / "tiny" / "fiducial.h5")) == 0


def test_a_suite_that_is_being_written_is_refused(tmp_path, threads):
    with (
        Writer(tmp_path / "tiny" / "Om_p.h5", TINY.contents("Om_p")),
        pytest.raises(BlockingIOError, match=r"Om_p\.h5 is being written by process"),
    ):
        suite(TINY, SOME, root=tmp_path, client=threads)
    assert len(suite(TINY, "Om_p", root=tmp_path, client=threads)["Om_p"]) == 3


def test_other_settings_are_refused(undisturbed, threads):
    root = undisturbed["Om_p"].path.parents[1]
    other = Preset("tiny", TINY.grid, 2, 2, 96, 3, particles=16, force_factor=2, steps=3)
    with pytest.raises(ValueError, match=r"made with other settings \(steps is 4 there and 3 here\)"):
        suite(other, SOME, root=root, client=threads)


def without_version(path):
    """Take the simulator's version from a file, as it was before there was one."""
    with h5py.File(path, "r+") as file:
        settings = json.loads(file.attrs["settings"])
        assert settings.pop("simulator") == 1
        file.attrs["settings"] = json.dumps(settings, sort_keys=True)


def test_another_version_of_the_simulator_is_refused(tmp_path, threads, monkeypatch):
    made = suite(TINY, "Om_p", root=tmp_path, client=threads)["Om_p"]
    without_version(made.path)
    assert suite(TINY, "Om_p", root=tmp_path, client=threads)["Om_p"].fingerprint == made.fingerprint
    monkeypatch.setattr(suite_module, "VERSION", 2)
    with pytest.raises(ValueError, match=r"made with other settings \(simulator is 1 there and 2 here\)"):
        suite(TINY, "Om_p", root=tmp_path, client=threads)
    # Nor are its boxes copied into a suite of another name.
    other = suite(replace(TINY, name="other"), "Om_p", root=tmp_path, client=threads)["Om_p"]
    assert other.settings["simulator"] == 2 and other.fingerprint != made.fingerprint


def test_what_is_planned_has_a_fingerprint(monkeypatch):
    plan = TINY.contents("BSQ")
    moved = replace(plan, theta=np.nextafter(plan.theta, 1))
    assert TINY.contents("BSQ").fingerprint == moved.fingerprint
    others = [replace(TINY, BSQ=3), replace(TINY, steps=5), replace(TINY, grid=Grid(16, 120.0, "PCS"))]
    others = [preset.contents("BSQ") for preset in others]
    others += [replace(plan, theta=plan.theta + 1e-8), replace(plan, seeds=plan.seeds + 1), TINY.contents("Om_p")]
    monkeypatch.setattr(suite_module, "VERSION", 2)
    others.append(TINY.contents("BSQ"))
    assert len({each.fingerprint for each in (plan, *others)}) == 8


def test_going_on_with_other_versions_is_told(tmp_path, threads, monkeypatch):
    monkeypatch.setattr("nbkit.universe.store._versions", lambda: {"nbkit": "0.0.1"})
    with Writer(tmp_path / "tiny" / "Om_p.h5", TINY.contents("Om_p")) as writer:
        writer.write({0: TINY.field(writer.contents.theta[0], FIRST_SEED["Om_p"])})
    monkeypatch.undo()
    with pytest.warns(UserWarning, match=r"was begun with nbkit 0\.0\.1"):
        suite(TINY, "Om_p", root=tmp_path, client=threads)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("dmeo",), "preset is 'dmeo'; allowed are demo, mini, mini_more, quijote"),
        (("demo", "fiducal"), "sets has 'fiducal'; allowed are BSQ, latin_hypercube, fiducial, Om_p"),
        (("quijote", "BSQ"), "Preset 'quijote' is of real data .* pass data_root.* 3D_cubes.*: demo, mini"),
    ],
)
def test_what_does_not_exist_is_said(arguments, said, tmp_path):
    with pytest.raises(ValueError, match=said):
        suite(*arguments, root=tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["", "a/b", ".."])
def test_presets_name_a_folder(name):
    with pytest.raises(ValueError, match="fit to name a folder"):
        Preset(name, TINY.grid, 1, 1, 1, 1)


def test_default_root_is_in_runs(monkeypatch, tmp_path, threads):
    monkeypatch.setenv("NBKIT_RUNS", str(tmp_path))
    made = suite(TINY, "Om_p", client=threads)
    assert made["Om_p"].path == tmp_path / "suites" / "tiny" / "Om_p.h5"
