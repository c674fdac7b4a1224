"""Curves, nodes and error ellipses that live in the browser."""

from pathlib import Path

import ipywidgets as w
import numpy as np
import traitlets as t
from scipy.interpolate import PchipInterpolator

from nbkit.show.controls import Picture
from nbkit.show.looks import BLACK, CYCLE, SYMBOLS, looks, plain_log, row_of_panels

HERE = Path(__file__).parent


class Curves(Picture):
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
        if not self.nodes or self.about["moving"]["label"] in [line["label"] for line in self.curves]:
            return self.curves
        x = np.linspace(self.nodes[0][0], self.nodes[-1][0], 200)
        return [*self.curves, {"x": x, "y": self.of_nodes(x)} | self.about["moving"]]

    def axes(self):
        """Names and limits of the two axes."""
        return self.about["labels"], self.about["limits"]

    def figure(self):
        """The curves as they are now, by matplotlib."""
        figure, ((ax,),) = row_of_panels(1, 5.2, 3.4)
        for line in (each for each in self.lines() if each["label"] not in self.hidden):
            colour, ghost = line["colour"] or BLACK, line.get("ghost")
            look = {"color": colour, "lw": 1 if ghost else 1.8, "ls": line.get("dash", "-"), "ms": 4}
            name = "_" if line.get("more") else line["label"]
            ax.plot(line["x"], line["y"], **look, marker="o" if line.get("dots") else "", label=name)
            if "low" in line:
                ax.fill_between(line["x"], line["low"], line["high"], color=colour, alpha=0.2, lw=0)
        if self.nodes:
            ax.plot(*np.transpose(self.nodes), "o", color=CYCLE[0], mfc="white")
        for y in self.about["rules"]:
            ax.axhline(y, color="0.5", lw=0.6)
        (across, up), (xlim, ylim) = self.axes()
        scales = ["log" if log else "linear" for log in self.about["log"]]
        ax.set(xlabel=across, ylabel=up, xscale=scales[0], yscale=scales[1], xlim=xlim, ylim=ylim)
        for axis in (axis for axis, log in zip((ax.xaxis, ax.yaxis), self.about["log"], strict=True) if log):
            plain_log(axis)
        if ax.get_legend_handles_labels()[1]:
            ax.legend()
        return figure


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
        # What is black on paper has the colour of the text on a page, which may be dark.
        self.colours = {x: None if colour == BLACK else colour for x, (colour, *_) in looks(covariances).items()}
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
        look = {"description": name, "layout": w.Layout(width="200px")}
        control = w.Dropdown(options=symbols, index=getattr(self, name), **look)
        w.jslink((control, "index"), (self, name))
        return control

    def axes(self):
        """Names and limits of the two parameters."""
        pair = self.across, self.up
        return [self.about["parameters"][i] for i in pair], [self.about["reach"][i] for i in pair]

    def lines(self):
        """The ellipses as curves: for each label that of 68 %, and thin that of 95 %."""
        pair = [self.across, self.up]
        circle = np.stack([f(np.linspace(0, 2 * np.pi, 97)) for f in (np.cos, np.sin)])
        for row in self.about["covariances"]:
            values, vectors = np.linalg.eigh(self.covariances[row["label"]][np.ix_(pair, pair)])
            x, y = (vectors * np.sqrt(np.maximum(values, 0))) @ circle
            for radius, more in ((1.515, {}), (2.486, {"ghost": True, "more": True})):
                yield row | {"x": self.centre[pair[0]] + radius * x, "y": self.centre[pair[1]] + radius * y} | more
