"""The figures of the whole paper on one preset of embedded universes, and the table of figures/RESULTS.md.

`figures/experiment.py` trains the marks and calls this. The figures need no simulation: they are made from the spectra
that come with the kit.
"""

import json

import numpy as np
from info_nce import info_nce_of

import nbkit as nb
from nbkit import disk, look
from nbkit.forecast import BEST, UNMARKED
from nbkit.forecast.bootstrap import Errors
from nbkit.look import latent
from nbkit.mark import UnitMark
from nbkit.mesh.threads import one_thread
from nbkit.universe import FIDUCIAL_SETS, QUIJOTE_NAMES
from nbkit.universe.farm import farm

PRESET = "mini"
KMAX = (0.2, 0.3)
PARAMETERS = ("Om", "s8")
# By the names under which they come with the kit.
TRAININGS = {
    # At the kmax of the paper's comparison, on three times as many boxes (figures/contrast.py), with longer searches,
    # which gain from these. It takes longest, so it comes first.
    "mini_c2": nb.Training("mini_more", kmax=0.2, epochs=3, head_epochs=240),
    "mini_l2": nb.Training("mini"),
    "mini_l0": nb.Training("mini", l_max=0),
    # A mark is local: what it has learned on boxes of an eighth of the volume is where these go on.
    "mini_i2": nb.Training("mini", objective="information", kmax=0.2, start="demo_i2", epochs=3),
    "mini_i3": nb.Training("mini", objective="information", kmax=0.3, start="demo_i3", epochs=3),
    "mini_l2_seed1": nb.Training("mini", seed=1),
    "mini_l2_seed2": nb.Training("mini", seed=2),
}
# Those whose terms are switched off one by one.
TAKEN_APART = ("mini_l2",)
# Marks that are measured over the training set as well, beside M = 1; notebook 07 chooses the second by its losses.
OVER_BSQ = ("p=2 ds=0", "p=-1 ds=0.5", "mini_l2", "mini_l0", "mini_i2", "mini_i3")
# Those of them that are compared by regressors trained there.
REGRESSED = ("p=2 ds=0", "mini_l2", "mini_i2", "mini_i3")
CONTRAST = ("mini_l2", "mini_l2_seed1", "mini_l2_seed2")


def bundled_trainings():
    """{name: Run} of all trainings, as they come with the kit."""
    return {name: nb.load(name) for name in TRAININGS}


def all_marks(runs):
    """{label: mark}: the 48 classical marks, and those of the trainings."""
    return nb.classical_marks() | {name: run.mark for name, run in runs.items()}


def searches():
    """{what: {"value", "low", "high"}}: validation losses at which searches end, as `experiment.searches` found."""
    return json.loads((disk.figures() / f"search_{PRESET}.json").read_text())


def lengths():
    """{training: {epochs: entry}} of the searches of several lengths."""
    found = {}
    for name, entry in searches().items():
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
    around = nb.measure(PRESET, marks, FIDUCIAL_SETS)
    test = nb.measure(PRESET, marks, ("latin_hypercube",))
    found = {f"info_nce_search_{name}": entry for name, entry in searches().items()}
    found |= contrast_losses(runs, {"M = 1": UnitMark()} | {label: marks[label] for label in OVER_BSQ})
    for kmax in KMAX:
        found |= forecasts(around, kmax, resampling, seed)
    found |= recovery_errors(test, marks, KMAX[0], repeats, seed)
    found |= recovery_errors_elsewhere(test, {label: marks[label] for label in REGRESSED}, seed)
    for name in (*CONTRAST, "mini_c2"):
        found |= latent_geometry(runs[name], test["latin_hypercube"], name)
    for name in TAKEN_APART:
        found |= growth_without(runs[name].mark, name)
    return found


def _by_name(kmax, others=()):
    """{what results call it: label} of the marks found by contrast, and of that found on information up to kmax."""
    names = {name.replace("mini_l2", "contrast"): name for name in CONTRAST} | {"contrast_more": "mini_c2"}
    return names | {"information": f"mini_i{10 * kmax:.0f}"} | dict(others)


def _entry(value, low, high):
    return {"value": float(value), "low": float(low), "high": float(high)}


def _entries(name, ends):
    """{name with the parameter in place of {}: entry} of (values, lows, highs) of all five parameters."""
    rows = {parameter: QUIJOTE_NAMES.index(parameter) for parameter in PARAMETERS}
    return {name.format(parameter): _entry(*(end[i] for end in ends)) for parameter, i in rows.items()}


def contrast_losses(runs, marks):
    """InfoNCE over the prior: of the trainings, and of heads trained anew, all alike, on marks as they are."""
    found = {f"info_nce_trained_{name}": {"value": run.best_loss} for name, run in runs.items() if run.heads}
    training, like, losses = nb.measure(PRESET, marks, ("BSQ",))["BSQ"], runs["mini_l2"], {}
    farm(info_nce_of, {label: (training, label, like.training, like.grid) for label in marks}, losses.update)
    return found | {f"info_nce_{label.replace(' ', '_')}": {"value": losses[label]} for label in marks}


class Median(Errors):
    """The middle of the errors of several forecasts."""

    def __init__(self, forecasts):
        self.names = QUIJOTE_NAMES
        self.errors = tuple(np.median(part, axis=0) for part in zip(*(each.errors for each in forecasts), strict=True))


def forecasts(around, kmax, resampling, seed):
    """sigma of P_dd and of the trained marks, and of others over theirs."""
    sigma = nb.forecast(around, kmax, count=resampling, seed=seed)
    rivals = {"best48": sigma[BEST], "median48": Median(sigma.only(*nb.classical_marks()).values())}
    rivals["pdd"] = sigma[UNMARKED]
    found = {
        f"sigma_{what}_over_{name}": rival / sigma[label]
        for name, label in _by_name(kmax, {"l0": "mini_l0"}.items()).items()
        for what, rival in rivals.items()
    }
    found["sigma_pdd_over_best48"] = sigma[UNMARKED] / sigma[BEST]
    found["sigma_l2_over_l0"] = sigma["mini_l2"] / sigma["mini_l0"]
    found |= {f"sigma_{label.replace(' ', '_')}": sigma[label].sigma for label in (UNMARKED, *TRAININGS)}
    out = {}
    for name, each in found.items():
        out |= _entries(f"{name}_{{}}_k{kmax:g}", (each.value, each.low, each.high))
    for parameter in PARAMETERS:
        end = f"{parameter}_k{kmax:g}"
        seeds = [out[f"sigma_{name}_{end}"]["value"] for name in CONTRAST]
        out[f"sigma_spread_of_seeds_{end}"] = {"value": max(seeds) / min(seeds)}
        out[f"best48_{end}"] = {"value": sigma[BEST].labels[parameter]}
    return out


def recovery_errors(test, marks, kmax, repeats, seed):
    """As the paper: regressors are trained on four fifths of the Latin hypercube and tested on the last, in turn."""
    with one_thread():
        found = nb.recover(test, marks, kmax, repeats=repeats, seed=seed)
    out = {}
    for parameter in PARAMETERS:
        i = QUIJOTE_NAMES.index(parameter)
        classical = sorted(nb.classical_marks(), key=lambda label, i=i: found.mse(label)[0][i])
        # The one nearest to the middle stands for the median, so that its interval is resampled like any other.
        rivals = {"best48": classical[0], "median48": classical[len(classical) // 2], "pdd": UNMARKED}
        for name, label in _by_name(kmax).items():
            for what, over in rivals.items():
                out[f"mse_{what}_over_{name}_{parameter}_k{kmax:g}"] = _entry(*found.ratio(over, over=label)[:, i])
    return out


def recovery_errors_elsewhere(test, marks, seed, repeats=2):
    """Regressors with four times as many boxes: trained on those of BSQ, tested on the Latin hypercube."""
    power, out = test | nb.measure(PRESET, marks, ("BSQ",)), {}
    for kmax in KMAX:
        with one_thread():
            found = nb.recover(power, marks, kmax, train_on="BSQ", repeats=repeats, seed=seed)
        for name, label in (("contrast", "mini_l2"), ("information", f"mini_i{10 * kmax:.0f}")):
            for what, over in (("p=2", "p=2 ds=0"), ("pdd", UNMARKED)):
                out |= _entries(f"mse_bsq_{what}_over_{name}_{{}}_k{kmax:g}", found.ratio(over, over=label))
    return out


def latent_geometry(run, test, name):
    """Retrieval and dimension of the embeddings of a run."""
    boxes = latent.embed(run, test, name)
    rank = latent.ranks(boxes.z_perp, boxes.z_theta, L=boxes.L)
    shares = latent.principal_components(boxes.z_perp, boxes.theta).explained
    end = name.replace("mini_l2", "").replace("mini", "")
    out = {f"recall_{k}{end}": _entry(*latent.recall(rank, k)) for k in (1, 5)}
    out[f"effective_rank{end}"] = {"value": latent.effective_rank(shares)}
    out[f"two_components{end}"] = {"value": float(shares[:2].sum())}
    return out


def growth_without(mark, name):
    """How much errors grow when a mark's terms are switched off, one at a time."""
    marks, out = look.variants(mark, look.term_means(mark, PRESET)), {}
    spectra = nb.measure(PRESET, marks, FIDUCIAL_SETS)
    for kmax in KMAX:
        for label, each in look.error_growth(spectra, [label for label in marks if label != "all"], kmax).items():
            named = f"growth_of_sigma_{label.replace(' ', '_')}_{name}_{{}}_k{kmax:g}"
            out |= _entries(named, (each.value, each.low, each.high))
    return out


# Rows of the table: what is said, the names of both parameters' figures, what the paper says.
ROWS = (
    ("σ, best of 48 classical marks over {}", "sigma_best48_over_{}_{}_k0.2", ("1.8", "2.9")),
    ("σ, median of the 48 over {}", "sigma_median48_over_{}_{}_k0.2", None),
    ("σ, P_dd over {}", "sigma_pdd_over_{}_{}_k0.2", None),
    ("the same up to 0.3: best of 48", "sigma_best48_over_{}_{}_k0.3", ("0.76", "0.72")),
    ("median of the 48", "sigma_median48_over_{}_{}_k0.3", None),
    ("P_dd", "sigma_pdd_over_{}_{}_k0.3", None),
    ("MSE of regressors, best of 48 over {}", "mse_best48_over_{}_{}_k0.2", ("1.45 (all)", "1.45 (all)")),
    ("MSE, P_dd over {}", "mse_pdd_over_{}_{}_k0.2", None),
)
# Further rows: what is said, what the paper says, figures of the marks found by contrast, by contrast with more, and on
# information.
WITHOUT = tuple(f"growth_of_sigma_without_h_{f}_mini_l2_s8_k0.2" for f in ("E0", "E1", "E2", "I3", "x"))


def _both(name):
    return tuple(name.format(p) for p in PARAMETERS)


def _elsewhere(over, kmax):
    """Figures of regressors with four times as many boxes; over these, spectra of mini_c2 are not kept."""
    name = f"mse_bsq_{over}_over_{{}}_{{{{}}}}_k{kmax}"
    return _both(name.format("contrast")), (), _both(name.format("information"))


SINGLE = (
    ("MSE, regressors of 2,000 boxes, p = 2 over the learned mark", "–", *_elsewhere("p=2", 0.2)),
    ("P_dd over the learned mark", "–", *_elsewhere("pdd", 0.2)),
    ("the same up to 0.3: p = 2", "–", *_elsewhere("p=2", 0.3)),
    ("P_dd", "–", *_elsewhere("pdd", 0.3)),
    ("σ, best of 48 over the mark of seed 1", "–", _both("sigma_best48_over_contrast_seed1_{}_k0.2"), (), ()),
    ("over that of seed 2", "–", _both("sigma_best48_over_contrast_seed2_{}_k0.2"), (), ()),
    ("σ, ℓ_max = 2 over ℓ_max = 0", "0.81, 0.65", _both("sigma_l2_over_l0_{}_k0.2"), (), ()),
    ("largest over smallest σ of three seeds", "–", _both("sigma_spread_of_seeds_{}_k0.2"), (), ()),
    ("growth of σ_8 without h(E0), h(E1), h(E2), h(I3), h_x", "E0 dominates", WITHOUT, (), ()),
    (
        "R@1, R@5 (ours of 500, the paper's of 2,000)",
        "66.5 %, 96.1 %",
        ("recall_1", "recall_5"),
        ("recall_1_c2", "recall_5_c2"),
        (),
    ),
    ("effective rank of z_perp", "3.4", ("effective_rank",), ("effective_rank_c2",), ()),
    ("variance in two components", "85 %", ("two_components",), ("two_components_c2",), ()),
    ("InfoNCE, heads trained anew", "–", ("info_nce_mini_l2",), (), ("info_nce_mini_i2", "info_nce_mini_i3")),
    ("the same of M = 1, of p = 2", "–", ("info_nce_M_=_1", "info_nce_p=2_ds=0"), (), ()),
)
BEGIN, END = "<!-- results.json -->", "<!-- end of results.json -->"


def with_table(readme, found=None):
    """The text of RESULTS.md with the table of results between its two comments made anew.

    Parameters
    ----------
    found : {name: figure} of `results`; default those of figures/results.json.
    """
    found = found or json.loads((disk.figures() / "results.json").read_text())
    lines = ["| figure | paper: Ω_m, σ_8 | contrast | contrast, more | information |", "|---|---|---|---|---|"]
    for said, name, paper in ROWS:
        cells = [
            ", ".join(_in_words(found[name.format(mark, p)]) for p in PARAMETERS)
            for mark in ("contrast", "contrast_more", "information")
        ]
        lines.append(f"| {' | '.join([said.format('the learned mark'), ', '.join(paper) if paper else '–', *cells])} |")
    for said, paper, *columns in SINGLE:
        percent = "%" in paper
        cells = [", ".join(_in_words(found[name], percent) for name in names) for names in columns]
        lines.append(f"| {said} | {paper} | {' | '.join(cells)} |")
    lines += ["", _durations(json.loads((disk.figures() / "provenance.json").read_text())["stages"])]
    before, after = readme.split(BEGIN)[0], readme.split(END)[1]
    return before + BEGIN + "\n" + "\n".join(lines) + "\n" + END + after


def _durations(stages):
    core = {name: each["core_seconds"] for name, each in stages.items()}
    shares = ", ".join(f"{name} {seconds / sum(core.values()):.0%}" for name, seconds in core.items())
    return f"All of it takes about {sum(core.values()) / 3600:.1f} core hours: {shares}."


def _in_words(entry, percent=False):
    scale, digits, sign = (100, 0, " %") if percent else (1, 2, "")
    value, *ends = (f"{scale * entry[name]:.{digits}f}" for name in ("value", "low", "high") if name in entry)
    return f"{value}{sign}" + (f" ({ends[0]} – {ends[1]})" if ends else "")
