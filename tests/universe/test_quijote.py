"""Quijote's own files, written here from embedded universes, against what the simulator painted itself."""

import struct
from dataclasses import replace

import h5py
import hdf5plugin
import numpy as np
import pytest
import torch

from nbkit.mesh.grid import Grid, to_fourier, to_real
from nbkit.mesh.spectra import spectra
from nbkit.universe import quijote
from nbkit.universe.cosmology import FIDUCIAL, derivative_thetas, latin_hypercube_thetas, sobol_thetas
from nbkit.universe.field import UnusableField
from nbkit.universe.particles import counts as particle_counts
from nbkit.universe.quijote import cube, snapshot, thetas, truncate
from nbkit.universe.suite import Preset, suite

GRID = Grid(16, 125.0, "PCS")
TINY = Preset("tiny", GRID, 2, 2, 3, 2, particles=16, force_factor=2, steps=2)
HEADER = "# Omega_m Omega_b h n_s sigma_8\n"


@pytest.fixture(scope="module")
def threads():
    from distributed import Client

    with Client(processes=False, n_workers=1, threads_per_worker=2, dashboard_address="127.0.0.1:0") as client:
        yield client


def write_gadget(path, positions, box_size, redshift=0.0, parts=1):
    """A Gadget-II format-2 snapshot (named blocks), particles of type 1, kpc/h, as Quijote's: `parts` files."""
    path.parent.mkdir(parents=True, exist_ok=True)
    total = len(positions)
    for part, some in enumerate(np.array_split(positions, parts)):
        header = struct.pack("<6i", 0, len(some), 0, 0, 0, 0)
        header += struct.pack("<6d", 0, 65.66, 0, 0, 0, 0)
        header += struct.pack("<2d2i", 1 / (1 + redshift), redshift, 0, 0)
        header += struct.pack("<6I2i", 0, total, 0, 0, 0, 0, 0, parts)
        header += struct.pack("<4d", 1e3 * box_size, 0.3175, 0.6825, 0.6711)
        numbers = np.arange(len(some), dtype="<u4")
        blocks = {"HEAD": header.ljust(256, b"\0"), "POS ": (1e3 * some).astype("<f4"), "VEL ": np.zeros_like(some)}
        with path.with_name(path.name + (f".{part}" if parts > 1 else "")).open("wb") as file:
            for name, data in {**blocks, "ID  ": numbers}.items():
                data = bytes(data)
                file.write(struct.pack("<i4sii", 8, name.encode(), len(data) + 8, 8))
                file.write(struct.pack("<i", len(data)) + data + struct.pack("<i", len(data)))


def write_hdf5_snapshot(path, positions, box_size, redshift=0.0):
    """A single HDF5 snapshot, particles of type 1, kpc/h, compressed with blosc."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with h5py.File(path, "w") as file:
        number = np.array([0, len(positions), 0, 0, 0, 0])
        header = {"Time": 1 / (1 + redshift), "Redshift": redshift, "BoxSize": 1e3 * box_size, "NumFilesPerSnapshot": 1}
        header |= {"NumPart_ThisFile": number.astype("i4"), "NumPart_Total": number.astype("u4")}
        header |= {"MassTable": np.zeros(6), "Omega0": 0.3175, "OmegaLambda": 0.6825, "HubbleParam": 0.6711}
        file.create_group("Header").attrs.update(header)
        blocks = {"Coordinates": (1e3 * positions).astype("f4"), "Velocities": np.zeros_like(positions)}
        for name, data in {**blocks, "ParticleIDs": np.arange(len(positions), dtype="u4")}.items():
            file.create_dataset(f"PartType1/{name}", data=data, **hdf5plugin.Blosc())


def positions(theta, seed):
    return TINY.simulator.phase_space(theta, seed)[0]


def own(theta, seed):
    return TINY.simulator(theta, seed)


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    """A Quijote-shaped tree: cubes of fiducial, Gadget of Om_p and Om_m, BSQ counts, blosc HDF5 of latin_hypercube."""
    root = tmp_path_factory.mktemp("quijote")
    for i in range(3):
        path = root / f"3D_cubes/fiducial/{i}/df_m_16_PCS_z=0.npy"
        path.parent.mkdir(parents=True)
        np.save(path, own(FIDUCIAL, i).numpy())
    for name in ("Om_p", "Om_m"):
        for i, parts in enumerate((1, 3)):
            x = positions(derivative_thetas()[name], i).numpy()
            write_gadget(root / f"Snapshots/{name}/{i}/snapdir_004/snap_004", x, 125.0, parts=parts)
    for i, theta in enumerate(sobol_thetas(2)):
        path = root / f"3D_cubes/BSQ/{i}/df_m_CIC_z=0.00.hdf5"
        path.parent.mkdir(parents=True)
        with h5py.File(path, "w") as file:
            file["df"] = particle_counts(positions(theta, i), 32, 32 / 125.0, 2).numpy()
    for i, theta in enumerate(latin_hypercube_thetas(2)):
        x = positions(theta, i).numpy()
        write_hdf5_snapshot(root / f"Snapshots/latin_hypercube/{i}/snap_010.hdf5", x, 125.0)
    np.savetxt(root / "BSQ_params.txt", sobol_thetas(8), header=HEADER[2:-1])
    (root / "latin_hypercube").mkdir()
    np.savetxt(root / "latin_hypercube/latin_hypercube_params.txt", latin_hypercube_thetas(2), header=HEADER[2:-1])
    return root


@pytest.fixture(scope="module")
def imported(tree, threads, tmp_path_factory):
    names = ("fiducial", "Om_p", "Om_m", "BSQ", "latin_hypercube")
    return suite(TINY, names, root=tmp_path_factory.mktemp("suites"), data_root=tree, client=threads)


def test_cubes_come_through_bit_for_bit(imported):
    for i in range(3):
        torch.testing.assert_close(imported["fiducial"][i], own(FIDUCIAL, i), rtol=0, atol=0)
    np.testing.assert_array_equal(imported["fiducial"].theta, np.tile(FIDUCIAL, (3, 1)))


@pytest.mark.parametrize("name", ["Om_p", "Om_m", "latin_hypercube"])
def test_snapshots_give_the_simulators_own_painting(imported, name):
    """Gadget in one file and in three, and blosc HDF5; kpc/h in float32 rounds positions in the seventh digit."""
    assert len(imported[name]) == 2
    for i in range(2):
        expected = own(imported[name].theta[i], i)
        assert expected.std() > 0.5
        torch.testing.assert_close(imported[name][i], expected, rtol=0, atol=2e-4)


def test_thetas_are_those_of_the_parameter_files(imported):
    np.testing.assert_allclose(imported["BSQ"].theta, sobol_thetas(2), rtol=1e-15)
    np.testing.assert_allclose(imported["latin_hypercube"].theta, latin_hypercube_thetas(2), rtol=1e-15)
    np.testing.assert_array_equal(imported["Om_p"].theta, np.tile(derivative_thetas()["Om_p"], (2, 1)))
    for name in imported:
        np.testing.assert_array_equal(imported[name].seeds, np.arange(len(imported[name])))
        assert imported[name].settings["source"] == "quijote"
        assert imported[name].grid == GRID


def test_bsq_counts_give_the_simulators_own_modes(imported):
    """The finer grid aliases less, so modes agree well below the Nyquist frequency and ever less towards it."""
    k = GRID.shells().k[GRID.shells().index]
    for i, theta in enumerate(imported["BSQ"].theta):
        ours, expected = (to_fourier(field, GRID) for field in (imported["BSQ"][i], own(theta, i)))
        for low, high, limit in ((0, 0.1, 2e-3), (0.1, 0.2, 1e-2), (0.2, 0.3, 6e-2)):
            some = (k > low) & (k <= high)
            error = (ours - expected)[some].abs().square().sum() / expected[some].abs().square().sum()
            assert error.sqrt() < limit


def test_bsq_counts_in_closed_form(tmp_path):
    """A field with modes below the coarse Nyquist frequency only is recovered exactly, times the suite's window."""
    coarse, fine = Grid(12, 60.0, "PCS"), Grid(30, 60.0, "CIC")
    modes = to_fourier(torch.randn(12, 12, 12, dtype=torch.float64), coarse)
    m_x, m_y, m_z = (torch.from_numpy(m) for m in coarse.wavenumbers())
    modes = modes * ((m_x != -6) & (m_y != -6) & (m_z != 6))
    modes[0, 0, 0] = 0
    delta = to_real(modes, coarse)
    padded = torch.zeros(fine.half_shape, dtype=torch.complex128)
    for x in range(-5, 6):
        for y in range(-5, 6):
            padded[x, y, :6] = modes[x, y, :6]
    sampled = to_real(padded * fine.window(dtype=torch.float64), fine) * (30 / 12) ** 3
    with h5py.File(tmp_path / "df.hdf5", "w") as file:
        file["df"] = 8 * (1 + 0.1 * sampled.numpy() / sampled.abs().max().item())
    ours = quijote.counts(tmp_path / "df.hdf5", coarse)
    expected = to_real(to_fourier(delta, coarse) * coarse.window(dtype=torch.float64), coarse)
    expected *= 0.1 / sampled.abs().max()
    np.testing.assert_allclose(ours, expected, atol=2e-7 * float(expected.abs().max()), rtol=1e-5)
    assert ours.dtype == np.float32
    # Deconvolved by what grid.mas says, the spectrum is that of the field itself.
    P = spectra(torch.from_numpy(ours).double(), grid=coarse).P_dd
    scaled = 0.1 / sampled.abs().max()
    torch.testing.assert_close(P, spectra(delta * scaled, grid=replace(coarse, mas="none")).P_dd, rtol=1e-5, atol=0)


@pytest.mark.parametrize(("n", "fine"), [(8, 16), (8, 8), (7, 16), (8, 13)])
def test_truncation_keeps_real_fields_real(n, fine):
    """Cutting modes equals sampling the band-limited field: check against a plain sum over waves."""
    field = torch.randn(fine, fine, fine, dtype=torch.float64)
    full = torch.fft.fftn(field) / fine**3
    x = torch.arange(n, dtype=torch.float64) / n
    m = torch.fft.fftfreq(fine, 1 / fine, dtype=torch.float64)
    weight = torch.where(2 * m.abs() < n, 1.0, torch.where((2 * m.abs() == n) & (fine > n), 0.5, 0.0))
    if fine == n:
        weight = torch.ones(n, dtype=torch.float64)
    waves = torch.exp(2j * torch.pi * x[:, None] * m[None, :]) * weight
    expected = torch.einsum("xyz,ax,by,cz->abc", full, waves, waves, waves)
    assert expected.imag.abs().max() < 1e-12
    ours = torch.fft.irfftn(truncate(torch.fft.rfftn(field), n) * (n / fine) ** 3, s=(n, n, n))
    torch.testing.assert_close(ours, expected.real, rtol=0, atol=1e-12)


def copy_of_cubes(tmp_path, changes):
    """A tree with three fiducial cubes, some changed: a field, or None for a missing one."""
    for i in range(3):
        folder = tmp_path / f"data/3D_cubes/fiducial/{i}"
        folder.mkdir(parents=True)
        field = changes.get(i, own(FIDUCIAL, i).numpy())
        if field is not None:
            np.save(folder / "df_m_16_PCS_z=0.npy", field)
    return tmp_path / "data"


def test_missing_realisations_are_listed_left_out_and_taken_when_they_come(tmp_path, threads):
    data = copy_of_cubes(tmp_path, {1: None})
    with pytest.warns(UserWarning, match=r"fiducial: 1 of 3 realisations have no .*npy and are left out: 1\."):
        some = suite(TINY, "fiducial", root=tmp_path, data_root=data, client=threads)["fiducial"]
    np.testing.assert_array_equal(some.seeds, [0, 2])
    torch.testing.assert_close(some[1], own(FIDUCIAL, 2), rtol=0, atol=0)
    np.save(data / "3D_cubes/fiducial/1/df_m_16_PCS_z=0.npy", own(FIDUCIAL, 1).numpy())
    full = suite(TINY, "fiducial", root=tmp_path, data_root=data, client=threads)["fiducial"]
    np.testing.assert_array_equal(full.seeds, [0, 1, 2])
    assert full.fingerprint != some.fingerprint


def test_realisations_are_passed_over_by_number(tmp_path, threads):
    """Training around the fiducial point takes the realisations that forecasts leave."""
    root = copy_of_cubes(tmp_path, {})
    later = replace(TINY, particles=None, fiducial=2, near_sizes=(1, 1)).near
    only = suite(later, "fiducial", root=tmp_path / "runs", data_root=root, client=threads)["fiducial"]
    assert only.seeds.tolist() == [2]
    assert torch.equal(only[0], own(FIDUCIAL, 2))


def test_long_lists_are_told_in_ranges():
    assert quijote._ranges([0, 1, 2, 7, 9, 10]) == "0-2, 7, 9-10"
    assert quijote._ranges([5]) == "5"


def spoilt(change):
    field = own(FIDUCIAL, 1).numpy().copy()
    return change(field)


def with_nan(field):
    field[3, 4, 5] = np.nan
    return field


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (with_nan, r"has 1 of 4096 values that are not finite"),
        (lambda field: field[:15, :15, :15], r"has shape \(15, 15, 15\); this grid needs 16 x 16 x 16"),
        (lambda field: field[:15], r"has shape \(15, 16, 16\); a cube"),
        (lambda field: field + 0.1, r"has mean 0\.1 and smallest value .*: negative counts, or no density"),
        (lambda field: 3 * field, r"is no density: its smallest value is -.*, and a contrast cannot be below -1"),
        (lambda field: field.astype(object), r"is not \.npy, HDF5 or text"),
        (lambda field: field.astype(complex), r"holds complex128; real numbers are needed"),
    ],
)
def test_bad_cubes_are_named_and_the_others_imported(tmp_path, threads, change, said):
    data = copy_of_cubes(tmp_path, {1: spoilt(change)})
    with pytest.raises(ValueError, match=r"^1 of 3 files .*fiducial/1/df_m_16_PCS_z=0\.npy " + said):
        suite(TINY, "fiducial", root=tmp_path, data_root=data, client=threads)
    np.save(data / "3D_cubes/fiducial/1/df_m_16_PCS_z=0.npy", own(FIDUCIAL, 1).numpy())
    full = suite(TINY, "fiducial", root=tmp_path, data_root=data, client=threads)["fiducial"]
    torch.testing.assert_close(full[1], own(FIDUCIAL, 1), rtol=0, atol=0)


def test_cubes_of_counts_become_contrasts(tmp_path):
    for scale in (1, 8):
        np.save(tmp_path / "counts.npy", scale * (1 + own(FIDUCIAL, 1).numpy()))
        np.testing.assert_allclose(cube(tmp_path / "counts.npy", GRID), own(FIDUCIAL, 1), rtol=0, atol=2e-6)


def test_cut_cube(tmp_path):
    path = tmp_path / "cut.npy"
    np.save(path, own(FIDUCIAL, 1).numpy())
    for size in (path.stat().st_size - 10, 60, 0):
        with path.open("r+b") as file:
            file.truncate(size)
        with pytest.raises(UnusableField, match=r"is not \.npy, HDF5 or text"):
            cube(path, GRID)


@pytest.mark.parametrize(
    ("df", "said"),
    [
        (np.zeros((32, 32, 31)), r"has shape \(32, 32, 31\); a cube \(n, n, n\)"),
        (np.arange(512.0).reshape(8, 8, 8), r"has shape \(8, 8, 8\); a cube of at least 16\^3 cells"),
        (np.full((32, 32, 32), np.nan), "has 32768 of 32768 values that are not finite"),
        (2 * np.sin(np.arange(32.0**3)).reshape(32, 32, 32), "its smallest value is -2, and a contrast cannot"),
        (np.zeros((32, 32, 32)), "is no density: its smallest value is 0, and it is the same everywhere"),
        (None, "is not .npy, HDF5 or text"),
    ],
)
def test_bad_counts(tmp_path, df, said):
    with h5py.File(tmp_path / "df.hdf5", "w") as file:
        file["other" if df is None else "df"] = 0 if df is None else df
    with pytest.raises(UnusableField, match=said):
        quijote.counts(tmp_path / "df.hdf5", GRID)


def test_bad_snapshots(tmp_path, capfd):
    x = np.random.default_rng(0).random((500, 3)).astype("f4") * 125
    for write, name in ((write_gadget, "a"), (write_hdf5_snapshot, "b.hdf5")):
        path = tmp_path / name
        write(path, x, 250.0)
        with pytest.raises(UnusableField, match=r"has a box of 250 Mpc/h; this suite's is 125"):
            snapshot(str(path), GRID)
        write(path, x, 125.0, redshift=0.5)
        with pytest.raises(UnusableField, match=r"is at redshift 0\.5; 0 is needed"):
            snapshot(str(path), GRID)
        write(path, x * 1e-3, 125.0)
        assert snapshot(str(path), GRID).max() > 100  # all in one corner: allowed, if odd
        write(path, x * 2, 125.0)
        with pytest.raises(UnusableField, match=r"has positions from .* 0 to 125 Mpc/h are in the box"):
            snapshot(str(path), GRID)
        write(path, np.where(np.arange(500)[:, None] == 3, np.nan, x), 125.0)
        with pytest.raises(UnusableField, match=r"has positions from nan to nan"):
            snapshot(str(path), GRID)
        write(path, x, 125.0)
        with path.open("r+b") as file:
            file.truncate(3000)
        with pytest.raises(UnusableField, match="cannot be read as a snapshot"):
            snapshot(str(path), GRID)
    write_gadget(tmp_path / "c", x, 125.0, parts=3)
    (tmp_path / "c.1").unlink()
    with pytest.raises(UnusableField, match="cannot be read as a snapshot"):
        snapshot(str(tmp_path / "c"), GRID)
    (tmp_path / "d").write_text("Om Ob h\n" * 100)
    with pytest.raises(UnusableField, match="cannot be read as a snapshot"):
        snapshot(str(tmp_path / "d"), GRID)
    assert capfd.readouterr().out == ""


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (HEADER + "0.3 0.05 0.7 0.96\n" * 3, "has 3 rows of 4 numbers; at least 2 rows of Omega_m"),
        (HEADER + "0.3 0.05 0.7 0.96 0.8\n", "has 1 rows of 5 numbers; at least 2 rows"),
        (HEADER + "0.3 0.05 0.7 0.96 0.8\n0.3 0.05 70 0.96 0.8\n", "row 1 is .*outside the prior"),
        (HEADER + "0.3 0.05 0.7 0.96 nan\n" * 2, "row 0 is .*outside the prior"),
        (HEADER + "0.3 0.05 0.7 many 0.8\n" * 2, "is not a table of numbers"),
    ],
)
def test_bad_parameter_files(tmp_path, text, said):
    (tmp_path / "BSQ_params.txt").write_text(text)
    with pytest.raises(ValueError, match=said):
        thetas(tmp_path / "BSQ_params.txt", quijote.PRIORS["BSQ"], 2)


def test_imports_are_resumed_and_opened_without_the_data(tree, tmp_path, threads, imported):
    preset = replace(TINY, name="real", particles=None, force_factor=None, steps=None)
    first = suite(preset, ("Om_p", "BSQ"), root=tmp_path, data_root=tree, client=threads)
    again = suite(preset, ("Om_p", "BSQ"), root=tmp_path)
    assert first["Om_p"].fingerprint == again["Om_p"].fingerprint == imported["Om_p"].fingerprint
    with pytest.raises(ValueError, match="'real' is of real data and has no simulator; pass data_root"):
        suite(preset, ("Om_p", "Om_m"), root=tmp_path)


def test_embedded_and_real_universes_do_not_mix(imported, threads):
    root = imported["Om_p"].path.parents[1]
    with pytest.raises(ValueError, match="source is 'quijote' there and 'nbkit' here"):
        suite(TINY, "Om_p", root=root, client=threads)


def test_what_is_not_there_is_said(tree, tmp_path):
    with pytest.raises(ValueError, match=r"a folder that holds 3D_cubes or Snapshots is needed"):
        suite(TINY, "fiducial", root=tmp_path, data_root=tmp_path)
    with pytest.raises(
        ValueError, match=r"has no realisation of h_p at this grid; looked for 3D_cubes/h_p/<i>/df_m_16"
    ):
        suite(TINY, "h_p", root=tmp_path, data_root=tree)
    with pytest.raises(ValueError, match=r"has no realisation of fiducial at this grid; .*df_m_32_PCS_z=0\.npy"):
        suite(replace(TINY, grid=Grid(32, 125.0, "PCS")), "fiducial", root=tmp_path, data_root=tree)
    (tmp_path / "3D_cubes").mkdir()
    with pytest.raises(ValueError, match=r"BSQ_params\.txt is missing; put it into"):
        suite(TINY, "BSQ", root=tmp_path, data_root=tmp_path)
