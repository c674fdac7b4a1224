"""Ellipses under a slider for kmax and a checkbox for each parameter held fixed, redrawn in milliseconds."""

import ipywidgets as w
import numpy as np
from scipy.stats import chi2

from nbkit.show import plots
from nbkit.show.fisher import COLOURS, LINES, pretty
from nbkit.show.widgets import Explorer, observed, side_by_side
from nbkit.universe.cosmology import FIDUCIAL, LATEX, PARAMETERS, QUIJOTE_NAMES

CIRCLE = np.stack([f(np.linspace(0, 2 * np.pi, 100)) for f in (np.cos, np.sin)])
# Radii, in sigma, that hold 68 and 95 % of a two-dimensional Gaussian.
RADII = tuple(np.sqrt(chi2(2).ppf((0.68, 0.95))))


def ellipse(covariance, radius):
    """(2, points) of the curve x C^-1 x = radius^2; a line where one of the two is held fixed."""
    eigenvalues, vectors = np.linalg.eigh(covariance)
    return radius * (vectors * np.sqrt(np.maximum(eigenvalues, 0))) @ CIRCLE


def fisher_explorer(scan, kmax, plane=("Om", "s8")):
    """Contours of two parameters and a table of all errors.

    Parameters
    ----------
    scan : from `nbkit.forecast.bootstrap.by_kmax`; the label to compare with comes first.
    kmax : where the slider starts [h/Mpc].
    plane : the parameters to draw.
    """
    options = [(f"{at:.3f}", at) for at in scan]
    start = max((at for at in scan if at <= kmax + 1e-9), default=min(scan))
    slider = w.SelectionSlider(
        options=options, value=start, description="kmax [h/Mpc]", layout=w.Layout(width="420px"),
        style={"description_width": "130px"},
    )  # fmt: skip
    boxes = {
        name: w.Checkbox(False, description=f"{long} fixed", indent=False, layout=w.Layout(width="130px"))
        for name, long in zip(QUIJOTE_NAMES, PARAMETERS, strict=True)
    }
    x, y = (QUIJOTE_NAMES.index(name) for name in plane)
    labels = list(scan[start])
    reach = 3.4 * scan[start][labels[0]].forecast.sigma()
    plot = plots.LiveLines(
        figsize=(5.0, 4.0), xlabel=f"${LATEX[x]}$", ylabel=f"${LATEX[y]}$",
        xlim=(FIDUCIAL[x] - reach[x], FIDUCIAL[x] + reach[x]), ylim=(FIDUCIAL[y] - reach[y], FIDUCIAL[y] + reach[y]),
    )  # fmt: skip
    plot.ax.plot(*FIDUCIAL[[x, y]], "+", color="0.5")
    lines = {
        label: [plot.line([], [], ls=line, color=colour, lw=1.8 - 0.7 * outer) for outer in (0, 1)]
        for label, colour, line in zip(labels, COLOURS, LINES, strict=False)
    }
    plot.ax.legend([each[0] for each in lines.values()], [pretty(x) for x in labels], fontsize=8, loc="upper right")
    image, caption, table = w.Image(format="png"), w.HTML(), w.HTML()

    def update():
        fixed = tuple(name for name, box in boxes.items() if box.value)
        here = scan[slider.value]
        if len(fixed) == len(boxes):
            caption.value = "<b>All parameters are held fixed</b>: nothing is left to forecast."
            return
        for label, pair in lines.items():
            constrained = np.isfinite(here[label].sigma(fixed).value).all()
            for line, radius in zip(pair, RADII, strict=True):
                line.set_visible(constrained)
                if constrained:
                    covariance = here[label].forecast.covariance(fixed)[np.ix_([x, y], [x, y])]
                    line.set_data(*(ellipse(covariance, radius) + FIDUCIAL[[x, y]][:, None]))
        image.value = plot.png()
        bins = list(scan).index(slider.value) + len(QUIJOTE_NAMES) + 1
        held = ", ".join(PARAMETERS[QUIJOTE_NAMES.index(name)] for name in fixed) or "nothing"
        caption.value = f"<b>kmax = {slider.value:.3f} h/Mpc</b>: {bins} bins a spectrum; held fixed: {held}"
        table.value = _table(here, fixed)

    controls = [slider, w.HBox([boxes[name] for name in boxes])]
    observed(update, [slider, *boxes.values()])
    panels = [w.VBox([caption, w.HBox([image, table], layout=w.Layout(align_items="flex-start"))])]
    explorer = Explorer("Fisher explorer", controls, panels, side_by_side(image.value))
    explorer.controls = [slider, *boxes.values()]
    return explorer


def _table(forecasts, fixed):
    """Errors of all parameters, and by how much each mark is better than the first, as HTML."""
    first = next(iter(forecasts.values()))
    head = "".join(f"<th>{name}</th>" for name in PARAMETERS)
    rows = []
    for label, one in forecasts.items():
        sigma = one.sigma(fixed).value
        rows.append(
            f"<tr><td>{label}</td>{''.join(f'<td>{s:.3g}</td>' if s else '<td>fixed</td>' for s in sigma)}</tr>"
        )
    for label, one in list(forecasts.items())[1:]:
        better = one.ratio(first, fixed)
        cells = zip(better.value, better.low, better.high, strict=True)
        small = "<br><small>{:.2f} to {:.2f}</small></td>"
        said = "".join("<td></td>" if np.isnan(v) else f"<td>{v:.2f}{small.format(a, b)}" for v, a, b in cells)
        rows.append(f"<tr><td>{label}:<br>better by</td>{said}</tr>")
    style = "style='font-size:12px; line-height:15px; border-spacing:10px 3px; white-space:nowrap; text-align:left'"
    return f"<table {style}><tr><th>sigma</th>{head}</tr>{''.join(rows)}</table>"
