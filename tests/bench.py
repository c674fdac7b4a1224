"""Performance table: ratios of times taken in one run, so that noisy machines can be compared.

Every function below marked @measures adds numbers to the table; `make bench` prints it and writes runs/bench.json.
Name some of them on the command line to run only those.
"""

import contextlib
import io
import json
import sys
import time
from pathlib import Path

import Pk_library
import torch

from nbkit import Grid, spectra

MEASURES = {}


def measures(function):
    MEASURES[function.__name__] = function
    return function


def seconds(*calls, repeats=7):
    """Median time of each call; they take turns, so that all see the same load on the machine."""
    times = [[] for _ in calls]
    for round in range(repeats + 1):
        for call, taken in zip(calls, times, strict=True):
            start = time.perf_counter()
            call()
            if round > 0:  # the first warms caches and compiles
                taken.append(time.perf_counter() - start)
    return [sorted(taken)[len(taken) // 2] for taken in times]


def quiet(call):
    """The call without what it prints: Pylians reports its own times."""

    def silent():
        with contextlib.redirect_stdout(io.StringIO()):
            return call()

    return silent


@measures
def power_spectra():
    grid = Grid(128, 1000.0, "PCS")
    delta, other = torch.randn(2, *grid.shape)
    ours, ffts, pylians = seconds(
        lambda: spectra(delta, other, grid=grid),
        lambda: (torch.fft.rfftn(delta), torch.fft.rfftn(other)),
        quiet(lambda: Pk_library.XPk([delta.numpy(), other.numpy()], 1000.0, axis=0, MAS=["PCS", "PCS"], threads=2)),
    )
    return {"spectra_over_2fft": ours / ffts, "pylians_over_spectra": pylians / ours}


def main(names):
    unknown = set(names) - set(MEASURES)
    if unknown:
        sys.exit(f"No such measure: {', '.join(sorted(unknown))}; there are {', '.join(MEASURES)}.")
    torch.set_num_threads(2)
    out = Path(__file__).parents[1] / "runs" / "bench.json"
    table = json.loads(out.read_text()) if out.exists() else {}
    for name in names or MEASURES:
        for key, value in MEASURES[name]().items():
            table[key] = float(f"{value:.4g}")
            print(f"{key:32s} {value:10.3g}", flush=True)
    out.parent.mkdir(exist_ok=True)
    out.write_text(json.dumps(table, indent=2) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
