"""Whether the mark trained by contrast with more boxes could still be improved: trains it on, with small steps.

`mini_c2` begins at the best sum of functions found by contrast, and epochs at the usual rate did not lower its loss.
Here it goes on for six epochs at 0.3 of that rate; the run comes with the kit as `mini_c2_gentle`, its curve is in
losses_mini.png. The forecast up to 0.2 h/Mpc is said beside the best classical mark's. Run `python figures/gentle.py`:
an hour on one core, and half an hour for boxes if they are not there. Stopped and run again, it goes on.
"""

import json
import sys
from dataclasses import replace

from nbkit import paths
from nbkit.bootstrap import resampled, resamples
from nbkit.cosmology import QUIJOTE_NAMES
from nbkit.experiment import GENTLE, PARAMETERS
from nbkit.fisher import SETS, ingredients
from nbkit.launch import say
from nbkit.measured import labelled_classical, measured
from nbkit.recipe import WARM
from nbkit.run import load_run
from nbkit.shipped import run_folder, ship
from nbkit.suite import suite
from nbkit.train import train

KMAX = 0.2


def main():
    """Train, ship, judge."""
    begin, out = load_run(run_folder("mini_c2")).mark, paths.runs() / "train" / GENTLE
    boxes = suite("mini_more", sets=("BSQ",))["BSQ"]
    run = train(boxes, out, recipe=replace(WARM, learning_rate=3e-4, epochs=6), kmax=KMAX, mark=begin, on_epoch=say)
    ship(out, GENTLE)
    judges = suite("mini", sets=SETS)
    judges = {name: judges[name] for name in SETS}
    found = json.loads((paths.figures() / "results.json").read_text())
    rivals = {parameter: found[f"best48_{parameter}_k{KMAX:g}"]["value"] for parameter in PARAMETERS}
    marks = {label: labelled_classical()[label] for label in rivals.values()} | {"start": begin, "end": run.mark}
    power = measured(judges, marks)
    given = {label: ingredients(power, label, KMAX) for label in marks}
    weights = resamples(given["end"].n_s, given["end"].pairs)
    forecast = {label: resampled(each, weights) for label, each in given.items()}
    for parameter, rival in rivals.items():
        i = QUIJOTE_NAMES.index(parameter)
        for label in ("start", "end"):
            ratio = forecast[label].ratio(forecast[rival])
            numbers = f"{ratio.value[i]:.2f} ({ratio.low[i]:.2f} - {ratio.high[i]:.2f})"
            sys.stdout.write(f"{parameter}: sigma of {rival} over that of the {label}: {numbers}\n")


if __name__ == "__main__":
    main()
