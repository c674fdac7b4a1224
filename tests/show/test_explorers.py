"""Explorers of a trained mark without a browser: what they show is what the mark does."""

import io
import re

import numpy as np
import pytest
import torch
from fake import busy_mark
from PIL import Image

from nbkit import look, show
from nbkit.show import mark_explorer
from nbkit.show.mark_explorer import mark_ticks


@pytest.fixture
def parts(lognormal):
    delta, grid = lognormal(16, box_size=125.0, mas="PCS", dtype=torch.float32)
    return look.anatomy(busy_mark(grid), delta, grid)


@pytest.fixture
def explorer(parts):
    return show.anatomy_explorer(parts, at=(3, 4, 5))


def text(widget):
    mine = widget.value if type(widget).__name__ == "HTML" else ""
    return mine + "".join(text(child) for child in getattr(widget, "children", ()))


def ratio(curves):
    """P_ΔΔ over P_δδ as the explorer draws it."""
    return next(np.array(curve["y"]) for curve in curves.curves if curve["label"] == "P_ΔΔ / P_δδ")


@pytest.mark.parametrize("l_max", [0, 1, 2])
def test_stored_outputs_are_pictures_for_marks_of_every_l_max(lognormal, l_max):
    delta, grid = lognormal(16, box_size=125.0, mas="PCS", dtype=torch.float32)
    parts = look.anatomy(busy_mark(grid, l_max), delta, grid)
    for explorer in (show.anatomy_explorer(parts), show.surface_explorer(parts)):
        bundle = explorer._repr_mimebundle_()
        assert bundle["text/plain"] == f"<{explorer.title}: open in JupyterLab to move it>"
        assert np.asarray(Image.open(io.BytesIO(explorer.static)).convert("L")).std() > 10
        assert len(explorer.static) < 300_000


def test_without_any_term_the_marked_field_is_the_density(explorer, parts):
    maps, curves, _ = explorer.panels
    assert "explains 100%" in text(explorer)
    P_mm, field = ratio(curves), maps.fields["Delta"].clone()
    maps.on = []
    assert "on: none" in text(explorer) and "explains 0%" in text(explorer) and "P_ΔΔ / P_δδ = 1.00" in text(explorer)
    np.testing.assert_allclose(ratio(curves), 1, rtol=1e-4)
    np.testing.assert_allclose(maps.fields["Delta"], parts.delta, atol=1e-4)
    maps.on = list(parts.terms)
    np.testing.assert_array_equal(ratio(curves), P_mm)
    np.testing.assert_array_equal(maps.fields["Delta"], field)


def test_m_in_the_browser_is_that_of_the_mark(explorer, parts):
    """The widget adds the terms up as its script does; off, a term is its mean."""
    maps = explorer.panels[0]
    for on in (list(parts.terms), ["h_E0", "h_x"]):
        maps.on = on
        M = parts.M([name for name in parts.terms if name not in on]).numpy()
        np.testing.assert_allclose(maps.mark(), M, rtol=5e-3)


def test_a_pinned_voxel_says_its_own_mark(explorer, parts):
    maps = explorer.panels[0]
    assert "voxel 3, 4, 5" in text(explorer)
    maps.pinned = [7, 2, 9]
    said = text(explorer)
    assert "voxel 7, 2, 9" in said
    M = float(re.search(r"M = <b>([\d.e+-]+)</b>", said)[1])
    assert pytest.approx(float(parts.M()[7, 2, 9]), rel=6e-3) == M
    numbers = [float(x) for x in re.findall(r"[-+]?\d+\.\d+", said.rsplit("η = ", 1)[1].split(" = <b>")[0])]
    eta = float(re.search(r"= <b>(-?[\d.]+)</b>, M", said)[1])
    assert sum(numbers) == pytest.approx(eta, abs=0.005 * (len(numbers) + 1))
    maps.on = [name for name in parts.terms if name != "h_E0"]
    assert f"M = <b>{float(parts.M(['h_E0'])[7, 2, 9]):.3g}</b>" in text(explorer)
    maps.pinned = []
    assert "pin a voxel" in text(explorer)


def test_the_surface_is_not_touched_before_it_is_shown(parts):
    """Edits before the first view leave the view empty in JupyterLab; the browser tests see it, this one says why."""
    figure = show.surface_explorer(parts, R=20.0).panels[0].children[1]
    assert figure._last_trace_edit_id == figure._last_layout_edit_id == 0
    figure.data[0].opacity = 0.5
    assert figure._last_trace_edit_id > 0


@pytest.mark.parametrize("limits", [(3.0, 18.5), (-10.5, -6.0), (-1.0, 1.0), (-3.0, 40.0)])
def test_marks_beside_the_waterfall_are_few_and_inside(limits):
    eta = np.log(np.expm1(mark_ticks(*limits)))
    assert 3 <= len(eta) <= 9
    assert (np.diff(eta) > 0).all() and limits[0] < eta[0] and eta[-1] < limits[1]


def test_surface_follows_its_level_and_carries_the_mark(parts):
    explorer = show.surface_explorer(parts, R=20.0)
    (height,) = explorer.controls
    mesh = explorer.panels[0].children[1].data[0]
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
    points, faces, values = mark_explorer.isosurface(-np.sqrt(X**2 + Y**2 + Z**2), -8.2, X)
    points = points - 11.3
    radius = np.linalg.norm(points, axis=1)
    assert 8.1 < radius.min() <= radius.max() < 8.2 + 1e-5
    np.testing.assert_allclose(values, points[:, 0], atol=1e-5)
    a, b, c = (points[faces[:, i]] for i in range(3))
    across = np.cross(b - a, c - a)
    assert np.linalg.norm(across, axis=1).sum() / 2 == pytest.approx(4 * np.pi * 8.2**2, rel=0.01)
    # The volume it encloses has the right size and, as it faces outwards, sign.
    assert (a * across).sum() / 6 == pytest.approx(4 / 3 * np.pi * 8.2**3, rel=0.01)
    edges = np.sort(np.concatenate([faces[:, pair] for pair in ([0, 1], [1, 2], [2, 0])]), axis=1)
    unique, count = np.unique(edges, axis=0, return_counts=True)
    assert (count == 2).all()
    assert len(points) - len(unique) + len(faces) == 2
