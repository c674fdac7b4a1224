"""The mini experiment: its plan, the spectra and marks that came out of it, and the figures made from them."""

import json
from collections import defaultdict
from dataclasses import replace
from types import SimpleNamespace

import bundle
import contrast
import experiment
import numpy as np
import pytest
import results
import torch
from fake import FakeSet
from results import BEGIN, END, PARAMETERS, PRESET, ROWS, SINGLE, TRAININGS, bundled_trainings, with_table

import nbkit as nb
from nbkit import disk
from nbkit.forecast import UNMARKED, ingredients
from nbkit.forecast.bootstrap import Errors
from nbkit.forecast.fisher import sigma, standard
from nbkit.mark.additive import NODES
from nbkit.measure import Pass
from nbkit.measure.cross import spectra_of
from nbkit.train import RECIPES
from nbkit.train.__main__ import parser
from nbkit.universe import FIDUCIAL_SETS, PRESETS

FIGURES = disk.figures() / "results.json"
MARKS = ("contrast", "contrast_more", "information")


def test_every_training_is_a_command_line_of_its_own():
    for training in TRAININGS.values():
        asked = vars(parser().parse_args(training.words()))
        assert nb.Training(**{name: asked[name] for name in vars(training)}) == training
    assert len({training.name for training in TRAININGS.values()}) == len(TRAININGS)


def test_what_is_bundled_is_what_was_planned():
    for name, run in bundled_trainings().items():
        assert run.finished and run.training == TRAININGS[name] and run.grid == PRESETS[PRESET].grid
        assert run.recipe == run.training.recipe_for(run.grid) and run.mark.settings["l_max"] == run.training.l_max


class Again:
    """A few simulations of a set, made here and now."""

    def __init__(self, name, rows):
        self.grid, about = PRESETS[PRESET].grid, PRESETS[PRESET].contents(name)
        simulator = PRESETS[PRESET].simulator
        self.fields = [simulator(about.theta[row], int(about.seeds[row])) for row in rows]

    def __getitem__(self, row):
        return self.fields[row]


@pytest.mark.parametrize("name", ["fiducial", "s8_p", "BSQ", "latin_hypercube"])
def test_simulations_made_again_have_the_bundled_spectra(name):
    """Through trained marks and a classical one: to a small part of their scatter over the boxes of the set."""
    rows, labels = [0, 7], ("mini_l2", "mini_i2", "mini_l0")
    marks = {label: nb.load(label).mark for label in labels} | {"p": nb.ClassicalMark(2.0, 0.0)}
    again = Pass({name: (Again(name, rows), marks)})
    kept = nb.measure(PRESET, marks, name)[name]
    for place, row in enumerate(rows):
        power = again(name, place)[:, :, : len(kept.k)]
        for found, label in zip(power[1:], marks, strict=True):
            scatter = np.log(np.abs(kept[label])).std(0)
            apart = np.abs(np.log(np.abs(found / kept[label][row])))
            assert (apart < 0.1 * scatter).all(), (label, (apart / scatter).max())


def test_figures_are_those_of_the_bundled_spectra():
    found = json.loads(FIGURES.read_text())
    marks = {label: run.mark for label, run in bundled_trainings().items()}
    spectra = nb.measure(PRESET, marks, FIDUCIAL_SETS)
    for kmax in results.KMAX:
        for label in (UNMARKED, "mini_i2", "mini_l2"):
            errors = sigma(standard(ingredients(spectra, label, kmax)))
            for i, parameter in ((0, "Om"), (4, "s8")):
                entry = found[f"sigma_{label.replace(' ', '_')}_{parameter}_k{kmax:g}"]
                assert errors[i] == pytest.approx(entry["value"], rel=1e-3)
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


def test_errors_of_several_marks_have_their_middle():
    class Given(Errors):
        def __init__(self, *errors):
            self.errors = errors

    given = [Given(np.array([x, 1.0]), np.array([[2 * x, 3.0], [x, 4.0]])) for x in (1.0, 5.0, 2.0)]
    sigma, resamples = results.Median(given).errors
    assert sigma.tolist() == [2.0, 1.0] and resamples.tolist() == [[4.0, 3.0], [2.0, 4.0]]


def test_figures_of_forecasts_are_ratios_of_the_errors(monkeypatch):
    """The best of the 48, their median, P_dd, over what each objective found up to this kmax."""
    marks = nb.classical_marks() | {name: run.mark for name, run in bundled_trainings().items()}
    around = nb.measure(PRESET, marks, FIDUCIAL_SETS)
    found, kept = results.forecasts(around, 0.2, 20, 0), json.loads(FIGURES.read_text())
    assert set(found) <= set(kept) and len(found) > 50
    for name, entry in found.items():
        if "low" in entry:  # of few resamples
            assert entry["low"] < entry["value"] < entry["high"] or entry["value"] == 1
        elif isinstance(entry["value"], str):
            assert entry == kept[name]
        if isinstance(entry["value"], float):
            assert entry["value"] == pytest.approx(kept[name]["value"], rel=1e-3)


def test_figures_of_recovery_are_read(monkeypatch, tmp_path):
    """Regressors come with the kit: none is trained."""
    monkeypatch.setenv("NBKIT_RUNS", str(tmp_path))
    marks = results.all_marks(bundled_trainings())
    test, kept = nb.measure(PRESET, marks, ("latin_hypercube",)), json.loads(FIGURES.read_text())
    found = results.recovery_errors(test, marks, results.KMAX[0], 1, 0)
    found |= results.recovery_errors_elsewhere(test, {label: marks[label] for label in results.REGRESSED}, 0)
    assert len(found) == 2 * 3 * 5 + 2 * 2 * 2 * 2 and not (tmp_path / "recovery").exists()
    for name, entry in found.items():
        for end, value in entry.items():
            assert value == pytest.approx(kept[name][end], rel=0.02), (name, end)


def test_geometry_of_embeddings_is_that_of_the_results():
    run, kept = nb.load("mini_l2"), json.loads(FIGURES.read_text())
    test = nb.measure(PRESET, {"mini_l2": run.mark}, ("latin_hypercube",))["latin_hypercube"]
    for name, entry in results.latent_geometry(run, test, "mini_l2").items():
        assert entry == {end: pytest.approx(value, abs=5e-3) for end, value in kept[name].items()}


def test_functions_of_the_first_channel_are_sums_whose_others_are_zero():
    table = torch.randn(2, 3, (3 * NODES + 1) * (3 * NODES + 2) // 2, dtype=torch.float64)
    c = torch.randn(1, NODES, dtype=torch.float64)
    alone = spectra_of(contrast.of_first(table, 1), c.flatten())
    torch.testing.assert_close(alone, spectra_of(table, torch.cat([c, torch.zeros(2, NODES)]).flatten()))
    torch.testing.assert_close(contrast.of_first(table, 3), table)
    with pytest.raises(SystemExit, match="There is no search nonsense; there are 2,000 boxes"):
        contrast.main("nonsense")


def test_searches_are_those_of_the_stored_table():
    stored = [
        (row["mark"], int(row["boxes"]), float(row["kmax"]), int(row["seed"]))
        for row in contrast.lines(disk.figures() / "contrast_mini.csv")
        if row["boxes"]
    ]
    planned = []
    for label, (training, _) in contrast.SEARCHES.items():
        how, heads = contrast.options(label)
        planned += [(label, how["boxes"], training.kmax, seed) for seed in range(how["seeds"])]
        assert set(heads) <= set(vars(RECIPES["warm"]))
    assert stored == planned


def test_a_search_is_made_from_cross_spectra_alone(monkeypatch, tmp_path):
    """Its loss falls, it is kept, and its spectra and those of the mark that is judged are the same."""
    count, bins = 200, len(contrast.MORE.grid.bins(0.2).k)
    theta = FakeSet(count, n=4).theta
    x = torch.randn(count, bins, 3 * NODES + 1, 40, dtype=torch.float64) * 0.1 + torch.randn(3 * NODES + 1, 40)
    x = x * torch.from_numpy(theta[:, 4, None, None, None])
    first, second = torch.triu_indices(3 * NODES + 1, 3 * NODES + 1)
    table = (x @ x.transpose(-1, -2))[..., first, second]
    monkeypatch.setattr(contrast, "FOLDER", tmp_path)
    monkeypatch.setattr(contrast, "cross", lambda where, scale: table)
    monkeypatch.setattr(contrast, "boxes_of", lambda preset: SimpleNamespace(theta=theta))
    quick = replace(contrast.AT_02, head_epochs=3)
    for label, training, changes in (("usual", quick, {}), ("E0", replace(quick, l_max=0), {"width": 8})):
        monkeypatch.setitem(contrast.SEARCHES, label, (training, {"boxes": count} | changes))
        before = torch.get_num_threads()
        loss, c = contrast.by_contrast(label, 1)
        torch.set_num_threads(before)
        assert c.shape == (1 + training.l_max, NODES) and np.isfinite(loss)
        assert contrast.by_contrast(label, 1)[0] == loss
        assert (tmp_path / label / "1" / "marked.safetensors").exists()
    power = contrast.spectra(table, c, SimpleNamespace(theta=theta, seeds=np.arange(count)))
    torch.testing.assert_close(torch.from_numpy(power.P_dd), table[..., 0])


def test_finished_runs_come_with_the_kit(monkeypatch, tmp_path):
    monkeypatch.setenv("NBKIT_RUNS", str(tmp_path / "runs"))
    recipe = RECIPES["tuned"]
    few = replace(recipe.negatives, n_real=8, n_global=8, n_local=2)
    training = nb.Training("mini", recipe=replace(recipe, epochs=1, pretrain_epochs=1, negatives=few))
    given = {"simulations": FakeSet(48, n=8), "device": "cpu", "progress": False}
    stopped = nb.train(training, **given, stop=lambda: True)
    monkeypatch.setattr(disk, "BUNDLED", tmp_path / "kit")
    with pytest.raises(ValueError, match="is not finished; call `train` again"):
        bundle.bundle_run(stopped.folder, "mine")
    run = nb.train(training, **given)
    bundle.bundle_run(run.folder, "mine")
    again = nb.load(tmp_path / "kit" / "mine")
    assert again.name == "mine" and again.training == training and again.history == run.history
    delta = given["simulations"][[0]]
    assert torch.equal(again.mark(delta, run.grid), run.mark(delta, run.grid))


@pytest.fixture
def script(monkeypatch, tmp_path):
    """figures/experiment.py with everything that takes time replaced by a note of it, in `did`."""
    did = []

    def noted(name, gives=None):
        return lambda *given, **_: did.append((name, *given)) or gives

    (tmp_path / "figures").mkdir()
    (tmp_path / "notebooks").mkdir()
    for path in (disk.figures().parent / "notebooks").glob("0*.ipynb"):
        (tmp_path / "notebooks" / path.name).touch()
    (tmp_path / "figures" / "RESULTS.md").write_text(f"before\n{BEGIN}\n{END}\nafter\n")
    searches = json.loads((disk.figures() / "search_mini.json").read_text())
    disk.write_json(tmp_path / "figures" / "search_mini.json", searches)
    monkeypatch.setenv("NBKIT_RUNS", str(tmp_path / "runs"))
    monkeypatch.setattr(disk, "figures", lambda: tmp_path / "figures")
    monkeypatch.setattr(experiment, "LOG", tmp_path / "stages.json")
    monkeypatch.setattr(nb, "suite", noted("suite", defaultdict(lambda: None)))
    for module, name, gives in (
        (experiment, "searches", searches),
        (experiment.ablations, "train_apart", None),
        (experiment.ablations, "table", []),
        (bundle, "bundle_run", None),
        (bundle, "bundle_recoveries", None),
        (bundle, "write", None),
        (nb, "measure", {}),
        (experiment.latent, "unit_run", SimpleNamespace(folder="unit")),
        (experiment.look, "term_means", {}),
        (experiment.look, "variants", {}),
        (results, "results", {"figure": {"value": 1.0}}),
        (experiment.papermill, "execute_notebook", None),
        (experiment.subprocess, "run", SimpleNamespace(stdout="commit\n")),
    ):
        monkeypatch.setattr(module, name, noted(name, gives))
    load = nb.load
    monkeypatch.setattr(nb, "load", lambda name: load(name) if name in TRAININGS else name)
    monkeypatch.setattr(results, "with_table", lambda readme: readme + "made")
    experiment.did = did
    return experiment


def test_the_script_runs_all_stages_and_says_where_the_numbers_come_from(script, tmp_path):
    script.main()
    names = [name for name, *_ in script.did]
    wanted = ["suite", "train_apart", "bundle_run", "write", "results", "execute_notebook", "bundle_recoveries"]
    assert [name for name in dict.fromkeys(names) if name in wanted] == wanted
    (trained,) = (given[0] for name, *given in script.did if name == "train_apart")
    assert list(trained) == list(TRAININGS.values())
    folder = disk.runs() / "train"
    copied = {name: path for what, path, name in (each for each in script.did if each[0] == "bundle_run")}
    assert copied == {name: folder / each.name for name, each in TRAININGS.items()} | {"mini_unit": "unit"}
    executed = [given for name, *given in script.did if name == "execute_notebook"]
    assert [given[0].name[:2] for given in executed] == ["04", "05", "06", "07", "08"]
    provenance = json.loads((tmp_path / "figures" / "provenance.json").read_text())
    assert tuple(provenance["stages"]) == script.STAGES and provenance["commit"] == "commit"
    assert {name: nb.Training(**each) for name, each in provenance["trainings"].items()} == TRAININGS
    assert json.loads((tmp_path / "figures" / "results.json").read_text()) == {"figure": {"value": 1.0}}
    assert (tmp_path / "figures" / "RESULTS.md").read_text().endswith("made")
    assert (tmp_path / "figures" / "losses_mini.png").exists()


def test_a_part_of_it_does_not_speak_for_the_whole(script, tmp_path):
    script.main("suites")
    assert {name for name, *_ in script.did} == {"suite"}
    assert not (tmp_path / "figures" / "provenance.json").exists()
    with pytest.raises(SystemExit, match="There is no stage nonsense; there are suites, training, spectra"):
        script.main("nonsense")


def test_lengths_of_searches_are_measured_or_read(monkeypatch, tmp_path):
    """That of the training itself is read from its folder; others are made, with so many epochs."""
    monkeypatch.setenv("NBKIT_RUNS", str(tmp_path))
    monkeypatch.setattr(experiment, "LOG", tmp_path / "stages.json")
    made = []

    def best(data, training, folder, slopes, **_):
        made.append((training.head_epochs, data.recipe.head_epochs, slopes))
        losses(folder, 2.5)

    def losses(folder, *found):
        for i, loss in enumerate(found):
            disk.write_tensors(folder / str(i) / "marked.safetensors", {}, {"best_loss": loss})

    monkeypatch.setattr(experiment, "best_function", best)
    monkeypatch.setattr(nb.Training, "simulations", lambda self: FakeSet(400, n=4))
    monkeypatch.setattr(experiment.Prior, "load_summaries", lambda self: None)
    losses(tmp_path / "train" / TRAININGS["mini_l2"].name / "start", 3.0, 2.0, 4.0)
    before = torch.get_num_threads()
    first = experiment.search_losses("mini_l2", 1, experiment.FALLING)
    assert first == {"mini_l2_120": {"value": 3.0, "low": 2.0, "high": 4.0}} and not made
    assert list(experiment.search_losses("mini_l2", 2, experiment.FALLING)) == ["mini_l2_240"]
    assert list(experiment.search_losses("mini_l2", 1, experiment.RISING)) == ["mini_l2_120_rising"]
    torch.set_num_threads(before)
    assert made == [(240, 240, [experiment.FALLING]), (120, 120, [experiment.RISING])]
