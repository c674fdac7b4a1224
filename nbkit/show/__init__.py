"""How the kit looks: colours, symbols, slices, tables, where figures go; the rest is loaded when asked for."""

import html
import io
from importlib import import_module
from importlib.util import find_spec

import matplotlib.pyplot as plt
import numpy as np
import torch

from nbkit import disk

# Okabe & Ito: told apart under every common colour blindness.
BLACK, ORANGE, SKY, GREEN, YELLOW, BLUE, RED, PINK = (
    "#000000", "#E69F00", "#56B4E9", "#009E73", "#F0E442", "#0072B2", "#D55E00", "#CC79A7",
)  # fmt: skip
L_COLOURS = (BLUE, RED, GREEN)
CYCLE = (BLUE, ORANGE, GREEN, RED, PINK, SKY, BLACK)
# Sequential maps for positive fields, a diverging one for signed ones.
SIGNED = "PuOr_r"
MAPS = {"delta": "magma", "E0": SIGNED, "E1": "viridis", "E2": "viridis", "I3": SIGNED, "M": "cividis"}
LABELS = {"delta": r"$\delta$", "E0": r"$E_0$", "E1": r"$E_1$", "E2": r"$E_2$", "I3": r"$I_3$", "M": r"$M$"}
# The same where there is no LaTeX: widgets, tables.
SYMBOLS = {"delta": "δ", "Delta": "Δ", "E0": "E₀", "E1": "E₁", "E2": "E₂", "I3": "I₃", "h_x": "h×(E₀, E₂, I₃)"}
SYMBOLS |= {f"h_{name}": f"h({SYMBOLS[name]})" for name in ("E0", "E1", "E2", "I3")}
SYMBOLS |= {"Omega_m": "Ωm", "Omega_b": "Ωb", "n_s": "nₛ", "sigma_8": "σ₈"}
# Where the functions of the room are found; these modules import this one, so it loads them late.
ROOM = ("maps", "curves", "picker", "universe", "filters", "training", "mark", "mark_explorer", "forecast", "latent")
ROOM += ("recovery",)


def __getattr__(name):
    """A module of this room, or a function or class of one of them."""
    there = [module for module in (name, *ROOM) if find_spec(f"{__name__}.{module}")] if name[0] != "_" else []
    if name in there:
        return import_module(f"{__name__}.{name}")
    for module in (import_module(f"{__name__}.{module}") for module in there):
        if getattr(vars(module).get(name), "__module__", None) == module.__name__:
            return vars(module)[name]
    raise AttributeError(f"nbkit.show has no {name}.")


def style():
    """The look of every figure of the kit; `nb.notebook` calls it."""
    plt.rcParams.update(
        {
            "figure.dpi": 100,
            "savefig.dpi": 200,
            "font.size": 10,
            "axes.prop_cycle": plt.cycler(color=CYCLE),
            "axes.spines.top": False,
            "axes.spines.right": False,
            "image.origin": "lower",
            "image.interpolation": "nearest",
            "legend.frameon": False,
        }
    )


def slice_of(field, axis, index):
    """(n, n) numpy slice of a field across axis 0, 1 or 2, transposed so that the first remaining axis runs right."""
    return field.detach().select(axis, index).T.numpy()


def brightness(field, name):
    """What a map shows: log10(1 + delta) for the density (empty cells at -2), the values themselves otherwise."""
    values = field.detach().numpy() if isinstance(field, torch.Tensor) else field
    return np.log10(np.maximum(1 + values, 0.01)) if name == "delta" else values


def limits(field, name, colours=None):
    """Colour range: the central 99 % (of every fifth voxel) of `brightness`, about 0 where the colours diverge."""
    low, high = np.quantile(brightness(field.flatten()[::5], name), [0.005, 0.995])
    if (colours or MAPS.get(name, SIGNED)) == SIGNED:
        high = max(abs(low), abs(high))
        low = -high
    return float(low), float(high) if high > low else float(low) + 1e-6


def slices(fields, grid, axis=2, index=None):
    """One slice of several fields, each with its own colour bar.

    Parameters
    ----------
    fields : dict name -> (n, n, n) tensor; a name in `MAPS` chooses colours and label, others are signed fields.
    axis, index : the slice; default the middle one across z.
    """
    figure, axes = plt.subplots(1, len(fields), figsize=(2.9 * len(fields), 3.3), layout="constrained", squeeze=False)
    across, index = [x for i, x in enumerate("xyz") if i != axis], grid.n // 2 if index is None else index
    for ax, (name, field) in zip(axes[0], fields.items(), strict=True):
        low, high = limits(field, name)
        look = {"cmap": MAPS.get(name, SIGNED), "vmin": low, "vmax": high, "extent": (0, grid.box_size) * 2}
        image = ax.imshow(brightness(slice_of(field, axis, index), name), **look)
        label = r"$\log_{10}(1+\delta)$" if name == "delta" else LABELS.get(name, name)
        figure.colorbar(image, ax=ax, location="top", label=label, shrink=0.9, aspect=18)
        ax.set(xlabel=rf"${across[0]}$ [Mpc/$h$]", ylabel=rf"${across[1]}$ [Mpc/$h$]" if ax is axes[0, 0] else "")
        ax.spines[:].set_visible(False)
    return figure


class Table:
    """Rows under columns: an HTML table in JupyterLab, aligned text elsewhere."""

    def __init__(self, head, rows, caption):
        self.head, self.rows, self.caption = head, rows, caption

    def __repr__(self):
        lines = [list(self.head), *self.rows] if any(self.head) else self.rows
        widths = [max(len(line[i]) for line in lines) for i in range(len(self.head))]
        text = ["  ".join([line[0].ljust(widths[0]), *map(str.rjust, line[1:], widths[1:])]).rstrip() for line in lines]
        return "\n".join(([self.caption] if self.caption else []) + text)

    def _repr_html_(self):
        def row(cells, tag):
            ends = ["left", *["right"] * (len(cells) - 1)]
            parts = [
                f'<{tag} style="text-align: {e}">{html.escape(c)}</{tag}>' for e, c in zip(ends, cells, strict=True)
            ]
            return f"<tr>{''.join(parts)}</tr>"

        caption = f"<caption>{html.escape(self.caption)}</caption>" if self.caption else ""
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
