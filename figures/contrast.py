"""Why contrast finds ordinary marks: writes contrast_mini.csv, which notebook 08 shows.

Additive marks (`nbkit.train.search`) of E0, E1 and E2 are found by contrast in many ways, and on information; all are
judged alike: InfoNCE of heads trained anew on the training set, forecasts on the fiducial boxes and pairs. Every mark
comes from cross spectra, so neither an imitation nor a pass over the boxes interferes.

Run `python figures/contrast.py`: an hour and a half on two cores, mostly for 4,000 more boxes. It is kept as it goes.
With the names of searches, `python figures/contrast.py "500 boxes"`, these are made and all other rows stay.
"""

import json
import sys
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from multiprocessing import get_context

import numpy as np
import torch
from ablation_table import lines, write
from frozen import Boxes, info_nce_of
from nbkit.forecast.information import wanted_rows
from nbkit.train.contrast_function import FALLING, RATE, RISING, Coefficients, R, searched
from nbkit.train.recipe import WARM
from nbkit.train.train_information import INFORMATION, WANTED

from nbkit import disk
from nbkit.disk import write_json
from nbkit.forecast.bootstrap import resampled, resamples
from nbkit.forecast.fisher import ingredients, standard
from nbkit.mark.additive import NODES, SURVEYED, channels_of, ends_of
from nbkit.mark.classical import classical_marks
from nbkit.measure import Measurement, measure
from nbkit.measure.cross import keep_cross_spectra, spectra_of
from nbkit.mesh.grid import to_fourier
from nbkit.mesh.spectra import unmarked_summary
from nbkit.train.data import TrainingData
from nbkit.train.neighbourhood import Neighbourhood
from nbkit.train.processes import Processes, choose_device
from nbkit.train.search import SLOPES, minimised
from nbkit.universe.cosmology import QUIJOTE_NAMES
from nbkit.universe.suite import FIDUCIAL_SETS, PRESETS, suite

PRESET = "mini"
KMAX = (0.2, 0.3)
MORE = PRESETS["mini_more"]
NEAR = PRESETS["demo"].near  # the cells are the same and a mark is local; boxes of an eighth of the volume will do
FEW, JOBS = PRESETS[PRESET].BSQ, 2
FOLDER = disk.runs() / "experiment" / "contrast"
SHORT = 40  # epochs: less than the recipe has, because searches are many; two that are longer show what that changes
RECIPE = replace(WARM, start="unit", head_epochs=0, epochs=SHORT, learning_rate=WARM.pretrain_rate)
CPU = Processes(choose_device("cpu"))
NUMBERS = tuple(f"ratio_{p}_k{k:g}{end}" for k in KMAX for p in ("Om", "s8") for end in ("", "_low", "_high"))
COLUMNS = ("mark", "boxes", "kmax", "seed", "loss", "info_nce", *NUMBERS)


@dataclass(frozen=True)
class Search:
    """One way to search by contrast; the defaults are those of recipe `warm`, but for the epochs.

    Parameters
    ----------
    said : what tables call it.
    boxes, kmax : training boxes, validation included, and largest k [h/Mpc].
    scale : smoothing scale of the filters [Mpc/h].
    epochs, rate : of heads and coefficients; learning rate of the coefficients.
    begin : slope of the exponential of E0 to begin with, or "information": the function found on that, at 0.2 h/Mpc.
    residual : whether only what z_m says beyond z_d counts.
    heads : changes to the recipe of the heads, as pairs.
    l_max : 2 has functions of E0, E1 and E2, 0 of E0 alone.
    seeds : how many times.
    """

    said: str
    boxes: int = FEW
    kmax: float = 0.3
    scale: float = R
    epochs: int = RECIPE.epochs
    rate: float = RATE
    begin: float | str = FALLING
    residual: bool = True
    heads: tuple = ()
    l_max: int = 2
    seeds: int = 1


SEARCHES = (
    Search("2,000 boxes, up to 0.3", seeds=3),
    Search("500 boxes", boxes=500, seeds=3),
    Search("1,000 boxes", boxes=1000, seeds=3),
    Search("6,000 boxes", boxes=6000, seeds=3),
    Search("up to 0.2", kmax=0.2, seeds=3),
    Search("up to 0.2, 6,000 boxes", kmax=0.2, boxes=6000, seeds=6),
    Search("… three times as long", kmax=0.2, boxes=6000, epochs=3 * RECIPE.epochs),
    Search("… a fifth of the heads' rate", kmax=0.2, boxes=6000, heads=(("learning_rate", 1e-3),)),
    Search("… E0 alone", kmax=0.2, boxes=6000, l_max=0, seeds=6),
    Search("three times as long", epochs=3 * RECIPE.epochs),
    Search("a third of the rate", rate=RATE / 3),
    Search("three times the rate", rate=3 * RATE),
    Search("filters of 7 Mpc/h", scale=7.0),
    Search("begun rising", begin=RISING),
    Search("narrow heads", heads=(("width", 16),)),
    Search("no residual", residual=False),
    Search("begun at the information mark", begin="information"),
)


def ends(scale):
    """Nodes of the channels behind filters of one scale [Mpc/h], from boxes of the training set."""
    simulations = suite(MORE, sets=("BSQ",))["BSQ"]
    boxes = np.linspace(0, MORE.BSQ, SURVEYED, endpoint=False).astype(int).tolist()
    return ends_of(to_fourier(simulations[boxes], simulations.grid), simulations.grid, channels_of(2, scale))


def cross(where, scale):
    """Cross spectra behind filters of one scale [Mpc/h] of the boxes of the "prior", "near" or "judges"; kept on disk.

    Marks on information are found on those near the fiducial point. Other scales than the usual make do with FEW boxes
    of the prior.
    """
    if where == "prior":
        simulations = suite(MORE, sets=("BSQ",))["BSQ"]
        data, count = TrainingData(simulations, RECIPE, KMAX[-1], 0, CPU), MORE.BSQ if scale == R else FEW
    else:
        simulations = suite(PRESET if where == "judges" else NEAR, sets=FIDUCIAL_SETS)
        data = Neighbourhood(simulations, KMAX[-1], INFORMATION.validation, 0, CPU)
        simulations, count = data.joined, len(data.joined)
    channels, nodes = channels_of(2, scale), ends(scale)
    return keep_cross_spectra(simulations, data, torch.arange(count), channels, nodes)


def bins(kmax):
    """How many bins there are up to kmax."""
    return len(MORE.grid.bins(kmax).k)


def on_information(kmax):
    """Coefficients (3, nodes) of the function with the most information up to kmax on the boxes of `near`."""
    path = FOLDER / f"information_{kmax:g}.json"
    if not path.exists():
        table = cross("near", R)[:, : len(NEAR.grid.bins(kmax).k)]
        found = (minimised(table, [NEAR.fiducial, NEAR.pairs], 3, slope, wanted_rows(WANTED), 0) for slope in SLOPES)
        c, loss = min(found, key=lambda each: each[1])
        write_json(path, {"c": c.tolist(), "loss": loss})
    return torch.tensor(json.loads(path.read_text())["c"])


def of_first(table, count):
    """What cross spectra have of the first channels."""
    return table[..., torch.triu_indices(3 * NODES + 1, 3 * NODES + 1)[1] <= count * NODES]


def by_contrast(search, seed):
    """Validation loss of a Search, and its coefficients."""
    torch.set_num_threads(1)
    table = cross("prior", search.scale)[: search.boxes, : bins(search.kmax)].float()
    table = of_first(table, 1 + search.l_max)
    theta = suite(MORE, sets=("BSQ",))["BSQ"].theta[: search.boxes]
    recipe = replace(RECIPE, epochs=search.epochs, **dict(search.heads))
    data = TrainingData(Boxes(theta, MORE.grid), recipe, search.kmax, seed, CPU)
    data.S_delta, data.S_M = unmarked_summary(table[..., 0]), table
    mark = Coefficients(1 + search.l_max, FALLING if search.begin == "information" else search.begin)
    if search.begin == "information":
        with torch.no_grad():
            mark.c.copy_(on_information(0.2))
    folder = FOLDER / search.said / str(seed)
    folder.mkdir(parents=True, exist_ok=True)
    shown = {"checkpoint_every": 60.0, "stop": None, "on_epoch": None, "show": False}
    return searched(data, mark, recipe, search.residual, (seed,), folder, search.rate, **shown)


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
    table, simulations = cross("prior", scale)[:FEW], suite(PRESET, sets=("BSQ",))["BSQ"]
    return info_nce_of(
        spectra(table, found, simulations), "mark", MORE.grid, replace(WARM, head_epochs=SHORT), KMAX[-1]
    )


def forecasts(found, scale, rivals):
    """{column: number}: sigma of the best classical mark over that of a mark."""
    simulations, first, by_set = suite(PRESET, sets=FIDUCIAL_SETS), 0, {}
    table = cross("judges", scale)
    for name in FIDUCIAL_SETS:
        by_set[name] = spectra(table[first : first + len(simulations[name])], found, simulations[name])
        first += len(simulations[name])
    out = {}
    for kmax in KMAX:
        given = ingredients(by_set, "mark", kmax)
        mine = resampled(given, resamples(given.n_s, given.pairs))
        for parameter in ("Om", "s8"):
            i, ratio = QUIJOTE_NAMES.index(parameter), mine.ratio(rivals[kmax, parameter])
            for end, x in zip(("", "_low", "_high"), (ratio.value, ratio.low, ratio.high), strict=True):
                out[f"ratio_{parameter}_k{kmax:g}{end}"] = float(x[i])
    return out


def best_classical():
    """{(kmax, parameter): resampled forecast of the best of the 48 classical marks}."""
    power, best = measure(PRESET, classical_marks(), FIDUCIAL_SETS), {}
    for kmax in KMAX:
        given = {label: ingredients(power, label, kmax) for label in classical_marks()}
        sigma = {label: standard(each).sigma() for label, each in given.items()}
        for parameter in ("Om", "s8"):
            chosen = given[min(sigma, key=lambda label: sigma[label][QUIJOTE_NAMES.index(parameter)])]
            best[kmax, parameter] = resampled(chosen, resamples(chosen.n_s, chosen.pairs))
    return best


def main(*names):
    """Search, judge, write; of searches with these names alone, if there are any."""
    chosen = [search for search in SEARCHES if not names or search.said in names]
    if unknown := set(names) - {search.said for search in SEARCHES}:
        sys.exit(f"There is no search {', '.join(unknown)}; there are {', '.join(each.said for each in SEARCHES)}.")
    for scale in {search.scale for search in chosen}:  # made once, before several processes ask for them
        cross("prior", scale)
    rows = [] if names else [{"mark": f"information, up to {kmax:g}", "kmax": kmax} for kmax in KMAX]
    found = [on_information(row["kmax"]) for row in rows]
    asked = [(search, seed) for search in chosen for seed in range(search.seeds)]
    scales = [R] * len(rows) + [search.scale for search, _ in asked]
    with ProcessPoolExecutor(JOBS, get_context("spawn")) as pool:
        for (search, seed), (loss, c) in zip(asked, pool.map(by_contrast, *zip(*asked, strict=True)), strict=True):
            rows.append({"mark": search.said, "boxes": search.boxes, "kmax": search.kmax, "seed": seed, "loss": loss})
            found.append(c)
        losses = list(pool.map(info_nce, found, scales))
    rivals = best_classical()
    for row, c, scale, loss in zip(rows, found, scales, losses, strict=True):
        row |= {"info_nce": loss} | forecasts(c, scale, rivals)
    path, order = disk.figures() / f"contrast_{PRESET}.csv", [search.said for search in SEARCHES]
    if names:
        rows += [row for row in lines(path) if row["mark"] not in names]
        rows.sort(key=lambda row: order.index(row["mark"]) if row["mark"] in order else -1)
    write(rows, path, COLUMNS)


if __name__ == "__main__":
    main(*sys.argv[1:])
