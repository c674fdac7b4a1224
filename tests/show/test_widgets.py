"""Maps, curves and explorers without a browser: what they ship, what they draw where there is none, and refuse."""

import io
import json
import shutil
import subprocess
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch
import traitlets
from PIL import Image

from nbkit import Grid, disk, show
from nbkit.show.looks import looks
from nbkit.universe.simulate import Simulator

ROOM = Path(show.__file__).parent
NODE = shutil.which("node")


def pixels(png):
    return np.asarray(Image.open(io.BytesIO(png)).convert("RGB"))


def test_slices_run_right_and_up(lognormal):
    """The first remaining axis runs to the right, the second upwards."""
    delta, _ = lognormal(8)
    cut = show.slice_of(delta, 2, 3)
    assert cut[5, 1] == delta[1, 5, 3]
    cut = show.slice_of(delta, 0, 3)
    assert cut[5, 1] == delta[3, 1, 5]


def test_signed_maps_are_centred_on_zero(lognormal):
    delta, _ = lognormal(16)
    low, high = show.colour_range(delta, "E0")
    assert low == -high
    low, high = show.colour_range(delta.abs(), "E1")
    assert 0 <= low < high


@pytest.fixture
def explorers(lognormal):
    delta, grid = lognormal(16, mas="PCS", dtype=torch.float32)
    universe = show.universe_explorer(Simulator(Grid(16, 125.0, "PCS"), particles=16), seed=1)
    return [show.kernel_explorer(grid.k_nyq, n=16), show.invariant_explorer(delta, grid), universe]


def images(widget):
    if isinstance(widget, (show.Maps, show.Curves)):
        return [widget.png()]
    return [x for child in getattr(widget, "children", ()) for x in images(child)]


def test_every_control_of_the_kernel_changes_a_picture(explorers):
    for explorer in explorers:
        for control in explorer.controls:
            before, was = images(explorer), control.value
            control.value = was + control.step if was < control.max else was - control.step
            assert images(explorer) != before, control.description
            control.value = was
            assert images(explorer) == before, control.description


def test_stored_output_is_stable_and_shows_a_picture(explorers):
    for explorer in explorers:
        bundle = explorer._repr_mimebundle_()
        assert set(bundle) == {"text/plain", "image/png", "application/vnd.jupyter.widget-view+json"}
        assert bundle["text/plain"] == f"<{explorer.title}: open in JupyterLab to move it>"
        assert pixels(explorer.static).std() > 10


@pytest.fixture
def fields(lognormal):
    delta, grid = lognormal(8, dtype=torch.float32)
    terms = {name: torch.randn(grid.shape) for name in ("h_E0", "h_E1")}
    return {"delta": 50 * delta.abs() ** 3 - 1} | {"E1": 1e-6 * delta.abs()} | terms, grid


def shipped(maps, name):
    """What the browser reads: numbers of 16 bits, and their scale."""
    (panel,) = (panel for panel in maps.about["panels"] if panel["name"] == name)
    n = maps.grid.n
    return np.frombuffer(maps.voxels[name], np.float16).astype(float).reshape(n, n, n) * panel["scale"]


def test_maps_ship_three_digits_of_every_voxel(fields):
    fields, grid = fields
    maps = show.Maps(fields, grid)
    for name, field in fields.items():
        np.testing.assert_allclose(shipped(maps, name), field.numpy(), rtol=5e-4, atol=1e-7 * float(field.abs().max()))


def test_mark_is_the_softplus_of_the_terms_that_are_on(fields):
    fields, grid = fields
    maps = show.Maps(fields, grid, terms=("h_E0", "h_E1"), bias=0.3)
    assert [panel["name"] for panel in maps.about["panels"]] == [*fields, "M"]
    assert "M" not in maps.voxels, "the browser makes it"
    both = torch.nn.functional.softplus(0.3 + fields["h_E0"] + fields["h_E1"])
    torch.testing.assert_close(maps.mark(), both)
    full, maps.on = maps.png(), ["h_E1"]
    torch.testing.assert_close(maps.mark(), torch.nn.functional.softplus(0.3 + fields["h_E0"].mean() + fields["h_E1"]))
    assert maps.png() != full


def test_state_of_maps_is_read_and_set(fields):
    fields, grid = fields
    maps = show.Maps(fields, grid, axis="x", index=3)
    assert (maps.axis, maps.index, maps.slab, maps.cursor) == (0, 3, 1, [])
    for name, value in {"axis": "z", "index": 5, "slab": 3, "ranges": maps.ranges | {"E1": [0.0, 1.0]}}.items():
        before = maps.png()
        setattr(maps, name, value)
        assert maps.png() != before, name
    assert maps.axis == 2
    with pytest.raises(traitlets.TraitError, match="axis is 'w'; allowed are x, y, z"):
        maps.axis = "w"
    with pytest.raises(traitlets.TraitError, match=r"index is 8; it must be 0 ... 7"):
        maps.index = 8


def test_update_keeps_what_was_fixed(fields):
    fields, grid = fields
    maps = show.Maps(fields, grid, ranges={"delta": (-1, 1)}, index=2)
    maps.cursor = [1, 2, 3]
    before = maps.ranges
    maps.update({"E1": 3 * fields["E1"]})
    assert maps.ranges["delta"] == [-1, 1] and maps.index == 2 and maps.cursor == [1, 2, 3]
    assert maps.ranges["E1"][1] > before["E1"][1] and maps.about["start"]["ranges"] == maps.ranges
    np.testing.assert_allclose(shipped(maps, "E1"), 3 * fields["E1"].numpy(), rtol=5e-4, atol=1e-12)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"fields": {"a": torch.full((8, 8, 8), torch.nan)}}, "a has 512 voxels that are not numbers"),
        ({"fields": {"a": torch.zeros(8, 8, 4)}}, r"a has shape \(8, 8, 4\); the grid has \(8, 8, 8\)"),
        ({"fields": {"a": torch.rand(8, 8, 8)}, "colours": {"a": "mauve"}}, "There is no colour map 'mauve'"),
        ({"fields": {}}, "There is no field to show"),
        ({"fields": {"a": torch.rand(8, 8, 8)}, "terms": ["b"]}, "b is asked for but no field; there are a"),
    ],
)
def test_maps_refuse_in_one_sentence(change, message):
    with pytest.raises(ValueError, match=message):
        show.Maps(grid=Grid(8, 100.0), **change)


def test_a_constant_field_has_a_range():
    maps = show.Maps({"a": torch.full((8, 8, 8), 2.5)}, Grid(8, 100.0))
    low, high = maps.ranges["a"]
    assert low < high
    assert maps.png()


def test_curves_keep_their_look_when_they_are_updated():
    curves = show.Curves({"a": {"x": [1, 2], "y": [3, 4], "dash": "--"}, "b": ([1, 2], [2, 2], [1, 1], [3, 3])})
    before = {curve["label"]: curve for curve in curves.curves}
    picture = curves.png()
    curves.update({"a": ([1, 2], [5, 6])})
    (a,) = (curve for curve in curves.curves if curve["label"] == "a")
    assert a == before["a"] | {"y": [5.0, 6.0]}
    assert curves.png() != picture


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"curves": {"a": ([1, 2], [1, 2, 3])}}, "a has arrays of different length: x 2, y 3"),
        ({"curves": {"a": ([1, 2], [1, np.nan])}}, "a has values that are not numbers"),
        ({"curves": {}, "nodes": [(1, 0), (1, 2)]}, "Nodes must be at least two, with rising x"),
    ],
)
def test_curves_refuse_in_one_sentence(change, message):
    with pytest.raises(ValueError, match=message):
        show.Curves(**change)


def test_ellipse_holds_its_share():
    C = np.array([[2.0, 0.8, 0.1], [0.8, 1.0, 0.0], [0.1, 0.0, 0.5]])
    ellipses = show.Ellipses({"one": C}, [1.0, 2.0, 3.0], ["Omega_m", "h", "sigma_8"], across="h", up="Omega_m")
    inner = C[np.ix_([1, 0], [1, 0])]
    for line, share in zip(ellipses.lines(), (0.6827, 0.9545), strict=True):
        d = np.stack([line["x"] - 2.0, line["y"] - 1.0])
        np.testing.assert_allclose((d * np.linalg.solve(inner, d)).sum(0), -2 * np.log(1 - share), rtol=2e-3)
    assert ellipses.about["parameters"] == ["Ωm", "h", "σ₈"]
    with pytest.raises(ValueError, match="one is no covariance of 2 parameters"):
        show.Ellipses({"one": C}, [1, 2], ["h", "n_s"])


def in_node(expression, *files):
    """What JavaScript makes of an expression, after these files of the room."""
    code = "\n".join((ROOM / name).read_text().split("export default")[0] for name in files)
    code += f"\nconsole.log(JSON.stringify({expression}));"
    done = subprocess.run([NODE, "--input-type=module", "-"], input=code, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.skipif(NODE is None, reason="node is not installed")
def test_browser_slices_as_the_kernel_does(fields):
    fields, grid = fields
    maps = show.Maps(fields, grid, axis="y", index=7, slab=3)
    codes = list(maps.voxels["E1"])
    scale = maps.about["panels"][1]["scale"]
    values = f"floats(new DataView(Uint8Array.from({codes}).buffer), {scale!r})"
    cut = in_node(f"[...cut({values}, {{n: 8, axis: 1, index: 7, slab: 3}})]", "browser.js", "panels.js")
    # A slab at the last slice goes on at the first.
    expected = np.mean([show.slice_of(fields["E1"], 1, i) for i in (6, 7, 0)], axis=0)
    np.testing.assert_allclose(np.reshape(cut, (8, 8)), expected, rtol=1e-3)


@pytest.mark.skipif(NODE is None, reason="node is not installed")
def test_browser_draws_the_curve_that_the_kernel_computes():
    nodes = [[-1.0, 0.5], [0.0, 0.1], [1.0, 0.4], [2.5, -1.0], [3.0, -1.0]]
    curves = show.Curves({}, nodes=nodes)
    x, y = np.transpose(in_node(f"throughNodes({nodes})", "browser.js", "curves.js"))
    np.testing.assert_allclose(y, curves.of_nodes(x), atol=1e-9)


@pytest.mark.skipif(NODE is None, reason="node is not installed")
def test_numbers_have_three_digits():
    given = [0, 1.23456, -0.000012345, 99.96, 12345.6, 1e7]
    assert in_node(f"{given}.map(three)", "browser.js") == ["0", "1.23", "−1.23e−5", "100", "12346", "1.00e+7"]
    assert in_node("[step(500, 4), step(0.7, 5), step(1, 1)]", "browser.js") == [200, 0.2, 1]


@pytest.mark.skipif(NODE is None, reason="node is not installed")
@pytest.mark.parametrize("path", sorted(ROOM.glob("*.js")), ids=lambda path: path.name)
def test_scripts_are_whole_and_short(path, tmp_path):
    assert len(path.read_text().splitlines()) < 400
    assert "http" not in path.read_text(), "nothing is loaded from elsewhere"
    module = tmp_path / f"{path.stem}.mjs"
    module.write_text(path.read_text())
    assert subprocess.run([NODE, "--check", str(module)], timeout=60).returncode == 0


def test_scripts_are_formatted_and_without_a_slip(node_modules):
    """prettier of every file; eslint of what a widget's files are together."""
    command = [
        NODE,
        node_modules / "prettier" / "bin" / "prettier.cjs",
        "--check",
        *ROOM.glob("*.js"),
        *ROOM.glob("*.css"),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    for widget in (show.Maps, show.Curves):
        command = [NODE, node_modules / "eslint" / "bin" / "eslint.js", "--stdin", "--stdin-filename", "widget.js"]
        here = {"cwd": node_modules.parent, "input": widget._esm, "timeout": 120}
        done = subprocess.run(command, capture_output=True, text=True, **here)
        assert done.returncode == 0, done.stdout


@pytest.mark.skipif(NODE is None, reason="node is not installed")
def test_browser_finds_a_closed_surface_that_faces_outwards():
    """A ball of radius 8.2 cells between the voxels of 24^3: its radius, its volume and, once more, its topology."""
    field = """Float32Array.from({ length: 24 ** 3 }, (_, i) =>
        -Math.hypot(Math.floor(i / 576) - 11.3, (Math.floor(i / 24) % 24) - 11.3, (i % 24) - 11.3))"""
    mesh = f"(({{ points, faces }}) => ({{ points, faces }}))(surface({field}, 24, -8.2))"
    found = in_node(mesh, "browser.js", "panels.js", "solid.js")
    points, faces = np.reshape(found["points"], (-1, 3)) - 11.3, np.reshape(found["faces"], (-1, 3))
    radius = np.linalg.norm(points, axis=1)
    assert 8.1 < radius.min() <= radius.max() < 8.25
    a, b, c = (points[faces[:, i]] for i in range(3))
    assert (a * np.cross(b, c)).sum() / 6 == pytest.approx(4 / 3 * np.pi * 8.2**3, rel=0.02)
    edges = np.sort(np.concatenate([faces[:, pair] for pair in ([0, 1], [1, 2], [2, 0])]), axis=1)
    unique, count = np.unique(edges, axis=0, return_counts=True)
    assert (count == 2).all() and len(points) - len(unique) + len(faces) == 2


def test_table_is_text_and_html():
    table = show.table({"P(k)": [0.12345, 7], "<mark>": [0.5, 12]}, ["Omega_m", "bins"], caption="Errors")
    assert repr(table) == "Errors\n           Ωm  bins\nP(k)    0.123     7\n<mark>    0.5    12"
    assert "&lt;mark&gt;" in table._repr_html_() and "<caption>Errors</caption>" in table._repr_html_()
    shares = show.table([{"what": "a", "share": 0.256}], {"what": "", "share": "{:.0%}"})
    assert repr(shares).splitlines()[1].split() == ["a", "26%"]
    with pytest.raises(ValueError, match="A row has 1 values and there are 2 columns: 3"):
        show.table([[1, 2], [3]], ["a", "b"])


@pytest.mark.parametrize("publish", [False, True])
def test_figures_are_saved_where_they_belong(publish, tmp_path, monkeypatch):
    monkeypatch.setattr(disk, "runs", lambda: tmp_path / "runs")
    monkeypatch.setattr(disk, "figures", lambda: tmp_path / "figures")
    show.save(plt.figure(figsize=(2, 1)), "name", publish=publish)
    path = tmp_path / ("figures" if publish else "runs/figures") / "name.png"
    assert Image.open(path).size == (200, 100)


def test_names_of_the_room_are_found_when_asked_for():
    assert show.kernel_explorer.__module__ == "nbkit.show.fields" and "Maps" in dir(show)
    with pytest.raises(AttributeError, match="nonsense"):
        _ = show.nonsense


def test_a_mark_looks_the_same_in_every_figure():
    few, many = looks(["mini_i2", "P_dd"]), looks(["P_dd", "p=2 ds=0", "mini_l2", "demo_i2"])
    assert few["mini_i2"] == many["demo_i2"] and few["P_dd"] == many["P_dd"]
    assert len({colour for colour, *_ in many.values()}) == 4
    two = looks(["information, k < 0.2", "information, k < 0.3"])
    assert two["information, k < 0.2"][0] != two["information, k < 0.3"][0]
