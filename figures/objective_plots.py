"""Figures of the two objectives: what each mark reaches in both tasks, and what the marks look like side by side.

`python figures/objective_plots.py` draws those of RESULTS.md again.
"""

import losses
import matplotlib.pyplot as plt
import torch
from ablations import lines
from objectives import KMAX, read

from nbkit import disk, show, universe
from nbkit.forecast import UNMARKED
from nbkit.look import anatomy, response_curves
from nbkit.mark import ClassicalMark
from nbkit.show.looks import BLACK, BLUE, GREEN, L_COLOURS, ORANGE, RED
from nbkit.train import load

PARAMETERS = {"Om": r"\Omega_{\rm m}", "s8": r"\sigma_8"}
# Colour and marker by what a mark was trained on, and by kmax of the training.
COLOURS = {"contrast": BLUE, "information": RED, None: ORANGE}
MARKERS = {0.2: "o", 0.3: "s", None: "D"}
CURVES = {"E0": BLACK, "E1": ORANGE, "E2": BLUE, "I3": GREEN}


def two_tasks(rows):
    """sigma over that of P_dd against InfoNCE, for Omega_m (top) and sigma_8, at each kmax: down and left is better.

    Parameters
    ----------
    rows : of `objectives.read`.
    """
    kmaxes = sorted({row["kmax"] for row in rows})
    numbers = {said: number for number, said in enumerate(dict.fromkeys(map(_described, rows)))}
    figure, axes = plt.subplots(2, len(kmaxes), figsize=(10.0, 6.6), layout="constrained", sharex="col", sharey="row")
    for column, kmax in zip(axes.T, kmaxes, strict=True):
        here = [row for row in rows if row["kmax"] == kmax]
        plain = next(row for row in here if row["mark"] == UNMARKED)
        for ax, (name, symbol) in zip(column, PARAMETERS.items(), strict=True):
            for row in here:
                _point(ax, row, f"sigma_{name}", plain[f"sigma_{name}"], numbers[_described(row)])
            ax.axhline(1, color="0.6", lw=1)
            ax.set_yscale("log")
            ticks = [0.15, 0.2, 0.3, 0.4, 0.5, 0.7, 1.0]
            ax.set_yticks(ticks, [f"{t:g}" for t in ticks])
            ax.minorticks_off()
            unit = rf"$\sigma({symbol})$ / $\sigma({symbol})$ of $P_{{\delta\delta}}$"
            ax.set_ylabel(unit if kmax == kmaxes[0] else "")
        column[0].set_title(rf"spectra up to $k_{{\rm max}}={kmax:g}\,h$/Mpc", fontsize=10)
        column[1].set_xlabel("InfoNCE, validation")
    looks = {_described(row): _look(row) for row in rows}
    handles = [plt.Line2D([], [], ls="", color=looks[said][0], marker=looks[said][1]) for said in numbers]
    listed = [f"{number}  {said}" for said, number in numbers.items()]
    title = "down: measures better\nleft: tells apart better"
    figure.legend(handles, listed, loc="outside right upper", fontsize=8, title=title)
    return figure


def searches(rows):
    """Additive marks, a line each way to find them: InfoNCE, and sigma of the best classical mark over theirs.

    Parameters
    ----------
    rows : of figures/contrast_mini.csv, as dicts of words; a seed each.
    """
    kinds = list(dict.fromkeys(row["mark"] for row in rows))
    figure, axes = plt.subplots(
        1, 1 + len(KMAX), figsize=(10.0, 0.3 * len(kinds) + 1.3), layout="constrained", sharey=True
    )
    for row in rows:
        at = kinds.index(row["mark"])
        axes[0].plot(float(row["info_nce"]), at, "o", color=BLACK, ms=4)
        for ax, kmax in zip(axes[1:], KMAX, strict=True):
            for (name, _), colour, marker, aside in zip(
                PARAMETERS.items(), (BLUE, RED), "os", (-0.12, 0.12), strict=True
            ):
                value, low, high = (float(row[f"ratio_{name}_k{kmax:g}{end}"]) for end in ("", "_low", "_high"))
                error = [[value - low], [high - value]]
                ax.errorbar(value, at + aside, xerr=error, color=colour, marker=marker, ms=4, lw=1)
    axes[0].set_yticks(range(len(kinds)), kinds)
    axes[0].invert_yaxis()
    axes[0].set(xlabel="InfoNCE, heads trained anew", title="left: tells apart better")
    for ax, kmax in zip(axes[1:], KMAX, strict=True):
        ax.axvline(1, color="0.6", lw=1)
        ax.set(xlabel=rf"best of 48 / mark, $k<{kmax:g}\,h$/Mpc", title="right: measures better")
    handles = [plt.Line2D([], [], ls="", color=c, marker=m) for c, m in ((BLUE, "o"), (RED, "s"))]
    axes[-1].legend(handles, [rf"$\sigma({symbol})$" for symbol in PARAMETERS.values()], fontsize=9)
    for ax in axes:
        ax.title.set_fontsize(10)
        ax.grid(axis="y", color="0.92")
    return figure


def _look(row):
    if row["mark"] == UNMARKED:
        return BLACK, "*"
    return COLOURS[row["objective"]], MARKERS[row["trained_kmax"]]


def _described(row):
    if row["objective"] is None:
        return show.pretty(UNMARKED) if row["mark"] == UNMARKED else "best of 48 classical"
    start = f" from {row['start']}" if row["start"] else ""
    return rf"{row['objective']}{start}, $k<{row['trained_kmax']:g}$"


def _point(ax, row, quantity, unit, number):
    value, low, high = (row[f"{quantity}{end}"] / unit for end in ("", "_low", "_high"))
    colour, marker = _look(row)
    ax.errorbar(row["info_nce"], value, [[value - low], [high - value]], color=colour, marker=marker, ms=6, capsize=2)
    ax.annotate(f"{number}", (row["info_nce"], value), (5, 4), textcoords="offset points", fontsize=8)


@torch.no_grad()
def side_by_side(marks, delta, grid, axis=2, index=0):
    """Filters, responses and a slice of M for several marks, a column each.

    Parameters
    ----------
    marks : {title: LearnedMark or ClassicalMark}.
    delta : (n, n, n) density contrast to look at.
    """
    figure, axes = plt.subplots(3, len(marks), figsize=(3.3 * len(marks), 8.4), layout="constrained", squeeze=False)
    for column, (title, mark) in zip(axes.T, marks.items(), strict=True):
        column[0].set_title(title, fontsize=10)
        draw = _classical_column if isinstance(mark, ClassicalMark) else _learned_column
        M = draw(column, mark, delta, grid)
        picture = show.slice_of((M - M.mean()) / M.std(), axis, index)
        drawn = column[2].imshow(picture, cmap="PuOr_r", vmin=-3, vmax=3, extent=(0, grid.box_size) * 2)
        column[2].set(xlabel=r"Mpc/$h$", ylabel=r"Mpc/$h$")
        column[0].set(xlabel=r"$k$ [$h$/Mpc]", ylabel=r"$T_{\rm tap}G_\ell$ / largest", ylim=(-1.1, 1.1))
        column[0].axhline(0, color="0.6", lw=0.6)
        column[1].axhline(0, color="0.6", lw=0.6)
        for ax in column[:2]:
            ax.legend(fontsize=8)
    figure.colorbar(drawn, ax=axes[2], label=r"$(M-\langle M\rangle)$ / rms", shrink=0.9)
    return figure


def _learned_column(column, mark, delta, grid):
    parts, k = anatomy(mark, delta, grid), torch.linspace(0, mark.grid.k_nyq, 300)
    for l, G in enumerate(mark.G_l(k) * mark.grid.taper(k)):
        column[0].plot(k, G / G.abs().max(), color=L_COLOURS[l], label=rf"$G_{l}$")
    for name, (f, h) in response_curves(parts).items():
        column[1].plot(f, h, color=CURVES[name], label=f"$h({name[0]}_{name[1]})$")
    column[1].set(xlabel="invariant", ylabel=r"added to $\eta$")
    return parts.M()


def _classical_column(column, mark, delta, grid):
    k = torch.linspace(0, grid.k_nyq, 300)
    column[0].plot(k, torch.exp(-((k * mark.R) ** 2) / 2), color=L_COLOURS[0], label=f"Gaussian, {mark.R:g} Mpc/$h$")
    low = -min(0.9, 1 + mark.delta_s - 0.02)
    delta_R = torch.linspace(low, 3, 200)
    M = mark.of_smoothed(delta_R)
    column[1].plot(delta_R, M - mark.of_smoothed(torch.zeros(1)), color=CURVES["E0"], label=r"$M(\delta_R)-M(0)$")
    column[1].set(xlabel=r"$\delta_R$", ylabel="added to $M$", yscale="symlog")
    return mark(delta, grid)


def main():
    """Pictures of RESULTS.md that need no suite."""
    folder, grid = disk.figures(), universe.PRESETS["demo"].grid
    show.style()
    show.save(two_tasks(read(folder / "objectives_demo.csv")), "objectives_demo", publish=True)
    show.save(searches(lines(folder / "contrast_mini.csv")), "contrast_mini", publish=True)
    show.save(losses.recipes(folder / "recipes_demo.csv", folder / "recipes_mini.csv"), "recipes", publish=True)
    names = {"contrast, k < 0.3": "demo_l2", "information, k < 0.2": "demo_i2", "information, k < 0.3": "demo_i3"}
    marks = {title: load(name).mark for title, name in names.items()} | {"classical, p = 2.5": ClassicalMark(2.5, 0.0)}
    delta = universe.Simulator(grid, particles=grid.n)(universe.FIDUCIAL, 4_000_000)
    show.save(side_by_side(marks, delta, grid, index=grid.n // 3), "marks_demo", publish=True)


if __name__ == "__main__":
    main()
