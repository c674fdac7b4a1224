"""What a training leaves behind: one folder, and the Run that is read from it."""

import json
from pathlib import Path

import torch
from torch import nn

from nbkit.disk import read_tensors, write_json
from nbkit.mark import mark_of_settings
from nbkit.mesh.grid import Grid
from nbkit.mesh.spectra import marked_spectra, marked_summary, unmarked_summary
from nbkit.train.checkpoint import restore_weights
from nbkit.train.contrast import Heads
from nbkit.train.negatives import normalised
from nbkit.train.progress import Progress
from nbkit.train.recipe import Recipe
from nbkit.universe.cosmology import PRIOR_BSQ


class Run:
    """A trained mark with its heads: the best so far, and how it got there.

    Attributes
    ----------
    folder : where it was read from.
    settings : all that `train` was asked for, as in `run.json`.
    mark, heads : with the weights of the lowest validation loss; a run on information has no heads.
    history : a dict an epoch, with stage, epoch, passes, train_loss, val_loss, learning_rate, seconds.
    best_loss, best_epoch : of stage two; inf and 0 before its first epoch.
    finished : False if the training was stopped; calling `train` again goes on.
    """

    def __init__(self, folder, settings, mark, heads, progress, last):
        self.folder, self.settings, self.mark, self.heads = folder, settings, mark, heads
        self.grid, self.kmax, self.recipe = Grid(**settings["grid"]), settings["kmax"], Recipe(**settings["recipe"])
        self.best_loss, self.best_epoch = progress.best_loss, progress.best_epoch
        self.history, self.finished = last.history, last.stage == "done"

    def __repr__(self):
        return f"<run {self.folder.name}: validation loss {self.best_loss:.3f} at epoch {self.best_epoch}>"

    def column(self, name, stage="marked"):
        """One column of the history of a stage, as a list."""
        return [row[name] for row in self.history if row["stage"] == stage]

    @torch.no_grad()
    def embeddings(self, simulations, at_once=8):
        """z_perp, z_d and z_theta, each (N, D), of a set of simulations, on the device of the heads."""
        device = self.heads.theta.weight.device
        z_perp, z_d = [], []
        for start in range(0, len(simulations), at_once):
            delta = simulations[list(range(start, min(start + at_once, len(simulations))))].to(device)
            power = marked_spectra(self.mark, delta, grid=simulations.grid, kmax=self.kmax)
            S_delta, S_M = unmarked_summary(power.P_dd), marked_summary(*power[1:4])
            z_perp.append(self.heads.z_perp(S_M, S_delta))
            z_d.append(self.heads.z_d(S_delta))
        theta = normalised(simulations.theta, PRIOR_BSQ).float().to(device)
        return torch.cat(z_perp), torch.cat(z_d), self.heads.z_theta(theta)


def load_run(folder, mark=None, device="cpu"):
    """The Run in a folder that `train` wrote to.

    Parameters
    ----------
    folder : of the run.
    mark : a module to put the weights into, needed only if the run trained one that is not nbkit's.
    """
    folder = Path(folder)
    if not (folder / "run.json").is_file():
        raise FileNotFoundError(f"There is no run in {folder}: it has no run.json.")
    settings = json.loads((folder / "run.json").read_text())
    if not (folder / "last.safetensors").is_file():
        raise FileNotFoundError(f"The run in {folder} has no checkpoint yet.")
    recipe = Recipe(**settings["recipe"])
    mark = mark_of_settings(settings["mark"]) if mark is None else mark
    heads = None
    if settings.get("objective", "contrast") == "contrast":
        bins = len(Grid(**settings["grid"]).bins(settings["kmax"]).k)
        heads = Heads(bins, recipe.width, recipe.dimension, settings["residual"])
    tensors, last = read_tensors(folder / "last.safetensors")
    last, best = Progress(**last), Progress(stage="marked")
    if (folder / "best.safetensors").is_file():
        tensors, about = read_tensors(folder / "best.safetensors")
        best = Progress(**about)
    if heads is not None:
        restore_weights(heads, "weights.heads", tensors)
        heads.requires_grad_(False).to(device)
    if isinstance(mark, nn.Module):
        if any(name.startswith("weights.mark.") for name in tensors):
            restore_weights(mark, "weights.mark", tensors)
        mark.requires_grad_(False).to(device)
    return Run(folder, settings, mark, heads, best, last)


def claimed_folder(out, settings, fresh):
    """The folder of a run with these settings, new or its own; another run's is refused, or emptied if `fresh`."""
    folder = Path(out).expanduser()
    about = folder / "run.json"
    if about.is_file():
        there = json.loads(about.read_text())
        if fresh:
            for name in ("run.json", "last", "best", "unmarked", "heads", "summaries", "history.csv"):
                (folder / (name if "." in name else f"{name}.safetensors")).unlink(missing_ok=True)
        elif there != settings:
            differing = [k for k in settings.keys() | there.keys() if there.get(k) != settings.get(k)]
            said = "; ".join(f"{k} is {there.get(k)} there and {settings.get(k)} now" for k in sorted(differing))
            raise ValueError(f"{folder} holds a run with other settings: {said}. Choose another folder, or fresh=True.")
    if not about.is_file():
        write_json(about, settings)
    return folder
