"""A mark taken apart: the paper's figure 2, responses, the cross term, what matters, what it is like; explorers."""

from itertools import accumulate, pairwise

import ipywidgets as w
import numpy as np
import torch

from nbkit.look import cross_response, response_curves
from nbkit.mark.classical import smoothing_kernel
from nbkit.mark.learned import LearnedMark
from nbkit.mesh.grid import to_fourier, to_real
from nbkit.mesh.spectra import marked_field, spectra_of_modes
from nbkit.show.controls import Explorer, side_by_side, slider
from nbkit.show.curves import Curves
from nbkit.show.fields import SHOWN, kernel_panel, kernels
from nbkit.show.looks import BLUE, COLOURS, L_COLOURS, LABELS, RED, SIGNED, SYMBOLS, colour_range, row_of_panels
from nbkit.show.maps import Maps


def start_of(mark):
    """The mark with the profiles and responses its training began with: G_l of the band-passes, M = 1."""
    return LearnedMark(mark.grid, **mark.settings).requires_grad_(False)


def anatomy_maps(parts, **state):
    """Maps of delta, the invariants, the marked field, the terms less their means, and the M that they add up to."""
    M = parts.M()
    terms = {name: h - parts.means[name] for name, h in parts.terms.items()}
    # All terms share one range, so that the strong ones look strong.
    top = max(colour_range(h, name)[1] for name, h in terms.items())
    fields = {"delta": parts.delta} | parts.invariants | {"Delta": marked_field(M / M.mean(), parts.delta)} | terms
    ranges = dict.fromkeys(terms, (-top, top))
    return Maps(fields, parts.grid, terms, parts.mean_eta, ranges=ranges, title="Anatomy", **state)


def anatomy(parts, axis=2, index=0):
    """The paper's figure 2: kernels and profiles; below a slice of delta, invariants, marked field, terms, and M."""
    figure, mark = anatomy_maps(parts, axis=axis, index=index).figure(columns=6, above=2.9), parts.mark
    width, height = figure.get_size_inches()
    place = {"left": 0.6 / width, "right": 1 - 0.3 / width, "bottom": 1 - 2.3 / height, "top": 1 - 0.35 / height}
    axes = figure.add_gridspec(1, 4, width_ratios=(1, 1, 1, 2.2), wspace=0.3, **place).subplots()
    maps, grid = kernels(mark.G_l, mark.grid.k_nyq)
    for l, ax in enumerate(axes[:3]):
        ax.set_visible(l <= mark.profiles.l_max)
        if ax.get_visible():
            kernel_panel(ax, maps, grid, SHOWN[l])
            ax.set(title=ax.get_title() + ", over its largest", ylabel=ax.get_ylabel() if l == 0 else "")
            ax.title.set_fontsize(9)
    draw_profiles(axes[3], mark, start_of(mark), scaled=True)
    return figure


def draw_profiles(ax, mark, start=None, scaled=False):
    """T_tap G_l(k) of a mark and, dashed, of the one its training began with; each over its largest if `scaled`."""
    k = torch.linspace(0, mark.grid.k_nyq, 300)
    for each, line in ((start, "--"), (mark, "-")):
        for l, G in enumerate(() if each is None else (each.G_l(k).detach() * each.grid.taper(k)).numpy()):
            label = rf"$G_{l}$" if each is mark else "start" if l == 0 else None
            ax.plot(k, G / (np.abs(G).max() if scaled else 1), line, color=L_COLOURS[l], label=label)
    ax.axhline(0, color="0.5", lw=0.6)
    ax.set(xlim=(0, k[-1]), xlabel=r"$k$ [$h$/Mpc]", ylabel=r"$T_{\rm tap}G_\ell$" + " / largest" * scaled)
    ax.legend()


def responses(parts):
    """h_a(f) less its mean, over the distribution of f in the box: drawn where all but a thousandth of voxels are."""
    curves = response_curves(parts)
    figure, axes = row_of_panels(len(curves), 2.9, 3.2, sharey=True)
    for ax, (name, (f, h)) in zip(axes[0], curves.items(), strict=True):
        voxels = parts.invariants[name].numpy().ravel()
        beside = ax.twinx()
        beside.hist(voxels, bins=60, range=(f[0], f[-1]), color="0.85", density=True)
        beside.set(yticks=[], ylim=(0, None))
        beside.spines[:].set_visible(False)
        ax.set(zorder=2, facecolor="none")
        middle = (f >= np.quantile(voxels, 0.16)) & (f <= np.quantile(voxels, 0.84))
        colour = COLOURS[name]
        ax.plot(f, h, color=colour, lw=1.4)
        ax.plot(f[middle], h[middle], color=colour, lw=4, solid_capstyle="butt")
        ax.axhline(0, color="0.5", lw=0.6)
        ax.set(xlabel=LABELS[name], title=LABELS[f"h_{name}"])
    axes[0][0].set_ylabel(r"$h_a - \langle h_a\rangle$")
    return figure


def cross_maps(parts, I3=(-0.3, 0.0, 0.3)):
    """h_x(E0, E2) less its mean at chosen I3, white where the box has no such voxels."""
    figure, axes = row_of_panels(len(I3), 3.3, 3.2, sharey=True)
    maps = [cross_response(parts, value) for value in I3]
    top = max(np.nanmax(np.abs(h)) for *_, h in maps)
    for ax, value, (E0, E2, h) in zip(axes[0], I3, maps, strict=True):
        drawn = ax.pcolormesh(E0, E2, h, cmap=SIGNED, vmin=-top, vmax=top, rasterized=True)
        kind = "pancakes" if value < -0.1 else "cigars" if value > 0.1 else "neither"
        ax.set(title=rf"$I_3 = {value:g}$ ({kind})", xlabel=LABELS["E0"])
    axes[0, 0].set_ylabel(LABELS["E2"])
    figure.colorbar(drawn, ax=axes, label=r"$h_\times - \langle h_\times\rangle$", aspect=25)
    return figure


def anatomy_explorer(parts, kmax=0.3):
    """Every map of a mark, its terms on or off, what that does to its spectra up to kmax [h/Mpc], and one voxel.

    A term that is off is replaced by its mean. For spectra M is divided by its mean: an affine map of the mark changes
    its scale but not what it tells. The densest voxel is pinned at the start.
    """
    grid, delta, full, delta_k = parts.grid, parts.delta, parts.M(), to_fourier(parts.delta, parts.grid)
    at = [int(i) for i in np.unravel_index(int(delta.argmax()), grid.shape)]
    maps, said, bars = anatomy_maps(parts, index=at[2]), w.HTML(), w.HTML()

    def weighed(on):
        """The marked field, {"Delta": field}, and {label: curve} of its spectra over P_dd, of the terms that are on."""
        M = parts.M([name for name in parts.terms if name not in on])
        Delta = marked_field(M / M.mean(), delta)
        P = spectra_of_modes(delta_k, to_fourier(Delta, grid), grid=grid, kmax=kmax)
        R2 = np.corrcoef(M.ravel(), full.ravel())[0, 1] ** 2 if on else 0
        names, last = ", ".join(SYMBOLS[name] for name in on) or "none", float(P.P_mm[-1] / P.P_dd[-1])
        said.value = (
            f"<div style='line-height: 18px'><b>on: {names}</b>. M explains {R2:.0%} of "
            f"the variance of the full mark; P_ΔΔ / P_δδ = {last:.2f} at k = {float(P.k[-1]):.2f} h/Mpc.</div>"
        )
        return {"Delta": Delta}, {"P_δΔ / P_δδ": (P.k, P.P_dm / P.P_dd), "P_ΔΔ / P_δδ": (P.k, P.P_mm / P.P_dd)}

    def switch(_):
        field, lines = weighed(maps.on)
        maps.fixed = maps.ranges  # colours stay as they were, so that maps can be compared
        maps.update(field)
        curves.update(lines)

    def explain(_):
        bars.value = voxel_bars(parts, tuple(maps.pinned), [name for name in parts.terms if name not in maps.on])

    _, lines = weighed(parts.terms)
    looks = zip(lines.items(), (BLUE, RED), strict=True)
    lines = {label: {"x": k, "y": ratio, "colour": colour} for (label, (k, ratio)), colour in looks}
    ghosts = {f"{label.split()[0]}, all on": line | {"ghost": True, "dash": ":"} for label, line in lines.items()}
    curves = Curves(lines | ghosts, labels=("k [h/Mpc]", "marked spectrum over P_δδ"), log="x", rules=(1,))
    maps.pinned = at
    explain(None)
    maps.observe(switch, names="on")
    maps.observe(explain, names=["on", "pinned"])
    panel = w.VBox([said, bars], layout=w.Layout(flex="1 1 380px", min_width="280px", padding="0 0 0 12px"))
    static = side_by_side(maps.png(columns=6), curves.png())
    explorer = Explorer("Anatomy explorer", [], [maps, curves, panel], static)
    maps.layout = w.Layout(width="100%")  # a row of its own
    return explorer


def voxel_bars(parts, voxel, off=()):
    """HTML that says why M is what it is in a voxel (x, y, z): from the mean of eta, by each term that is not off."""
    if not voxel:
        return "<b>Why is M high here?</b> Click on a map, or press Enter at the cursor, to pin a voxel."
    whole, eta, M = parts.eta(), float(parts.eta(off)[voxel]), parts.M(off)
    low, high = torch.lerp(whole.min(), whole.max(), torch.tensor([-0.25, 1.1])).tolist()
    steps = {name: float(h[voxel]) - parts.means[name] for name, h in parts.terms.items() if name not in off}
    ends = list(accumulate(steps.values(), initial=parts.mean_eta))
    rows = [("mean of η", "#888", (low, ends[0]), f"{ends[0]:.2f}")]
    for (name, step), span in zip(steps.items(), pairwise(ends), strict=True):
        rows.append((SYMBOLS[name], COLOURS[name], sorted(span), f"{step:+z.2f}"))
    rows.append(("η", "currentColor", (low, eta), f"{eta:.2f}"))

    def share(x):
        return f"{100 * (x - low) / (high - low):.2f}%"

    cells = "<span>{}</span><div style='overflow: hidden; height: 18px'>{}</div><span>{}</span>"
    bar = "<div style='height: 14px; margin: 2px 0 0 {}; width: max({}, 1px); background: {}'></div>"
    drawn = [cells.format(name, bar.format(share(a), share(low + b - a), c), x) for name, c, (a, b), x in rows]
    total = " ".join(f"{x} {name}" for name, _, _, x in rows[1:-1])
    return (
        f"<div style='line-height: 18px'><b>voxel {', '.join(map(str, voxel))}</b>: "
        f"1 + δ = {float(1 + parts.delta[voxel]):.2f}<div style='display: grid; grid-template-columns: auto 1fr auto; "
        f"gap: 0 8px; margin: 6px 0'>{''.join(drawn)}</div>η = {ends[0]:.2f} {total} = <b>{eta:.2f}</b>, "
        f"M = <b>{float(M[voxel]):.3g}</b>, {float(M[voxel] / M.mean()):.2f} of its mean</div>"
    )


def surface_explorer(parts, R=8.0):
    """The surface 1 + delta_R = level, R a Gaussian's [Mpc/h], coloured by M over its mean, and slices of both."""
    grid, M = parts.grid, parts.M()
    density = 1 + to_real(to_fourier(parts.delta, grid) * smoothing_kernel(R, grid, parts.delta), grid)
    bottom, top = (round(float(x), 1) for x in np.quantile(density, (0.02, 0.995)))
    level = slider("1 + delta", min(max(1.6, bottom), top), bottom, top, 0.1)
    look = {"labels": {"density": f"1 + δ over {R:g} Mpc/h", "M": "M / mean"}, "colours": {"density": "magma"}}
    # What M is on such a surface, however much it varies elsewhere.
    ends = np.quantile((M / M.mean())[(density - level.value).abs() < 0.1], (0.02, 0.98)).tolist()
    start = {"solid": "density", "level": level.value, "skin": "M", "ranges": {"M": ends}, "title": "Surface"}
    maps = Maps({"density": density, "M": M / M.mean()}, grid, **start, **look)
    w.jslink((level, "value"), (maps, "level"))
    return Explorer("M on a surface of equal density, in 3D", [level], [maps])
