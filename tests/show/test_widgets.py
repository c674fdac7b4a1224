"""Explorers without a browser: pictures are right, controls change them, stored outputs are stable."""

import io

import matplotlib
import numpy as np
import pytest
import torch
from PIL import Image

from nbkit import Grid
from nbkit.show import plots, widgets
from nbkit.show import universe as universe_plots
from nbkit.universe.simulate import Simulator


def pixels(png):
    return np.asarray(Image.open(io.BytesIO(png)).convert("RGB"))


def test_picture_has_its_first_row_at_the_bottom_and_the_colours_of_the_map():
    values = np.array([[0.0, 1.0], [0.5, 2.0]])
    image = pixels(widgets.picture(values, "viridis", 0.0, 1.0, side=4))
    assert image.shape == (4, 4, 3)
    ends = (255 * matplotlib.colormaps["viridis"]([0, 255, 255])[:, :3]).astype(np.uint8)
    np.testing.assert_array_equal(image[-1, 0], ends[0])
    np.testing.assert_array_equal(image[-1, -1], ends[1])
    np.testing.assert_array_equal(image[0, -1], ends[2])


def test_slices_run_right_and_up(lognormal):
    """The first remaining axis runs to the right, the second upwards."""
    delta, _ = lognormal(8)
    cut = plots.slice_of(delta, 2, 3)
    assert cut[5, 1] == delta[1, 5, 3]
    cut = plots.slice_of(delta, 0, 3)
    assert cut[5, 1] == delta[3, 1, 5]


def test_signed_maps_are_centred_on_zero(lognormal):
    delta, _ = lognormal(16)
    low, high = plots.limits(delta, "E0")
    assert low == -high
    low, high = plots.limits(delta.abs(), "E1")
    assert 0 <= low < high


def test_live_lines_follow_their_data():
    plot = plots.LiveLines(xlim=(0, 1), ylim=(0, 1))
    line = plot.line([0, 1], [0.2, 0.2], color="black")
    low = plot.png()
    line.set_ydata([0.8, 0.8])
    high = plot.png()
    line.set_ydata([0.2, 0.2])
    assert low != high
    assert plot.png() == low
    dark = [np.where(pixels(x).sum(2)[20:195, 150] < 400)[0] for x in (low, high)]
    assert dark[1].max() < dark[0].min()


@pytest.fixture
def explorers(lognormal):
    delta, grid = lognormal(16, mas="PCS", dtype=torch.float32)
    universe = widgets.universe_explorer(Simulator(Grid(16, 125.0, "PCS"), particles=16), seed=1)
    return [widgets.kernel_explorer(grid.k_nyq, n=16), widgets.invariant_explorer(delta, grid), universe]


def images(widget):
    if isinstance(widget, widgets.w.Image):
        return [bytes(widget.value)]
    return [x for child in getattr(widget, "children", ()) for x in images(child)]


def test_every_control_changes_a_picture(explorers):
    for explorer in explorers:
        for control in explorer.controls:
            before, was = images(explorer), control.value
            if hasattr(control, "options"):
                control.value = next(x for x in control.options if x != was)
            else:
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


def test_sheet_between_unmoved_particles_is_smooth():
    """A lattice at rest has density 1 everywhere; a plane wave of displacements moves its mass, and keeps it."""
    q = torch.arange(16, dtype=torch.float32) * 6.25
    lattice = torch.stack(torch.meshgrid(q, q, q, indexing="ij"), -1).reshape(-1, 3)
    still = universe_plots.sheet_density(lattice, 100.0, depth=25.0, pixels=32, refine=4)
    torch.testing.assert_close(still, torch.ones(32, 32), rtol=0, atol=1e-3)
    moved = lattice.clone()
    moved[:, 0] -= 5 * torch.sin(2 * torch.pi * lattice[:, 0] / 100)
    dense = universe_plots.sheet_density(moved.remainder(100.0), 100.0, depth=25.0, pixels=32, refine=8)
    # At x = 0 the map contracts by 1 - 5 * 2 pi / 100.
    assert abs(dense[0].mean().item() * (1 - 0.1 * torch.pi) - 1) < 0.05
    assert abs(dense[16].mean().item() * (1 + 0.1 * torch.pi) - 1) < 0.05
