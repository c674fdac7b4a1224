"""Explorers of a trained mark, of forecasts and of latent geometry: what they show is what mark and numbers say."""

import io
import re

import numpy as np
import pytest
import torch
from fake import busy_mark
from PIL import Image
from test_widgets import images

from nbkit import Grid, look, marked_field, show, spectra
from nbkit.forecast import Forecasts
from nbkit.forecast.bootstrap import resampled, resamples
from nbkit.forecast.fisher import Ingredients
from nbkit.show import mark
from nbkit.universe import FIDUCIAL, PARAMETERS


@pytest.fixture
def box(lognormal):
    return lognormal(16, box_size=125.0, mas="PCS", dtype=torch.float32)


@pytest.fixture
def parts(box):
    delta, grid = box
    return look.anatomy(busy_mark(grid), delta, grid)


def text(widget):
    mine = widget.value if type(widget).__name__ == "HTML" else ""
    return mine + "".join(text(child) for child in getattr(widget, "children", ()))


def state(explorer):
    return images(explorer), text(explorer), [p.about for p in explorer.panels if hasattr(p, "about")]


def change(control, was):
    if hasattr(control, "options"):
        return next(x for x in dict(control.options).values() if x != was)
    return not was if isinstance(was, bool) else was + control.step if was < control.max else was - control.step


def drawn(explorer):
    """{label: (k, y)} of the curves of an explorer."""
    return {curve["label"]: (curve["x"], curve["y"]) for curve in explorer.panels[1].curves}


@pytest.mark.parametrize("l_max", [0, 1, 2])
def test_stored_outputs_are_pictures_for_marks_of_every_l_max(box, l_max):
    delta, grid = box
    parts = look.anatomy(busy_mark(grid, l_max), delta, grid)
    explorer = show.anatomy_explorer(parts)
    names = [panel["name"] for panel in explorer.panels[0].about["panels"]]
    assert names == ["delta", *parts.invariants, "Delta", *parts.terms, "M"]
    for each in (explorer, show.surface_explorer(parts)):
        bundle = each._repr_mimebundle_()
        assert bundle["text/plain"] == f"<{each.title}: open in JupyterLab to move it>"
        assert set(bundle) >= {"image/png", "application/vnd.jupyter.widget-view+json"}
        assert np.asarray(Image.open(io.BytesIO(each.static)).convert("L")).std() > 10
        assert len(each.static) < 300_000


def test_maps_are_those_of_the_mark(parts):
    maps = show.anatomy_explorer(parts).panels[0]
    torch.testing.assert_close(maps.mark(), parts.M(), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(maps.fields["Delta"], marked_field(parts.M() / parts.M().mean(), parts.delta))
    for name, h in parts.terms.items():
        torch.testing.assert_close(maps.fields[name], h - parts.means[name])
    assert len({tuple(maps.ranges[name]) for name in parts.terms}) == 1, "terms share one range of colours"


def test_a_term_that_is_off_is_its_mean_everywhere(parts):
    explorer = show.anatomy_explorer(parts, kmax=0.2)
    maps, start = explorer.panels[0], drawn(explorer)
    for name in parts.terms:
        maps.on, M = [x for x in parts.terms if x != name], parts.M([name])
        torch.testing.assert_close(maps.mark(), M, rtol=1e-5, atol=1e-6)
        Delta = marked_field(M / M.mean(), parts.delta)
        torch.testing.assert_close(maps.fields["Delta"], Delta)
        P = spectra(parts.delta, Delta, grid=parts.grid, kmax=0.2)
        lines = drawn(explorer)
        np.testing.assert_allclose(lines["P_δΔ / P_δδ"], (P.k, P.P_dm / P.P_dd), rtol=1e-4)
        np.testing.assert_allclose(lines["P_ΔΔ / P_δδ"], (P.k, P.P_mm / P.P_dd), rtol=1e-4)
        assert lines["P_ΔΔ, all on"] == start["P_ΔΔ / P_δδ"], "the full mark stays as a ghost"
        assert f"explains {np.corrcoef(M.ravel(), parts.M().ravel())[0, 1] ** 2:.0%} " in text(explorer)
        assert f"{float(P.P_mm[-1] / P.P_dd[-1]):.2f} at k" in text(explorer)


def test_all_on_again_is_the_start(parts):
    explorer = show.anatomy_explorer(parts)
    before = state(explorer)
    for name in parts.terms:
        explorer.panels[0].on = [x for x in parts.terms if x != name]
        assert state(explorer)[:2] != before[:2], name
        explorer.panels[0].on = list(parts.terms)
        assert state(explorer) == before, name


def test_without_any_term_the_marked_field_is_the_density(parts):
    explorer = show.anatomy_explorer(parts)
    assert "explains 100%" in text(explorer)
    explorer.panels[0].on = []
    assert "on: none" in text(explorer) and "explains 0%" in text(explorer) and "P_δδ = 1.00" in text(explorer)
    torch.testing.assert_close(explorer.panels[0].fields["Delta"], parts.delta, rtol=1e-4, atol=1e-4)
    for label in ("P_δΔ / P_δδ", "P_ΔΔ / P_δδ"):
        np.testing.assert_allclose(drawn(explorer)[label][1], 1, rtol=1e-4)


def test_colours_that_were_moved_stay(parts):
    maps = show.anatomy_explorer(parts).panels[0]
    maps.ranges = maps.ranges | {"E0": [-0.25, 0.5]}
    maps.on = maps.on[1:]
    assert maps.ranges["E0"] == [-0.25, 0.5]


def numbers(caption):
    """eta and M that a caption says, and the numbers whose sum eta is said to be."""
    total = re.search(r"</div>η = (.*) = <b>(-?[\d.]+)</b>, M = <b>([\d.e-]+)</b>", caption)
    return float(total[2]), float(total[3]), [float(x) for x in re.findall(r"[-+]?\d+\.\d\d", total[1])]


def test_terms_of_a_voxel_add_up_to_its_eta(parts):
    explorer = show.anatomy_explorer(parts)
    maps = explorer.panels[0]
    assert maps.pinned == [int(i) for i in np.unravel_index(int(parts.delta.argmax()), parts.grid.shape)]
    assert maps.index == maps.pinned[2]
    for off in ([], ["h_E0", "h_x"]):
        maps.on = [name for name in parts.terms if name not in off]
        maps.pinned = [7, 2, 9]
        caption = text(explorer)
        assert "voxel 7, 2, 9" in caption and f"1 + δ = {1 + parts.delta[7, 2, 9]:.2f}" in caption
        eta, M, steps = numbers(caption)
        assert len(steps) == 1 + len(maps.on)
        assert eta == pytest.approx(float(parts.eta(off)[7, 2, 9]), abs=0.006)
        assert pytest.approx(float(parts.M(off)[7, 2, 9]), rel=6e-3) == M
        assert sum(steps) == pytest.approx(eta, abs=0.005 * (len(steps) + 1))
    maps.pinned = []
    assert "Why is M high here?" in text(explorer)


def test_bars_of_a_voxel_join_end_to_end(parts):
    html = mark.voxel_bars(parts, (3, 4, 5))
    bars = re.findall(r"margin: 2px 0 0 (-?[\d.]+)%; width: max\(([\d.]+)%", html)
    spans = [(float(left), float(left) + float(width)) for left, width in bars]
    assert len(spans) == len(parts.terms) + 2 and spans[0][0] == spans[-1][0] == 0
    at = spans[0][1]
    for low, high in spans[1:-1]:
        assert min(abs(at - low), abs(at - high)) < 0.02
        at = high if abs(at - low) < abs(at - high) else low
    assert at == pytest.approx(spans[-1][1], abs=0.02)


def test_surface_is_where_the_density_has_its_level(parts):
    explorer = show.surface_explorer(parts, R=20.0)
    (maps,) = explorer.panels
    triangles, values, skin = maps.surface()
    assert skin == "M" and len(triangles) == len(values) > 0
    low, high = (float(each) for each in (maps.fields["M"].min(), maps.fields["M"].max()))
    assert low <= values.min() <= values.max() <= high
    picture = maps.png()
    maps.level += 0.4
    assert maps.png() != picture and len(maps.surface()[0]) != len(triangles)


def test_surface_of_a_signed_field_is_there_twice():
    x = torch.arange(16.0) - 7.5
    maps = show.Maps({"x": x[:, None, None].expand(16, 16, 16)}, Grid(16, 160.0), solid="x", level=3.0)
    triangles, values, _ = maps.surface()
    ends = 10.0 * (np.array([-3.0, 3.0]) + 8)
    np.testing.assert_allclose(np.unique(triangles[..., 0].round(3)), ends)
    np.testing.assert_allclose(np.unique(values.round(3)), [-3, 3])
    maps.solid = 0
    assert maps.png()


@pytest.fixture
def scan():
    """{kmax: Forecasts} of two summaries of Gaussian data."""
    rng, found = np.random.default_rng(0), {}
    vectors, slopes = rng.standard_normal((60, 24)), rng.standard_normal((20, 5, 24)) * 0.1
    slopes += 3 * rng.standard_normal((5, 24))
    weights = resamples(60, 20, count=20)
    for at, n in ((0.1, 6), (0.2, 8)):
        given = {"P_dd": Ingredients(vectors[:, :n], slopes[..., :n])}
        given["mark"] = Ingredients(vectors[:, : 3 * n], slopes[..., : 3 * n])
        found[at] = Forecasts({label: resampled(each, weights) for label, each in given.items()})
    return found


def test_fisher_explorer_draws_the_forecasts(scan):
    explorer = show.fisher_explorer(scan, kmax=0.25)
    ellipses, at = explorer.panels[0], explorer.controls[0]
    assert at.value == 0.2 and "7 bins a spectrum; held fixed: nothing" in text(explorer)
    for label, each in scan[0.2].items():
        np.testing.assert_allclose(ellipses.covariances[label], each.covariance())
    np.testing.assert_array_equal(ellipses.centre, FIDUCIAL)
    for control in explorer.controls:
        before, was = state(explorer), control.value
        control.value = change(control, was)
        assert all(a != b for a, b in zip(state(explorer), before, strict=True)), control.description
        control.value = was
        assert state(explorer) == before, control.description
    for choice in ellipses.controls:
        assert list(choice.options) == ["Ωm", "Ωb", "h", "nₛ", "σ₈"]


def test_parameters_that_are_held_fixed_have_no_error(scan):
    explorer = show.fisher_explorer(scan, kmax=0.2)
    ellipses, (_, *boxes) = explorer.panels[0], explorer.controls
    reach = ellipses.about["reach"]
    boxes[2].value = True
    C = ellipses.covariances["mark"]
    np.testing.assert_allclose(C, scan[0.2]["mark"].hold("h").covariance())
    assert not C[2].any() and C[0, 0] > 0
    assert text(explorer).count(">fixed<") == 3 and "held fixed: h<" in text(explorer)
    ratio = (scan[0.2].hold("h")["P_dd"] / scan[0.2].hold("h")["mark"]).words()
    assert all(f">{words}<" in text(explorer) for words in ratio) and "mark: better by" in text(explorer)
    boxes[4].value = True
    assert ellipses.png(), "an ellipse of no width is a line"
    assert ellipses.about["reach"] == reach, "axes stay, so that what is fixed is seen to help"
    for each in boxes:
        each.value = True
    assert "nothing is left to forecast" in text(explorer)


def test_latent_explorer_follows_its_controls():
    rng = np.random.default_rng(0)
    theta, z = rng.random((40, 5)), rng.standard_normal((2, 40, 6))
    clouds = {label: look.latent.principal_components(x, theta) for label, x in zip(("a", "b"), z, strict=True)}
    rank = {"a": np.arange(40), "b": np.arange(40)[::-1]}
    explorer = show.latent_explorer(clouds, theta, rank)
    which, by = explorer.controls
    figure = explorer.panels[0]
    assert figure._last_trace_edit_id == figure._last_layout_edit_id == 0, "else it is shown empty"
    points = figure.data[0]
    np.testing.assert_array_equal(points.marker.color, theta[:, PARAMETERS.index("sigma_8")])
    by.value = "retrieval rank"
    np.testing.assert_array_equal(points.marker.color, rank["a"])
    assert points.marker.colorbar.title.text == "retrieval rank" and points.marker.size == 8
    which.value = "b"
    np.testing.assert_array_equal(points.marker.color, rank["b"])
    np.testing.assert_array_equal(points.x, clouds["b"].scores[:, 0])
    assert f"{clouds['b'].explained[1]:.0%}" in figure.layout.yaxis.title.text
    assert "Ωm" in points.hovertemplate and points.customdata.shape == (40, 6)
    assert set(explorer._repr_mimebundle_()) >= {"text/plain", "image/png"}
