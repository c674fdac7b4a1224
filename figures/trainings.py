"""The whole paper on one preset of embedded universes: which marks are trained, and every figure that comes out.

`figures/experiment.py` runs it. The figures need no simulation: they are made from the spectra that come with the kit.
"""

import json
from dataclasses import asdict, dataclass

import numpy as np
from frozen import info_nce_of
from nbkit.train.launch import run_name
from nbkit.train.shipped import run_folder

from nbkit import disk
from nbkit.forecast.bootstrap import interval, resampled, resamples
from nbkit.forecast.fisher import UNMARKED, ingredients
from nbkit.look import error_growth, latent, suite_means, variants
from nbkit.mark.classical import UnitMark, classical_marks
from nbkit.measure import measure
from nbkit.mesh.threads import one_thread
from nbkit.recover.recovered import recovered
from nbkit.train.run import load_run
from nbkit.universe.cosmology import QUIJOTE_NAMES
from nbkit.universe.farm import farm
from nbkit.universe.suite import FIDUCIAL_SETS

PRESET = "mini"
KMAX = (0.2, 0.3)
PARAMETERS = ("Om", "s8")


@dataclass(frozen=True)
class Training:
    """One training of the experiment; the defaults are those of notebook 03: the full mark by contrast."""

    preset: str = PRESET
    objective: str = "contrast"
    kmax: float = 0.3
    l_max: int = 2
    seed: int = 0
    recipe: str = "default"
    start: str = "function"
    epochs: int | None = None
    head_epochs: int | None = None

    @property
    def folder(self):
        """Where it is trained."""
        named = {name: value for name, value in asdict(self).items() if name not in ("epochs", "head_epochs")}
        return disk.runs() / "train" / run_name(**named)

    @property
    def words(self):
        """Its command line for `nbkit.train.launch`."""
        asked = {k: v for k, v in asdict(self).items() if v not in (None, "default")}
        return [str(self.folder), *(f"--{name.replace('_', '-')}={value}" for name, value in asked.items())]


# By the names under which they come with the kit.
TRAININGS = {
    # At the kmax of the paper's comparison, on three times as many boxes (figures/contrast.py), with longer searches,
    # which gain from these. It takes longest, so it comes first.
    "mini_c2": Training("mini_more", kmax=0.2, epochs=3, head_epochs=240),
    "mini_l2": Training(),
    "mini_l0": Training(l_max=0),
    # A mark is local: what it has learned on boxes of an eighth of the volume is where these go on.
    "mini_i2": Training(objective="information", kmax=0.2, start="demo_i2", epochs=3),
    "mini_i3": Training(objective="information", kmax=0.3, start="demo_i3", epochs=3),
    "mini_l2_seed1": Training(seed=1),
    "mini_l2_seed2": Training(seed=2),
}
# Those whose terms are switched off one by one.
TAKEN_APART = ("mini_l2",)
# Marks that are measured over the training set as well, beside M = 1; notebook 07 chooses the second by its losses.
OVER_BSQ = ("p=2 ds=0", "p=-1 ds=0.5", "mini_l2", "mini_l0", "mini_i2", "mini_i3")
# Those of them that are compared by regressors trained there.
REGRESSED = ("p=2 ds=0", "mini_l2", "mini_i2", "mini_i3")
CONTRAST = ("mini_l2", "mini_l2_seed1", "mini_l2_seed2")


def shipped():
    """{name: Run} of all trainings, as they come with the kit or are in runs/."""
    return {name: load_run(run_folder(name)) for name in TRAININGS}


def all_marks(runs):
    """{label: mark}: the 48 classical marks, and those of the trainings."""
    return classical_marks() | {name: run.mark for name, run in runs.items()}


def by_contrast(runs):
    """{name: Run} of those that were trained by contrast."""
    return {name: run for name, run in runs.items() if run.heads}


def _searches():
    return json.loads((disk.figures() / f"search_{PRESET}.json").read_text())


def lengths():
    """{training: {epochs: entry}}: validation losses at which searches of several lengths end."""
    found = {}
    for name, entry in _searches().items():
        training, _, epochs = name.rpartition("_")
        if epochs.isdigit():
            found.setdefault(training, {})[int(epochs)] = entry
    return found


def results(runs, resampling=200, repeats=1, seed=0):
    """{flat name: {"value", "low", "high"}} of every figure of the experiment, with 95 % intervals.

    sigma are marginalised over all five parameters; the best of the 48 classical marks is chosen for each parameter on
    the very boxes that judge. Intervals are of simulations, not of trainings: `..._spread_...` tells what those add.

    Parameters
    ----------
    runs : {name: Run} of the trainings.
    resampling, repeats : resamples behind a forecast's interval, and regressors a mark.
    """
    marks = all_marks(runs)
    around = measure(PRESET, marks, FIDUCIAL_SETS)
    test = measure(PRESET, marks, ("latin_hypercube",))["latin_hypercube"]
    found = {f"info_nce_search_{name}": entry for name, entry in _searches().items()}
    found |= _losses(runs, {"M = 1": UnitMark()} | {label: marks[label] for label in OVER_BSQ})
    for kmax in KMAX:
        found |= _forecasts(around, kmax, resampling, seed)
    found |= _recovered(test.cut(KMAX[0]), marks, KMAX[0], repeats, seed)
    found |= _recovered_elsewhere(test, {label: marks[label] for label in REGRESSED}, seed)
    for name in (*CONTRAST, "mini_c2"):
        found |= _latent(runs[name], test, name)
    for name in TAKEN_APART:
        found |= _channels(runs[name].mark, name)
    return found


def _named(marks):
    """{what results call it: label} of marks, by contrast and on information, for one kmax."""
    return {name.replace("mini_l2", "contrast"): name for name in CONTRAST} | {"contrast_more": "mini_c2"} | marks


def _losses(runs, marks):
    """InfoNCE over the prior: of the trainings, and of heads trained anew, all alike, on marks as they are."""
    found = {f"info_nce_trained_{name}": {"value": runs[name].best_loss} for name in runs if runs[name].heads}
    training = measure(PRESET, marks, ("BSQ",))["BSQ"]
    like = runs["mini_l2"]
    losses = {}
    farm(info_nce_of, {label: (training, label, like.grid, like.recipe, like.kmax) for label in marks}, losses.update)
    return found | {f"info_nce_{label.replace(' ', '_')}": {"value": losses[label]} for label in marks}


def _entry(value, low, high):
    return {"value": float(value), "low": float(low), "high": float(high)}


def _forecasts(spectra, kmax, resampling, seed):
    classical = tuple(classical_marks())
    given = {label: ingredients(spectra, label, kmax) for label in (UNMARKED, *classical, *TRAININGS)}
    weights = resamples(given[UNMARKED].n_s, given[UNMARKED].pairs, resampling, seed)
    forecast = {label: resampled(each, weights) for label, each in given.items()}
    value = {label: each.sigma().value for label, each in forecast.items()}
    sample = {label: each.sigmas() for label, each in forecast.items()}
    found = {}
    for parameter in PARAMETERS:
        i, end = QUIJOTE_NAMES.index(parameter), f"{parameter}_k{kmax:g}"

        def ratio(name, over, under, i=i, end=end):
            """sigma of some marks, reduced to one number, over that of a mark."""
            of = [np.array([x[label][..., i] for label in over[0]]) for x in (value, sample)]
            top = [over[1](x, axis=0) for x in of]
            here = interval(top[0] / value[under][i], top[1] / sample[under][:, i])
            found[f"{name}_{end}"] = _entry(here.value, here.low, here.high)

        rival = min(classical, key=lambda label, i=i: value[label][i])
        others = {"information": f"mini_i{10 * kmax:.0f}", "l0": "mini_l0"}
        for name, label in _named(others).items():
            ratio(f"sigma_best48_over_{name}", ((rival,), np.min), label)
            ratio(f"sigma_median48_over_{name}", (classical, np.median), label)
            ratio(f"sigma_pdd_over_{name}", ((UNMARKED,), np.min), label)
        ratio("sigma_pdd_over_best48", ((UNMARKED,), np.min), rival)
        ratio("sigma_l2_over_l0", (("mini_l2",), np.min), "mini_l0")
        seeds = [value[name][i] for name in CONTRAST]
        found[f"sigma_spread_of_seeds_{end}"] = {"value": float(max(seeds) / min(seeds))}
        for label in (UNMARKED, *TRAININGS):
            here = forecast[label].sigma()
            found[f"sigma_{label.replace(' ', '_')}_{end}"] = _entry(here.value[i], here.low[i], here.high[i])
        found[f"best48_{end}"] = {"value": rival}
    return found


def _recovered(test, marks, kmax, repeats, seed):
    """As the paper: regressors are trained on four fifths of the Latin hypercube and tested on the last, in turn."""
    classical = tuple(classical_marks())
    with one_thread():
        found = recovered(test, marks, repeats=repeats, seed=seed)
    out = {}
    for parameter in PARAMETERS:
        i, end = QUIJOTE_NAMES.index(parameter), f"{parameter}_k{kmax:g}"
        mse = {label: found.mse(label)[0][i] for label in found.labels}
        rival = min(classical, key=mse.get)
        # The one nearest to the middle stands for the median, so that its interval is resampled like any other.
        middle = sorted(classical, key=mse.get)[len(classical) // 2]
        for name, label in _named({"information": f"mini_i{10 * kmax:.0f}"}).items():
            for what, over in (("best48", rival), ("median48", middle), ("pdd", "P_dd alone")):
                out[f"mse_{what}_over_{name}_{end}"] = _entry(*found.ratio(over, over=label)[:, i])
    return out


def _recovered_elsewhere(test, marks, seed, repeats=2):
    """Regressors with four times as many boxes: trained on those of BSQ, tested on the Latin hypercube."""
    training, out = measure(PRESET, marks, ("BSQ",))["BSQ"], {}
    for kmax in KMAX:
        with one_thread():
            found = recovered(test.cut(kmax), marks, training.cut(kmax), repeats=repeats, seed=seed)
        for name, label in (("contrast", "mini_l2"), ("information", f"mini_i{10 * kmax:.0f}")):
            for what, over in (("p=2", "p=2 ds=0"), ("pdd", "P_dd alone")):
                ratio = found.ratio(over, over=label)
                for parameter in PARAMETERS:
                    key = f"mse_bsq_{what}_over_{name}_{parameter}_k{kmax:g}"
                    out[key] = _entry(*ratio[:, QUIJOTE_NAMES.index(parameter)])
    return out


def _latent(run, test, name):
    boxes = latent.embed(run, test, name)
    rank = latent.ranks(boxes.z_perp, boxes.z_theta, L=boxes.L)
    shares = latent.principal_components(boxes.z_perp, boxes.theta).explained
    end = name.replace("mini_l2", "").replace("mini", "")
    out = {f"recall_{k}{end}": _entry(*latent.recall(rank, k)) for k in (1, 5)}
    out[f"effective_rank{end}"] = {"value": latent.effective_rank(shares)}
    out[f"two_components{end}"] = {"value": float(shares[:2].sum())}
    return out


def _channels(mark, name):
    marks = variants(mark, suite_means(mark, PRESET))
    spectra = measure(PRESET, marks, FIDUCIAL_SETS)
    out = {}
    for kmax in KMAX:
        grown = error_growth(spectra, [label for label in marks if label != "all"], kmax)
        for label, each in grown.items():
            for parameter in PARAMETERS:
                i = QUIJOTE_NAMES.index(parameter)
                key = f"growth_of_sigma_{label.replace(' ', '_')}_{name}_{parameter}_k{kmax:g}"
                out[key] = _entry(each.value[i], each.low[i], each.high[i])
    return out
