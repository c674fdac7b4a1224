"""The one loop: AdamW steps on an objective, validation, schedule, early stopping, checkpoints that resume exactly."""

import time
from dataclasses import asdict, dataclass, field
from math import inf, isfinite

import torch
from torch import nn
from torch.nn.utils import clip_grad_norm_
from tqdm.auto import tqdm

from nbkit.disk import read_tensors, write_atomically, write_tensors
from nbkit.mesh.threads import keep_freed
from nbkit.train.training import cosine_factor
from nbkit.universe.farm import is_watched

HISTORY = ("stage", "epoch", "passes", "train_loss", "val_loss", "learning_rate", "seconds")
# A loss this many times chance above the best one, in this many batches in a row, will not come back. One such batch
# may: where z_m passes z_d the residual flips, and clipping takes the sting out of that gradient.
DIVERGED, LOST_BATCHES = 3, 8


class TrainingDiverged(RuntimeError):
    """The loss is not finite, or far above where it was; the last good checkpoint is kept."""


class Objective(nn.Module):
    """What `fit` minimises: a module whose parameters are trained in groups. Everything it draws is stateless, so that
    an epoch can be taken up at any step.

    Attributes
    ----------
    name : of the stage, its file and its rows in the history.
    recipe : the Recipe.
    batch, steps, epochs : simulations of a step, steps of an epoch, most epochs.
    chance : loss of a mark that tells nothing, where the loss has such a scale.
    at : what the last step or validation looked at, for messages.
    best_loss : lowest validation loss, once `fit` has run it.
    """

    chance, at, best_loss = None, "", inf

    def groups(self):
        """[(modules, highest learning rate, weight decay)]; what is in no group is frozen."""
        raise NotImplementedError

    def start(self):
        """None, or (training loss or None, validation loss) before the first step: the start may turn out the best."""

    def begin(self, epoch, step):
        """Make ready for an epoch, from one of its steps on."""

    def step(self, i):
        """Add this process's share of the gradients of step i; give its share of the loss, a tensor."""
        raise NotImplementedError

    def moved(self, factor):
        """After an optimiser step at `factor` of the highest learning rate."""

    def validate(self):
        """(training loss, or None for the mean over the epoch's steps; loss on what is held out)."""
        raise NotImplementedError

    def state(self):
        """Tensors beyond weights and optimiser that going on needs."""
        return {}

    def restore(self, state):
        """Take back what `state` gave."""


@dataclass
class Progress:
    """Where a stage is: with the tensors of its checkpoint, all that is needed to go on exactly."""

    stage: str
    ended: bool = False
    epoch: int = 0  # epochs finished
    step: int = 0  # steps done of the next one
    loss_sum: float = 0.0  # over its steps
    seconds: float = 0.0  # spent on it
    best_loss: float = inf
    best_epoch: int = 0
    stale: int = 0  # epochs since the best
    factor: float = 1.0  # of the learning rate, under the plateau schedule
    plateau_best: float = inf
    plateau_stale: int = 0
    history: list = field(default_factory=list)  # rows of HISTORY, those of earlier stages first

    def rate(self, full, recipe, steps, epochs):
        """Learning rate of the next step, where `full` is the highest."""
        if recipe.schedule == "cosine":
            return full * cosine_factor(self.epoch * steps + self.step, epochs * steps, recipe.warmup)
        return max(full * self.factor, recipe.floor)

    def end_epoch(self, recipe, train_loss, val_loss, batch, learning_rate):
        """Count an epoch of `self.step` steps; True if its validation loss is the best so far."""
        self.epoch += 1
        train_loss = self.loss_sum / self.step if train_loss is None else train_loss
        passes = self.epoch * self.step * batch
        row = (self.stage, self.epoch, passes, train_loss, val_loss, learning_rate, self.seconds)
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


def fit(objective, folder, processes, history=(), *, checkpoint_every=30.0, stop=None, on_epoch=None, show=None):
    """Run a stage, or go on with it; gives its Progress, whose `ended` is False if it was asked to stop.

    When the stage has ended the objective holds its best weights, and so does `<name>.safetensors` in the folder, from
    which a later call reads them at once.

    Parameters
    ----------
    objective : the Objective.
    folder, processes : where to, and with whom.
    history : rows of the stages before.
    checkpoint_every : seconds between checkpoints; a resumed run repeats what came after the last, bit for bit.
    stop : callable asked after every step; True ends the training with what is best so far.
    on_epoch : callable given the Objective and the Progress after every epoch, in the first process.
    show : whether to show a bar; None shows it to a person and stays quiet in logs.
    """
    keep_freed()
    path, recipe = folder / f"{objective.name}.safetensors", objective.recipe
    on_epoch = on_epoch if on_epoch and processes.first else lambda *_: None
    optimizer = _optimizer(objective, processes.device)
    now, best, saved, lost = Progress(objective.name, history=list(history)), None, time.monotonic(), 0
    there = path.exists()
    processes.wait()  # until all have looked, before one writes
    if there:
        tensors, about = read_tensors(path, processes.device)
        now = Progress(**about)
        objective.load_state_dict(part(tensors, "weights"))
        if now.ended:
            objective.best_loss = now.best_loss
            return now
        _restore_optimizer(optimizer, objective, part(tensors, "optimizer"))
        objective.restore(part(tensors, "state"))
        best = part(tensors, "best") or None

    def copy():
        return {name: x.clone() for name, x in objective.state_dict().items()}

    def save():
        nonlocal saved
        saved = time.monotonic()
        if processes.first:
            parts = {"weights": objective.state_dict()}
            if not now.ended:
                parts |= {"optimizer": _optimizer_state(optimizer, objective), "best": best or {}}
                parts |= {"state": objective.state()}
            tensors = {f"{part}.{name}": x for part, of in parts.items() for name, x in of.items()}
            write_tensors(path, tensors, asdict(now))
            write_atomically(folder / "history.csv", now.csv().encode())

    def diverged(what, where):
        kept = f"the last good checkpoint is {path}" if path.exists() else "no checkpoint had been written yet"
        return TrainingDiverged(
            f"Training stopped in stage {now.stage}, epoch {now.epoch + 1}, {where}: {what}{objective.at}; {kept}. "
            "Lower the learning rate, or look at those simulations."
        )

    def rate(full):
        return now.rate(full, recipe, objective.steps, objective.epochs)

    def step(i):
        """One optimiser step; the mean loss of its batch over all processes."""
        nonlocal lost
        for group, (_, full, _) in zip(optimizer.param_groups, objective.groups(), strict=True):
            group["lr"] = rate(full)
        optimizer.zero_grad()
        try:
            loss = objective.step(i)
        except ValueError as problem:
            raise diverged(str(problem), f"batch {i + 1}") from problem
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        processes.sum_gradients(parameters)
        norm = clip_grad_norm_(parameters, recipe.clip)
        loss, norm = torch.stack([processes.summed(loss.detach().double()), norm.double()]).tolist()
        far = objective.chance is not None and loss > now.best_loss + DIVERGED * objective.chance
        lost = lost + 1 if far else 0
        if not (isfinite(loss) and isfinite(norm)) or lost == LOST_BATCHES:
            raise diverged(f"the loss is {loss:.4g} and the norm of its gradient {norm:.4g}", f"batch {i + 1}")
        optimizer.step()
        objective.moved(rate(1.0))
        return loss

    def validate(where):
        try:
            with torch.no_grad():
                losses = objective.validate() if where == "validation" else objective.start()
        except ValueError as problem:
            raise diverged(str(problem), where) from problem
        if losses is not None and not isfinite(losses[1]):
            raise diverged(f"the validation loss is {losses[1]}", where)
        return losses

    if not there and (losses := validate("start")) is not None:
        now.best_loss = now.plateau_best = losses[1]
        best = copy()
        if losses[0] is not None:
            now.history.append(dict(zip(HISTORY, (now.stage, 0, 0, *losses, 0.0, 0.0), strict=True)))
            on_epoch(objective, now)
    with _bar(now, objective, show if processes.first else False) as bar:
        while now.epoch < objective.epochs and now.stale < recipe.patience:
            since = time.monotonic()
            objective.begin(now.epoch, now.step)
            for i in range(now.step, objective.steps):
                loss = step(i)
                now.step, now.loss_sum = i + 1, now.loss_sum + loss
                _tell(bar, now, objective, loss)
                stopped = processes.total(float(stop() if stop else False))[0] > 0
                if stopped or time.monotonic() - saved >= checkpoint_every:
                    now.seconds, since = now.seconds + time.monotonic() - since, time.monotonic()
                    save()
                if stopped:
                    return now
            losses = validate("validation")
            now.seconds += time.monotonic() - since
            if now.end_epoch(recipe, *losses, objective.batch, rate(objective.groups()[0][1])):
                best = copy()
            on_epoch(objective, now)
    if best is not None:
        objective.load_state_dict(best)
    now.ended, objective.best_loss = True, now.best_loss
    save()
    return now


def _optimizer(objective, device):
    """AdamW on the groups of the objective; all other parameters are frozen."""
    objective.requires_grad_(False)
    groups = []
    for modules, rate, decay in objective.groups():
        parameters = [p.requires_grad_(True) for module in modules for p in module.parameters()]
        groups.append({"params": parameters, "lr": rate, "weight_decay": decay})
    return torch.optim.AdamW(groups, fused=device.type in ("cpu", "cuda"))


def _names(objective):
    return {id(p): name for name, p in objective.named_parameters()}


def _optimizer_state(optimizer, objective):
    names = _names(objective)
    return {f"{names[id(p)]}.{key}": value for p, state in optimizer.state.items() for key, value in state.items()}


def _restore_optimizer(optimizer, objective, tensors):
    names = _names(objective)
    for p in (p for group in optimizer.param_groups for p in group["params"]):
        state = part(tensors, names[id(p)])
        if state:
            # AdamW keeps its step count on the CPU unless it is fused.
            on_cpu = () if optimizer.defaults["fused"] else ("step",)
            optimizer.state[p] = {key: x if key in on_cpu else x.to(p.device) for key, x in state.items()}


def part(tensors, prefix):
    """Tensors whose name begins with a word, by the rest of their name."""
    return {name[len(prefix) + 1 :]: x for name, x in tensors.items() if name.startswith(f"{prefix}.")}


def _bar(now, objective, show):
    """A bar over all steps of a stage: epoch, step, loss, time left; silent unless `show`."""
    start, total = now.epoch * objective.steps + now.step, objective.epochs * objective.steps
    return tqdm(
        total=total, initial=start, unit="step", disable=not (is_watched() if show is None else show), leave=False
    )


def _tell(bar, now, objective, loss):
    bar.set_description(f"{now.stage}: epoch {now.epoch + 1} of at most {objective.epochs}", refresh=False)
    best = f", best validation {now.best_loss:.3f}" if isfinite(now.best_loss) else ""
    bar.set_postfix_str(f"loss {loss:.3f}{best}", refresh=False)
    bar.update()
