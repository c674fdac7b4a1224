"""What a training leaves behind: how far it is, one folder, and the Run that is read from it; those of the kit too."""

from dataclasses import dataclass, field
from math import cos, inf, pi
from pathlib import Path
from types import SimpleNamespace

from torch import nn

from nbkit.disk import BUNDLED, OneSentence, described, lock, read_json, read_tensors, runs, write_json
from nbkit.mark import mark_of_settings
from nbkit.mark.classical import classical_marks
from nbkit.mark.learned import load_mark
from nbkit.mesh.grid import Grid
from nbkit.train.contrast import Heads
from nbkit.train.training import Recipe, Training

FORMAT = "nbkit run 2"
# Files of the stages, the last first: the last one there is the run's.
STAGES = ("marked", "heads", "unmarked", "start")
HISTORY = ("stage", "epoch", "passes", "train_loss", "val_loss", "learning_rate", "seconds")


@dataclass
class Progress:
    """Where a stage is: with the tensors of its checkpoint, all that is needed to go on exactly."""

    stage: str = "start"
    ended: bool = False
    epoch: int = 0  # epochs finished
    step: int = 0  # steps done of the next one
    loss_sum: float = 0.0  # over its steps
    seconds: float = 0.0  # spent on it
    best_loss: float = inf
    best_epoch: int = 0
    stale: int = 0  # epochs since the best
    factor: float = 1.0  # of the learning rate, under the plateau schedule
    history: list = field(default_factory=list)  # rows of HISTORY, those of earlier stages first

    @classmethod
    def of(cls, about):
        """The one that a checkpoint describes."""
        return cls(**{name: about[name] for name in cls.__dataclass_fields__ if name in about})

    def rate(self, full, recipe, steps, epochs):
        """Learning rate of the next step, where `full` is the highest."""
        if recipe.schedule == "cosine":
            return full * cosine_factor(self.epoch * steps + self.step, epochs * steps, recipe.warmup)
        return max(full * self.factor, recipe.floor)

    def tell(self, passes, train_loss, val_loss, learning_rate):
        """Add a row to the history."""
        row = (self.stage, self.epoch, passes, train_loss, val_loss, learning_rate, self.seconds)
        self.history.append(dict(zip(HISTORY, row, strict=True)))

    def end_epoch(self, recipe, train_loss, val_loss, batch, learning_rate):
        """Count an epoch of `self.step` steps; True if its validation loss is the best so far."""
        self.epoch += 1
        train_loss = self.loss_sum / self.step if train_loss is None else train_loss
        self.tell(self.epoch * self.step * batch, train_loss, val_loss, learning_rate)
        self.step, self.loss_sum, self.seconds = 0, 0.0, 0.0
        if val_loss < self.best_loss - recipe.min_delta:
            self.best_loss, self.best_epoch, self.stale = val_loss, self.epoch, 0
            return True
        self.stale += 1
        if self.stale % (recipe.plateau_patience + 1) == 0:
            self.factor *= recipe.gamma
        return False

    def csv(self):
        """The history as text, one epoch a line."""
        rows = [HISTORY, *([row[name] for name in HISTORY] for row in self.history)]
        return "".join(",".join(map(str, row)) + "\n" for row in rows)


def cosine_factor(step, steps, warmup):
    """Share of the full learning rate at `step` of `steps`: a straight rise over `warmup`, half a cosine down to 0."""
    rise = max(1, round(warmup * steps)) if warmup else 0
    if step < rise:
        return (step + 1) / rise
    return 0.5 * (1 + cos(pi * (step - rise) / max(1, steps - rise)))


def part(tensors, prefix):
    """Tensors whose name begins with a word, by the rest of their name."""
    return {name[len(prefix) + 1 :]: x for name, x in tensors.items() if name.startswith(f"{prefix}.")}


class Run:
    """A trained mark with its heads: the best so far, and how it got there.

    `settings` is run.json: all that decides the run. `mark` and `heads` have the weights of the lowest validation loss,
    `best_loss` at `best_epoch` (inf and 0 before the first epoch of the mark's own stage); a run on information has no
    heads. `history` is a dict of HISTORY an epoch. If not `finished` the training was stopped; `train` goes on with it.
    """

    def __init__(self, folder, settings, mark, progress):
        self.name, self.folder, self.settings, self.mark, self.heads = folder.name, folder, settings, mark, None
        self.training, recipe = Training(**settings["training"]), Recipe(**settings["recipe"])
        self.recipe, self.grid, self.kmax = recipe, Grid(**settings["grid"]), self.training.kmax
        if self.training.objective == "contrast":
            bins = len(self.grid.bins(self.kmax).k)
            self.heads = Heads(bins, recipe.width, recipe.dimension, self.training.residual)
        self.history, own = progress.history, progress.stage == "marked"
        self.best_loss, self.best_epoch = (progress.best_loss, progress.best_epoch) if own else (inf, 0)
        self.finished = own and progress.ended

    def __repr__(self):
        return f"<run {self.name}: validation loss {self.best_loss:.3f} at epoch {self.best_epoch}>"

    def column(self, name, stage="marked"):
        """One column of the history of a stage, as a list."""
        return [row[name] for row in self.history if row["stage"] == stage]


def bundled_runs(preset=""):
    """Names of the runs that come with the kit, of all presets or of one, in order."""
    return _runs_in(BUNDLED, preset, lambda path: path.parent.name)


def own_runs(preset=""):
    """Names of the runs in `runs()`, of all presets or of one, the newest first."""
    return _runs_in(runs() / "train", preset, lambda path: -path.stat().st_mtime)


def _runs_in(folder, preset, order):
    there = [*folder.glob(f"{preset}_*/run.json" if preset else "*/run.json"), *folder.glob("*/mark.json")]
    return tuple(path.parent.name for path in sorted(there, key=order))


def load(name, preset=None):
    """The Run of a name; of a classical mark, or of one saved on its own, a Run that has nothing but the mark.

    The name is that of a run that comes with the kit ("mini_l2"), of a folder in `train` of `nbkit.disk.runs()`, of a
    classical mark ("p=2 ds=0"), the path of a folder, or of a file that `LearnedMark.save` or the studio wrote. With a
    preset, "l2" is short for the bundled run "demo_l2", or whatever the preset is.
    """
    with described(name):
        if name in classical_marks():
            return _alone(name, classical_marks()[name])
        short, path = [BUNDLED / f"{preset}_{name}"] if preset else [], Path(name).expanduser()
        for folder in (*short, BUNDLED / str(name), runs() / "train" / str(name), path) if str(name) else ():
            if (folder / "run.json").is_file():
                return read(folder)
            for file in (folder / "mark.json", folder):  # from the studio
                if file.suffix == ".json" and file.is_file():
                    return _alone(folder.name.removesuffix(".json"), mark_of_settings(read_json(file)))
        if path.suffix == ".safetensors":
            return _alone(path.stem, load_mark(path).requires_grad_(False))
        raise NoSuchRun(
            f"There is no run {str(name)!r}: give one of {', '.join(bundled_runs(preset))}, the name of a folder in "
            f"{runs() / 'train'}, a classical mark such as 'p=2 ds=0', or a path; notebook 03 trains one."
        )


class NoSuchRun(OneSentence, FileNotFoundError):
    """A name that is none of a run."""


def _alone(name, mark):
    """What `load` gives for a mark of which nothing else is known: no scale is beyond what it was made for."""
    known = {"name": name, "mark": mark, "grid": getattr(mark, "grid", None), "kmax": inf, "finished": True}
    return SimpleNamespace(**known, training=None, heads=None, folder=None, settings={})


def read(folder, mark=None, device="cpu"):
    """The Run in a folder that `train` wrote to; a mark that is not nbkit's is to be given, and gets the weights."""
    settings = read_settings(folder)
    path = next((path for path in (folder / f"{stage}.safetensors" for stage in STAGES) if path.is_file()), None)
    if path is None:
        raise FileNotFoundError(f"The run in {folder} has no checkpoint yet.")
    tensors, about = read_tensors(path, device)
    weights = part(tensors, "weights") | part(tensors, "best")
    if (start := folder / "start.safetensors").is_file():  # of marks that the stage at hand does not train
        weights = part(read_tensors(start, device)[0], "weights") | weights
    run = Run(folder, settings, mark_of_settings(settings["mark"]) if mark is None else mark, Progress.of(about))
    for name, module in (("mark", run.mark), ("heads", run.heads)):
        if isinstance(module, nn.Module):
            if found := part(weights, name):
                module.load_state_dict(found)
            module.requires_grad_(False).to(device)
    return run


def read_settings(folder):
    """What run.json says, if it is of this version."""
    settings = read_json(path := folder / "run.json")
    if settings.get("format") != FORMAT:
        raise ValueError(
            f"{path} was written by another version of nbkit (format {settings.get('format', 1)!r}, this one reads "
            f"{FORMAT!r}); use that version, or train again."
        )
    return settings


def claim(folder, settings, fresh, held=None):
    """Make the folder of a run with these settings, or find it; another run's is refused, or emptied if `fresh`.

    The ExitStack `held` keeps others from writing there as long as it is open; None in all but the first process.
    """
    about = folder / "run.json"
    if held is not None:
        held.enter_context(lock(about))
    if fresh and held is not None:
        for path in (about, folder / "history.csv", *folder.glob("**/*.safetensors")):
            path.unlink(missing_ok=True)
    if not about.is_file():
        write_json(about, settings)
        return
    there = read_settings(folder)
    if there != settings:
        differing = [k for k in settings.keys() | there.keys() if there.get(k) != settings.get(k)]
        what = "; ".join(f"{k} is {there.get(k)} there and {settings.get(k)} now" for k in sorted(differing))
        raise ValueError(f"{folder} holds a run with other settings: {what}. Choose another folder, or fresh=True.")
