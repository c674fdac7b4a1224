"""One process or many: what `torchrun` set up, and the few sums that processes share."""

import os
import subprocess
import sys

import torch
from torch import distributed


def choose_device(device="auto"):
    """The torch device of a name; "auto" is this process's GPU if there is one, else the CPU."""
    if device == "auto":
        if not torch.cuda.is_available():
            return torch.device("cpu")
        return torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0)) % torch.cuda.device_count())
    try:
        chosen = torch.device(device)
    except RuntimeError:
        raise ValueError(f'device is {device!r}; allowed are "auto", "cpu", "cuda" and "cuda:<number>".') from None
    if chosen.type == "cuda" and not torch.cuda.is_available():
        raise ValueError(f'device is {device!r}, but no GPU is usable here; use "auto" or "cpu".')
    if chosen.type == "cuda" and chosen.index is None and "LOCAL_RANK" in os.environ:
        return torch.device("cuda", int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
    return chosen


class Processes:
    """The group this process belongs to: `rank` of `size`, alone unless `torchrun` started several."""

    def __init__(self, device):
        self.device = device
        if device.type == "cuda":
            torch.cuda.set_device(device)  # NCCL takes the current one
        self.size = int(os.environ.get("WORLD_SIZE", 1))
        self.rank = int(os.environ.get("RANK", 0)) if self.size > 1 else 0
        if self.size > 1 and not distributed.is_initialized():
            distributed.init_process_group("nccl" if device.type == "cuda" else "gloo")

    @property
    def first(self):
        """Whether this process writes files and shows progress."""
        return self.rank == 0

    def share(self, count):
        """This process's part of `count` things, as a slice."""
        return slice(count * self.rank // self.size, count * (self.rank + 1) // self.size)

    def total(self, *values):
        """Sums of plain numbers over all processes, as float64."""
        if self.size == 1:
            return values
        return tuple(self.summed(torch.tensor(values, dtype=torch.float64, device=self.device)).tolist())

    def summed(self, tensor):
        """Sum of a tensor over all processes."""
        if self.size > 1:
            distributed.all_reduce(tensor)
        return tensor

    def wait(self):
        """Until all processes are here."""
        if self.size > 1:
            distributed.barrier()

    def sum_gradients(self, parameters):
        """Sum the gradients of parameters over all processes; those without one count as zero."""
        if self.size > 1:
            gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]
            total = self.summed(torch.cat([g.flatten() for g in gradients]))
            for p, whole in zip(parameters, total.split([p.numel() for p in parameters]), strict=True):
                p.grad = whole.view_as(p)


def follow(words, processes, folder):
    """Train with `torchrun` in several processes of this machine; yield the lines of their log as they come.

    Parameters
    ----------
    words : command line of the training, see `nbkit.train.training.parser`.
    processes : how many: GPUs, or CPUs to share each batch.
    folder : of the run, where log.txt is kept.
    """
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
    folder.mkdir(parents=True, exist_ok=True)
    log = folder / "log.txt"
    command += ["-m", "nbkit.train", *words, f"--folder={folder}"]
    with log.open("w") as file, subprocess.Popen(command, stdout=subprocess.PIPE, stderr=file, text=True) as started:
        for line in started.stdout:
            file.write(line)
            yield line.rstrip()
    if started.returncode:
        last = log.read_text().strip().splitlines()[-15:]
        raise RuntimeError(f"The training ended with code {started.returncode}; the end of {log}:\n" + "\n".join(last))
