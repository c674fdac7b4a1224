"""Figures of recovery show the numbers they are given."""

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import numpy as np
import pytest

from nbkit.mark.classical import classical_marks
from nbkit.recover import Recovery
from nbkit.recover.posterior import Coverage
from nbkit.show import forecast as recovery_plots
from nbkit.show.looks import pretty
from nbkit.universe.cosmology import PRIOR_LATIN_HYPERCUBE


@pytest.fixture(autouse=True)
def closed():
    yield
    plt.close("all")


def found(count=60, train=100, seed=0):
    """Predictions whose scatter differs from mark to mark, for the classical marks, P_dd and a learned one."""
    rng = np.random.default_rng(seed)
    labels = ("P_dd", *classical_marks(), "learned")
    low, high = PRIOR_LATIN_HYPERCUBE.T
    theta = low + rng.random((count, 5)) * (high - low)
    scatter = np.linspace(0.1, 0.3, len(labels))[:, None, None, None] * (high - low)
    predicted = theta + scatter * rng.standard_normal((len(labels), 2, count, 5))
    return Recovery(labels, theta, predicted, scatter[:, 0, 0, 0], train, 0)


def texts(ax):
    return [text.get_text() for text in ax.texts]


def test_cells_of_the_ratio_map_are_hatched_where_nothing_is_shown():
    recovery, marks = found(), classical_marks()
    figure = recovery_plots.mse_map(recovery, marks, over="learned")
    for ax, i in zip(figure.axes, (0, 4), strict=False):
        ratios = [recovery.ratio(label, "learned")[:, i] for label in marks]
        unsure = sum(low <= 1 <= high for _, low, high in ratios)
        assert 0 < unsure < 48
        assert sum(patch.get_hatch() is not None for patch in ax.patches) == unsure
        assert sorted(texts(ax)) == sorted(f"{value:.2f}" for value, _, _ in ratios)


def test_mse_map_has_a_cell_for_every_mark():
    recovery, marks = found(), classical_marks()
    figure = recovery_plots.mse_map(recovery, marks)
    said = texts(figure.axes[1])
    assert len(said) == 48
    assert said[0] == f"{recovery.mse('p=-2.5 ds=0')[0, 4]:.2g}"


def test_true_against_predicted_shows_every_simulation():
    recovery = found()
    figure = recovery_plots.true_against_predicted(recovery, ["P_dd", "learned"])
    assert len(figure.axes) == 4
    points = figure.axes[3].lines[1].get_xydata()
    np.testing.assert_allclose(points[:, 0], recovery.theta[:, 4])
    np.testing.assert_allclose(points[:, 1], recovery.predicted[-1].mean(0)[:, 4])


def test_learning_curves_draw_every_label():
    labels = ["P_dd", "p=2 ds=0.2", "learned"]
    figure = recovery_plots.learning_curves([found(train=50), found(train=500, seed=1)], labels)
    assert [text.get_text() for text in figure.axes[0].get_legend().get_texts()] == list(map(pretty, labels))
    assert [tick.get_text() for tick in figure.axes[0].get_xticklabels()] == ["50", "500"]


def test_corner_and_coverage_are_silent(capsys):
    rng = np.random.default_rng(0)
    low, high = PRIOR_LATIN_HYPERCUBE.T
    samples = {label: low + rng.random((500, 5)) * (high - low) for label in ("P_dd", "learned")}
    figure = recovery_plots.corner(samples, (low + high) / 2, PRIOR_LATIN_HYPERCUBE)
    assert len(figure.axes) == 15
    level = np.linspace(0, 1, 21)
    made = {label: Coverage(rng.random((100, 5)), level, level) for label in samples}
    assert [ax.get_title() for ax in recovery_plots.coverage(made).axes] == [
        *map(pretty, samples),
        "all parameters (TARP)",
    ]
    assert capsys.readouterr() == ("", "")
