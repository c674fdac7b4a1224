"""Ablations of the learned mark: trains what is missing and writes ablations_<preset>.csv, which notebook 08 draws.

Run `python figures/ablations.py 0 1` for training seeds 0 and 1, those of demo's table: twenty minutes a seed
on two free cores. What is trained and measured is kept in runs/: stop it at any time, the next call goes on.
"""

import argparse
import os
import shlex
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from ablation_table import table, write
from cases import found, planned, trained

from nbkit.disk import figures
from nbkit.universe.suite import PRESETS, suite


def train(case, preset, threads):
    """Train one Case in a process of its own."""
    command = [sys.executable, "-m", *shlex.split(case.command(preset)), "--no-progress-bar"]
    subprocess.run(command, cwd=figures().parent, env=os.environ | {"OMP_NUM_THREADS": str(threads)}, check=True)


def main(seeds, preset, jobs):
    cases = [case for seed in seeds for case in planned(seed)]
    missing = [case for case in cases if found(case, preset) is None]
    (figures().parent / "runs").mkdir(exist_ok=True)
    suite(preset, sets=("BSQ",))  # made once, before several processes ask for it
    with ThreadPoolExecutor(jobs) as pool:
        list(pool.map(partial(train, preset=preset, threads=max(1, os.cpu_count() // jobs)), missing))
    write(table(trained(cases, preset), preset), figures() / f"ablations_{preset}.csv")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("seeds", type=int, nargs="*", default=[0])
    parser.add_argument("--preset", choices=PRESETS, default="demo")
    parser.add_argument("--jobs", type=int, default=2, help="trainings at a time, which share the cores")
    asked = parser.parse_args()
    main(asked.seeds, asked.preset, asked.jobs)
