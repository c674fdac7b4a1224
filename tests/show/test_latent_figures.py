"""Figures and explorer of latent geometry show what they are given."""

import matplotlib.pyplot as plt
import numpy as np

from nbkit import look
from nbkit.show import latent
from nbkit.train.contrast import Heads
from nbkit.universe import PARAMETERS, PRIOR_BSQ


def thetas(count):
    low, high = PRIOR_BSQ.T
    return low + np.random.default_rng(0).random((count, 5)) * (high - low)


def test_explorer_follows_its_controls():
    theta = thetas(40)
    z = np.random.default_rng(0).standard_normal((2, 40, 6))
    clouds = {label: look.latent.principal_components(x, theta) for label, x in zip(("a", "b"), z, strict=True)}
    rank = {"a": np.arange(40), "b": np.arange(40)[::-1]}
    explorer = latent.latent_explorer(clouds, theta, rank)
    which, by = explorer.controls
    points = explorer.children[1].children[0].data[0]
    np.testing.assert_array_equal(points.marker.color, theta[:, PARAMETERS.index("sigma_8")])
    by.value = "retrieval rank"
    np.testing.assert_array_equal(points.marker.color, rank["a"])
    which.value = "b"
    np.testing.assert_array_equal(points.marker.color, rank["b"])
    np.testing.assert_array_equal(points.x, clouds["b"].scores[:, 0])
    assert "Omega_m" in points.hovertemplate and points.customdata.shape == (40, 6)
    assert set(explorer._repr_mimebundle_()) >= {"text/plain", "image/png"}


def test_figures_show_what_they_are_given():
    theta = thetas(50)
    z = np.random.default_rng(0).standard_normal((50, 6))
    pca = look.latent.principal_components(z, theta)
    figure = latent.projection(pca, theta)
    for ax, column in zip(figure.axes[:2], (4, 0), strict=True):
        np.testing.assert_array_equal(ax.collections[0].get_array(), theta[:, column])
    aligned = look.latent.alignment(z, theta, 3)
    figure = latent.alignments({"one": aligned})
    assert [text.get_text() for text in figure.axes[0].texts] == [f"{x:.2f}" for x in aligned.R2.ravel()]
    heads = Heads(4, 8, 16).requires_grad_(False)
    assert len(latent.metric_map(heads, 0.05).axes[1].patches) == 50
    plt.close("all")
