"""Cross spectra of the parts of additive marks are kept, and found by all that decides them alone."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from fake import FakeSet

from nbkit.mark.additive import AdditiveMark, channels_of, ends_of
from nbkit.measure import cross
from nbkit.measure.cross import cross_spectra, keep_cross_spectra, spectra_of
from nbkit.mesh.grid import to_fourier
from nbkit.mesh.spectra import marked_field, spectra

CHANNELS = channels_of(1, 8.0)


@pytest.fixture
def boxes(tmp_path, monkeypatch):
    """Simulations, what cross spectra ask of them, and the ends of their channels."""
    monkeypatch.setenv("NBKIT_RUNS", str(tmp_path))
    simulations = FakeSet(4)
    fields = SimpleNamespace(parts=lambda rows: (simulations[row] for row in rows))
    data = SimpleNamespace(grid=simulations.grid, kmax=0.3, fields=fields)
    return simulations, data, ends_of(to_fourier(simulations[[0, 1]], simulations.grid), simulations.grid, CHANNELS)


@pytest.fixture
def made(monkeypatch):
    """Times that cross spectra were measured."""
    seen = []
    monkeypatch.setattr(cross, "cross_spectra", lambda *asked: seen.append(asked) or cross_spectra(*asked))
    return seen


def test_spectra_of_a_mark_follow_from_them(boxes):
    simulations, data, ends = boxes
    c = torch.randn(2, cross.NODES, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    mark = AdditiveMark(tuple(map(tuple, c.tolist())), ends, CHANNELS)
    found = spectra_of(cross_spectra(data, torch.tensor([2]), CHANNELS, ends), c.flatten())[0]
    delta = simulations[2]
    P = spectra(delta, marked_field(mark(delta, data.grid), delta), grid=data.grid, kmax=0.3)
    np.testing.assert_allclose(found, torch.cat([P.P_dd, P.P_dm, P.P_mm]), rtol=1e-3)


def test_they_are_measured_once(boxes, made):
    simulations, data, ends = boxes
    asked = simulations, data, torch.arange(4), CHANNELS, ends
    first = keep_cross_spectra(*asked)
    torch.testing.assert_close(keep_cross_spectra(*asked), first, rtol=0, atol=0)
    assert len(made) == 1 and first.dtype == torch.float64
    assert keep_cross_spectra(*asked, dtype=torch.float32).dtype == torch.float32 and len(made) == 2


@pytest.mark.parametrize(("what", "value"), [("NODES", 6), ("BUMPS", 2), ("VERSION", 2)])
def test_those_of_other_code_are_not_found(boxes, made, monkeypatch, what, value):
    simulations, data, ends = boxes
    keep_cross_spectra(simulations, data, torch.arange(4), CHANNELS, ends)
    monkeypatch.setattr(cross, what, value)
    monkeypatch.setattr("nbkit.mark.additive.NODES", cross.NODES)
    keep_cross_spectra(simulations, data, torch.arange(4), CHANNELS, ends)
    assert len(made) == 2


def test_those_of_other_boxes_are_not_found(boxes, made):
    simulations, data, ends = boxes
    other = FakeSet(4, seed=6)
    moved = tuple((low - 0.1, high) for low, high in ends)
    keep_cross_spectra(simulations, data, torch.arange(4), CHANNELS, ends)
    keep_cross_spectra(other, data, torch.arange(4), CHANNELS, ends)
    keep_cross_spectra(simulations, data, torch.arange(3), CHANNELS, ends)
    keep_cross_spectra(simulations, data, torch.arange(4), CHANNELS, moved)
    data.kmax = 0.2
    keep_cross_spectra(simulations, data, torch.arange(4), CHANNELS, ends)
    assert len(made) == 5
