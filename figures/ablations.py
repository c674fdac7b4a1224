"""Ablations of the learned mark on the demo suite: writes ablations_demo.csv, which notebook 08 draws.

Run `python figures/ablations.py` (about an hour on two free cores). What is trained and measured is kept in runs/: stop
it at any time, the next call goes on. For more training seeds than 0, name them: `python figures/ablations.py 0 1`.
"""

import shlex
import subprocess
import sys

from nbkit.ablation_table import table, write
from nbkit.ablations import found, planned
from nbkit.paths import figures


def main(seeds):
    cases = [case for seed in seeds for case in planned(seed)]
    (figures().parent / "runs").mkdir(exist_ok=True)
    for case in cases:
        if found(case, "demo") is None:
            subprocess.run([sys.executable, "-m", *shlex.split(case.command("demo"))], cwd=figures().parent, check=True)
    write(table(cases, "demo"), figures() / "ablations_demo.csv")


if __name__ == "__main__":
    main([int(word) for word in sys.argv[1:]] or [0])
