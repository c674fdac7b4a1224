"""Both objectives, from every start: trains what is missing and writes objectives_demo.csv, which notebook 08 draws.

Run `python figures/objectives.py` (an hour on two free cores). What is trained and measured is kept in runs/: stop it
at any time, the next call goes on.
"""

import os
import shlex
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

from objective_table import planned, table, write

from nbkit.disk import figures
from nbkit.universe.suite import FIDUCIAL_SETS, PRESETS, suite

JOBS = 2  # trainings at a time, which share the cores


def train(command):
    """Run one papermill command in a process of its own."""
    threads = {"OMP_NUM_THREADS": str(max(1, os.cpu_count() // JOBS))}
    words = [sys.executable, "-m", *shlex.split(command), "--no-progress-bar"]
    subprocess.run(words, cwd=figures().parent, env=os.environ | threads, check=True)


if __name__ == "__main__":
    (figures().parent / "runs").mkdir(exist_ok=True)
    suite(PRESETS["demo"].near, sets=FIDUCIAL_SETS)  # made once, before several processes ask for it
    with ThreadPoolExecutor(JOBS) as pool:
        list(pool.map(train, [each.command("demo") for each in planned() if each.run("demo") is None]))
    write(table(planned(), "demo"), figures() / "objectives_demo.csv")
