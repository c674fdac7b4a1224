"""A mark taken apart: terms add up, switches switch, shares sum to one."""

import numpy as np
import pytest
import torch
from fake import busy_mark

from nbkit import ClassicalMark, LearnedMark, look, marked_field, spectra
from nbkit.look import centre
from nbkit.measure import Measurement
from nbkit.train import load
from nbkit.universe import FIDUCIAL_SETS, QUIJOTE_NAMES


@pytest.fixture
def parts(lognormal):
    delta, grid = lognormal(24, box_size=187.5, mas="PCS", dtype=torch.float32)
    return look.anatomy(busy_mark(grid), delta, grid)


def test_terms_add_up_to_the_mark(parts):
    torch.testing.assert_close(parts.M(), parts.mark(parts.delta, parts.grid), rtol=1e-5, atol=1e-6)
    total = parts.bias + sum(parts.terms.values())
    torch.testing.assert_close(parts.eta(), total)


@pytest.mark.parametrize("off", [["h_E0"], ["h_I3", "h_x"], ["h_E0", "h_E1", "h_E2", "h_I3", "h_x"]])
def test_a_channel_switched_off_is_a_constant_in_maps_and_in_marks(parts, off):
    silent = look.without(parts.mark, parts.means, off)
    torch.testing.assert_close(parts.M(off), silent(parts.delta, parts.grid), rtol=1e-4, atol=1e-5)
    assert float(parts.eta(off).mean()) == pytest.approx(float(parts.eta().mean()), abs=1e-4)
    if len(off) == 5:
        assert float(parts.M(off).std()) < 1e-6


def test_switching_off_leaves_the_mark_itself_alone(parts):
    before = {name: x.clone() for name, x in parts.mark.state_dict().items()}
    look.without(parts.mark, parts.means, list(parts.terms))
    assert all(torch.equal(before[name], x) for name, x in parts.mark.state_dict().items())


def test_unknown_terms_are_refused(parts):
    with pytest.raises(ValueError, match="No such term: h_E7; this mark has h_E0, h_E1, h_E2, h_I3, h_x"):
        parts.M(["h_E7"])


def test_shares_of_the_variance_add_up_to_one_and_name_the_only_one_that_acts(parts):
    assert sum(look.variance_shares(parts).values()) == pytest.approx(1, abs=1e-5)
    means = dict.fromkeys(parts.means, 0.0)
    only = look.without(parts.mark, means, [name for name in parts.terms if name != "h_E2"])
    alone = look.anatomy(only, parts.delta, parts.grid)
    shares, changes = look.variance_shares(alone), look.changes_of_M(alone)
    assert shares["h_E2"] == pytest.approx(1, abs=1e-5)
    assert all(abs(shares[name]) < 1e-6 and changes[name] < 1e-6 for name in shares if name != "h_E2")
    assert changes["E2"] == pytest.approx(changes["h_E2"], rel=1e-3)
    assert changes["E0"] < 1e-3
    assert changes["h_E2"] == pytest.approx(1, rel=0.2)


def test_response_curves_run_through_the_voxels_and_stay_among_them(parts):
    for name, (f, h) in look.response_curves(parts, points=2000).items():
        field, term = parts.invariants[name].numpy(), parts.terms[f"h_{name}"].numpy()
        assert field.min() <= f[0] < f[-1] <= field.max()
        inside = (field > f[0]) & (field < f[-1])
        assert inside.mean() > 0.99
        expected = term[inside] - parts.means[f"h_{name}"]
        np.testing.assert_allclose(np.interp(field[inside], f, h), expected, atol=2e-3 * np.ptp(term))


def test_cross_term_is_blank_where_there_are_no_voxels(parts):
    E0, E2, h = look.cross_response(parts, 0.3, points=12)
    near = (parts.invariants["I3"] - 0.3).abs() < 0.1
    x, y = (parts.invariants[name][near].numpy() for name in ("E0", "E2"))
    for i, j in np.ndindex(h.shape):
        here = (x >= E0[j]) & (x < E0[j + 1]) & (y >= E2[i]) & (y < E2[i + 1])
        assert np.isfinite(h[i, j]) == here.any() or 11 in (i, j)  # the last cells include their upper edges
    i, j = np.argwhere(np.isfinite(h))[0]
    one = {"E0": (E0[j] + E0[j + 1]) / 2, "E1": 5.0, "E2": (E2[i] + E2[i + 1]) / 2, "I3": 0.3}
    term = parts.mark.responses.terms({name: torch.tensor([float(v)]) for name, v in one.items()})["h_x"]
    assert h[i, j] == pytest.approx(float(term) - parts.means["h_x"], abs=1e-5)


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

    power = {name: made_up(name, 400 if name == "fiducial" else 50) for name in FIDUCIAL_SETS}
    grown = look.error_growth(power, ("all", "worse"), kmax=0.35, count=40)
    np.testing.assert_array_equal(grown["all"].value, 1)
    np.testing.assert_array_equal(grown["all"].high, grown["all"].low)
    assert (grown["worse"].low > 1.5).all()


def test_an_invariant_switched_off_is_a_constant_in_the_cross_term_too(parts):
    silent = look.without(parts.mark, parts.means, ["E0"])
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
    near = centre({"fiducial": plain})["fiducial"]
    np.testing.assert_allclose(near["all"], measured(M / m - 1)["all"], rtol=1e-6, atol=1e-6 * plain.P_dd.max())
    worse, better = (np.linalg.cond(np.corrcoef(each["all"][:, :, 3].T)) for each in (plain, near))
    assert better < 0.1 * worse


def test_variants_are_other_marks_with_names(parts):
    marks = look.variants(parts.mark, parts.means)
    assert list(marks) == ["all", *(f"without {name}" for name in (*parts.terms, "E0", "E2", "I3"))]
    assert list(look.variants(parts.mark, {"h_E0": 0.0, "E0": 0.0})) == ["all"]
    without = marks["without h_E1"](parts.delta, parts.grid)
    torch.testing.assert_close(without, parts.M(["h_E1"]), rtol=1e-4, atol=1e-5)


def test_marks_with_something_to_look_at(tmp_path, parts):
    parts.mark.save(tmp_path / "mine.safetensors")
    again = load(tmp_path / "mine.safetensors")
    assert torch.equal(again.mark.responses.v, parts.mark.responses.v)
    assert look.is_learned(again) and look.is_learned(load("demo_l2"))
    LearnedMark(parts.grid).save(tmp_path / "start.safetensors")
    assert not look.is_learned(load(tmp_path / "start.safetensors")) and not look.is_learned(load("p=2 ds=0"))
    with pytest.raises(FileNotFoundError, match="There is no run 'nothing'"):
        load("nothing")


def test_a_mark_against_density(lognormal):
    delta, _ = lognormal(16)
    density, mean, low, high = look.against_density((1 + delta) ** 2, delta, bins=20)
    assert density[0] < 0.5 < 2 < density[-1] and (np.diff(density) > 0).all()
    assert np.allclose(mean[5:15], density[5:15] ** 2, rtol=0.05) and ((low <= mean) & (mean <= high))[:-1].all()
