"""Density fields for training, by index: all in memory when they fit, else read ahead by a thread."""

import os
from concurrent.futures import ThreadPoolExecutor

import torch

# Part of the free memory that fields may take, and how many parts a thread reads ahead when they do not fit.
MEMORY_SHARE = 0.5
AHEAD = 3


def free_memory(device):
    """Bytes free on a device; 4 GiB where the system does not say."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError):
        return 4 * 2**30


class Fields:
    """The fields of a set of simulations on a device.

    Parameters
    ----------
    simulations : has len(), `grid`, and simulations[list] -> (batch, n, n, n) float32.
    device : where the fields are wanted.
    memory : most bytes to keep there [default: half of what is free]; 0 streams from disk always.
    """

    def __init__(self, simulations, device, memory=None):
        self.simulations, self.device = simulations, device
        needed = 4 * len(simulations) * simulations.grid.n**3
        memory = MEMORY_SHARE * free_memory(device) if memory is None else memory
        self._all = self._read(range(len(simulations))) if needed <= memory else None

    @property
    def in_memory(self):
        """Whether no disk is needed any more."""
        return self._all is not None

    def parts(self, indices):
        """Yield the fields (m, n, n, n) of each list of indices in turn; the next ones are read meanwhile."""
        if self.in_memory:
            for part in indices:
                yield self._all[torch.as_tensor(part, device=self.device)]
            return
        indices = list(indices)
        with ThreadPoolExecutor(1, thread_name_prefix="nbkit-read") as reader:
            reading = [reader.submit(self._read, part) for part in indices[:AHEAD]]
            try:
                for i in range(len(indices)):
                    if i + AHEAD < len(indices):
                        reading.append(reader.submit(self._read, indices[i + AHEAD]))
                    yield reading[i].result()
                    reading[i] = None
            finally:
                for waiting in filter(None, reading):
                    waiting.cancel()

    def _read(self, part):
        fields = self.simulations[[int(i) for i in part]]
        return torch.as_tensor(fields, dtype=torch.float32).to(self.device, non_blocking=True)
