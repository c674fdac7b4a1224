"""A mark taken apart: terms add up, switches switch, shares sum to one, known marks are found again."""

import numpy as np
import pytest
import torch
from nbkit.train.shipped import shipped_runs

from nbkit import ClassicalMark, LearnedMark, marked_field, spectra
from nbkit.look import introspection
from nbkit.look.nearest import field_explained, nearest_classical, on_scale_of, r_squared
from nbkit.measure import Measurement
from nbkit.show import introspection as introspection_plots
from nbkit.show import plots
from nbkit.universe.cosmology import QUIJOTE_NAMES
from nbkit.universe.suite import FIDUCIAL_SETS


def busy_mark(grid, l_max=2):
    """A mark with weights that are not those of the start."""
    mark = LearnedMark(grid, l_max=l_max).requires_grad_(False)
    for parameter in mark.parameters():
        parameter += 0.3 * torch.randn(parameter.shape)
    return mark


@pytest.fixture
def parts(lognormal):
    delta, grid = lognormal(24, box_size=187.5, mas="PCS", dtype=torch.float32)
    return introspection.anatomy(busy_mark(grid), delta, grid)


def test_terms_add_up_to_the_mark(parts):
    torch.testing.assert_close(parts.M(), parts.mark(parts.delta, parts.grid), rtol=1e-5, atol=1e-6)
    total = parts.bias + sum(parts.terms.values())
    torch.testing.assert_close(parts.eta(), total)


@pytest.mark.parametrize("off", [["h_E0"], ["h_I3", "h_x"], ["h_E0", "h_E1", "h_E2", "h_I3", "h_x"]])
def test_a_channel_switched_off_is_a_constant_in_maps_and_in_marks(parts, off):
    silent = introspection.switched_off(parts.mark, parts.means, off)
    torch.testing.assert_close(parts.M(off), silent(parts.delta, parts.grid), rtol=1e-4, atol=1e-5)
    assert float(parts.eta(off).mean()) == pytest.approx(float(parts.eta().mean()), abs=1e-4)
    if len(off) == 5:
        assert float(parts.M(off).std()) < 1e-6


def test_switching_off_leaves_the_mark_itself_alone(parts):
    before = {name: x.clone() for name, x in parts.mark.state_dict().items()}
    introspection.switched_off(parts.mark, parts.means, list(parts.terms))
    assert all(torch.equal(before[name], x) for name, x in parts.mark.state_dict().items())


def test_unknown_terms_are_refused(parts):
    with pytest.raises(ValueError, match="No such term: h_E7; this mark has h_E0, h_E1, h_E2, h_I3, h_x"):
        parts.M(["h_E7"])


def test_shares_of_the_variance_add_up_to_one_and_name_the_only_one_that_acts(parts):
    assert sum(introspection.variance_shares(parts).values()) == pytest.approx(1, abs=1e-5)
    means = dict.fromkeys(parts.means, 0.0)
    only = introspection.switched_off(parts.mark, means, [name for name in parts.terms if name != "h_E2"])
    alone = introspection.anatomy(only, parts.delta, parts.grid)
    shares, changes = introspection.variance_shares(alone), introspection.changes_of_M(alone)
    assert shares["h_E2"] == pytest.approx(1, abs=1e-5)
    assert all(abs(shares[name]) < 1e-6 and changes[name] < 1e-6 for name in shares if name != "h_E2")
    assert changes["E2"] == pytest.approx(changes["h_E2"], rel=1e-3)
    assert changes["E0"] < 1e-3
    assert changes["h_E2"] == pytest.approx(1, rel=0.2)


def test_response_curves_run_through_the_voxels_and_stay_among_them(parts):
    for name, (f, h) in introspection.response_curves(parts, points=2000).items():
        field, term = parts.invariants[name].numpy(), parts.terms[f"h_{name}"].numpy()
        assert field.min() <= f[0] < f[-1] <= field.max()
        inside = (field > f[0]) & (field < f[-1])
        assert inside.mean() > 0.99
        expected = term[inside] - parts.means[f"h_{name}"]
        np.testing.assert_allclose(np.interp(field[inside], f, h), expected, atol=2e-3 * np.ptp(term))


def test_cross_term_is_blank_where_there_are_no_voxels(parts):
    E0, E2, h = introspection.cross_response(parts, 0.3, points=12)
    near = (parts.invariants["I3"] - 0.3).abs() < 0.1
    x, y = (parts.invariants[name][near].numpy() for name in ("E0", "E2"))
    for i, j in np.ndindex(h.shape):
        here = (x >= E0[j]) & (x < E0[j + 1]) & (y >= E2[i]) & (y < E2[i + 1])
        assert np.isfinite(h[i, j]) == here.any() or 11 in (i, j)  # the last cells include their upper edges
    i, j = np.argwhere(np.isfinite(h))[0]
    one = {"E0": (E0[j] + E0[j + 1]) / 2, "E1": 5.0, "E2": (E2[i] + E2[i + 1]) / 2, "I3": 0.3}
    term = parts.mark.responses.terms({name: torch.tensor([float(v)]) for name, v in one.items()})["h_x"]
    assert h[i, j] == pytest.approx(float(term) - parts.means["h_x"], abs=1e-5)


def test_environments_share_everything_out(parts):
    rows = introspection.environments(parts, kmax=0.3)
    for column in ("volume", "mass", "P_dd", "P_mm"):
        assert sum(row[column] for row in rows.values()) == pytest.approx(1, abs=1e-4)
    assert sum(row["volume"] * row["M"] for row in rows.values()) == pytest.approx(1, abs=1e-4)
    silent = introspection.switched_off(parts.mark, parts.means, list(parts.terms))
    for row in introspection.environments(introspection.anatomy(silent, parts.delta, parts.grid)).values():
        assert row["P_mm"] == pytest.approx(row["P_dd"], abs=1e-4)
        assert row["M"] == pytest.approx(1, abs=1e-4)


@pytest.mark.parametrize("p", [1.5, -1.0])
def test_a_classical_mark_is_found_again_through_an_affine_map(lognormal, p):
    delta, grid = lognormal(24, box_size=187.5, dtype=torch.float32)
    M = 0.3 - 2.0 * ClassicalMark(p, 0.4, R=10.0)(delta, grid)
    found = nearest_classical(M, delta, grid, scales=(7.0, 10.0, 14.0))
    assert found.mark.R == 10.0
    assert np.sign(found.mark.p) == np.sign(p)
    assert found.a < 0
    assert min(found.R2, found.R2_mass, found.R2_field, found.R2_any) > 0.999
    torch.testing.assert_close(on_scale_of(M, found.mark(delta, grid)), M, rtol=0, atol=0.03 * float(M.std()))


def test_noise_has_no_classical_likeness(lognormal):
    delta, grid = lognormal(24, box_size=187.5, dtype=torch.float32)
    found = nearest_classical(torch.randn(grid.shape), delta, grid, scales=(10.0,))
    assert found.R2_any + 0.002 >= found.R2
    assert found.R2_any < 0.06  # 400 means of 35 voxels of noise


def test_explained_shares_do_not_change_under_affine_maps(lognormal):
    delta, grid = lognormal(16, dtype=torch.float32)
    M, M_c = ClassicalMark(2.0, 0.5)(delta, grid), ClassicalMark(-1.0, 0.2, R=15.0)(delta, grid)
    reference = field_explained(M_c, M, delta, grid, grid.k_nyq)
    assert 0 < reference < 1
    assert field_explained(3 - 2 * M_c, 5 * M + 1, delta, grid, grid.k_nyq) == pytest.approx(reference, rel=1e-2)
    assert r_squared(3 - 2 * M_c, 5 * M + 1, 1 + delta) == pytest.approx(r_squared(M_c, M, 1 + delta), rel=1e-4)


def test_information_lost_is_seen_and_none_is_invented():
    """A mark whose spectra follow theta beats one whose spectra are noise; against itself it gains exactly nothing."""
    rng, b = np.random.default_rng(0), 3
    step = {name: i for i, name in enumerate(QUIJOTE_NAMES)}

    def made_up(name, N):
        seeds = np.arange(N)
        P_dd, good, noise = rng.normal(size=(N, b)), rng.normal(size=(N, 2, b)), rng.normal(size=(N, 2, b))
        if name != "fiducial":
            parameter, sign = step[name[:-2]], 1 if name.endswith("p") else -1
            P_dd[:, parameter % b] += 2 * sign
            good.reshape(N, -1)[:, parameter] += 5 * sign
            noise.reshape(N, -1)[:, parameter] += 2 * sign
        return Measurement(np.arange(1, b + 1) / 10, np.ones(b), None, seeds, P_dd, {"all": good, "worse": noise})

    measured = {name: made_up(name, 400 if name == "fiducial" else 50) for name in FIDUCIAL_SETS}
    grown = introspection.errors_grown(measured, ("all", "worse"), kmax=0.35, count=40)
    np.testing.assert_array_equal(grown["all"].value, 1)
    np.testing.assert_array_equal(grown["all"].high, grown["all"].low)
    assert (grown["worse"].low > 1.5).all()


def test_an_invariant_switched_off_is_a_constant_in_the_cross_term_too(parts):
    silent = introspection.switched_off(parts.mark, parts.means, ["E0"])
    seen = dict(parts.invariants)
    x = parts.means["E0"]
    seen["E0"] = torch.full_like(seen["E0"], np.sign(x) * np.expm1(abs(x)))
    terms = parts.mark.responses.terms(seen) | {"h_E0": torch.tensor(parts.means["h_E0"])}
    expected = torch.nn.functional.softplus(parts.bias + sum(terms.values()))
    torch.testing.assert_close(silent(parts.delta, parts.grid), expected, rtol=1e-4, atol=1e-5)


def test_centred_spectra_are_those_of_a_centred_mark_and_tell_the_same(lognormal):
    delta, grid = lognormal(16, batch=(30,), box_size=125.0)
    M = 5 + 0.3 * ClassicalMark(1.0, 0.5)(delta, grid)

    def measured(M):
        P = spectra(delta, marked_field(M, delta), grid=grid)
        marked = {"all": torch.stack([P.P_dm, P.P_mm], 1).numpy()}
        return Measurement(P.k.numpy(), P.modes.numpy(), None, np.arange(30), P.P_dd.numpy(), marked)

    plain = measured(M)
    m = plain["all"][:, 1].mean() / plain.P_dd.mean()
    centred = introspection.centred({"fiducial": plain})["fiducial"]
    np.testing.assert_allclose(centred["all"], measured(M / m - 1)["all"], rtol=1e-6, atol=1e-6 * plain.P_dd.max())
    worse, better = (np.linalg.cond(np.corrcoef(each["all"][:, :, 3].T)) for each in (plain, centred))
    assert better < 0.1 * worse


def test_variants_are_other_marks_with_names(parts):
    marks = introspection.variants(parts.mark, parts.means)
    assert list(marks) == ["all", *(f"without {name}" for name in (*parts.terms, "E0", "E2", "I3"))]
    assert list(introspection.variants(parts.mark, {"h_E0": 0.0, "E0": 0.0})) == ["all"]
    without = marks["without h_E1"](parts.delta, parts.grid)
    torch.testing.assert_close(without, parts.M(["h_E1"]), rtol=1e-4, atol=1e-5)


def test_marks_are_found_by_run_or_file(tmp_path, parts):
    assert "demo_l2" in shipped_runs()
    assert introspection.trained_mark("demo_l2").settings["l_max"] == 2
    parts.mark.save(tmp_path / "mine.safetensors")
    again = introspection.trained_mark(tmp_path / "mine.safetensors")
    assert torch.equal(again.responses.v, parts.mark.responses.v)
    LearnedMark(parts.grid).save(tmp_path / "start.safetensors")
    with pytest.raises(ValueError, match="a mark that is 1 everywhere"):
        introspection.trained_mark(tmp_path / "start.safetensors")
    with pytest.raises(FileNotFoundError, match="There is no mark at"):
        introspection.trained_mark(tmp_path / "other.safetensors")
    with pytest.raises(FileNotFoundError, match="There is no run 'nothing'"):
        introspection.trained_mark("nothing")


@pytest.mark.parametrize("l_max", [0, 1, 2])
def test_figures_fit_marks_of_every_l_max(lognormal, l_max):
    delta, grid = lognormal(16, mas="PCS", dtype=torch.float32)
    parts = introspection.anatomy(busy_mark(grid, l_max), delta, grid)
    figure = introspection_plots.introspection_figure(parts)
    drawn = [ax for ax in figure.axes if ax.get_visible() and ax.images]
    assert len(drawn) == {0: 6, 1: 9, 2: 15}[l_max]
    profiles = introspection_plots.trained_profiles(parts.mark)
    assert sum(ax.get_visible() for ax in profiles.axes) == l_max + 1
    responses = introspection_plots.responses(parts)
    assert sum(bool(ax.lines) for ax in responses.axes) == len(parts.invariants)
    for each in (figure, profiles, responses):
        plots.plt.close(each)


def test_drawn_terms_share_one_range(parts):
    fields = introspection_plots.panels(parts)
    colours = introspection_plots.ranges(fields)
    assert len({colours[name] for name in parts.terms}) == 1
    Delta = marked_field(parts.M(), parts.delta)
    torch.testing.assert_close(fields["Delta"], Delta / Delta.std())
