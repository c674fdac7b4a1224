"""Why contrast finds ordinary marks: writes contrast_mini.csv, which notebook 08 shows.

Additive marks (`nbkit.train.search`) of E0, E1 and E2 are found by contrast in many ways, and on information; all are
judged alike: InfoNCE of heads trained anew on the training set, forecasts on the fiducial boxes and pairs. Every mark
comes from cross spectra, so neither an imitation nor a pass over the boxes interferes.

Run `python figures/contrast.py`: an hour and a half on two cores, mostly for 4,000 more boxes. It is kept as it goes.
With the names of searches, `python figures/contrast.py "500 boxes"`, these are made and all other rows stay.
"""

import sys
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from types import SimpleNamespace

import torch
from ablations import ENDS, PARAMETERS, lines, write
from info_nce import CPU, Boxes, info_nce_of

import nbkit as nb
from nbkit import disk
from nbkit.forecast import BEST
from nbkit.mark.additive import NODES, SURVEYED, channels_of, ends_of
from nbkit.measure import Measurement
from nbkit.measure.cross import keep_cross_spectra, spectra_of
from nbkit.mesh.grid import to_fourier
from nbkit.mesh.spectra import unmarked_summary
from nbkit.train.data import Prior
from nbkit.train.fit import fit
from nbkit.train.information import Neighbourhood
from nbkit.train.search import (
    FALLING,
    RATE,
    RISING,
    Coefficients,
    InformationSearch,
    R,
    search_by_contrast,
    search_recipe,
)
from nbkit.universe import FIDUCIAL_SETS, PRESETS, QUIJOTE_NAMES

PRESET = "mini"
KMAX = (0.2, 0.3)
MORE = PRESETS["mini_more"]
NEAR = PRESETS["demo"].near  # the cells are the same and a mark is local; boxes of an eighth of the volume will do
FEW, JOBS = PRESETS[PRESET].BSQ, 2
FOLDER = disk.runs() / "experiment" / "contrast"
SHORT = 40  # epochs: less than the recipe has, because searches are many; two that are longer show what that changes
USUAL = nb.Training("mini_more", recipe="warm", head_epochs=SHORT)
AT_02, INFORMATION = replace(USUAL, kmax=KMAX[0]), nb.Training(PRESET, "information")
NUMBERS = tuple(f"ratio_{p}_k{k:g}{end}" for k in KMAX for p in PARAMETERS for end in ENDS)
COLUMNS = ("mark", "boxes", "kmax", "seed", "loss", "info_nce", *NUMBERS)
# What else a search may change: training boxes, validation included; smoothing scale of the filters [Mpc/h]; learning
# rate of the coefficients; slope of the exponential of E0 to begin with, or "information": the function found on that,
# at 0.2 h/Mpc; how many seeds; and, under their own names, numbers of the recipe of the heads.
DEFAULTS = {"boxes": FEW, "scale": R, "rate": RATE, "begin": FALLING, "seeds": 1}
# What tables call a search: whose kmax, l_max, residual and epochs it has, and what else is not as usual.
SEARCHES = {
    "2,000 boxes, up to 0.3": (USUAL, {"seeds": 3}),
    "500 boxes": (USUAL, {"boxes": 500, "seeds": 3}),
    "1,000 boxes": (USUAL, {"boxes": 1000, "seeds": 3}),
    "6,000 boxes": (USUAL, {"boxes": 6000, "seeds": 3}),
    "up to 0.2": (AT_02, {"seeds": 3}),
    "up to 0.2, 6,000 boxes": (AT_02, {"boxes": 6000, "seeds": 6}),
    "… three times as long": (replace(AT_02, head_epochs=3 * SHORT), {"boxes": 6000}),
    "… a fifth of the heads' rate": (AT_02, {"boxes": 6000, "learning_rate": 1e-3}),
    "… E0 alone": (replace(AT_02, l_max=0), {"boxes": 6000, "seeds": 6}),
    "three times as long": (replace(USUAL, head_epochs=3 * SHORT), {}),
    "a third of the rate": (USUAL, {"rate": RATE / 3}),
    "three times the rate": (USUAL, {"rate": 3 * RATE}),
    "filters of 7 Mpc/h": (USUAL, {"scale": 7.0}),
    "begun rising": (USUAL, {"begin": RISING}),
    "narrow heads": (USUAL, {"width": 16}),
    "no residual": (replace(USUAL, residual=False), {}),
    "begun at the information mark": (USUAL, {"begin": "information"}),
}


def options(label):
    """All of `DEFAULTS` as a search has them, and what it changes of the recipe of the heads."""
    changes = DEFAULTS | SEARCHES[label][1]
    return {name: changes.pop(name) for name in DEFAULTS}, changes


def boxes_of(preset):
    """The training set of a preset."""
    return nb.suite(preset, sets=("BSQ",))["BSQ"]


def ends(scale):
    """Nodes of the channels behind filters of one scale [Mpc/h], from boxes of the training set."""
    data = Prior(boxes_of(MORE), USUAL.recipe_for(MORE.grid), KMAX[-1], 0, CPU)
    return ends_of(to_fourier(data.some(SURVEYED), data.grid), data.grid, channels_of(2, scale))


def cross(where, scale):
    """Cross spectra behind filters of one scale [Mpc/h] of the boxes of the "prior", "near" or "judges"; kept on disk.

    Marks on information are found on those near the fiducial point. Other scales than the usual make do with FEW boxes
    of the prior.
    """
    if where == "prior":
        simulations, count = boxes_of(MORE), MORE.BSQ if scale == R else FEW
        data = Prior(simulations, USUAL.recipe_for(MORE.grid), KMAX[-1], 0, CPU)
    else:
        around = nb.suite(PRESET if where == "judges" else NEAR, sets=FIDUCIAL_SETS)
        data = Neighbourhood(around, INFORMATION.recipe_for(around["fiducial"].grid), KMAX[-1], 0, CPU)
        simulations, count = data.simulations, len(data.simulations)
    return keep_cross_spectra(simulations, data, torch.arange(count), channels_of(2, scale), ends(scale))


def bins(kmax):
    """How many bins there are up to kmax."""
    return len(MORE.grid.bins(kmax).k)


def on_information(kmax):
    """Coefficients (3, nodes) of the function with the most information up to kmax on the boxes of `near`."""
    table, found = cross("near", R)[:, : len(NEAR.grid.bins(kmax).k)], []
    for slope in (FALLING, RISING):
        mark = Coefficients(3, slope, torch.float64)
        everyone = torch.arange(NEAR.fiducial), torch.arange(NEAR.pairs)
        data = SimpleNamespace(S_M=table, training=everyone, seed=0, processes=CPU)
        loss = fit(
            InformationSearch(data, mark, INFORMATION.wanted),
            FOLDER / f"information_{kmax:g}_{slope:g}",
            CPU,
            show=False,
        ).best_loss
        found.append((loss, mark.c.detach()))
    return min(found, key=lambda each: each[0])[1]


def of_first(table, count):
    """What cross spectra have of the first channels."""
    return table[..., torch.triu_indices(3 * NODES + 1, 3 * NODES + 1)[1] <= count * NODES]


def by_contrast(label, seed):
    """Validation loss of a search, and its coefficients."""
    torch.set_num_threads(1)
    training, (how, heads) = SEARCHES[label][0], options(label)
    table = cross("prior", how["scale"])[: how["boxes"], : bins(training.kmax)].float()
    table, recipe = of_first(table, 1 + training.l_max), training.recipe_for(MORE.grid)
    recipe, theta = replace(search_recipe(recipe), **heads), boxes_of(MORE).theta[: how["boxes"]]
    recipe = replace(recipe, mark_rate=how["rate"] / recipe.learning_rate)
    data = Prior(Boxes(theta, MORE.grid), recipe, training.kmax, seed, CPU)
    data.S_delta, data.S_M = unmarked_summary(table[..., 0]), table
    from_information = how["begin"] == "information"
    mark = Coefficients(1 + training.l_max, FALLING if from_information else how["begin"])
    if from_information:
        with torch.no_grad():
            mark.c.copy_(on_information(KMAX[0]))
    quiet = {"checkpoint_every": 60.0, "show": False}
    loss = search_by_contrast(data, mark, training.residual, (seed,), FOLDER / label / str(seed), **quiet)
    return loss, mark.c.detach()


def spectra(table, c, simulations):
    """Measured spectra of a mark with coefficients c from cross spectra of a set."""
    P_dd, P_dm, P_mm = spectra_of(of_first(table, len(c)), c.double().flatten()).split(table.shape[1], dim=-1)
    marked, of = {"mark": torch.stack([P_dm, P_mm], dim=1).numpy()}, MORE.grid.bins(KMAX[-1])
    return Measurement(
        of.k.double().numpy(), of.modes.numpy(), simulations.theta, simulations.seeds, P_dd.numpy(), marked
    )


def info_nce(found, scale):
    """InfoNCE over the preset's training set, heads trained anew on a mark."""
    torch.set_num_threads(1)
    power = spectra(cross("prior", scale)[:FEW], found, boxes_of(PRESET))
    return info_nce_of(power, "mark", replace(USUAL, preset=PRESET), MORE.grid)


def ratios(found, scale, rivals):
    """{column: number}: sigma of the best classical mark, for each parameter and kmax, over that of a mark."""
    simulations, first, power = nb.suite(PRESET, sets=FIDUCIAL_SETS), 0, {}
    table = cross("judges", scale)
    for name in FIDUCIAL_SETS:
        power[name] = spectra(table[first : first + len(simulations[name])], found, simulations[name])
        first += len(simulations[name])
    out = {}
    for kmax in KMAX:
        ratio = rivals[kmax] / nb.forecast(power, kmax)["mark"]
        for parameter in PARAMETERS:
            i = QUIJOTE_NAMES.index(parameter)
            for end, x in zip(ENDS, (ratio.value, ratio.low, ratio.high), strict=True):
                out[f"ratio_{parameter}_k{kmax:g}{end}"] = float(x[i])
    return out


def main(*names):
    """Search, judge, write; of searches with these names alone, if there are any."""
    if unknown := set(names) - set(SEARCHES):
        sys.exit(f"There is no search {', '.join(unknown)}; there are {', '.join(SEARCHES)}.")
    chosen = {label: options(label)[0] for label in SEARCHES if not names or label in names}
    for scale in {how["scale"] for how in chosen.values()}:  # made once, before several processes ask for them
        cross("prior", scale)
    rows = [] if names else [{"mark": f"information, up to {kmax:g}", "kmax": kmax} for kmax in KMAX]
    found = [on_information(row["kmax"]) for row in rows]
    asked = [(label, seed) for label, how in chosen.items() for seed in range(how["seeds"])]
    scales = [R] * len(rows) + [chosen[label]["scale"] for label, _ in asked]
    with ProcessPoolExecutor(JOBS, get_context("spawn")) as pool:
        for (label, seed), (loss, c) in zip(asked, pool.map(by_contrast, *zip(*asked, strict=True)), strict=True):
            boxes, kmax = chosen[label]["boxes"], SEARCHES[label][0].kmax
            rows.append({"mark": label, "boxes": boxes, "kmax": kmax, "seed": seed, "loss": loss})
            found.append(c)
        losses = list(pool.map(info_nce, found, scales))
    classical = nb.measure(PRESET, nb.classical_marks(), FIDUCIAL_SETS)
    rivals = {kmax: nb.forecast(classical, kmax)[BEST] for kmax in KMAX}
    for row, c, scale, loss in zip(rows, found, scales, losses, strict=True):
        row |= {"info_nce": loss} | ratios(c, scale, rivals)
    path, order = disk.figures() / f"contrast_{PRESET}.csv", list(SEARCHES)
    if names:
        rows += [row for row in lines(path) if row["mark"] not in names]
        rows.sort(key=lambda row: order.index(row["mark"]) if row["mark"] in order else -1)
    write(rows, path, COLUMNS)


if __name__ == "__main__":
    main(*sys.argv[1:])
