"""The mini experiment: its plan, the spectra and marks that came out of it, and the figures made from them."""

import importlib.util
import json
import sys
from collections import defaultdict
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import trainings
from results_table import BEGIN, END, ROWS, SINGLE, with_table
from trainings import PARAMETERS, TRAININGS, shipped

from nbkit import ClassicalMark, disk
from nbkit.forecast.fisher import UNMARKED, ingredients, standard
from nbkit.mark.additive import NODES
from nbkit.measure import Pass, measure
from nbkit.measure.cross import spectra_of
from nbkit.train import launch
from nbkit.universe.suite import FIDUCIAL_SETS, PRESETS

FIGURES = disk.figures() / "results.json"
MARKS = ("contrast", "contrast_more", "information")


def test_every_training_is_a_command_line_of_its_own(monkeypatch, tmp_path):
    monkeypatch.setenv("NBKIT_RUNS", str(tmp_path))
    folders = set()
    for training in TRAININGS.values():
        asked = launch.arguments(training.words)
        for name in ("objective", "kmax", "l_max", "seed", "recipe", "start", "epochs", "head_epochs"):
            planned = getattr(training, name)
            assert getattr(asked, name) == (None if planned == "default" else planned)
        assert asked.preset == training.preset
        folders.add(asked.out)
    assert len(folders) == len(TRAININGS)


def test_what_is_shipped_is_what_was_planned():
    for name, run in shipped().items():
        planned = TRAININGS[name]
        assert run.finished and run.grid == PRESETS[trainings.PRESET].grid
        found = run.kmax, run.settings["seed"], run.mark.settings["l_max"]
        assert found == (planned.kmax, planned.seed, planned.l_max)
        assert run.recipe.epochs == planned.epochs or planned.epochs is None
        assert run.recipe.head_epochs == planned.head_epochs or planned.head_epochs is None
        assert run.settings.get("objective", "contrast") == planned.objective


class Again:
    """A few simulations of a set, made here and now."""

    def __init__(self, name, rows):
        self.grid, about = PRESETS[trainings.PRESET].grid, PRESETS[trainings.PRESET].contents(name)
        simulator = PRESETS[trainings.PRESET].simulator
        self.fields = [simulator(about.theta[row], int(about.seeds[row])) for row in rows]

    def __getitem__(self, row):
        return self.fields[row]


@pytest.mark.parametrize("name", ["fiducial", "s8_p", "BSQ", "latin_hypercube"])
def test_simulations_made_again_have_the_shipped_spectra(name):
    """Through trained marks and a classical one: to a small part of their scatter over the boxes of the set."""
    rows, labels = [0, 7], ("mini_l2", "mini_i2", "mini_l0")
    marks = {label: run.mark for label, run in shipped().items() if label in labels} | {"p": ClassicalMark(2.0, 0.0)}
    again = Pass({name: (Again(name, rows), marks)})
    kept = measure(trainings.PRESET, marks, name)[name]
    for place, row in enumerate(rows):
        power = again(name, place)[:, :, : len(kept.k)]
        for found, label in zip(power[1:], marks, strict=True):
            scatter = np.log(np.abs(kept[label])).std(0)
            apart = np.abs(np.log(np.abs(found / kept[label][row])))
            assert (apart < 0.1 * scatter).all(), (label, (apart / scatter).max())


def test_figures_are_those_of_the_shipped_spectra():
    found = json.loads(FIGURES.read_text())
    marks = {label: run.mark for label, run in shipped().items()}
    spectra = measure(trainings.PRESET, marks, FIDUCIAL_SETS)
    for kmax in trainings.KMAX:
        for label in (UNMARKED, "mini_i2", "mini_l2"):
            sigma = standard(ingredients(spectra, label, kmax)).sigma()
            for i, parameter in ((0, "Om"), (4, "s8")):
                entry = found[f"sigma_{label.replace(' ', '_')}_{parameter}_k{kmax:g}"]
                assert sigma[i] == pytest.approx(entry["value"], rel=1e-3)
                assert entry["low"] < entry["value"] < entry["high"]


@pytest.mark.parametrize("mark", ["contrast_more", "information"])
def test_a_learned_mark_beats_every_classical_one_at_the_papers_kmax(mark):
    found = json.loads(FIGURES.read_text())
    assert all(found[f"sigma_best48_over_{mark}_{parameter}_k0.2"]["low"] > 1 for parameter in PARAMETERS)


def test_results_page_has_the_table_of_the_figures():
    readme = (disk.figures() / "RESULTS.md").read_text()
    assert with_table(readme) == readme


def test_table_needs_every_figure_it_names():
    found = json.loads(FIGURES.read_text())
    wanted = [name.format(mark, p) for _, name, _ in ROWS for mark in MARKS for p in PARAMETERS]
    assert {name for _, _, *columns in SINGLE for names in columns for name in names} <= set(found)
    assert all(set(found[name]) == {"value", "low", "high"} for name in wanted)


def test_readme_table_is_made_from_the_figures():
    entry = {"value": 1.234, "low": 1.1, "high": 1.4}
    names = [row[1].format(mark, p) for row in ROWS for mark in MARKS for p in ("Om", "s8")]
    names += [name for _, _, *columns in SINGLE for of in columns for name in of]
    found = dict.fromkeys(names, entry)
    readme = f"before\n{BEGIN}\nold\n{END}\nafter\n"
    made = with_table(readme, found)
    assert made.startswith("before\n") and made.endswith("\nafter\n") and "old" not in made
    assert "1.23 (1.10 – 1.40), 1.23 (1.10 – 1.40)" in made and "123 % (110 – 140)" in made
    assert with_table(made, found) == made


def script_named(name):
    """A script of figures/, as a module."""
    spec = importlib.util.spec_from_file_location("script", disk.figures() / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["script"] = module  # where its dataclasses look for their names
    spec.loader.exec_module(module)
    return module


def test_functions_of_the_first_channel_are_sums_whose_others_are_zero():
    contrast = script_named("contrast")
    table = torch.randn(2, 3, (3 * NODES + 1) * (3 * NODES + 2) // 2, dtype=torch.float64)
    c = torch.randn(1, NODES, dtype=torch.float64)
    alone = spectra_of(contrast.of_first(table, 1), c.flatten())
    torch.testing.assert_close(alone, spectra_of(table, torch.cat([c, torch.zeros(2, NODES)]).flatten()))
    torch.testing.assert_close(contrast.of_first(table, 3), table)
    with pytest.raises(SystemExit, match="There is no search nonsense; there are 2,000 boxes"):
        contrast.main("nonsense")


@pytest.fixture
def script(monkeypatch, tmp_path):
    """figures/experiment.py with everything that takes time replaced by a note of it, in `did`."""
    module = script_named("experiment")
    module.did = []

    def noted(name, gives=None):
        return lambda *given, **_: module.did.append((name, *given[:1])) or gives

    (tmp_path / "figures").mkdir()
    (tmp_path / "figures" / "RESULTS.md").write_text(f"before\n{BEGIN}\n{END}\nafter\n")
    monkeypatch.setenv("NBKIT_RUNS", str(tmp_path / "runs"))
    monkeypatch.setattr(disk, "figures", lambda: tmp_path / "figures")
    monkeypatch.setattr(module, "LOG", tmp_path / "stages.json")
    sets = defaultdict(lambda: None)
    for name, gives in (("suite", sets), ("ship", None), ("searches", {}), ("spectra", None), ("notebooks", None)):
        monkeypatch.setattr(module, name, noted(name, gives))
    monkeypatch.setattr(module.subprocess, "run", noted("run", SimpleNamespace(stdout="commit\n")))
    monkeypatch.setattr(module, "load_run", lambda folder: folder)
    monkeypatch.setattr(module.latent, "unit_run", noted("unit", SimpleNamespace(folder="unit")))
    monkeypatch.setattr(trainings, "results", noted("results", {"figure": {"value": 1.0}}))
    monkeypatch.setattr(module, "table", noted("table", []))
    monkeypatch.setattr(module, "with_table", lambda readme: readme + "made")
    return module


def test_the_script_runs_all_stages_and_says_where_the_numbers_come_from(script, tmp_path):
    script.main()
    names = [name for name, *_ in script.did]
    assert list(dict.fromkeys(name for name in names if name in ("suite", "spectra", "results", "notebooks"))) == [
        "suite", "spectra", "results", "notebooks",
    ]  # fmt: skip
    trained = [given[0][3] for name, *given in script.did if name == "run" and "nbkit.train.launch" in given[0]]
    assert sorted(trained) == sorted(str(each.folder) for each in TRAININGS.values())
    assert names.count("ship") == len(TRAININGS) + 1
    provenance = json.loads((tmp_path / "figures" / "provenance.json").read_text())
    assert tuple(provenance["stages"]) == script.STAGES and provenance["commit"] == "commit"
    assert json.loads((tmp_path / "figures" / "results.json").read_text()) == {"figure": {"value": 1.0}}
    assert (tmp_path / "figures" / "RESULTS.md").read_text().endswith("made")
    assert (tmp_path / "figures" / "losses_mini.png").exists()


def test_a_part_of_it_does_not_speak_for_the_whole(script, tmp_path):
    script.main("spectra")
    assert [name for name, *_ in script.did] == ["spectra"]
    assert not (tmp_path / "figures" / "provenance.json").exists()
