"""Memory that is used again and again stays with the process."""

import ctypes
import sys
from functools import lru_cache

# Names of glibc's mallopt: how much freed memory to keep, and the size from which arrays bypass the heap [bytes].
TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3
KEPT, LARGEST_ON_HEAP = 1 << 30, 32 << 20


@lru_cache(maxsize=1)
def keep_freed():
    """Keep up to 1 GB of freed memory for the next array; True if the C library allows it.

    By default glibc hands freed arrays back to the system and takes every page of the next one anew, which costs a
    64^3 simulation a quarter of its time. Other C libraries are left as they are.
    """
    if not sys.platform.startswith("linux") or not hasattr(ctypes.CDLL(None), "mallopt"):
        return False
    mallopt = ctypes.CDLL(None).mallopt
    return bool(mallopt(TRIM_THRESHOLD, KEPT)) and bool(mallopt(MMAP_THRESHOLD, LARGEST_ON_HEAP))
