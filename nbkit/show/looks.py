"""How the kit looks: colours, symbols and labels, slices, rows of panels, tables, where figures go."""

import io
import re
from html import escape
from typing import NamedTuple

import matplotlib
import matplotlib.pyplot as plt
import numpy as np
import torch
from matplotlib.ticker import LogLocator, NullFormatter

from nbkit import disk
from nbkit.forecast import BEST, UNMARKED

# Okabe & Ito: told apart under every common colour blindness.
BLACK, ORANGE, SKY, GREEN = "#000000", "#E69F00", "#56B4E9", "#009E73"
BLUE, RED, PINK = "#0072B2", "#D55E00", "#CC79A7"
L_COLOURS = (BLUE, RED, GREEN)
CYCLE = (BLUE, ORANGE, GREEN, RED, PINK, SKY, BLACK)
LINES = ("-", "--", "-.", ":", "-", "--", ":")
# Sequential maps for positive fields, a diverging one for signed ones.
SIGNED = "PuOr_r"
# Field: in LaTeX, in widgets and tables, colour map, colour of its curve.
FIELDS = {
    "delta": (r"\delta", "δ", "magma", BLACK),
    "E0": ("E_0", "E₀", SIGNED, BLUE),
    "E1": ("E_1", "E₁", "viridis", RED),
    "E2": ("E_2", "E₂", "viridis", GREEN),
    "I3": ("I_3", "I₃", SIGNED, PINK),
    "Delta": (r"\Delta", "Δ", SIGNED, BLACK),
    "M": ("M", "M", "cividis", BLACK),
    "h_x": (r"h_\times(E_0,E_2,I_3)", "h×(E₀, E₂, I₃)", SIGNED, ORANGE),
}
FIELDS |= {
    f"h_{name}": (f"h({latex})", f"h({symbol})", SIGNED, colour)
    for name, (latex, symbol, _, colour) in FIELDS.items()
    if name in ("E0", "E1", "E2", "I3")
}
LABELS, SYMBOLS, MAPS, COLOURS = ({name: row[i] for name, row in FIELDS.items()} for i in range(4))
LABELS = {name: f"${label}$" for name, label in LABELS.items()}
SYMBOLS |= {"Omega_m": "Ωm", "Omega_b": "Ωb", "n_s": "nₛ", "sigma_8": "σ₈"}
# What the label of a mark begins with, less the preset of a bundled one: colour, line and symbol, everywhere the same.
MARKS = {
    UNMARKED: (BLACK, "-", "o"),
    "p": (ORANGE, "--", "s"),
    BEST: (ORANGE, "--", "s"),
    "M = 1": ("0.5", ":", "X"),
    "learned": (BLUE, "-.", "^"),
    "contrast": (BLUE, "-.", "^"),
    "l2": (BLUE, "-.", "^"),
    "learned, l_max = 0": (SKY, ":", "v"),
    "l0": (SKY, ":", "v"),
    "c2": (PINK, "-.", "<"),
    "information": (GREEN, "-", "D"),
    "i2": (GREEN, "-", "D"),
    "i3": (RED, "--", "P"),
}


def style():
    """The look of every figure of the kit; `nb.notebook` calls it."""
    plt.rc("figure", dpi=100)
    plt.rc("savefig", dpi=200)
    plt.rc("font", size=10)
    plt.rc("axes", prop_cycle=plt.cycler(color=CYCLE))
    plt.rc("axes.spines", top=False, right=False)
    plt.rc("image", origin="lower", interpolation="nearest")
    plt.rc("legend", frameon=False, fontsize=8)


def looks(labels):
    """{label: (colour, line, symbol)} of marks: that of its kind, or the next whose colour is free."""
    chosen = {}
    for label in labels:
        name = re.sub("^(demo|mini|quijote)_", "", label)
        kind = max((kind for kind in MARKS if name.startswith(kind)), key=len, default=None)
        taken, every = [colour for colour, *_ in chosen.values()], list(zip(CYCLE, LINES, "o^DPXv*", strict=True))
        wanted = [*filter(None, [MARKS.get(kind)]), *every]
        chosen[label] = next((look for look in wanted if look[0] not in taken), wanted[0])
    return chosen


def pretty(label):
    """A label as a figure shows it: symbols for P_dd and for the classical marks, others as they are."""
    if classical := re.fullmatch(r"p=(\S+) ds=(\S+)", label):
        return rf"classical, $p={classical[1]}$, $\delta_s={classical[2]}$"
    named = {UNMARKED: r"$P_{\delta\delta}$ alone", BEST: "best of 48 classical"}
    return named.get(label) or re.sub(r"l_max = (\d)", r"$\\ell_{\\rm max}=\1$", label)


def row_of_panels(count, width, height, rows=1, **shared):
    """Figure and axes (rows, count), each panel some inches wide and high."""
    size = (count * width, rows * height)
    return plt.subplots(rows, count, figsize=size, layout="constrained", squeeze=False, **shared)


def band_panels(titles, x, curves, scale="log", **about):
    """A panel for each title: {label of a mark: (3, n, panels)}, value, low and high against x (n,), with bands."""
    figure, axes = row_of_panels(len(titles), 4.3, 3.6)
    for i, (ax, title) in enumerate(zip(axes[0], titles, strict=True)):
        for label, (colour, line, symbol) in looks(curves).items():
            value, low, high = np.asarray(curves[label])[..., i]
            ax.plot(x, value, line, color=colour, label=pretty(label), lw=1.6, marker=symbol if len(x) < 8 else "")
            ax.fill_between(x, low, high, color=colour, alpha=0.15, lw=0)
        ax.set(title=title, yscale=scale, **about)
        if scale == "log":
            plain_log(ax.yaxis)
        ax.label_outer()
    axes[0, 0].legend()
    return figure, axes[0]


def plain_log(axis):
    """Ticks of a logarithmic axis at 1, 2, 5, written as they are spoken."""
    axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axis.set_major_formatter("{x:g}")
    axis.set_minor_formatter(NullFormatter())


def palette_hex(name):
    """256 colours of a colour map of matplotlib, as hexadecimal text."""
    if name not in matplotlib.colormaps:
        raise ValueError(f"There is no colour map {name!r}; matplotlib has magma, viridis, PuOr_r and others.")
    return (255 * matplotlib.colormaps[name](np.arange(256))[:, :3]).astype(np.uint8).tobytes().hex()


def slice_of(field, axis, index):
    """(n, n) numpy slice of a field across axis 0, 1 or 2, transposed so that the first remaining axis runs right."""
    return field.detach().select(axis, index).T.numpy()


def brightness(field, name):
    """What a map shows: log10(1 + delta) for the density (empty cells at -2), the values themselves otherwise."""
    values = field.detach().numpy() if isinstance(field, torch.Tensor) else field
    return np.log10(np.maximum(1 + values, 0.01)) if name == "delta" else values


def colour_range(field, name, colours=None):
    """(low, high): the central 99 % (of every fifth voxel) of `brightness`, about 0 where the colours diverge."""
    low, high = np.quantile(brightness(field.flatten()[::5], name), [0.005, 0.995])
    if (colours or MAPS.get(name, SIGNED)) == SIGNED:
        high = max(abs(low), abs(high))
        low = -high
    return float(low), float(high) if high > low else float(low) + 1e-6


class Table(NamedTuple):
    """Rows under columns: an HTML table in JupyterLab, aligned text elsewhere."""

    head: list
    rows: list
    caption: str

    def __repr__(self):
        lines = [list(self.head), *self.rows] if any(self.head) else self.rows
        widths = [max(len(line[i]) for line in lines) for i in range(len(self.head))]
        text = ["  ".join([line[0].ljust(widths[0]), *map(str.rjust, line[1:], widths[1:])]).rstrip() for line in lines]
        return "\n".join(([self.caption] if self.caption else []) + text)

    def _repr_html_(self):
        def row(cells, tag):
            ends = ["left", *["right"] * (len(cells) - 1)]
            parts = (f'<{tag} style="text-align: {e}">{escape(c)}</{tag}>' for e, c in zip(ends, cells, strict=True))
            return f"<tr>{''.join(parts)}</tr>"

        caption = f"<caption>{escape(self.caption)}</caption>" if self.caption else ""
        head = f"<thead>{row(self.head, 'th')}</thead>" if any(self.head) else ""
        body = f"<tbody>{''.join(row(cells, 'td') for cells in self.rows)}</tbody>"
        return f'<div style="max-width: 100%; overflow-x: auto"><table>{caption}{head}{body}</table></div>'


def table(rows, columns=None, caption=None, digits="{:.3g}"):
    """Give a Table of numbers and words.

    Parameters
    ----------
    rows : list of dicts column -> value, list of lists, or dict label -> list or dict.
    columns : names of the columns, or dict name -> format of its numbers ("{:.0%}"); default the keys of the first row.
    caption : a line above the table.
    digits : format of all other numbers; what is stored must be the same on every machine, so round.
    """
    if isinstance(rows, dict):
        rows = [{"": label} | row if isinstance(row, dict) else [label, *row] for label, row in rows.items()]
        columns = {"": ""} | (columns if isinstance(columns, dict) else dict.fromkeys(columns)) if columns else None
    rows = list(rows)
    if columns is None:
        columns = list(rows[0]) if isinstance(rows[0], dict) else [""] * len(rows[0])
    formats = list(columns.values()) if isinstance(columns, dict) else [None] * len(columns)
    names = list(columns)
    values = [[row.get(name, "") for name in names] if isinstance(row, dict) else list(row) for row in rows]
    if bad := next((row for row in values if len(row) != len(names)), None):
        raise ValueError(f"A row has {len(bad)} values and there are {len(names)} columns: {', '.join(map(str, bad))}.")
    body = [[_text(x, form or digits) for x, form in zip(row, formats, strict=True)] for row in values]
    return Table([SYMBOLS.get(name, str(name)) for name in names], body, caption)


def _text(value, form):
    if isinstance(value, (bool, np.bool_)):
        return "yes" if value else "no"
    if isinstance(value, str) or value is None:
        return SYMBOLS.get(value, value or "")
    return str(value) if isinstance(value, (int, np.integer)) and "%" not in form else form.format(float(value))


def save(figure, name, publish=False):
    """Write a figure as name.png, to `figures/` if it is to be published, else to `runs/figures/`."""
    path = (disk.figures() if publish else disk.runs() / "figures") / f"{name}.png"
    png = io.BytesIO()
    figure.savefig(png, format="png", dpi=100)
    disk.write_atomically(path, png.getvalue())
