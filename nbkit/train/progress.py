"""How far a training is: epochs, best loss, learning rate, history; and the bar that shows it to a person."""

from dataclasses import dataclass, field
from math import inf

from tqdm.auto import tqdm

from nbkit.train.recipe import cosine_factor
from nbkit.universe.farm import is_watched

HISTORY = ("stage", "epoch", "passes", "train_loss", "val_loss", "learning_rate", "seconds")


@dataclass
class Progress:
    """Where a training is: with the tensors of a checkpoint, all that is needed to go on exactly."""

    stage: str = "unmarked"
    epoch: int = 0  # epochs finished in this stage
    step: int = 0  # steps done of the next one
    loss_sum: float = 0.0  # over its steps
    seconds: float = 0.0  # spent on it
    best_loss: float = inf
    best_epoch: int = 0
    stale: int = 0  # epochs since the best
    factor: float = 1.0  # of the learning rate, under the plateau schedule
    plateau_best: float = inf
    plateau_stale: int = 0
    history: list = field(default_factory=list)  # rows of HISTORY

    def rate(self, full, recipe, steps, epochs):
        """Learning rate of the next step, where `full` is the highest."""
        if recipe.schedule == "cosine":
            return full * cosine_factor(self.epoch * steps + self.step, epochs * steps, recipe.warmup)
        return max(full * self.factor, recipe.floor)

    def end_epoch(self, recipe, val_loss, batch, learning_rate):
        """Count an epoch of `self.step` steps; True if its validation loss is the best so far."""
        self.epoch += 1
        passes = self.epoch * self.step * batch
        row = (self.stage, self.epoch, passes, self.loss_sum / self.step, val_loss, learning_rate, self.seconds)
        self.history.append(dict(zip(HISTORY, row, strict=True)))
        self.step, self.loss_sum, self.seconds = 0, 0.0, 0.0
        if val_loss < self.plateau_best - recipe.min_delta:
            self.plateau_best, self.plateau_stale = val_loss, 0
        else:
            self.plateau_stale += 1
            if self.plateau_stale > recipe.plateau_patience:
                self.factor, self.plateau_stale = self.factor * recipe.gamma, 0
        if val_loss < self.best_loss - recipe.min_delta:
            self.best_loss, self.best_epoch, self.stale = val_loss, self.epoch, 0
            return True
        self.stale += 1
        return False

    def csv(self):
        """The history as text, one epoch a line."""
        lines = [",".join(HISTORY), *(",".join(str(row[name]) for name in HISTORY) for row in self.history)]
        return "\n".join(lines) + "\n"


class Bar:
    """A bar over all steps of a stage: epoch, step, loss, time left; silent unless `show`."""

    def __init__(self, progress, epochs, steps, show=None):
        self._progress, self._epochs = progress, epochs
        show = is_watched() if show is None else show
        start = progress.epoch * steps + progress.step
        self._bar = tqdm(total=epochs * steps, initial=start, unit="step", disable=not show, leave=False)

    def step(self, loss):
        """Count one step."""
        p = self._progress
        self._bar.set_description(f"{p.stage}: epoch {p.epoch + 1} of at most {self._epochs}", refresh=False)
        best = f", best validation {p.best_loss:.3f}" if p.best_epoch else ""
        self._bar.set_postfix_str(f"loss {loss:.3f}{best}", refresh=False)
        self._bar.update()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._bar.close()
