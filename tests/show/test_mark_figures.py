"""Figures of a mark taken apart show the mark they are given."""

import matplotlib.pyplot as plt
import pytest
import torch
from fake import busy_mark

from nbkit import look, marked_field
from nbkit.show import mark


@pytest.mark.parametrize("l_max", [0, 1, 2])
def test_figures_fit_marks_of_every_l_max(lognormal, l_max):
    delta, grid = lognormal(16, mas="PCS", dtype=torch.float32)
    parts = look.anatomy(busy_mark(grid, l_max), delta, grid)
    figure = mark.anatomy(parts)
    drawn = [ax for ax in figure.axes if ax.get_visible() and ax.images]
    assert len(drawn) == {0: 6, 1: 9, 2: 15}[l_max]
    responses = mark.responses(parts)
    assert sum(bool(ax.lines) for ax in responses.axes) == len(parts.invariants)
    for each in (figure, responses):
        plt.close(each)


def test_terms_share_one_range_of_colours(lognormal):
    delta, grid = lognormal(16, mas="PCS", dtype=torch.float32)
    parts = look.anatomy(busy_mark(grid), delta, grid)
    maps = mark.anatomy_maps(parts)
    assert len({tuple(maps.ranges[name]) for name in parts.terms}) == 1
    torch.testing.assert_close(maps.fields["Delta"], marked_field(parts.M() / parts.M().mean(), parts.delta))
