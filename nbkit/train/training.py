"""One description of a training: all that tells one run from another. Its name, its command line, the parameters of
notebook 03 and the cases of every study are made from these fields; recipes hold the numbers of tables 1 and 2."""

from dataclasses import dataclass, field, fields, replace
from hashlib import sha256
from math import isfinite
from pathlib import Path

from nbkit.train.contrast import Negatives
from nbkit.universe.cosmology import PARAMETERS
from nbkit.universe.suite import FIDUCIAL_SETS, PRESETS, suite

SCHEDULES = ("plateau", "cosine")
STARTS = ("unit", "classical", "function")
OBJECTIVES = ("contrast", "information")


def _check(settings, sentence, right, *names):
    for name in names:
        if not right(value := getattr(settings, name)):
            raise ValueError(f"{name} is {value!r}; {sentence}.")


def _allow(settings, values, name):
    _check(settings, f"allowed are {', '.join(map(str, values))}", lambda value: value in values, name)


@dataclass(frozen=True)
class Recipe:
    """How to train; the defaults are those of the code that was released with the paper."""

    batch: int = 16  # anchors of one optimiser step, over all processes; on information, boxes of one step
    learning_rate: float = 5e-4  # of AdamW
    weight_decay: float = 1e-4
    mark_decay: float | None = None  # weight decay of the mark; None takes `weight_decay`
    clip: float = 10.0  # largest norm of the gradient
    mark_rate: float = 2.0  # multiplies the learning rate of the mark
    theta_rate: float = 0.25  # and, in stage two, that of the theta head
    # "plateau" multiplies the rate by `gamma` after `plateau_patience` epochs without progress, down to `floor`;
    # "cosine" rises over `warmup` of the steps and falls to 0 at the last of `epochs`.
    schedule: str = "plateau"
    gamma: float = 0.5
    plateau_patience: int = 8
    floor: float = 1e-7
    warmup: float = 0.05
    patience: int = 20  # epochs without a gain of `min_delta` in validation loss before a stage ends
    min_delta: float = 1e-5
    validation: float = 0.15  # fraction of the simulations held out
    pretrain_epochs: int = 200  # most epochs of stage one
    head_epochs: int = 0  # of the heads alone, which learn to read the mark that training starts from
    epochs: int = 700  # of stage two
    pretrain_batch: int = 16  # of stage one and of the heads alone, as is the rate
    pretrain_rate: float = 5e-4
    temperature: float = 0.05  # tau of the score
    width: int = 64  # of the hidden layers of the projectors
    dimension: int = 16  # D of the embeddings
    negatives: Negatives = field(default_factory=Negatives)
    start: str = "unit"  # where the mark starts, unless the `Training` says something else
    # Scatter of the output layer of h_0 at the start "unit". 0 is M = 1 to the last bit, where a marked summary is the
    # same for all simulations and the mark hears little but noise; a little lets it learn from the first step.
    kick: float = 0.0
    standardise: bool = False  # show the heads summaries of about zero mean and unit scatter instead of raw ones
    # Share of the newest batch in the running mean and scatter of S_M, at the full learning rate. It falls with the
    # rate: a batch's mean is noise to heads that have become sharp, and heads that hardly learn cannot follow it.
    newest: float = 0.2
    keep_metric: bool = False  # start stage two from the metric of stage one instead of the identity
    shared: bool = False  # of the mark, unless the `Training` says something else, as is r0
    r0: float = 0.0

    def __post_init__(self):
        if isinstance(self.negatives, dict):  # as read back from JSON
            object.__setattr__(self, "negatives", Negatives(**self.negatives))
        _allow(self, SCHEDULES, "schedule")
        _allow(self, STARTS, "start")
        whole = ("batch", "pretrain_batch", "epochs", "width", "dimension", "patience")
        _check(self, "it must be a whole number of at least 1", lambda x: isinstance(x, int) and x >= 1, *whole)
        positive = ("learning_rate", "pretrain_rate", "clip", "temperature", "mark_rate", "theta_rate")
        _check(self, "it must be positive", lambda x: x > 0, *positive)
        _check(self, "it must lie between 0 and 1", lambda x: 0 < x < 1, "validation", "gamma")


# A few thousand simulations are few: ten times the rate, a start a little beside M = 1, heads that see standardised
# summaries and decay, and a schedule that ends with a budget known beforehand; figures/recipes.py has the measurements.
RATES = {"learning_rate": 5e-3, "pretrain_rate": 5e-3, "mark_rate": 1.0, "theta_rate": 1.0}
BUDGET = {"schedule": "cosine", "patience": 1000, "epochs": 8}
HEADS = {"pretrain_epochs": 9, "standardise": True, "keep_metric": True}
TUNED = Recipe(weight_decay=0.2, mark_decay=1e-4, kick=0.1, **RATES, **BUDGET, **HEADS)
# Where a pass over the simulations is dear, it is not spent on heads, nor on finding out where to go: the best sum of
# functions is found from cross spectra, heads learn to read it from summaries made once, and then the mark moves with
# small steps.
WARM = {"pretrain_epochs": 30, "head_epochs": 120, "epochs": 5, "learning_rate": 3e-4, "mark_rate": 2.0}
RECIPES = {
    "paper": Recipe(shared=True, r0=0.3, negatives=Negatives(per_anchor=True)),
    "released": Recipe(),
    "tuned": TUNED,
    "warm": replace(TUNED, **WARM, start="function", newest=0.05),
    "information": Recipe(300, 2e-3, clip=1.0, validation=1 / 3, start="function", **BUDGET),
}


@dataclass(frozen=True)
class Training:
    """One training of a mark; every value is a plain word or number.

    Parameters
    ----------
    preset : of the simulations: demo, mini, mini_more or quijote
    objective : contrast over the prior, or information at the fiducial point
    kmax : largest k of the spectra [h/Mpc]
    l_max : multipoles the mark sees: 0, 1 or 2
    radial : form of the radial profiles: fourier or gaussians
    shared : one centre r0 and width for every l, as the paper's text and recipe say
    r0 : where the band-pass of every l starts, in units of k_Nyq; 0 for that of the recipe or the defaults
    residual : of contrast: reward only what the mark adds to P_dd
    cross : the mark has the cross term h_x(E0, E2, I3)
    start : unit (M = 1), classical (p = 2, delta_s = 0), function (the best sum of functions of the invariants), a
        trained run by name or path, or default: that of the recipe
    parameters : of information: whose errors, marginalised over all five, are to become small
    recipe : paper (its tables 1-3), released (what its code does), tuned, warm, information, or default: that of the
        objective and the size of the boxes
    epochs : most epochs of the mark's training; 0 for those of the recipe
    head_epochs : epochs of heads and searches; 0 for those of the recipe
    seed : of weights, split, order and candidates
    """

    preset: str = "demo"
    objective: str = "contrast"
    kmax: float = 0.3
    l_max: int = 2
    radial: str = "fourier"
    shared: bool = False
    r0: float = 0.0
    residual: bool = True
    cross: bool = True
    start: str = "default"
    parameters: str = "Omega_m,sigma_8"
    recipe: str | Recipe = "default"
    epochs: int = 0
    head_epochs: int = 0
    seed: int = 0

    def __post_init__(self):
        if isinstance(self.recipe, dict):  # as read back from JSON
            object.__setattr__(self, "recipe", Recipe(**self.recipe))
        for each in fields(self):
            kind, value = type(each.default), getattr(self, each.name)
            right = isinstance(value, kind) and isinstance(value, bool) == (kind is bool)
            if kind is float and type(value) is int:
                object.__setattr__(self, each.name, float(value))
            elif not right and not (each.name == "recipe" and isinstance(value, Recipe)):
                raise ValueError(f"{each.name} is {value!r}; it must be of type {kind.__name__}.")
        _allow(self, PRESETS, "preset")
        _allow(self, OBJECTIVES, "objective")
        _allow(self, (0, 1, 2), "l_max")
        _allow(self, ("fourier", "gaussians"), "radial")
        if not isinstance(self.recipe, Recipe):
            _allow(self, ("default", *RECIPES), "recipe")
        _check(self, "it must be a positive number in h/Mpc", lambda x: isfinite(x) and x > 0, "kmax")
        _check(self, "it must be 0 or more", lambda x: x >= 0, "epochs", "head_epochs", "seed")
        known = f"allowed are {', '.join(PARAMETERS)}"
        _check(self, known, lambda x: set(x.split(",")) <= set(PARAMETERS), "parameters")

    @property
    def name(self):
        """Of the run's folder: the five words that matter most, and what else is not as usual."""
        words = [self.preset, self.objective, f"k{self.kmax:g}", f"l{self.l_max}"]
        for name, value in self._unusual().items():
            if name not in ("preset", "objective", "kmax", "l_max", "seed"):
                if isinstance(value, Recipe):
                    value = sha256(repr(value).encode()).hexdigest()[:8]
                words.append(f"{name.replace('_', '-')}-{Path(str(value)).name.replace(',', '-')}")
        return "_".join([*words, f"seed{self.seed}"])

    @property
    def wanted(self):
        """Rows of theta of the parameters that count."""
        return [PARAMETERS.index(name) for name in self.parameters.split(",")]

    def mark_settings(self, grid=None):
        """Settings of its LearnedMark for boxes of a Grid, by default that of the preset."""
        recipe = self.recipe_for(grid or PRESETS[self.preset].grid)
        own = {"l_max": self.l_max, "radial": self.radial, "cross": self.cross, "shared": self.shared or recipe.shared}
        return own | ({"r0": r0} if (r0 := self.r0 or recipe.r0) else {})

    def words(self):
        """Its command line, for `python -m nbkit.train`."""
        words = []
        for name, value in self._unusual().items():
            flag = name.replace("_", "-")
            words.append(f"--{flag}={value}" if not isinstance(value, bool) else f"--{'' if value else 'no-'}{flag}")
        return words

    def papermill(self):
        """The command that trains it with notebook 03."""
        given = " ".join(f"-p {name} {value}" for name, value in self._unusual().items())
        return f"papermill notebooks/03_train.ipynb runs/{self.name}.ipynb -p compare False {given}".rstrip()

    def recipe_for(self, grid):
        """The Recipe for boxes of a Grid; by default of contrast the paper's from 128^3 on, one tuned here below."""
        recipe = self.recipe
        if recipe == "default":
            size = "paper" if grid.n >= 128 else "warm" if grid.n >= 64 else "tuned"
            recipe = "information" if self.objective == "information" else size
        recipe = recipe if isinstance(recipe, Recipe) else RECIPES[recipe]
        changed = {name: getattr(self, name) or getattr(recipe, name) for name in ("epochs", "head_epochs")}
        start = recipe.start if self.start == "default" else self.start
        if start == "function" and self.objective == "contrast" and changed["head_epochs"] < 1:
            raise ValueError("start is 'function' and head_epochs is 0; the search for functions takes 1 or more.")
        return replace(recipe, start=start if start in STARTS else "unit", **changed)

    def simulations(self, data_root=None):
        """The set, or on information the sets around the fiducial point, to train on; made if they are missing."""
        if self.objective == "contrast":
            return suite(self.preset, sets=("BSQ",), data_root=data_root)["BSQ"]
        return suite(PRESETS[self.preset].near, sets=FIDUCIAL_SETS, data_root=data_root)

    def _unusual(self):
        """What differs from the defaults."""
        return {each.name: x for each in fields(self) if (x := getattr(self, each.name)) != each.default}
