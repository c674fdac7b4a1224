"""The mark studio: curves to drag, and fields, spectra and forecasts that follow in the browser, without a kernel."""

import json
import re
from pathlib import Path

import anywidget
import ipywidgets as w
import numpy as np
import traitlets as t

from nbkit import disk
from nbkit.forecast import BEST, UNMARKED
from nbkit.look.design import SLIDERS, design
from nbkit.mark import mark_settings
from nbkit.mark.additive import NODES
from nbkit.mark.classical import classical_marks
from nbkit.mesh.spectra import marked_field
from nbkit.show.controls import Explorer, side_by_side
from nbkit.show.curves import Curves, Ellipses
from nbkit.show.looks import CYCLE, SYMBOLS
from nbkit.show.maps import Maps
from nbkit.universe.cosmology import FIDUCIAL, PARAMETERS, STEPS

HERE = Path(__file__).parent
# Nodes move from -REACH to REACH; steps of the search that the button starts.
REACH, SEARCH = 3.0, 250
# Values of h(E0), h(E1), h(E2) at the nodes, to start from.
RISING, FLAT = np.exp(np.linspace(-1, 1, NODES)) - 1, np.zeros(NODES)
SHAPES = {
    "voids up": (RISING[::-1], FLAT, FLAT),
    "knots up": (RISING, FLAT, FLAT),
    "edges up": (FLAT, RISING, FLAT),
    "M = 1": (FLAT, FLAT, FLAT),
}


class Board(anywidget.AnyWidget):
    """Buttons, numbers and the algebra behind them; it moves the pictures that it is given."""

    _algebra = (HERE / "algebra.js").read_text()
    _sources = (HERE / "browser.js").read_text(), _algebra, f"const ALGEBRA = {json.dumps(_algebra)};"
    _esm = "\n".join((*_sources, (HERE / "studio.js").read_text()))
    _css = "\n".join((HERE / name).read_text() for name in ("maps.css", "studio.css"))
    about, data = t.Dict().tag(sync=True), t.Dict().tag(sync=True)
    parts = t.Dict().tag(sync=True, **w.widget_serialization)


class Studio(Explorer):
    """A mark to design by hand, M = 1 + h(E0) + h(E1) + h(E2), beside what it is worth on boxes it was not made for.

    Parameters
    ----------
    preset : see `nbkit.look.design.design`.
    start : a name in `SHAPES`, of a mark that was fitted ("demo_l2"), or coefficients (21,).
    kmax : largest k of the spectra to begin with [h/Mpc].
    progress : show bars while the boxes of a preset are measured.
    """

    def __init__(self, preset="demo", start="voids up", kmax=0.2, progress=True):
        self.design = design(preset, progress)
        self.kmax, self.bins = kmax, int((self.design.k <= kmax).sum())
        if self.bins <= len(PARAMETERS):
            raise ValueError(f"kmax is {kmax:g} h/Mpc; it must be at least {self.design.k[len(PARAMETERS)]:.3f}.")
        self.starts = {name: (self.design.coefficients(shape), 0.0) for name, shape in SHAPES.items()}
        self.starts |= {name: self.design.fit(name) for name in self.design.learned}
        if isinstance(start, str) and start not in self.starts:
            raise ValueError(f"start is {start!r}; allowed are {', '.join(self.starts)}, or 21 coefficients.")
        values = self.design.values(self.starts[start][0] if isinstance(start, str) else start)
        # Curves that fill the plots: what scale and shift M has tells nothing. The browser does the same.
        values = values - values.mean(1, keepdims=True)
        values = 0.8 * REACH * values / max(np.abs(values).max(), 1e-9)
        mark = self.design.mark(self.design.coefficients(values))
        self.curves = [self._curve(a, mark, row) for a, row in enumerate(values)]
        self.spectra = self._spectra(mark)
        self.ellipses, self.maps = self._ellipses(mark), self._maps(mark)
        self.board = Board(about=self._about(), data=self._data(), layout=w.Layout(width="100%"))
        parts = {"spectra": self.spectra, "ellipses": self.ellipses, "maps": self.maps}
        self.board.parts = parts | {f"h{a}": curve for a, curve in enumerate(self.curves)}
        self.board.on_msg(lambda _, message, __: self.board.send({"said": self._answer(message)}))
        static = side_by_side(*(each.png() for each in (self.curves[0], self.ellipses)))
        panels = [*self.curves, self.ellipses, self.spectra, self.maps]
        super().__init__("Mark studio", [self.board], panels, static)
        self.maps.layout = w.Layout(width="100%")

    @property
    def mark(self):
        """The AdditiveMark of the curves as they are."""
        return self.design.mark(self.design.coefficients([[y for _, y in each.nodes] for each in self.curves]))

    def keep(self, name, mark=None):
        """Write a mark as a run, so that `nb.load(name)` finds it; default that of the curves as they are."""
        if not re.fullmatch(r"[\w-]+", name):
            raise ValueError(f"name is {name!r}; use letters, digits, _ and - alone.")
        path = disk.runs() / "train" / name / "mark.json"
        if path.parent.exists() and not path.exists():
            raise FileExistsError(f"{path.parent} is the run of a training; choose another name.")
        disk.write_json(path, mark_settings(self.mark if mark is None else mark))
        return path

    def _answer(self, message):
        try:
            path = self.keep(message["keep"], self.design.mark(message["c"]))
        except (ValueError, OSError) as problem:
            return str(problem)
        return f'Kept in {path.parent}: nb.load("{message["keep"]}") is this mark.'

    def _curve(self, a, mark, values):
        name, ends = self.design.channels[a][0], self.design.ends[a]
        label = f"h({SYMBOLS[name]})"
        nodes = list(zip(np.linspace(*ends, NODES), values, strict=True))
        x = "± ln(1 + |E₀|)" if name == "E0" else f"ln(1 + {SYMBOLS[name]})"
        limits = ends, (-1.05 * REACH, 1.05 * REACH)
        seen = self.design.tensors["box"][a + 1].float().flatten().clip(*ends)
        about = {"labels": (x, label), "limits": limits, "bounds": (-REACH, REACH), "histogram": seen}
        t = np.linspace(*ends, 121)
        line = {"x": t, "y": self.design.curve(mark.coefficients, a, t), "colour": CYCLE[0]}
        return Curves({label: line}, nodes=nodes, name=label, rules=[0], title=label, **about)

    def _spectra(self, mark):
        P_dd, P_dm, P_mm = self.design.ingredients(mark, self.kmax).fiducial.mean(0).reshape(3, -1)
        k = self.design.k[: self.bins]
        lines = {"P_δΔ / P_δδ": (k, P_dm / P_dd), "P_ΔΔ / P_δδ": (k, P_mm / P_dd)}
        return Curves(lines, labels=("k [h/Mpc]", "over P_δδ"), rules=[0], title="Spectra")

    def _ellipses(self, mark):
        own, last = self.design, self.bins - 1
        best = min(classical_marks(), key=lambda label: own.errors(label, self.bins)[[0, 4]].prod())
        rivals = {UNMARKED: UNMARKED, BEST: best} | {label: label for label in own.learned}
        found = {label: np.linalg.inv(own.rivals(rival)[last]) for label, rival in rivals.items()}
        try:
            found = {"yours": own.forecasts({"yours": mark}, self.kmax, count=1)["yours"].covariance()} | found
        except ValueError:  # it tells no more than P(k): the board says so, and its ellipse is that of P(k)
            found = {"yours": found[UNMARKED]} | found
        ellipses = Ellipses(found, FIDUCIAL, PARAMETERS, "Omega_m", "sigma_8")
        ellipses.hidden = list(own.learned[1:])
        return ellipses

    def _maps(self, mark):
        delta, grid = self.design.tensors["box"][0].float(), self.design.preset.grid
        M = mark(delta, grid)
        fields = {"delta": delta, "M": M, "Delta": marked_field(M, delta)}
        return Maps(fields, grid, title="The mark on a box")

    def _about(self):
        kept, own = self.design.tensors, self.design
        at_nodes, count = own.at_nodes, len(classical_marks())
        return {
            "ends": own.ends, "nodes": NODES, "channels": own.channels, "reach": REACH, "search": SEARCH,
            "k": own.k.tolist(), "bins": self.bins, "steps": list(STEPS), "wanted": [0, 4],
            "parameters": [SYMBOLS.get(name, name) for name in PARAMETERS], "labels": own.labels,
            "classical": list(range(1, 1 + count)), "learned": list(range(1 + count, len(own.labels))),
            "sizes": own.sizes,
            "forward": at_nodes.tolist(), "inverse": np.linalg.inv(at_nodes).tolist(), "sliders": SLIDERS,
            "starts": {name: [c.tolist(), error] for name, (c, error) in self.starts.items()} | {"classical": []},
            "fits": kept["fits"].tolist(), "errors": kept["errors"].tolist(),
        }  # fmt: skip

    def _data(self):
        kept = self.design.tensors
        data = {name: kept[name] for name in kept if re.match("judging|training|root|rivals", name)}
        data["box"] = kept["box"].float()
        return {name: x.contiguous().numpy().tobytes() for name, x in data.items()}
