"""Figures of latent geometry show what they are given."""

import matplotlib.pyplot as plt
import numpy as np

from nbkit import look
from nbkit.show import latent
from nbkit.train.contrast import Heads
from nbkit.universe import PRIOR_BSQ


def thetas(count):
    low, high = PRIOR_BSQ.T
    return low + np.random.default_rng(0).random((count, 5)) * (high - low)


def test_figures_show_what_they_are_given():
    theta = thetas(50)
    z = np.random.default_rng(0).standard_normal((50, 6))
    pca = look.latent.principal_components(z, theta)
    figure = latent.projection(pca, theta)
    for ax, column in zip(figure.axes[:2], (4, 0), strict=True):
        np.testing.assert_array_equal(ax.collections[0].get_array(), theta[:, column])
    heads = Heads(4, 8, 16).requires_grad_(False)
    assert len(latent.metric_map(heads, 0.05).axes[0].patches) == 50
    plt.close("all")
