"""Curves, nodes and error ellipses that live in the browser; the explorer that joins pictures and controls."""

import base64
import io
from pathlib import Path

import anywidget
import ipywidgets as w
import matplotlib.pyplot as plt
import numpy as np
import traitlets as t
from matplotlib.ticker import LogLocator
from PIL import Image
from scipy.interpolate import PchipInterpolator

from nbkit.show import CYCLE, SYMBOLS

HERE = Path(__file__).parent


class Explorer(w.VBox):
    """Controls above, those of the pictures in a row of their own, pictures below; where nobody is there, one picture.

    Parameters
    ----------
    title : what the stored text says it is.
    controls, panels : widgets.
    static : PNG bytes of the state it starts in; default those of the panels that have some, side by side.
    """

    def __init__(self, title, controls, panels, static=None):
        wrapped = {"flex_flow": "row wrap", "align_items": "flex-start", "width": "100%"}
        rows = [controls, [control for panel in panels for control in getattr(panel, "controls", ())]]
        above, below = ([w.Box(row, layout=w.Layout(**wrapped)) for row in part if row] for part in (rows, [panels]))
        super().__init__([w.VBox(above), *below])
        self.add_class("nbkit-explorer")
        for panel in panels[1:] and panels:
            if hasattr(panel, "png"):
                panel.layout = w.Layout(flex="1 1 380px", width="auto", min_width="280px")
        self.title, self.controls, self.panels = title, controls, panels
        self.static = static or side_by_side(*(panel.png() for panel in panels if hasattr(panel, "png")))

    def __repr__(self):
        return f"<{self.title}: open in JupyterLab to move it>"

    def _repr_mimebundle_(self, **kwargs):
        bundle = super()._repr_mimebundle_(**kwargs)
        return bundle | {"text/plain": repr(self), "image/png": base64.b64encode(self.static).decode()}


def follow(update, *controls):
    """Call update(change) whenever one of the controls has a new value."""
    for control in controls:
        control.observe(update, names="value")


def side_by_side(*pngs):
    """PNG pictures joined into one, bottom-aligned on white: what a rendering without widgets shows."""
    images = [Image.open(io.BytesIO(x)).convert("RGB") for x in pngs]
    height = max(x.height for x in images)
    joined = Image.new("RGB", (sum(x.width + 12 for x in images), height), "white")
    left = 0
    for x in images:
        joined.paste(x, (left, height - x.height))
        left += x.width + 12
    out = io.BytesIO()
    joined.save(out, "png", optimize=True)
    return out.getvalue()


def png_of(figure):
    """PNG bytes of a figure, which is closed."""
    out = io.BytesIO()
    figure.savefig(out, format="png", dpi=80)
    plt.close(figure)
    return out.getvalue()


def slider(description, value, low, high, step):
    """A slider that reports while it is dragged; whole numbers if its step is one."""
    kind = w.IntSlider if isinstance(step, int) else w.FloatSlider
    look = {"layout": w.Layout(width="400px"), "style": {"description_width": "130px"}}
    return kind(value=value, min=low, max=high, step=step, description=description, **look)


class Curves(anywidget.AnyWidget):
    """Curves with bands, read out under a cursor; of nodes, if there are any, the monotone cubic through them.

    State that Python may read and set, the same in all views: `curves`, `nodes` [[x, y], ...], `hidden` labels,
    `cursor` (x or None); of error ellipses the parameters `across` and `up`.

    Parameters
    ----------
    curves : dict label -> (x, y), (x, y, low, high) with a band, or a dict of these with `colour`, `dash` ("--", ":"),
        `ghost` (thin and behind, for what is compared with) or `dots`.
    labels : of the two axes.
    log : which axes are logarithmic: "", "x", "y" or "xy".
    limits : (x limits, y limits), each (low, high) or None for those of the curves as they are.
    nodes : [(x, y), ...] with rising x, to be moved up and down between `bounds`, and the `name` of their curve.
    histogram : values drawn as bars behind, to see where along x there is anything.
    rules : values of y with a thin line.
    """

    _esm = "\n".join((HERE / name).read_text() for name in ("browser.js", "curves.js"))
    _css = (HERE / "maps.css").read_text()
    about, curves, nodes = t.Dict().tag(sync=True), t.List().tag(sync=True), t.List().tag(sync=True)
    hidden, cursor = t.List().tag(sync=True), t.Float(None, allow_none=True).tag(sync=True)
    across, up = t.Int().tag(sync=True), t.Int(1).tag(sync=True)
    controls = ()

    def __init__(
        self, curves, labels=("x", "y"), log="", limits=(None, None), nodes=(), bounds=None, name="nodes",
        histogram=None, rules=(), title="Curves", **more,
    ):  # fmt: skip
        nodes = [[float(x), float(y)] for x, y in nodes]
        if len(nodes) == 1 or (np.diff([x for x, _ in nodes]) <= 0).any():
            raise ValueError("Nodes must be at least two, with rising x.")
        about = {"labels": list(labels), "log": ["x" in log, "y" in log], "limits": limits, "bounds": bounds} | more
        about |= {"moving": {"label": name, "colour": CYCLE[0]}, "rules": [float(y) for y in rules]}
        if histogram is not None:
            counts, edges = np.histogram(np.asarray(histogram), 60, limits[0])
            about["histogram"] = {"counts": counts.tolist(), "edges": edges.tolist()}
        self.title = title
        super().__init__(about=about, nodes=nodes, layout=w.Layout(width="100%"))
        self.update(curves)
        first = {name: getattr(self, name) for name in ("nodes", "hidden", "across", "up")}
        self.about = self.about | {"start": first}

    def update(self, curves):
        """Replace curves by label, or add some; what is not said of their look stays."""
        old = {curve["label"]: curve for curve in self.curves}
        for label, given in curves.items():
            given = given if isinstance(given, dict) else dict(zip(("x", "y", "low", "high"), given, strict=False))
            arrays = {key: np.asarray(given[key], float) for key in ("x", "y", "low", "high") if key in given}
            if len({len(values) for values in arrays.values()}) > 1:
                sizes = ", ".join(f"{key} {len(values)}" for key, values in arrays.items())
                raise ValueError(f"{label} has arrays of different length: {sizes}.")
            if not all(np.isfinite(values).all() for values in arrays.values()):
                raise ValueError(f"{label} has values that are not numbers (nan or infinite).")
            look = {"colour": "#888888" if given.get("ghost") else CYCLE[(len(old) + bool(self.nodes)) % 6]}
            given = given | {key: values.tolist() for key, values in arrays.items()} | {"label": label}
            old[label] = look | old.get(label, {}) | given
        self.curves = list(old.values())

    def of_nodes(self, x):
        """The curve through the nodes at x, as the browser draws it."""
        return PchipInterpolator(*np.transpose(self.nodes))(x)

    def lines(self):
        """What is drawn, as dicts like `curves`."""
        x = np.linspace(self.nodes[0][0], self.nodes[-1][0], 200) if self.nodes else None
        return self.curves + ([{"x": x, "y": self.of_nodes(x)} | self.about["moving"]] if self.nodes else [])

    def axes(self):
        """Names and limits of the two axes."""
        return self.about["labels"], self.about["limits"]

    def __repr__(self):
        return f"<{self.title}: open in JupyterLab to move it>"

    def _repr_mimebundle_(self, **kwargs):
        return Explorer(self.title, [], [self])._repr_mimebundle_(**kwargs)

    def png(self):
        """PNG bytes of the curves as they are now, for renderings without a browser."""
        figure, ax = plt.subplots(figsize=(5.2, 3.4), layout="constrained")
        for line in self.lines():
            look = {
                "color": line["colour"],
                "lw": 1 if line.get("ghost") else 1.8,
                "ls": line.get("dash", "-"),
                "ms": 4,
            }
            ax.plot(line["x"], line["y"], **look, marker="o" if line.get("dots") else "", label=line["label"])
            if "low" in line:
                ax.fill_between(line["x"], line["low"], line["high"], color=line["colour"], alpha=0.2, lw=0)
        ax.plot(*np.transpose(self.nodes or np.zeros((0, 2))), "o", color=CYCLE[0], mfc="white")
        for y in self.about["rules"]:
            ax.axhline(y, color="0.5", lw=0.6)
        names, ends = self.axes()
        scales = ["log" if log else "linear" for log in self.about["log"]]
        limits = dict(zip(("xlim", "ylim"), ends, strict=True))
        ax.set(xlabel=names[0], ylabel=names[1], xscale=scales[0], yscale=scales[1], **limits)
        for axis in [axis for axis, log in zip((ax.xaxis, ax.yaxis), self.about["log"], strict=True) if log]:
            axis.set_minor_locator(LogLocator(subs=(2, 5)))
            axis.set_major_formatter("{x:g}")
            axis.set_minor_formatter("{x:g}")
        ax.legend(fontsize=8)
        return png_of(figure)


class Ellipses(Curves):
    """68 and 95 % error ellipses of any two parameters.

    Parameters
    ----------
    covariances : dict label -> (p, p) covariance of the parameters.
    centre : (p,) values they are drawn about.
    parameters : names of the p parameters.
    across, up : those it starts with, by name.
    """

    def __init__(self, covariances, centre, parameters, across=None, up=None, title="Error ellipses"):
        self.names, self.centre = list(parameters), np.asarray(centre, float)
        self.colours = dict(zip(covariances, CYCLE, strict=False))
        self.across, self.up = self.names.index(across or self.names[0]), self.names.index(up or self.names[-1])
        symbols = [SYMBOLS.get(name, name) for name in self.names]
        super().__init__(covariances, title=title, centre=self.centre.tolist(), parameters=symbols)
        # Axes that stay show what an update does.
        sigma = np.sqrt(np.max([np.diagonal(C) for C in self.covariances.values()], axis=0))
        reach = np.stack([self.centre - 3.4 * sigma, self.centre + 3.4 * sigma], axis=1).tolist()
        self.about = self.about | {"reach": reach}
        self.controls = [self._choice("across", symbols), self._choice("up", symbols)]

    def update(self, covariances):
        """Replace all covariances; a parameter that is held fixed has zeros."""
        self.covariances = {label: np.asarray(C, float) for label, C in covariances.items()}
        for label, C in self.covariances.items():
            if C.shape != (len(self.names),) * 2 or np.linalg.eigvalsh(C).min() < -1e-9 * np.abs(C).max():
                raise ValueError(f"{label} is no covariance of {len(self.names)} parameters.")
        rows = [{"label": x, "colour": self.colours[x], "covariance": C.tolist()} for x, C in self.covariances.items()]
        self.about = self.about | {"covariances": rows}

    def _choice(self, name, symbols):
        control = w.Dropdown(
            options=symbols, index=getattr(self, name), description=name, layout=w.Layout(width="200px")
        )
        w.jslink((control, "index"), (self, name))
        return control

    def axes(self):
        """Names and limits of the two parameters."""
        return zip(
            *((self.about["parameters"][i], self.about["reach"][i]) for i in (self.across, self.up)), strict=True
        )

    def lines(self):
        """The ellipses as curves: for each label that of 68 %, and thin that of 95 %."""
        pair = [self.across, self.up]
        circle = np.stack([f(np.linspace(0, 2 * np.pi, 97)) for f in (np.cos, np.sin)])
        for row in self.about["covariances"]:
            values, vectors = np.linalg.eigh(self.covariances[row["label"]][np.ix_(pair, pair)])
            x, y = (vectors * np.sqrt(np.maximum(values, 0))) @ circle
            for radius, more in ((1.515, {}), (2.486, {"ghost": True, "label": ""})):
                yield row | {"x": self.centre[pair[0]] + radius * x, "y": self.centre[pair[1]] + radius * y} | more
