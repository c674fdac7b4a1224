"""Compiled loops on both cores: numba kernels that release the GIL, run over fixed slices by a thread pool; devices.

The slices do not depend on the number of threads, so sums over them come out bit for bit the same on any machine.
"""

import ctypes
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path

import numba
import numpy as np
import torch

from nbkit.disk import runs

# Where the kit's own folder cannot be written, numba keeps what it compiles with all else that is kept.
if "NBKIT_RUNS" in os.environ and not (numba.config.CACHE_DIR or os.access(Path(__file__).parent, os.W_OK)):
    numba.config.CACHE_DIR = str(runs() / "numba")

SLICES = 8

# Without nnan and ninf: sums may be reordered into SIMD lanes, but NaN stays NaN.
FASTMATH = {"nsz", "arcp", "contract", "reassoc"}
kernel = numba.njit(nogil=True, cache=True, fastmath=FASTMATH, error_model="numpy")
# Part of a kernel, always compiled into it. A call would find the copy compiled on its own in the process that compiles
# both, and the copy beside the kernel in one that reads numba's cache, and the two round differently.
inlined = numba.njit(fastmath=FASTMATH, error_model="numpy", forceinline=True)


def over_slices(function, length, slices=SLICES):
    """Call function(slice_number, start, stop) for `slices` equal parts of range(length), on torch's threads."""
    edges = [length * i // slices for i in range(slices + 1)]
    parts = list(zip(range(slices), edges[:-1], edges[1:], strict=True))
    threads = torch.get_num_threads()

    def share(first):
        for part in parts[first::threads]:
            function(*part)

    others = [_pool(threads).submit(share, first) for first in range(1, min(threads, slices))]
    share(0)
    for other in others:
        other.result()


@contextmanager
def one_thread():
    """Keep torch to one thread: on small matrices and a busy machine, threads wait for each other ten times longer."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@lru_cache(maxsize=4)
def _pool(threads):
    return ThreadPoolExecutor(threads, thread_name_prefix="nbkit")


@lru_cache(maxsize=1)
def keep_freed():
    """Let glibc keep up to 1 GB of freed memory for the next array, of up to 32 MB each; True if it does.

    By default it hands freed arrays back to the system and takes every page of the next one anew, which costs a 64^3
    simulation a quarter of its time. It changes the whole process, so it is called where work begins.
    """
    trim_threshold, mmap_threshold = -1, -3  # what mallopt calls them
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform.startswith("linux") else None
    return mallopt is not None and bool(mallopt(trim_threshold, 1 << 30) and mallopt(mmap_threshold, 32 << 20))


def generator(*words):
    """A torch.Generator seeded by whole numbers: what is drawn at an epoch and batch needs no state to be saved."""
    seed = np.random.SeedSequence(words).generate_state(1, np.uint64)[0] >> np.uint64(1)
    return torch.Generator().manual_seed(int(seed))


@contextmanager
def seeded(*words):
    """Seed what torch draws on the CPU by whole numbers; afterwards its generator is as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(generator(*words).initial_seed())
        yield


def choose_device(device="auto"):
    """The torch device of a name; "auto" is this process's GPU if there is one, else the CPU."""
    name = ("cuda" if torch.cuda.is_available() else "cpu") if device == "auto" else device
    try:
        chosen = torch.device(name)
    except RuntimeError:
        raise ValueError(f'device is {device!r}; allowed are "auto", "cpu", "cuda" and "cuda:<number>".') from None
    if chosen.type != "cuda":
        return chosen
    count = torch.cuda.device_count()
    if (chosen.index or 0) >= count:
        there = f"{count} GPU{'s are' if count > 1 else ' is'}" if count else "no GPU is"
        raise ValueError(f'device is {device!r}, but {there} usable here; use "auto" or "cpu".')
    rank = int(os.environ.get("LOCAL_RANK", 0)) % count
    return torch.device("cuda", rank if chosen.index is None else chosen.index)
