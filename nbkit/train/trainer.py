"""The loop of both stages: AdamW steps, validation, schedule, early stopping, checkpoints that resume exactly."""

import time
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from math import isfinite, log

import torch
from torch.nn.utils import clip_grad_norm_

from nbkit.disk import read_tensors, write_atomically, write_tensors
from nbkit.train.checkpoint import optimizer_tensors, restore_optimizer, restore_weights, weights
from nbkit.train.objective import LEAST_VARIANCE, MarkedObjective, UnmarkedObjective, micro_batch
from nbkit.train.progress import Bar, Progress

# A loss this many times chance above the best one, in this many batches in a row, will not come back. One such batch
# may: where z_m passes z_d the residual flips, and clipping takes the sting out of that gradient.
DIVERGED, LOST_BATCHES = 3, 8


class TrainingDiverged(RuntimeError):
    """The loss is not finite, or far above where it was; the last good checkpoint is kept."""


@dataclass(frozen=True)
class Stage:
    """What tells one stage from the other."""

    name: str
    number: int
    objective: torch.nn.Module
    groups: list  # of (modules, highest learning rate)
    batch: int
    epochs: int
    best_file: str
    micro: int | None  # simulations that go through the mark together; None where cached summaries do


class Trainer:
    """Trains heads, then mark, and keeps `last.safetensors` and `best.safetensors` in a folder.

    Parameters
    ----------
    data : TrainingData with its summaries loaded.
    mark, heads : what is trained; of a mark without parameters only the heads are, on the S_M that `data` holds.
    recipe, folder, processes : how, where to, and with whom.
    checkpoint_every : seconds between checkpoints; a resumed run repeats what came after the last, bit for bit.
    stop : callable asked after every step; True ends the training with what is best so far.
    on_epoch : callable given the Trainer after every epoch.
    show : whether to show a bar; None shows it to a person and stays quiet in logs.
    """

    def __init__(self, data, mark, heads, recipe, folder, processes, checkpoint_every, stop, on_epoch, show):
        self.data, self.mark, self.heads, self.recipe, self.folder = data, mark, heads, recipe, folder
        self.processes, self.checkpoint_every, self.show = processes, checkpoint_every, show
        self.stop, self.on_epoch = stop or (lambda: False), on_epoch or (lambda trainer: None)
        self.progress, self.stopped = Progress(), False
        self.learned = isinstance(mark, torch.nn.Module) and any(True for _ in mark.parameters())
        self.chance = log(recipe.negatives.total(recipe.batch))
        self._restored, self._best, self._saved_at, self._lost = None, None, time.monotonic(), 0

    def train(self):
        """Run, or go on with, all stages; `stopped` tells whether they were asked to end early."""
        if (self.folder / "last.safetensors").exists():
            self._restored, about = read_tensors(self.folder / "last.safetensors")
            self.progress = Progress(**about)
        self.processes.wait()
        if self.progress.stage == "unmarked":
            stage = self._unmarked()
            self._fit(stage)
            if self.stopped:
                return
            restore_weights(stage.objective, "weights", self._best)
            if self.recipe.keep_metric:
                self.heads.metric.load_state_dict(stage.objective.metric.state_dict())
            follows = "heads" if self.learned and self.recipe.head_epochs else "marked"
            if follows == "heads" and self.recipe.standardise:
                self.heads.standardise("marked", self.data.S_M[self.data.training], LEAST_VARIANCE)
            self.progress = Progress(follows, history=self.progress.history)
        if self.progress.stage == "heads":
            stage = self._heads()
            self._fit(stage)
            if self.stopped:
                return
            restore_weights(stage.objective, "weights", self._best)
            self.progress = Progress("marked", history=self.progress.history)
        if self.progress.stage == "marked":
            stage = self._marked()
            self._fit(stage)
            if not self.stopped:
                self._compare_with_start()
                self.progress.stage = "done"
                self._save(stage, None)

    def _compare_with_start(self):
        """Keep the mark as it started, with heads that had learned to read it, if no epoch of its own was better."""
        if (self.folder / "heads.safetensors").exists():
            tensors, about = read_tensors(self.folder / "heads.safetensors")
            if about["best_loss"] < self.progress.best_loss:
                self._best, self.progress.best_loss, self.progress.best_epoch = tensors, about["best_loss"], 0

    def _unmarked(self):
        heads, recipe = self.heads, self.recipe
        objective = UnmarkedObjective(heads, recipe.temperature).to(self.processes.device)
        groups = [([heads.unmarked, heads.theta, objective.metric], recipe.pretrain_rate)]
        size, epochs = recipe.pretrain_batch, recipe.pretrain_epochs
        return Stage("unmarked", 0, objective, groups, size, epochs, "unmarked.safetensors", None)

    def _heads(self):
        heads, recipe, data = self.heads, self.recipe, self.data
        objective = MarkedObjective(self.mark, heads, data.grid, data.kmax, recipe.temperature)
        groups = [([heads.marked, heads.metric, heads.theta], recipe.pretrain_rate)]
        size, epochs = recipe.pretrain_batch, recipe.head_epochs
        return Stage("heads", 2, objective, groups, size, epochs, "heads.safetensors", None)

    def _marked(self):
        heads, recipe, data = self.heads, self.recipe, self.data
        follows = recipe.standardise and self.learned
        objective = MarkedObjective(self.mark, heads, data.grid, data.kmax, recipe.temperature, follows)
        # Heads of a mark that does not learn are trained as those of one that does are before it begins to.
        alone = recipe.head_epochs and not self.learned
        rate, epochs = (recipe.pretrain_rate, recipe.head_epochs) if alone else (recipe.learning_rate, recipe.epochs)
        groups, micro = [([heads.marked, heads.metric], rate), ([heads.theta], rate * recipe.theta_rate)], None
        if self.learned:
            groups.append(([self.mark], rate * recipe.mark_rate))
            micro = micro_batch(data.grid, self.processes.device)
        return Stage("marked", 1, objective, groups, recipe.batch, epochs, "best.safetensors", micro)

    def _fit(self, stage):
        now, data, self._best = self.progress, self.data, None
        optimizer = self._optimizer(stage)
        self._restore(stage, optimizer)
        module = self.processes.wrapped(stage.objective)
        steps, fields = data.steps(stage.batch), stage.micro is not None
        with Bar(now, stage.epochs, steps, self.show if self.processes.first else False) as bar:
            while now.epoch < stage.epochs and now.stale < self.recipe.patience:
                ids, drawn = data.epoch(stage.number, now.epoch, stage.batch)
                since = time.monotonic()
                for step, micro_batches in data.batches(ids, drawn, stage.micro, now.step, fields):
                    loss = self._step(stage, module, optimizer, micro_batches, ids[step])
                    now.step, now.loss_sum = step + 1, now.loss_sum + loss
                    bar.step(loss)
                    self.stopped = self.processes.total(float(self.stop()))[0] > 0
                    if self.stopped or time.monotonic() - self._saved_at >= self.checkpoint_every:
                        now.seconds, since = now.seconds + time.monotonic() - since, time.monotonic()
                        self._save(stage, optimizer)
                    if self.stopped:
                        return
                val_loss = self._validation_loss(stage, module)
                now.seconds += time.monotonic() - since
                rate = now.rate(stage.groups[0][1], self.recipe, steps, stage.epochs)
                if now.end_epoch(self.recipe, val_loss, stage.batch, rate):
                    self._best = {k: v.clone() for k, v in weights(stage.objective, "weights").items()}
                self.on_epoch(self)
        self._save(stage, optimizer)

    def _step(self, stage, module, optimizer, micro_batches, ids):
        """One optimiser step; the mean loss of its batch over all processes."""
        steps = self.data.steps(stage.batch)
        for group, (_, rate) in zip(optimizer.param_groups, stage.groups, strict=True):
            group["lr"] = self.progress.rate(rate, self.recipe, steps, stage.epochs)
        optimizer.zero_grad()
        # DistributedDataParallel averages gradients over processes; the loss is a mean over the whole batch.
        scale, total = self.processes.size / stage.batch, 0.0
        try:
            for micro, last in micro_batches:
                with nullcontext() if last or module is stage.objective else module.no_sync():
                    loss = module(micro)
                    (loss * scale).backward()
                total = total + loss.detach()
        except ValueError as problem:
            raise self._diverged(stage, ids, str(problem)) from problem
        loss = self.processes.total(float(total))[0] / stage.batch
        norm = float(clip_grad_norm_([p for g in optimizer.param_groups for p in g["params"]], self.recipe.clip))
        self._lost = self._lost + 1 if loss > self.progress.best_loss + DIVERGED * self.chance else 0
        if not (isfinite(loss) and isfinite(norm)) or self._lost == LOST_BATCHES:
            raise self._diverged(stage, ids, f"the loss is {loss:.4g} and the norm of its gradient {norm:.4g}")
        optimizer.step()
        if isinstance(stage.objective, MarkedObjective):
            share = self.recipe.newest * self.progress.rate(1.0, self.recipe, steps, stage.epochs)
            stage.objective.follow(self.processes.summed, share)
        return loss

    @torch.no_grad()
    def _validation_loss(self, stage, module):
        ids, drawn = self.data.validation()
        total = 0.0
        for step, micro_batches in self.data.batches(ids, drawn, stage.micro, fields=stage.micro is not None):
            try:
                total += sum(float(stage.objective(micro)) for micro, _ in micro_batches)
            except ValueError as problem:
                raise self._diverged(stage, ids[step], str(problem), "validation") from problem
        loss = self.processes.total(total)[0] / len(self.data.held_out)
        if not isfinite(loss):
            raise self._diverged(stage, self.data.held_out, f"the validation loss is {loss}", "validation")
        return loss

    def _optimizer(self, stage):
        """AdamW on the parameters of the stage; all others are frozen."""
        for parameter in stage.objective.parameters():
            parameter.requires_grad_(False)
        groups = []
        for modules, rate in stage.groups:
            parameters = [p.requires_grad_(True) for module in modules for p in module.parameters()]
            decay = self.recipe.mark_decay if modules == [self.mark] else None
            groups.append({"params": parameters, "lr": rate} | ({} if decay is None else {"weight_decay": decay}))
        fused = self.processes.device.type in ("cpu", "cuda")
        return torch.optim.AdamW(groups, weight_decay=self.recipe.weight_decay, fused=fused)

    def _names(self, stage, optimizer):
        names = {id(p): name for name, p in stage.objective.named_parameters()}
        return [names[id(p)] for group in optimizer.param_groups for p in group["params"]]

    def _restore(self, stage, optimizer):
        if self._restored is not None:
            restore_weights(stage.objective, "weights", self._restored)
            restore_optimizer(optimizer, self._names(stage, optimizer), self._restored)
            if self.progress.best_epoch:
                self._best, _ = read_tensors(self.folder / stage.best_file)
        self._restored = None

    def _save(self, stage, optimizer):
        """Write the best and then the last: whatever moment a crash picks, the last can be resumed."""
        self._saved_at = time.monotonic()
        if not self.processes.first:
            return
        about = asdict(self.progress)
        if self._best is not None:
            write_tensors(self.folder / stage.best_file, self._best, about)
        tensors = weights(stage.objective, "weights")
        if optimizer is not None:
            tensors |= optimizer_tensors(optimizer, self._names(stage, optimizer))
        write_tensors(self.folder / "last.safetensors", tensors, about)
        write_atomically(self.folder / "history.csv", self.progress.csv().encode())

    def _diverged(self, stage, ids, what, where=None):
        now = self.progress
        last = self.folder / "last.safetensors"
        kept = f"the last good checkpoint is {last}" if last.exists() else "no checkpoint had been written yet"
        where = where or f"batch {now.step + 1}"
        return TrainingDiverged(
            f"Training stopped in stage {stage.name}, epoch {now.epoch + 1}, {where}: {what} (simulations "
            f"{ids.tolist()[:16]}); {kept}. Lower the learning rate, or look at those simulations."
        )
