"""A user's own universe: cubes and catalogues in several formats, and what is said of bad ones."""

import h5py
import numpy as np
import pytest
import torch

import nbkit as nb


@pytest.fixture
def cube(lognormal):
    return lognormal(18, 140.0)[0].float().numpy()


def written(path, array):
    if path.suffix == ".npy":
        np.save(path, array)
    elif path.suffix == ".hdf5":
        with h5py.File(path, "w") as file:
            file["group/df"] = array
            file["weights"] = np.ones(3)
    else:
        np.savetxt(path, array, header="x y z")
    return path


@pytest.mark.parametrize("ending", [".npy", ".hdf5"])
@pytest.mark.parametrize("scale", ["contrast", "1 + delta", "counts"])
def test_cubes_give_the_same_contrast(tmp_path, cube, ending, scale):
    data = {"contrast": cube, "1 + delta": 1 + cube, "counts": 37.5 * (1 + cube)}[scale]
    delta, grid, about = nb.field(written(tmp_path / f"a_CIC_b{ending}", data), 140)
    assert torch.allclose(delta, torch.from_numpy(cube), atol=1e-5)
    assert grid == nb.Grid(18, 140.0, "CIC")
    assert about.startswith("density contrast" if scale == "contrast" else "counts") and "18^3 cells of 7.78" in about


@pytest.mark.parametrize("ending", [".npy", ".hdf5", ".txt"])
def test_catalogues_are_painted_as_pylians_does(tmp_path, ending):
    import MAS_library

    positions = (np.random.default_rng(1).random((4000, 3)) ** 2 * 250).astype(np.float32)
    read = nb.field(written(tmp_path / f"mock{ending}", positions), 250.0)
    reference = np.zeros((32, 32, 32), np.float32)
    MAS_library.MA(positions, reference, 250.0, "PCS", verbose=False)
    assert torch.allclose(read.delta, torch.from_numpy(reference / reference.mean() - 1), atol=1e-2)
    assert read.grid == nb.Grid(32, 250.0, "PCS")
    assert repr(read).startswith("4000 positions, shot noise 3906 (Mpc/h)^3, on 32^3 cells")
    assert nb.field(tmp_path / f"mock{ending}", 250.0, n=27, mas="CIC").grid == nb.Grid(27, 250.0, "CIC")


def test_a_dataset_can_be_named(tmp_path, cube):
    with h5py.File(tmp_path / "two.h5", "w") as file:
        file["a"], file["b"] = cube, 2 + 2 * cube
    assert torch.allclose(nb.field(f"{tmp_path / 'two.h5'}:b", 140).delta, torch.from_numpy(cube), atol=1e-5)
    with pytest.raises(ValueError, match=r"has the datasets a, b; name one: .*two.h5:<dataset>"):
        nb.field(tmp_path / "two.h5", 140)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda x: x[:, :-1], r"shape \(18, 17, 18\); a cube"),
        (lambda x: x[0], r"shape \(18, 18\)"),
        (lambda x: np.where(x == x.max(), np.nan, x), "not finite"),
        (lambda x: 40 * (1 + x) - 5 * (x == x.max()) - 60 * (x == x.min()), "negative counts"),
        (lambda x: np.where(x == x.min(), -1.5, x), "a contrast cannot be below -1"),
        (lambda x: 0 * x, "the same everywhere"),
        (lambda x: 1j * x, "real numbers are needed"),
    ],
)
def test_bad_cubes_are_refused_in_a_sentence(tmp_path, cube, change, said):
    with pytest.raises(ValueError, match=said) as error:
        nb.field(written(tmp_path / "x.npy", change(cube)), 140)
    assert "\n" not in str(error.value)


def test_what_does_not_fit_is_refused_in_a_sentence(tmp_path, cube):
    good = written(tmp_path / "good.npy", cube)
    for box_size in (0, -1, float("nan")):
        with pytest.raises(ValueError, match="give the side of the box of"):
            nb.field(good, box_size)
    with pytest.raises(ValueError, match=r"positions from 0\.\d+ to 9\d\d?\.?\d*; 0 to 500 Mpc/h are in the box"):
        nb.field(written(tmp_path / "far.npy", np.random.default_rng(1).random((500, 3)) * 999), 500)
    with pytest.raises(ValueError, match="There is no file"):
        nb.field(tmp_path / "none.npy", 500)
    (tmp_path / "words.txt").write_text("a b c\n")
    with pytest.raises(ValueError, match=r"is not \.npy, HDF5 or text"):
        nb.field(tmp_path / "words.txt", 500)


def test_marks_and_spectra_of_it_go_home_in_one_file(tmp_path, cube):
    read = nb.field(written(tmp_path / "x.npy", cube), 140)
    M = nb.ClassicalMark(2.0, 0.2)(read.delta, read.grid)
    power = nb.spectra(read.delta, nb.marked_field(M, read.delta), grid=read.grid)
    nb.save(tmp_path / "home.npz", M=M, spectra=power)
    with np.load(tmp_path / "home.npz") as home:
        assert set(home.files) == {"M", "k", "P_dd", "P_dm", "P_mm", "modes"}
        assert np.array_equal(home["M"], M.numpy()) and np.array_equal(home["P_mm"], power.P_mm.numpy())
    nb.save(tmp_path / "home.h5", M=M, spectra=power)
    with h5py.File(tmp_path / "home.h5") as home:
        assert np.array_equal(home["P_dm"][:], power.P_dm.numpy())
    with pytest.raises(ValueError, match=r"home\.txt: give a name that ends in \.npz, \.h5 or \.hdf5"):
        nb.save(tmp_path / "home.txt", M=M)
