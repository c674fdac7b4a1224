"""The loop that trains a mark on information: stochastic steps on a table of spectra, judged on held-out boxes."""

import time
from dataclasses import asdict
from math import isfinite

import torch
from torch.nn.utils import clip_grad_norm_

from nbkit.disk import read_tensors, write_atomically, write_tensors
from nbkit.forecast.information import fisher, halves, linearised, wanted_rows
from nbkit.forecast.information import weights as weights_of
from nbkit.mesh.threads import generator
from nbkit.train.checkpoint import optimizer_tensors, restore_optimizer, restore_weights, weights
from nbkit.train.data import DRAWN, ORDER
from nbkit.train.progress import HISTORY, Bar, Progress
from nbkit.train.trainer import TrainingDiverged

# Fewest fiducial simulations and pairs of a step: both halves of it must tell a covariance of five numbers.
LEAST = (32, 6)


class InformationTrainer:
    """Trains a mark and keeps `last.safetensors` and `best.safetensors` in a folder.

    An epoch begins with a table of the spectra of all boxes. Each step draws two halves of the training boxes: the
    table of one half gives the weights W, and a batch from the other half, measured anew, what they are worth. The
    gradient with respect to the spectra of the batch then goes back through the mark, box by box: memory does not grow.
    W is taken as given, for at the best W the information does not change with it to first order.

    Parameters
    ----------
    data : Neighbourhood.
    mark : what is trained.
    recipe : of it `batch` (boxes a step), `epochs`, the rate and its schedule, decay, clip, patience are used.
    parameters : names of those whose marginalised errors count.
    seed, folder, processes : of all that is drawn, where to, and with whom.
    checkpoint_every, stop, on_epoch, show : as of `nbkit.train.trainer.Trainer`.
    """

    chance = 0.0  # of the loss, log(sigma / sigma of P_dd alone): a mark that tells nothing

    def __init__(self, data, mark, recipe, parameters, seed, folder, processes, checkpoint_every, stop, on_epoch, show):
        self.data, self.mark, self.recipe, self.seed, self.folder = data, mark, recipe, seed, folder
        self.processes, self.checkpoint_every, self.show = processes, checkpoint_every, show
        self.stop, self.on_epoch = stop or (lambda: False), on_epoch or (lambda trainer: None)
        self.progress, self.stopped, self._wanted = Progress("marked"), False, wanted_rows(parameters)
        boxes = sum(len(rows) * each for rows, each in zip(data.training, (1, 10), strict=True))
        self.steps = max(1, round(boxes / recipe.batch))
        few = [len(rows) // self.steps for rows in data.training]
        if few[0] < LEAST[0] or few[1] < LEAST[1]:
            raise ValueError(
                f"batch is {recipe.batch}, which makes {self.steps} steps of {few[0]} fiducial boxes and {few[1]} "
                f"pairs; a step needs {LEAST[0]} and {LEAST[1]}, so use a larger batch or more simulations."
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
            self._measure()
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
        self._measure()
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
        """One optimiser step; the objective, log sigma on average over the wanted parameters, of the batch."""
        now, everyone = self.progress, self.data.training
        rows = self.data.rows(fiducial, pairs)
        spectra = self.data.measured(self.mark, rows).requires_grad_(True)
        sample = self.data.sample(self.table, *everyone)
        try:
            F, F_few = 0, 0
            A, B = halves(sample, generator(self.seed, DRAWN, now.epoch, step))
            for (f, p), others in ((A, B), (B, A)):
                W = weights_of(sample.rows(*others))
                F = F + fisher(sample.rows(f, p), W) / 2
                mine = (
                    x[torch.isin(x, kept[y])] for x, kept, y in zip((fiducial, pairs), everyone, (f, p), strict=True)
                )
                F_few = F_few + fisher(self.data.sample(spectra, *mine), W) / 2
            loss = linearised(F_few, F)[self._wanted].mean()
        except ValueError as problem:
            raise self._diverged(f"step {step + 1}", str(problem)) from problem
        (cotangents,) = torch.autograd.grad(loss, spectra)
        for parameter in self.mark.parameters():
            parameter.grad = torch.zeros_like(parameter)
        self.data.backpropagated(self.mark, rows, cotangents)
        loss, norm = loss.item(), float(clip_grad_norm_(self.mark.parameters(), self.recipe.clip))
        if not (isfinite(loss) and isfinite(norm)):
            raise self._diverged(f"step {step + 1}", f"the loss is {loss:.4g} and the norm of its gradient {norm:.4g}")
        rate = now.rate(self.recipe.learning_rate, self.recipe, self.steps, self.recipe.epochs)
        self.optimizer.param_groups[0]["lr"] = rate
        self.optimizer.step()
        return loss

    def _measure(self):
        """The table of the mark as it is now."""
        self.data.centre_on(self.mark)
        self.table = self.data.measured(self.mark)

    def _losses(self, where):
        """log(sigma / sigma of P_dd alone), on average over the wanted parameters, on training and held-out boxes."""
        try:
            both = self.data.training, self.data.held_out
            return [self.data.loss(self.table, *rows, self._wanted, self.seed) for rows in both]
        except ValueError as problem:
            raise self._diverged(where, str(problem)) from problem

    def _copy(self):
        return {name: x.clone() for name, x in weights(self.mark, "weights.mark").items()}

    def _restored(self):
        tensors, about = read_tensors(self.folder / "last.safetensors", self.processes.device)
        self.progress = Progress(**about)
        restore_weights(self.mark, "weights.mark", tensors)
        restore_optimizer(self.optimizer, self._names, tensors)
        self._best, _ = read_tensors(self.folder / "best.safetensors", self.processes.device)
        if "table" in tensors:
            self.table, self.data.centre = tensors["table"].cpu(), float(tensors["centre"])
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
            centre = torch.tensor(self.data.centre, dtype=torch.float64)
            tensors |= optimizer_tensors(self.optimizer, self._names) | {"table": self.table, "centre": centre}
        write_tensors(self.folder / "last.safetensors", tensors, about)
        write_atomically(self.folder / "history.csv", self.progress.csv().encode())

    def _diverged(self, where, what):
        last = self.folder / "last.safetensors"
        kept = f"the last good checkpoint is {last}" if last.exists() else "no checkpoint had been written yet"
        return TrainingDiverged(
            f"Training on information stopped in epoch {self.progress.epoch + 1}, {where}: {what}; {kept}."
        )
