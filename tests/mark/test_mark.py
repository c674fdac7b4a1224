"""Classical and learned marks: closed forms, symmetry, exact sums, agreement of the fast path, files."""

import copy
import itertools
import json
import warnings

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from nbkit import ClassicalMark, Grid, LearnedMark, classical_marks, marked_field, spectra
from nbkit.disk import write_tensors
from nbkit.mark import AdditiveMark, UnitMark, identity, mark_of_settings, mark_settings
from nbkit.mark.additive import DENSITY, NODES, channels_of
from nbkit.mark.learned import load_mark


def test_marked_field_has_zero_mean(lognormal):
    delta, grid = lognormal(16, batch=(2,))
    Delta = marked_field(ClassicalMark(2.0, 0.25)(delta, grid), delta)
    torch.testing.assert_close(Delta.mean(dim=(-3, -2, -1)), torch.zeros(2, dtype=torch.float64), atol=1e-12, rtol=0)


def test_plane_wave_in_closed_form():
    """delta_R of a plane wave is the wave times the kernel, so M is known at every voxel."""
    grid, R = Grid(16, 100.0), 12.0
    wave = 0.4 * torch.cos(2 * torch.pi * 3 * torch.arange(16, dtype=torch.float64) / 16)
    x = 3 * grid.k_f * R
    M = ClassicalMark(2.0, 0.25, R)(wave[:, None, None].expand(16, 16, 16), grid)
    expected = (1.25 / (1.25 + np.exp(-(x**2) / 2) * wave)) ** 2
    torch.testing.assert_close(M, expected[:, None, None].expand(16, 16, 16), rtol=1e-12, atol=0)


def test_unit_density_has_unit_mark():
    M = ClassicalMark(-1.5, 0.3)(torch.zeros(8, 8, 8), Grid(8, 100.0))
    torch.testing.assert_close(M, torch.ones(8, 8, 8))


def test_the_grid_of_48():
    marks = set(classical_marks().values())
    assert len(marks) == 48
    assert {m.p for m in marks} == {-2.5, -2, -1.5, -1, 1, 1.5, 2, 2.5}
    assert {m.delta_s for m in marks} == {0, 0.1, 0.2, 0.3, 0.4, 0.5}
    assert {m.R for m in marks} == {10.0}


def test_floored_voxels_are_counted():
    delta = torch.zeros(8, 8, 8)
    delta[0, 0, :3] = -1.5  # no smoothing to speak of at R << cell
    with pytest.warns(UserWarning, match="in 3 of 512 voxels"):
        M = ClassicalMark(1.0, 0.0, R=0.01)(delta, Grid(8, 100.0))
    assert torch.isfinite(M).all()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ClassicalMark(1.0, 0.6, R=0.01)(delta, Grid(8, 100.0))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [((1.0, -0.1), "delta_s is -0.1"), ((1.0, float("nan")), "delta_s is nan"), ((1.0, 0.1, 0.0), "R is 0.0")],
)
def test_impossible_marks_are_refused(arguments, said):
    with pytest.raises(ValueError, match=said):
        ClassicalMark(*arguments)


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
@pytest.mark.parametrize(
    "of", [ClassicalMark(2.0, 0.1), LearnedMark(Grid(8, 100.0))], ids=lambda mark: type(mark).__name__
)
def test_fields_that_are_not_finite_are_refused(of, bad):
    delta = torch.zeros(8, 8, 8)
    delta[1, 2, 3] = bad
    with pytest.raises(ValueError, match=r"delta has 1 of 512 values that are not finite"):
        of(delta, Grid(8, 100.0))


def test_settings_give_the_mark_and_its_name_on_disk():
    """Spectra that come with the kit, and those on a user's disk, are found by these letters."""
    grid = Grid(12, 100.0, "PCS")
    for mark in (ClassicalMark(2.0, 0.1), UnitMark(), LearnedMark(grid, 1), LearnedMark(grid, shared=True, r0=0.4)):
        again = mark_of_settings(json.loads(json.dumps(mark_settings(mark))))
        assert mark_settings(again) == mark_settings(mark)
        assert isinstance(mark, LearnedMark) or (again == mark and identity(again) == identity(mark))
    assert identity(ClassicalMark(2.0, 0.1)) == "6f344d46969d85dc"
    assert identity(UnitMark()) == "4c8f90188ef98e39"
    assert "r0" not in mark_settings(LearnedMark(grid)) and mark_settings(again)["r0"] == 0.4
    with pytest.raises(ValueError, match="mark of kind 'ClassicalMark with another smoothing than a Gaussian'"):
        mark_of_settings(mark_settings(ClassicalMark(2.0, 0.1)) | {"smoothing": "tophat"})


def learned(grid, noise=0.3, **settings):
    """A mark with everything switched on, as if trained."""
    mark = LearnedMark(grid, **settings)
    for parameter in mark.parameters():
        parameter.data += noise * torch.randn_like(parameter)
    return mark


def cube_rotations():
    """The 24 proper rotations of the cube, as permutations of axes with flips."""
    for axes in itertools.permutations(range(3)):
        for flips in itertools.product((False, True), repeat=3):
            matrix = np.eye(3)[list(axes)] * np.where(flips, -1, 1)[:, None]
            if np.linalg.det(matrix) > 0:
                yield lambda x, axes=axes, flips=flips: x.permute(axes).flip([i for i in range(3) if flips[i]])


SETTINGS = [{"l_max": 0}, {"l_max": 1}, {"l_max": 2}, {"cross": False}, {"radial": "gaussians"}]
SETTINGS += [{"shared": True}, {"shared": True, "r0": 0.2}]


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_starts_as_the_unmarked_field(settings, lognormal):
    delta, grid = lognormal(16, mas="PCS", dtype=torch.float32)
    M = LearnedMark(grid, **settings)(delta)
    torch.testing.assert_close(M, torch.ones_like(M), rtol=0, atol=2e-7)
    result = spectra(delta, marked_field(M, delta), grid=grid)
    torch.testing.assert_close(result.P_mm, result.P_dd, rtol=1e-5, atol=0)
    torch.testing.assert_close(result.P_dm / (result.P_dd * result.P_mm).sqrt(), torch.ones_like(result.k))


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
@pytest.mark.parametrize("n", [11, 12])
def test_turns_with_the_cube(n, settings, lognormal):
    delta, grid = lognormal(n, 100.0, mas="PCS")
    mark = learned(grid, **settings).double()
    M = mark(delta).detach()
    assert M.std() > 1e-3
    turns = list(cube_rotations())
    assert len(turns) == 24
    worst = max(float((mark(turn(delta)).detach() - turn(M)).abs().max()) for turn in turns)
    assert worst < 1e-12


def test_moves_with_the_box(lognormal):
    delta, grid = lognormal(12, 100.0, mas="PCS")
    mark = learned(grid).double().requires_grad_(False)
    M = mark(delta)
    for shift in itertools.product((0, 1, 5, -3), repeat=3):
        assert float((mark(delta.roll(shift, (0, 1, 2))) - M.roll(shift, (0, 1, 2))).abs().max()) < 1e-12


def test_same_rule_in_a_larger_box(lognormal):
    """Eight copies of a box side by side are the same universe on a grid of twice the side."""
    delta, grid = lognormal(12, 100.0, mas="PCS")
    mark = learned(grid).double()
    larger = mark(delta.tile(2, 2, 2), Grid(24, 200.0, "PCS"))
    torch.testing.assert_close(larger, mark(delta).tile(2, 2, 2), rtol=0, atol=1e-12)


def test_same_rule_on_a_finer_grid():
    """A field without small scales gets the same mark however finely it is sampled."""
    coarse, fine = Grid(12, 100.0), Grid(24, 100.0)
    modes = torch.fft.fftn(torch.randn(12, 12, 12, dtype=torch.float64))
    m = torch.fft.fftfreq(12, 1 / 12, dtype=torch.float64).abs()
    modes = modes * ((m[:, None, None] < 6) & (m[:, None] < 6) & (m < 6))
    wide = torch.zeros(24, 24, 24, dtype=modes.dtype)
    wide[6:18, 6:18, 6:18] = torch.fft.fftshift(modes)
    delta, sampled = torch.fft.ifftn(modes).real, 8 * torch.fft.ifftn(torch.fft.ifftshift(wide)).real
    torch.testing.assert_close(sampled[::2, ::2, ::2], delta)
    mark = learned(coarse).double()
    torch.testing.assert_close(mark(sampled, fine)[::2, ::2, ::2], mark(delta), rtol=0, atol=1e-12)


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_terms_add_up(settings, lognormal):
    delta, grid = lognormal(16, mas="PCS", batch=(2,))
    mark = learned(grid, **settings).double()
    terms = mark.responses.terms(mark.invariants(delta))
    eta = mark.responses.bias + sum(terms.values())
    torch.testing.assert_close(mark(delta), torch.nn.functional.softplus(eta), rtol=1e-12, atol=1e-12)
    crossed = settings.get("l_max", 2) == 2 and settings.get("cross", True)
    assert list(terms) == [f"h_{name}" for name in mark.invariants(delta)] + (["h_x"] if crossed else [])


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_fast_path_agrees_with_autograd(settings, lognormal):
    """The gradient of a summary through the compiled float32 path, to 1e-5 of plain autograd in float64."""
    delta, grid = lognormal(24, 200.0, mas="PCS")
    fast, plain = learned(grid, **settings), LearnedMark(grid, **settings).double()
    plain.load_state_dict(fast.state_dict())
    grads = []
    for mark, field in ((fast, delta.float()), (plain, delta.clone().requires_grad_())):
        P = spectra(field, marked_field(mark(field), field), grid=grid)
        loss = (P.P_mm / P.P_dd).log().sum() + (P.P_dm / (P.P_dd * P.P_mm).sqrt()).sum()
        grads.append(torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(mark.parameters()))]))
    assert float((grads[0] - grads[1]).norm() / grads[1].norm()) < 1e-5


@pytest.mark.parametrize("radial", ["fourier", "gaussians"])
@pytest.mark.parametrize(("l_max", "cross"), [(0, False), (1, False), (2, False), (2, True)])
def test_the_path_of_gpus_gives_the_same_mark_and_gradients(l_max, cross, radial, lognormal, monkeypatch):
    """M to 1e-6 and gradients to 1e-5 of their rms, whatever the pieces it is evaluated in."""
    monkeypatch.setattr("nbkit.mark.learned.VOXELS_AT_ONCE", 1000)
    delta, grid = lognormal(16, 100.0, mas="PCS", batch=(2,))
    fast = learned(grid, l_max=l_max, cross=cross, radial=radial)
    plain = copy.deepcopy(fast).double()
    M, exact = fast(delta.float()), plain(delta)
    assert float(((M - exact).norm() / exact.norm()).detach()) < 1e-6
    cotangent = torch.randn_like(delta)
    ours = torch.autograd.grad(M, list(fast.parameters()), cotangent.float())
    theirs = torch.autograd.grad(exact, list(plain.parameters()), cotangent)
    ours, theirs = (torch.cat([g.flatten() for g in grads]) for grads in (ours, theirs))
    assert float((ours - theirs).norm() / theirs.norm()) < 1e-5


@pytest.mark.parametrize("value", [0.0, -0.3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_gradients_are_finite_on_empty_and_constant_fields(value, dtype):
    grid = Grid(8, 100.0, "PCS")
    mark = learned(grid).to(dtype)
    M = mark(torch.full((8, 8, 8), value, dtype=dtype))
    M.square().sum().backward()
    assert all(torch.isfinite(p.grad).all() for p in mark.parameters())


def test_affine_marks_carry_the_same_information(lognormal):
    """{P_dd, P_dm, P_mm} of a M + b is an invertible linear map of those of M, so the Fisher matrix is the same."""
    delta, grid = lognormal(8, 100.0, batch=(150,))
    M = learned(grid).double()(delta)

    def information(M):
        S = torch.cat(spectra(delta, marked_field(M, delta), grid=grid)[1:4], dim=-1)
        low, high, rest = S[:40].mean(0), S[40:80].mean(0), S[80:]
        derivative = high - low
        return derivative @ torch.linalg.solve(torch.cov(rest.T), derivative)

    torch.testing.assert_close(information(-1.7 * M + 0.4), information(M), rtol=1e-6, atol=0)


def test_runs_on_the_meta_device():
    """No tensor is left on the CPU: mixing devices would raise."""
    grid = Grid(8, 10.0, "CIC")
    mark = LearnedMark(grid).to("meta")
    delta = torch.zeros(2, 8, 8, 8, device="meta")
    additive = AdditiveMark(((0.5,) * NODES,) * 3, ((-1.0, 1.0),) * 3, (*channels_of(1, 2.0), DENSITY))
    for which in (mark, ClassicalMark(2.0, 0.25), additive):
        assert which(delta, grid).shape == delta.shape
    spectra(delta, marked_field(mark(delta), delta), grid=grid).P_mm.sum().backward()
    assert all(p.grad.is_meta for p in mark.parameters())
    assert all(term.is_meta for term in mark.responses.terms(mark.invariants(delta)).values())


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_saved_marks_come_back_whole(settings, tmp_path, lognormal):
    delta, grid = lognormal(12, mas="PCS", dtype=torch.float32)
    mark = learned(grid, **settings)
    mark.save(tmp_path / "mark.safetensors")
    assert (tmp_path / "mark.safetensors").stat().st_size < 20_000
    again = load_mark(tmp_path / "mark.safetensors")
    assert again.grid == grid
    assert torch.equal(again(delta), mark(delta))
    assert [x.name for x in tmp_path.iterdir()] == ["mark.safetensors"]


def test_files_that_do_not_fit_are_refused(tmp_path):
    path, grid = tmp_path / "mark.safetensors", Grid(12, 500.0, "PCS")
    with pytest.raises(FileNotFoundError, match="There is no checkpoint"):
        load_mark(path)
    LearnedMark(grid).save(path)
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ValueError, match="is not a whole safetensors file"):
        load_mark(path)
    path.write_bytes(whole.replace(b"nbkit-mark-2", b"nbkit-mark-9"))
    with pytest.raises(ValueError, match="has the format 'nbkit-mark-9'; this version of nbkit reads 'nbkit-mark-2'"):
        load_mark(path)
    for about in ({"epoch": 3}, [1, 2]):
        write_tensors(path, {"x": torch.zeros(1)}, about)
        with pytest.raises(ValueError, match="has the format None"):
            load_mark(path)
    save_file({"x": torch.zeros(1)}, path, metadata={"format": "nbkit-mark-1"})  # as the version before wrote them
    with pytest.raises(ValueError, match="is a safetensors file, but not a checkpoint of nbkit"):
        load_mark(path)
