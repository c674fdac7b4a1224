"""Invariants against the eigenvalues they are functions of."""

import numpy as np
import torch

from nbkit.mark.invariants import NAMES, invariants, mlp_inputs, quadrupole


def random_maps(count=500):
    return list(torch.randn(9, count, dtype=torch.float64))


def tensor(f_2m):
    xx, yy, zz, xy, yz, xz = quadrupole(f_2m)
    return torch.stack([torch.stack(row, -1) for row in ((xx, xy, xz), (xy, yy, yz), (xz, yz, zz))], -2)


def test_quadrupole_is_traceless_and_normalised():
    f = random_maps()
    Q = tensor(f[4:])
    assert Q.diagonal(dim1=-2, dim2=-1).sum(-1).abs().max() < 1e-14
    trace = (Q @ Q).diagonal(dim1=-2, dim2=-1).sum(-1)
    torch.testing.assert_close(trace, 15 / (8 * torch.pi) * sum(x**2 for x in f[4:]))


def test_against_eigenvalues():
    f = random_maps()
    eigenvalues = torch.linalg.eigvalsh(tensor(f[4:]))
    maps = invariants(f)
    torch.testing.assert_close(maps["E0"], f[0])
    torch.testing.assert_close(maps["E1"], torch.stack(f[1:4]).norm(dim=0), rtol=1e-6, atol=0)
    torch.testing.assert_close(maps["E2"], (eigenvalues**2).sum(-1).sqrt(), rtol=1e-6, atol=0)
    I3 = (eigenvalues**3).sum(-1) / (eigenvalues**2).sum(-1) ** 1.5
    torch.testing.assert_close(maps["I3"], I3, rtol=1e-5, atol=1e-7)
    assert maps["I3"].abs().max() <= 1 / np.sqrt(6)


def test_extreme_shapes_reach_the_bounds():
    """Two equal eigenvalues: a cigar (+) or a pancake (-)."""
    zero, one = torch.zeros(1, dtype=torch.float64), torch.ones(1, dtype=torch.float64)
    for sign in (1, -1):
        I3 = invariants([zero] * 4 + [zero, zero, sign * one, zero, zero])["I3"]
        torch.testing.assert_close(I3, sign / np.sqrt(6) * one, rtol=1e-6, atol=0)


def test_gradients_are_finite_where_the_field_is_empty():
    f = [torch.zeros(3, dtype=torch.float64, requires_grad=True) for _ in range(9)]
    maps = mlp_inputs(invariants(f))
    for grad in torch.autograd.grad(sum(x.sum() for x in maps.values()), f):
        assert torch.isfinite(grad).all()
    assert torch.autograd.gradcheck(
        lambda *f: tuple(invariants(f).values()), [x.requires_grad_() for x in random_maps(3)]
    )


def test_input_transform():
    maps = {name: torch.tensor([0.0, 1.5]) for name in NAMES} | {"E0": torch.tensor([-1.5, 1.5])}
    seen = mlp_inputs(maps)
    log = float(np.log(2.5))
    torch.testing.assert_close(seen["E0"], torch.tensor([-log, log]))
    torch.testing.assert_close(seen["E1"], torch.tensor([0.0, log]))
    torch.testing.assert_close(seen["I3"], maps["I3"])


def test_the_maps_choose_which_exist():
    f = random_maps(5)
    assert [tuple(invariants(f[: (l + 1) ** 2])) for l in range(3)] == [NAMES[:1], NAMES[:2], NAMES]
