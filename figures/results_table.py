"""The table of figures/RESULTS.md, made from figures/results.json: the paper's figures beside ours."""

import json

from trainings import PARAMETERS

from nbkit import disk

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
