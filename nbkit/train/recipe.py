"""How to train: every hyper-parameter of tables 1 and 2, in the paper's recipe and in the one tuned for small boxes."""

from dataclasses import asdict, dataclass, field, fields, replace
from math import cos, pi

from nbkit.train.negatives import Negatives

SCHEDULES = ("plateau", "cosine")
STARTS = ("unit", "classical", "function")


@dataclass(frozen=True)
class Recipe:
    """Settings of both stages; the defaults are the paper's.

    Parameters
    ----------
    batch : anchors of one optimiser step, over all processes.
    learning_rate, weight_decay, clip : of AdamW, and the largest norm of the gradient.
    mark_decay : weight decay of the mark; None takes `weight_decay`.
    mark_rate, theta_rate : multiply the learning rate of the mark and, in stage two, of the theta head.
    schedule : "plateau" multiplies the rate by `gamma` after `plateau_patience` epochs without progress, down to
        `floor`; "cosine" rises over `warmup` of the steps and falls to 0 at the last of `epochs`.
    patience, min_delta : epochs without a gain of `min_delta` in validation loss before a stage ends.
    validation : fraction of the simulations held out.
    pretrain_epochs, epochs : most epochs of stage one and of stage two.
    head_epochs : epochs between them, in which the heads alone learn to read the mark that training starts from.
    pretrain_batch, pretrain_rate : batch and learning rate of stage one and of those.
    temperature, width, dimension : tau of the score, hidden width of the projectors, dimension D of the embeddings.
    negatives : counts and scales of the candidates.
    start : "unit" starts the mark at M = 1; "classical" at the imitation of a classical one, see `imitation`;
        "function" at that of the best sum of functions of the invariants, see `nbkit.train.contrast_function`.
    kick : scatter of the output layer of h_0 at the start "unit". 0 is M = 1 to the last bit, where a marked summary is
        the same for all simulations and the mark hears little but noise; a little lets it learn from the first step.
    standardise : show the heads summaries of about zero mean and unit scatter instead of raw ones.
    newest : share of the newest batch in the running mean and scatter of S_M, at the full learning rate. It falls with
        the rate: a batch's mean is noise to heads that have become sharp, and heads that hardly learn cannot follow it.
    keep_metric : start stage two from the metric of stage one instead of the identity.
    """

    batch: int = 16
    learning_rate: float = 5e-4
    weight_decay: float = 1e-4
    mark_decay: float | None = None
    clip: float = 10.0
    mark_rate: float = 2.0
    theta_rate: float = 0.25
    schedule: str = "plateau"
    gamma: float = 0.5
    plateau_patience: int = 8
    floor: float = 1e-7
    warmup: float = 0.05
    patience: int = 20
    min_delta: float = 1e-5
    validation: float = 0.15
    pretrain_epochs: int = 200
    head_epochs: int = 0
    epochs: int = 700
    pretrain_batch: int = 16
    pretrain_rate: float = 5e-4
    temperature: float = 0.05
    width: int = 64
    dimension: int = 16
    negatives: Negatives = field(default_factory=Negatives)
    start: str = "unit"
    kick: float = 0.0
    standardise: bool = False
    newest: float = 0.2
    keep_metric: bool = False

    def __post_init__(self):
        if isinstance(self.negatives, dict):  # as read back from JSON
            object.__setattr__(self, "negatives", Negatives(**self.negatives))
        if self.schedule not in SCHEDULES:
            raise ValueError(f"schedule is {self.schedule!r}; allowed are {', '.join(SCHEDULES)}.")
        if self.start not in STARTS:
            raise ValueError(f"start is {self.start!r}; allowed are {', '.join(STARTS)}.")
        if self.start == "function" and self.head_epochs < 1:
            raise ValueError("start is 'function' and head_epochs is 0; the search for functions takes 1 or more.")
        for name in ("batch", "pretrain_batch", "epochs", "width", "dimension", "patience"):
            if not (isinstance(getattr(self, name), int) and getattr(self, name) >= 1):
                raise ValueError(f"{name} is {getattr(self, name)!r}; it must be a whole number of at least 1.")
        for name in ("learning_rate", "pretrain_rate", "clip", "temperature", "mark_rate", "theta_rate"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} is {getattr(self, name)!r}; it must be positive.")
        for name in ("validation", "gamma"):
            if not 0 < getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)!r}; it must lie between 0 and 1.")


# A few thousand simulations are few: ten times the rate, a start a little beside M = 1, heads that see standardised
# summaries and decay, and a schedule that ends with a budget known beforehand; figures/recipes.py has the measurements.
TUNED = Recipe(
    learning_rate=5e-3,
    pretrain_rate=5e-3,
    weight_decay=0.2,
    mark_decay=1e-4,
    mark_rate=1.0,
    theta_rate=1.0,
    schedule="cosine",
    patience=1000,
    pretrain_epochs=9,
    epochs=8,
    kick=0.1,
    standardise=True,
    keep_metric=True,
)
# Where a pass over the simulations is dear, it is not spent on heads, nor on finding out where to go: the best sum of
# functions is found from cross spectra, heads learn to read it from summaries made once, and then the mark moves with
# small steps.
WARM = replace(
    TUNED,
    pretrain_epochs=30,
    head_epochs=120,
    epochs=5,
    start="function",
    newest=0.05,
    learning_rate=3e-4,
    mark_rate=2.0,
)
RECIPES = {"paper": Recipe(), "tuned": TUNED, "warm": WARM}


def default_recipe(grid):
    """Name of the recipe for boxes of a Grid: the paper's from 128^3 on, those tuned at `mini` and `demo` below."""
    return "paper" if grid.n >= 128 else "warm" if grid.n >= 64 else "tuned"


def recipe_named(recipe, **changes):
    """The Recipe of a name ("paper", "tuned", "warm") or the one given, with `changes` to single settings."""
    if isinstance(recipe, str):
        if recipe not in RECIPES:
            raise ValueError(f"recipe is {recipe!r}; allowed are {', '.join(RECIPES)}, or a Recipe.")
        recipe = RECIPES[recipe]
    elif not isinstance(recipe, Recipe):
        raise TypeError(f"recipe is a {type(recipe).__name__}; give one of {', '.join(RECIPES)}, or a Recipe.")
    allowed = [f.name for f in fields(Recipe)]
    unknown = set(changes) - set(allowed)
    if unknown:
        raise ValueError(
            f"No such setting of a recipe: {', '.join(sorted(unknown))}; allowed are {', '.join(allowed)}."
        )
    return replace(recipe, **changes)


def as_json(recipe):
    """The recipe as plain numbers and words; Recipe(**as_json(r)) == r."""
    return asdict(recipe)


def cosine_factor(step, steps, warmup):
    """Share of the full learning rate at `step` of `steps`: a straight rise over `warmup`, half a cosine down to 0."""
    rise = max(1, round(warmup * steps))
    if step < rise:
        return (step + 1) / rise
    return 0.5 * (1 + cos(pi * (step - rise) / max(1, steps - rise)))
