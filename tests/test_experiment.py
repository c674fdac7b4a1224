"""The mini experiment: its plan, and the marks that came out of it."""

from nbkit import experiment, launch
from nbkit.experiment import TRAININGS
from nbkit.run import load_run
from nbkit.shipped import run_folder
from nbkit.suite import PRESETS


def test_every_training_is_a_command_line_of_its_own(monkeypatch, tmp_path):
    monkeypatch.setenv("NBKIT_RUNS", str(tmp_path))
    folders = set()
    for training in TRAININGS.values():
        asked = launch.arguments(training.words)
        for name in ("objective", "kmax", "l_max", "seed", "recipe", "start", "epochs"):
            planned = getattr(training, name)
            assert getattr(asked, name) == (None if planned == "default" else planned)
        assert asked.preset == experiment.PRESET
        folders.add(asked.out)
    assert len(folders) == len(TRAININGS)


def test_marks_that_are_shipped_are_those_that_were_planned():
    for name in ("mini_i2", "mini_i3"):
        run, planned = load_run(run_folder(name)), TRAININGS[name]
        assert run.finished and run.grid == PRESETS[experiment.PRESET].grid
        assert run.settings["objective"] == planned.objective
        assert (run.kmax, run.settings["seed"], run.mark.settings["l_max"], run.recipe.epochs) == (
            planned.kmax,
            planned.seed,
            planned.l_max,
            planned.epochs,
        )


def test_readme_table_is_made_from_the_figures():
    entry = {"value": 1.234, "low": 1.1, "high": 1.4}
    names = [
        row[1].format(mark, p) for row in experiment.ROWS for mark in ("contrast", "information") for p in ("Om", "s8")
    ]
    names += [f"sigma_{what}_{p}_k0.2" for what in ("l2_over_l0", "spread_of_seeds") for p in ("Om", "s8")]
    found = dict.fromkeys([*names, "recall_1", "recall_5", "effective_rank", "two_components"], entry)
    readme = f"before\n{experiment.BEGIN}\nold\n{experiment.END}\nafter\n"
    made = experiment.with_table(readme, found)
    assert made.startswith("before\n") and made.endswith("\nafter\n") and "old" not in made
    assert "1.23 (1.10 – 1.40), 1.23 (1.10 – 1.40)" in made and "123 % (110 – 140)" in made
    assert experiment.with_table(made, found) == made
