"""The loop that trains a mark on information: stochastic steps on a table of spectra, judged on held-out boxes."""

import time
from dataclasses import asdict
from math import isfinite

import torch
from torch.nn.utils import clip_grad_norm_

from nbkit.batches import DRAWN, HELD_OUT, ORDER, generator
from nbkit.checkpoint import (
    optimizer_tensors,
    read_tensors,
    restore_optimizer,
    restore_weights,
    weights,
    write_atomically,
    write_tensors,
)
from nbkit.information import cross_validated, wanted_rows
from nbkit.progress import HISTORY, Bar, Progress
from nbkit.trainer import TrainingDiverged

# Divisions into halves behind a loss that is reported; a step makes do with fewer.
REPORTED_SPLITS = 10


class InformationTrainer:
    """Trains a mark and keeps `last.safetensors` and `best.safetensors` in a folder.

    Each step takes the gradient of the objective with respect to the table of all training spectra, with halves drawn
    anew, and sends some of the boxes back through the mark, which renews their rows. An epoch sends every box once, and
    then the whole table is measured again. With a recipe.batch of all boxes every step has the exact gradient.

    Parameters
    ----------
    data : Neighbourhood.
    mark : what is trained.
    recipe : of it `batch` (boxes a step), `epochs`, the rate and its schedule, decay, clip, patience are used.
    parameters : names of those whose marginalised errors count.
    seed, folder, processes : of all that is drawn, where to, and with whom.
    checkpoint_every, stop, on_epoch, show : as of `nbkit.trainer.Trainer`.
    """

    chance = 0.0  # of the loss, log(sigma / sigma of P_dd alone): a mark that tells nothing
    ylabel = r"log($\sigma$ / $\sigma$ of $P_{\delta\delta}$ alone)"

    def __init__(self, data, mark, recipe, parameters, seed, folder, processes, checkpoint_every, stop, on_epoch, show):
        self.data, self.mark, self.recipe, self.seed, self.folder = data, mark, recipe, seed, folder
        self.processes, self.checkpoint_every, self.show = processes, checkpoint_every, show
        self.stop, self.on_epoch = stop or (lambda: False), on_epoch or (lambda trainer: None)
        self.progress, self.stopped, self._wanted = Progress("marked"), False, wanted_rows(parameters)
        boxes = sum(len(rows) * each for rows, each in zip(data.training, (1, 10), strict=True))
        self.steps = max(1, round(boxes / recipe.batch))
        if min(map(len, data.training)) < self.steps:
            raise ValueError(
                f"batch is {recipe.batch}, which makes {self.steps} steps of {len(data.training[1])} pairs; a step "
                f"needs a pair, so use a batch of {-(-boxes // len(data.training[1]))} or more."
            )
        for parameter in mark.parameters():
            parameter.requires_grad_(True)
        self.optimizer = torch.optim.AdamW(
            mark.parameters(), lr=recipe.learning_rate, weight_decay=recipe.weight_decay, fused=True
        )
        self._names = [name for name, _ in mark.named_parameters()]
        self._best, self._saved_at = None, time.monotonic()

    def train(self):
        """Run, or go on; `stopped` tells whether it was asked to end early."""
        now = self.progress
        if (self.folder / "last.safetensors").exists():
            now = self._restored()
        else:
            self.table = self.data.measured(self.mark)
            training, held_out = self._losses("start")
            now.best_loss, now.plateau_best, self._best = held_out, held_out, self._copy()
            now.history.append(dict(zip(HISTORY, ("marked", 0, 0, training, held_out, 0.0, 0.0), strict=True)))
            self.on_epoch(self)
        if now.stage == "done":
            return
        with Bar(now, self.recipe.epochs, self.steps, self.show if self.processes.first else False) as bar:
            while now.epoch < self.recipe.epochs and now.stale < self.recipe.patience:
                if not self._epoch(bar):
                    return
                self.on_epoch(self)
                if time.monotonic() - self._saved_at >= self.checkpoint_every:
                    self._save()
        now.stage = "done"
        self._save()

    def _epoch(self, bar):
        now, since = self.progress, time.monotonic()
        chunks = self._chunks(now.epoch)
        for step in range(now.step, self.steps):
            loss = self._step(step, *(chunk[step] for chunk in chunks))
            now.step = step + 1
            bar.step(loss)
            self.stopped = self.processes.total(float(self.stop()))[0] > 0
            if self.stopped or time.monotonic() - self._saved_at >= self.checkpoint_every:
                now.seconds, since = now.seconds + time.monotonic() - since, time.monotonic()
                self._save()
            if self.stopped:
                return False
        self.table = self.data.measured(self.mark)
        training, held_out = self._losses("validation")
        rate = now.rate(self.recipe.learning_rate, self.recipe, self.steps, self.recipe.epochs)
        now.loss_sum, now.seconds = training * now.step, now.seconds + time.monotonic() - since
        if now.end_epoch(self.recipe, held_out, self.recipe.batch, rate):
            self._best = self._copy()
        return True

    def _chunks(self, epoch):
        """Fiducial simulations and pairs of every step of an epoch."""
        chunks = []
        for stream, rows in enumerate(self.data.training):
            order = torch.randperm(len(rows), generator=generator(self.seed, ORDER, stream, epoch))
            chunks.append(rows[order].tensor_split(self.steps))
        return chunks

    def _step(self, step, fiducial, pairs):
        """One optimiser step; the objective, log sigma on average over the wanted parameters, as the table has it."""
        now, (all_fiducial, all_pairs) = self.progress, self.data.training
        table = self.table.requires_grad_(True)
        try:
            drawn = generator(self.seed, DRAWN, now.epoch, step)
            loss = cross_validated(self.data.sample(table, all_fiducial, all_pairs), drawn)[self._wanted].mean()
        except ValueError as problem:
            raise self._diverged(f"step {step + 1}", str(problem)) from problem
        (cotangents,) = torch.autograd.grad(loss, table)
        self.table, loss = table.detach(), float(loss.detach())
        # Some boxes stand for all: of the fiducial ones and of the pairs different shares.
        cotangents[: self.data.joined.fiducial] *= len(all_fiducial) / len(fiducial)
        cotangents[self.data.joined.fiducial :] *= len(all_pairs) / len(pairs)
        for parameter in self.mark.parameters():
            parameter.grad = torch.zeros_like(parameter)
        self.data.backpropagated(self.mark, self.data.rows(fiducial, pairs), cotangents, self.table)
        norm = float(clip_grad_norm_(self.mark.parameters(), self.recipe.clip))
        if not (isfinite(loss) and isfinite(norm)):
            raise self._diverged(f"step {step + 1}", f"the norm of the gradient is {norm:.4g}")
        rate = now.rate(self.recipe.learning_rate, self.recipe, self.steps, self.recipe.epochs)
        self.optimizer.param_groups[0]["lr"] = rate
        self.optimizer.step()
        return loss

    def _losses(self, where):
        """log(sigma / sigma of P_dd alone), on average over the wanted parameters, on training and held-out boxes."""
        losses = []
        for rows in (self.data.training, self.data.held_out):
            sample = self.data.sample(self.table, *rows)
            try:
                both = [
                    cross_validated(each, generator(self.seed, HELD_OUT), REPORTED_SPLITS)
                    for each in (sample, sample.first(self.data.bins))
                ]
            except ValueError as problem:
                raise self._diverged(where, str(problem)) from problem
            losses.append(float((both[0] - both[1])[self._wanted].mean()))
        return losses

    def _copy(self):
        return {name: x.clone() for name, x in weights(self.mark, "weights.mark").items()}

    def _restored(self):
        tensors, about = read_tensors(self.folder / "last.safetensors", self.processes.device)
        self.progress = Progress(**about)
        restore_weights(self.mark, "weights.mark", tensors)
        restore_optimizer(self.optimizer, self._names, tensors)
        self._best, _ = read_tensors(self.folder / "best.safetensors", self.processes.device)
        self.table = tensors["table"].cpu() if "table" in tensors else None
        self.processes.wait()
        return self.progress

    def _save(self):
        """Write the best and then the last: whatever moment a crash picks, the last can be resumed."""
        self._saved_at = time.monotonic()
        if not self.processes.first:
            return
        about = asdict(self.progress)
        write_tensors(self.folder / "best.safetensors", self._best, about)
        tensors = weights(self.mark, "weights.mark")
        if self.progress.stage != "done":
            tensors |= optimizer_tensors(self.optimizer, self._names) | {"table": self.table}
        write_tensors(self.folder / "last.safetensors", tensors, about)
        write_atomically(self.folder / "history.csv", self.progress.csv().encode())

    def _diverged(self, where, what):
        last = self.folder / "last.safetensors"
        kept = f"the last good checkpoint is {last}" if last.exists() else "no checkpoint had been written yet"
        return TrainingDiverged(
            f"Training on information stopped in epoch {self.progress.epoch + 1}, {where}: {what}; {kept}."
        )
