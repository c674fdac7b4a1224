"""Explorers of a trained mark without a browser: what they show is what the mark does."""

import io
import re
from itertools import pairwise

import numpy as np
import pytest
import torch
from fake import busy_mark
from PIL import Image
from test_widgets import images

from nbkit import look
from nbkit.show import explorers


@pytest.fixture
def parts(lognormal):
    delta, grid = lognormal(16, box_size=125.0, mas="PCS", dtype=torch.float32)
    return look.anatomy(busy_mark(grid), delta, grid)


def controls(explorer):
    return [x for each in explorer.controls for x in getattr(each, "children", (each,))]


def text(widget):
    mine = widget.value if type(widget).__name__ == "HTML" else ""
    return mine + "".join(text(child) for child in getattr(widget, "children", ()))


@pytest.mark.parametrize("kind", [explorers.anatomy_explorer, explorers.switch_explorer, explorers.voxel_explorer])
def test_every_control_changes_a_picture_and_back(parts, kind):
    explorer = kind(parts)
    for control in controls(explorer):
        before, was = images(explorer), control.value
        if hasattr(control, "options"):
            control.value = next(x for x in control.options if x != was)
        elif isinstance(was, bool):
            control.value = not was
        else:
            control.value = was + 1 if was < control.max else was - 1
        assert images(explorer) != before, control.description
        control.value = was
        assert images(explorer) == before, control.description


@pytest.mark.parametrize("l_max", [0, 2])
def test_stored_outputs_are_pictures_for_marks_of_every_l_max(lognormal, l_max):
    delta, grid = lognormal(16, box_size=125.0, mas="PCS", dtype=torch.float32)
    parts = look.anatomy(busy_mark(grid, l_max), delta, grid)
    kinds = explorers.anatomy_explorer, explorers.switch_explorer, explorers.voxel_explorer
    for explorer in [kind(parts) for kind in (*kinds, explorers.surface_explorer)]:
        bundle = explorer._repr_mimebundle_()
        assert bundle["text/plain"] == f"<{explorer.title}: open in JupyterLab to move it>"
        assert np.asarray(Image.open(io.BytesIO(explorer.static)).convert("L")).std() > 10
        assert len(explorer.static) < 300_000


def test_without_any_channel_the_marked_field_is_the_density(parts):
    explorer = explorers.switch_explorer(parts)
    assert "explains 100%" in text(explorer)
    for switch in controls(explorer):
        switch.value = False
    assert "on: none" in text(explorer)
    assert "explains 0%" in text(explorer)
    assert "P_mm / P_dd = 1.00" in text(explorer)


def test_a_voxel_says_its_own_mark(parts):
    explorer = explorers.voxel_explorer(parts, at=(3, 4, 5))
    for control, value in zip(controls(explorer), (7, 2, 9), strict=True):
        control.value = value
    caption = text(explorer)
    assert "voxel 7, 2, 9" in caption
    M = float(re.search(r"M = <b>([\d.]+)</b>", caption)[1])
    assert pytest.approx(float(parts.M()[7, 2, 9]), rel=6e-3) == M
    numbers = [float(x) for x in re.findall(r"[-+]?\d+\.\d+", caption.split("η = ")[1].split(" = ")[0])]
    eta = float(re.search(r"= <b>(-?[\d.]+)</b>, M", caption)[1])
    assert sum(numbers) == pytest.approx(eta, abs=0.005 * (len(numbers) + 1))
    map = explorer.children[1].children[0]
    assert (map.data[1].x[0], map.data[1].y[0]) == (7, 2)
    np.testing.assert_allclose(map.data[0].z[2][7], np.log10(max(1 + float(parts.delta[7, 2, 9]), 0.01)), rtol=1e-6)


def test_a_click_on_the_map_moves_the_sliders(parts):
    explorer = explorers.voxel_explorer(parts, at=(3, 4, 5))
    map = explorer.children[1].children[0]
    clicked = {"trace_indexes": [0], "point_indexes": [[9, 11]], "xs": [11], "ys": [9]}
    map._js2py_pointsCallback = {
        "event_type": "plotly_click",
        "points": clicked,
        "device_state": None,
        "selector": None,
    }
    assert [control.value for control in controls(explorer)] == [11, 9, 5]


def test_plotly_figures_are_not_touched_before_they_are_shown(parts):
    """Edits before the first view leave the view empty in JupyterLab; the browser tests see it, this one says why."""
    map = explorers.voxel_explorer(parts).children[1].children[0]
    mesh = explorers.surface_explorer(parts, R=20.0).children[1].children[0].children[1]
    for figure in (map, mesh):
        assert figure._last_trace_edit_id == figure._last_layout_edit_id == 0
    map.data[1].x = [1]
    assert map._last_trace_edit_id > 0


def test_waterfall_bars_join_end_to_end(parts):
    fall = explorers.Waterfall(parts)
    fall.show(-1.0, [0.5, -0.2, 0.1, 0.0, 0.3])
    spans = [bar.get_ydata() for bar in fall.bars]
    assert spans[0][1] == -1.0 == spans[1][0]
    assert all(a[1] == b[0] for a, b in pairwise(spans[1:-1]))
    assert spans[-1][1] == spans[-2][1] == pytest.approx(-0.3)


@pytest.mark.parametrize("limits", [(3.0, 18.5), (-10.5, -6.0), (-1.0, 1.0), (-3.0, 40.0)])
def test_marks_beside_the_waterfall_are_few_and_inside(limits):
    eta = np.log(np.expm1(explorers.mark_ticks(*limits)))
    assert 3 <= len(eta) <= 9
    assert (np.diff(eta) > 0).all() and limits[0] < eta[0] and eta[-1] < limits[1]


def test_surface_follows_its_level_and_carries_the_mark(parts):
    explorer = explorers.surface_explorer(parts, R=20.0)
    (height,) = explorer.controls
    mesh = explorer.children[1].children[0].children[1].data[0]
    height.value = 0.8
    low = len(mesh.i)
    assert "1 + delta = 0.8" in text(explorer)
    height.value = 1.5
    assert len(mesh.i) != low
    assert len(mesh.intensity) == len(mesh.x)
    M = parts.M() / parts.M().mean()
    assert M.min() <= min(mesh.intensity) <= max(mesh.intensity) <= M.max()


def test_isosurface_of_a_ball_is_a_closed_sphere_that_faces_outwards():
    x = np.arange(24) - 11.3
    X, Y, Z = np.meshgrid(x, x, x, indexing="ij")
    points, faces, normals, values = explorers.isosurface(-np.sqrt(X**2 + Y**2 + Z**2), -8.2, X)
    points = points - 11.3
    radius = np.linalg.norm(points, axis=1)
    assert 8.1 < radius.min() <= radius.max() < 8.2 + 1e-5
    np.testing.assert_allclose(values, points[:, 0], atol=1e-5)
    np.testing.assert_allclose((normals * points).sum(1), radius, rtol=0.01)
    a, b, c = (points[faces[:, i]] for i in range(3))
    across = np.cross(b - a, c - a)
    assert np.linalg.norm(across, axis=1).sum() / 2 == pytest.approx(4 * np.pi * 8.2**2, rel=0.01)
    # The volume it encloses has the right size and, as it faces outwards, sign.
    assert (a * across).sum() / 6 == pytest.approx(4 / 3 * np.pi * 8.2**3, rel=0.01)
    edges = np.sort(np.concatenate([faces[:, pair] for pair in ([0, 1], [1, 2], [2, 0])]), axis=1)
    unique, count = np.unique(edges, axis=0, return_counts=True)
    assert (count == 2).all()
    assert len(points) - len(unique) + len(faces) == 2
