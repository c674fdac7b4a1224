"""The studio's algebra in node against forecast and objective in Python; what comes with the kit against boxes."""

import json
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch

import nbkit as nb
from nbkit.look.design import TRAINING, design
from nbkit.mark.classical import ClassicalMark
from nbkit.show import studio
from nbkit.train import own_runs
from nbkit.train.information import Sample, fisher, log_sigmas, weights
from nbkit.universe.cosmology import STEPS
from nbkit.universe.suite import FIDUCIAL_SETS

needs_node = pytest.mark.skipif(shutil.which("node") is None, reason="node was not found")
# Reads tables from the folder it is started in; `asked` is the test's.
DRIVER = """
const fs = require("fs");
const load = (name, Kind) => {
    const b = fs.readFileSync(name);
    return new Kind(b.buffer.slice(b.byteOffset, b.byteOffset + b.length));
};
const about = JSON.parse(fs.readFileSync("about.json"));
const table = (name) => ({ q: load(name + "_q", name === "judging" ? Int16Array : Int8Array), fields: 22,
    step: load(name + "_step", Float32Array), mean: load(name + "_mean", Float32Array),
    root: load("root", Float64Array), sizes: about.sizes[name] });
const [judging, training] = ["judging", "training"].map(table);
const asked = JSON.parse(fs.readFileSync("asked.json"));
"""


@pytest.fixture(scope="module")
def demo():
    return design("demo", progress=False)


@pytest.fixture(scope="module")
def node(demo, tmp_path_factory):
    """Run a piece of JavaScript after the algebra, with `asked`; gives what it returns."""
    folder = tmp_path_factory.mktemp("node")
    for name, x in demo.tensors.items():
        (folder / name).write_bytes(x.contiguous().numpy().tobytes())
    (folder / "about.json").write_text(json.dumps({"sizes": demo.sizes}))
    algebra = (Path(studio.__file__).parent / "algebra.js").read_text()

    def run(code, **asked):
        (folder / "asked.json").write_text(json.dumps(asked))
        (folder / "run.cjs").write_text(f"{algebra}\n{DRIVER}\nconsole.log(JSON.stringify((() => {{{code}}})()));")
        done = subprocess.run(["node", "run.cjs"], cwd=folder, capture_output=True, text=True, timeout=300)
        assert not done.returncode, done.stderr
        return json.loads(done.stdout)

    return run


@pytest.fixture(scope="module")
def ten(demo):
    """Coefficients of ten marks: shapes, fits, and at random."""
    rng, shapes = np.random.default_rng(0), [demo.coefficients(studio.SHAPES[name]) for name in list(studio.SHAPES)[:3]]
    fits = [demo.fit(which)[0] for which in (*demo.learned[:2], ClassicalMark(2.0, 0.0, 6.0))]
    return dict(enumerate([*shapes, *fits, *rng.normal(size=(4, 21))]))


@needs_node
def test_forecasts_are_those_of_python(demo, node, ten):
    marks = {i: demo.mark(c) for i, c in ten.items()}
    code = """return asked.c.map((c) => {
        const { F } = forecastOf(judging, [1, ...c], asked.bins, asked.steps);
        return [range(5), [0, 2, 4]].map((free) => [...parameterCovariance(F, free)]);
    });"""
    for kmax in (0.17, 0.2, 0.3):
        bins = int((demo.k <= kmax).sum())
        found = node(code, c=[c.tolist() for c in ten.values()], bins=bins, steps=list(STEPS))
        for fixed, which in ((), 0), (("Ob2", "ns"), 1):
            wanted = demo.forecasts(marks, kmax, count=2, fixed=fixed)
            for i, each in enumerate(found):
                C = np.reshape(each[which], (5, 5))
                np.testing.assert_allclose(np.sqrt(np.diagonal(C)), wanted[i].sigma.value, rtol=1e-3)
                scale = np.sqrt(np.outer(wanted[i].sigma.value, wanted[i].sigma.value)) ** 2 + (C == 0)
                np.testing.assert_allclose(C / scale, wanted[i].covariance() / scale, atol=3e-3)


@needs_node
def test_loss_and_gradient_are_those_of_autograd(demo, node, ten):
    """By cross-fitted halves, through the weights W as well, and from all boxes at once, as a naive objective does."""
    bins, rng, free = 8, np.random.default_rng(1), list(range(5))
    orders = [rng.permutation(n).tolist() for n in TRAINING]
    halves = [[order[: len(order) // 2] for order in orders], [order[len(order) // 2 :] for order in orders]]
    code = "return lossOf(training, [0, ...asked.c], asked.bins, asked.how);"
    for c in (ten[0], ten[3], ten[8]):
        for cut in (halves, None):
            found = node(code, c=c.tolist(), bins=bins, how={"halves": cut, "wanted": [0, 4], "free": free})
            x = torch.tensor(c, requires_grad=True)
            fiducial, D = demo.spectra("training", torch.cat([torch.zeros(1, dtype=torch.float64), x]), bins)
            sample = Sample(fiducial, torch.stack([D, -D]).permute(2, 0, 1, 3))
            if cut:
                A, B = (sample.rows(*half) for half in cut)
                F = (fisher(B, weights(A)) + fisher(A, weights(B))) / 2
            else:
                scale = fiducial.detach().std(0)
                mean, C = D.mean(0) / scale, torch.cov((fiducial / scale).T)
                F = (TRAINING[0] - 3 * bins - 2) / (TRAINING[0] - 1) * mean @ torch.linalg.solve(C, mean.T)
            loss = (log_sigmas(F) - torch.tensor(np.log(STEPS)))[[0, 4]].mean()
            loss.backward()
            assert found["loss"] == pytest.approx(loss.item(), abs=1e-5)
            gradient = np.array(list(found["gradient"].values()))[1:]
            np.testing.assert_allclose(gradient, x.grad.numpy(), rtol=1e-4, atol=1e-4 * np.abs(x.grad.numpy()).max())


@needs_node
def test_the_search_helps_on_boxes_it_has_not_seen(demo, node, ten):
    code = """let last; for (const now of finish(training, asked.c, 8, asked.how)) last = now;
        return { c: [...last.c], F: [...forecastOf(judging, [1, ...last.c], 8, asked.steps).F] };"""
    how = {"wanted": [0, 4], "free": list(range(5)), "steps": 40}
    found = node(code, c=ten[0].tolist(), how=how, steps=list(STEPS))
    sigma = np.sqrt(np.diagonal(np.linalg.inv(np.reshape(found["F"], (5, 5)))))
    marks = {"start": demo.mark(ten[0]), "end": demo.mark(found["c"])}
    forecasts = demo.forecasts(marks, demo.k[7] + 1e-6, count=2)
    np.testing.assert_allclose(sigma, forecasts["end"].sigma.value, rtol=1e-3)
    assert (forecasts["start"].sigma.value / forecasts["end"].sigma.value)[[0, 4]].min() > 1.3


@needs_node
def test_a_mark_that_tells_nothing_is_no_forecast(node):
    assert node("return forecastOf(judging, [1, ...zeros(21)], 8, asked.steps);", steps=list(STEPS)) is None
    how = {"wanted": [0], "free": [0], "steps": 3}
    assert node("return [...finish(training, zeros(21), 8, asked.how)][0].c;", how=how) is None


def test_what_comes_with_the_kit_is_right_to_a_hundredth(demo, ten):
    """Spectra in whole steps against those of the same marks on the same boxes, and rivals against their forecasts."""
    marks = {i: demo.mark(c) for i, c in ten.items()} | {"p=2 ds=0": ClassicalMark(2.0, 0.0)}
    direct = nb.measure("demo", marks, sets=FIDUCIAL_SETS, progress=False)
    for kmax in (0.17, 0.2, 0.3):
        wanted = nb.forecast(direct, kmax, count=2)
        ours = demo.forecasts({i: marks[i] for i in ten}, kmax, count=2)
        for i in ten:
            np.testing.assert_allclose(ours[i].sigma.value, wanted[i].sigma.value, rtol=0.01)
        bins = int((demo.k <= kmax).sum())
        np.testing.assert_allclose(demo.errors("p=2 ds=0", bins), wanted["p=2 ds=0"].sigma.value, rtol=1e-3)
    assert sum(path.stat().st_size for path in (nb.disk.BUNDLED / "design").iterdir()) < 10e6


def test_curves_and_coefficients_are_one(demo, ten):
    for c in ten.values():
        np.testing.assert_allclose(demo.coefficients(demo.values(c)), c, atol=1e-9)
    np.testing.assert_allclose(demo.curve(ten[5], 1, np.linspace(*demo.ends[1], 7)), demo.values(ten[5])[1], atol=1e-9)
    with pytest.raises(ValueError, match="was not fitted; there are"):
        demo.fit("demo_l9")


def test_a_mark_is_kept_and_found_again(demo, ten, tmp_path, monkeypatch):
    monkeypatch.setenv("NBKIT_RUNS", str(tmp_path))
    view = studio.Studio("demo", start=ten[4], progress=False)
    box = demo.tensors["box"][0].float()
    path = view.keep("my_mark")
    assert nb.load("my_mark").mark == nb.load(path).mark == view.mark and "my_mark" in own_runs()
    torch.testing.assert_close(nb.load("my_mark").mark(box, demo.preset.grid), view.mark(box, demo.preset.grid))
    with pytest.raises(ValueError, match="name is 'a b'"):
        view.keep("a b")
    (tmp_path / "train" / "trained").mkdir()
    with pytest.raises(FileExistsError, match="is the run of a training"):
        view.keep("trained")


def test_impossible_studios_are_refused():
    with pytest.raises(ValueError, match=r"kmax is 0.1 h/Mpc; it must be at least 0.1"):
        studio.Studio("demo", kmax=0.1, progress=False)
    with pytest.raises(ValueError, match="start is 'sideways'; allowed are voids up, knots up, edges up, M = 1, demo_"):
        studio.Studio("demo", start="sideways", progress=False)


@needs_node
def test_the_script_is_without_a_slip(node_modules):
    """eslint of all that the studio runs; of what it shares with the pictures it does not use everything."""
    rule = 'no-unused-vars: ["error", {"varsIgnorePattern": "^(short|step|grip|frame)$"}]'
    command = ["node", node_modules / "eslint" / "bin" / "eslint.js", "--rule", rule]
    command += ["--stdin", "--stdin-filename", "widget.js"]
    here = {"cwd": node_modules.parent, "input": studio.Board._esm, "timeout": 120}
    done = subprocess.run(command, capture_output=True, text=True, **here)
    assert done.returncode == 0, done.stdout
