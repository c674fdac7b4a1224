"""The one loop, in one process or many: AdamW steps on an objective, validation, schedule, early stopping, checkpoints
that resume exactly."""

import os
import time
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import asdict
from math import inf, isfinite

import torch
from torch import distributed, nn
from torch.nn.utils import clip_grad_norm_
from tqdm.auto import tqdm

from nbkit.disk import read_tensors, write_atomically, write_tensors
from nbkit.mesh.threads import keep_freed
from nbkit.train.run import Progress, part
from nbkit.universe.farm import is_watched

# A loss this many times chance above the best one, in this many batches in a row, will not come back. One such batch
# may: where z_m passes z_d the residual flips, and clipping takes the sting out of that gradient.
DIVERGED, LOST_BATCHES = 3, 8


class Processes:
    """The group this process belongs to: `rank` of `size`, alone unless `torchrun` started several."""

    def __init__(self, device):
        self.device = device
        if device.type == "cuda":
            torch.cuda.set_device(device)  # NCCL takes the current one
        self.size = int(os.environ.get("WORLD_SIZE", 1))
        self.rank = int(os.environ.get("RANK", 0)) if self.size > 1 else 0
        self.first = self.rank == 0  # it writes files and shows progress
        if self.size > 1 and not distributed.is_initialized():
            if device.type == "cuda" and not distributed.is_nccl_available():
                raise ValueError(
                    f"{self.size} processes on GPUs need NCCL, which this build of torch lacks; install a CUDA build "
                    "for Linux, or train in one process or on the CPU."
                )
            distributed.init_process_group("nccl" if device.type == "cuda" else "gloo")

    def share(self, count):
        """This process's part of `count` things, as a slice."""
        return slice(count * self.rank // self.size, count * (self.rank + 1) // self.size)

    def summed(self, tensor):
        """Sum of a tensor over all processes."""
        if self.size > 1:
            distributed.all_reduce(tensor)
        return tensor

    def total(self, value):
        """Sum of a plain number over all processes."""
        if self.size == 1:  # no way to a GPU and back
            return value
        return float(self.summed(torch.tensor(value, dtype=torch.float64, device=self.device)))

    def wait(self):
        """Until all processes are here."""
        if self.size > 1:
            distributed.barrier()

    def in_turn(self, call):
        """What call() gives, in the first process before the others: they find what it has kept on disk."""
        result = call() if self.first else None
        self.wait()
        return result if self.first else call()

    def sum_gradients(self, parameters):
        """Sum the gradients of parameters over all processes; those without one count as zero."""
        if self.size > 1:
            gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]
            total = self.summed(torch.cat([g.flatten() for g in gradients]))
            for p, whole in zip(parameters, total.split([p.numel() for p in parameters]), strict=True):
                p.grad = whole.view_as(p)


class TrainingDiverged(RuntimeError):
    """The loss is not finite, or far above where it was; the last good checkpoint is kept."""


class Objective(nn.Module):
    """What `fit` minimises: a module whose parameters are trained in groups, with the `name` of its stage, its file and
    its rows in the history; its `recipe`; `batch` simulations a step, `steps` an epoch, and at most so many `epochs`.

    Everything it draws is stateless, so that an epoch can be taken up at any step.
    """

    chance = None  # loss of a mark that tells nothing, where the loss has such a scale
    at = ""  # what the last step or validation looked at, for messages
    best_loss = inf  # lowest validation loss, once `fit` has run it

    def groups(self):
        """[(modules, highest learning rate, weight decay)]: those in `learning`; what is in no group is frozen."""
        return [(self.learning, self.recipe.learning_rate, self.recipe.weight_decay)]

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

    def end(self):
        """After the stage, with its best weights."""

    def state(self):
        """Tensors beyond weights and optimiser that going on needs."""
        return {}

    def restore(self, state):
        """Take back what `state` gave."""


def fit_stages(objectives, folder, processes, **how):
    """Run stages one after the other, as `fit` does, until one is asked to stop; gives the Progress of the last."""
    history = ()
    for objective in objectives:
        now = fit(objective, folder, processes, history, **how)
        if not now.ended:
            break
        history = now.history
    return now


def fit(objective, folder, processes, history=(), *, checkpoint_every=30.0, stop=None, on_epoch=None, show=None):
    """Run a stage, or go on with it; gives its Progress, whose `ended` is False if it was asked to stop.

    When the stage has ended the objective holds its best weights, and so does `<name>.safetensors` in the folder, from
    which a later call reads them at once.

    Parameters
    ----------
    history : rows of the stages before.
    checkpoint_every : between checkpoints [s]; a resumed run repeats what came after the last, bit for bit.
    stop : callable asked after every step; True ends the training with what is best so far.
    on_epoch : callable given the Objective and the Progress after every epoch, in the first process.
    show : whether to show a bar; None shows it to a person and stays quiet in logs.
    """
    keep_freed()
    path, recipe = folder / f"{objective.name}.safetensors", objective.recipe
    on_epoch = on_epoch if on_epoch and processes.first else lambda *_: None
    show = processes.first and (is_watched() if show is None else show)
    optimizer = _optimizer(objective, processes.device)
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    now, best, saved, lost = Progress(objective.name, history=list(history)), None, time.monotonic(), 0
    there = path.exists()
    processes.wait()  # until all have looked, before one writes
    if there:
        tensors, about = read_tensors(path, processes.device)
        now = Progress.of(about)
        objective.load_state_dict(part(tensors, "weights"))
        if now.ended:
            objective.best_loss = now.best_loss
            objective.end()
            return now
        moments = {i: part(tensors, f"optimizer.{i}") for i in range(len(parameters))}
        optimizer.load_state_dict(optimizer.state_dict() | {"state": moments})
        objective.restore(part(tensors, "state"))
        best = part(tensors, "best") or None

    def save():
        nonlocal saved
        saved = time.monotonic()
        if processes.first:
            parts = {"weights": objective.state_dict()}
            if not now.ended:
                parts |= {"best": best or {}, "state": objective.state()}
                parts |= {f"optimizer.{i}": moments for i, moments in optimizer.state_dict()["state"].items()}
            tensors = {f"{part}.{name}": x for part, of in parts.items() for name, x in of.items()}
            write_tensors(path, tensors, asdict(now))
            write_atomically(folder / "history.csv", now.csv().encode())

    @contextmanager
    def diagnosis(where):
        """A ValueError says where it was, and what is kept."""
        try:
            yield
        except ValueError as problem:
            kept = f"the last good checkpoint is {path}" if path.exists() else "no checkpoint had been written yet"
            raise TrainingDiverged(
                f"Training stopped in stage {now.stage}, epoch {now.epoch + 1}, {where}: {problem}{objective.at}; "
                f"{kept}. Lower the learning rate, or look at those simulations."
            ) from problem

    def rate(full):
        return now.rate(full, recipe, objective.steps, objective.epochs)

    def step(i):
        """One optimiser step; the mean loss of its batch over all processes."""
        nonlocal lost
        for group in optimizer.param_groups:
            group["lr"] = rate(group["highest"])
        optimizer.zero_grad()
        with diagnosis(f"batch {i + 1}"):
            loss = objective.step(i)
            processes.sum_gradients(parameters)
            norm = clip_grad_norm_(parameters, recipe.clip)
            loss, norm = torch.stack([processes.summed(loss.detach().double()), norm.double()]).tolist()
            far = objective.chance is not None and loss > now.best_loss + DIVERGED * objective.chance
            lost = lost + 1 if far else 0
            if not (isfinite(loss) and isfinite(norm)) or lost == LOST_BATCHES:
                raise ValueError(f"the loss is {loss:.4g} and the norm of its gradient {norm:.4g}")
        optimizer.step()
        objective.moved(rate(1.0))
        return loss

    def judge(losses, where):
        """What the objective says of its start, or of what is held out."""
        with diagnosis(where), torch.no_grad():
            train_loss, val_loss = losses() or (None, None)
            if val_loss is not None and not isfinite(val_loss):
                raise ValueError(f"the validation loss is {val_loss}")
        return train_loss, val_loss

    if not there:
        train_loss, val_loss = judge(objective.start, "start")
        if val_loss is not None:
            now.best_loss, best = val_loss, deepcopy(objective.state_dict())
        if train_loss is not None:
            now.tell(0, train_loss, val_loss, 0.0)
            on_epoch(objective, now)
    done, steps = now.epoch * objective.steps + now.step, objective.epochs * objective.steps
    with tqdm(total=steps, initial=done, unit="step", disable=not show, leave=False) as bar:
        while now.epoch < objective.epochs and now.stale < recipe.patience:
            since = time.monotonic()
            bar.set_description(f"{now.stage}: epoch {now.epoch + 1} of at most {objective.epochs}", refresh=False)
            objective.begin(now.epoch, now.step)
            for i in range(now.step, objective.steps):
                loss = step(i)
                now.step, now.loss_sum = i + 1, now.loss_sum + loss
                bar.set_postfix_str(f"loss {loss:.3f}, best validation {now.best_loss:.3f}", refresh=False)
                bar.update()
                stopped = processes.total(bool(stop and stop())) > 0
                if stopped or time.monotonic() - saved >= checkpoint_every:
                    now.seconds, since = now.seconds + time.monotonic() - since, time.monotonic()
                    save()
                if stopped:
                    return now
            losses = judge(objective.validate, "validation")
            now.seconds += time.monotonic() - since
            if now.end_epoch(recipe, *losses, objective.batch, rate(optimizer.param_groups[0]["highest"])):
                best = deepcopy(objective.state_dict())
            on_epoch(objective, now)
    if best is not None:
        objective.load_state_dict(best)
    now.ended, objective.best_loss = True, now.best_loss
    save()
    objective.end()
    return now


def _optimizer(objective, device):
    """AdamW on the groups of the objective; all other parameters are frozen."""
    objective.requires_grad_(False)
    groups = []
    for modules, rate, decay in objective.groups():
        parameters = [p.requires_grad_(True) for module in modules for p in module.parameters()]
        groups.append({"params": parameters, "lr": rate, "highest": rate, "weight_decay": decay})
    return torch.optim.AdamW(groups, fused=device.type in ("cpu", "cuda"))
