"""The compiled response against the plain one, and its float32 functions against scipy."""

import numpy as np
import pytest
import torch
from scipy.special import ndtr

from nbkit.mark.cpu import exp, log, normal
from nbkit.mark.learned import Responses
from nbkit.mesh.threads import kernel


@kernel
def _evaluated(x, e, l, cdf, density):
    for i in range(len(x)):
        e[i] = exp(x[i])
        l[i] = log(np.float32(1) + abs(x[i]))
        cdf[i], density[i] = normal(x[i])


def test_float32_functions():
    x = np.linspace(-80, 80, 1 << 18, dtype=np.float32)
    e, l, cdf, density = (np.empty_like(x) for _ in range(4))
    _evaluated(x, e, l, cdf, density)
    exact = x.astype(float)
    np.testing.assert_allclose(e, np.exp(exact), rtol=3e-7)
    np.testing.assert_allclose(l, np.log(1 + np.abs(x).astype(float)), rtol=3e-7, atol=3e-7)
    np.testing.assert_allclose(cdf, ndtr(exact), atol=3e-7)
    np.testing.assert_allclose(density, np.exp(-(exact**2) / 2) / np.sqrt(2 * np.pi), atol=1e-7)
    bad = np.array([np.nan, 1.0], np.float32)
    _evaluated(bad, *(out := [np.empty_like(bad) for _ in range(4)]))
    assert np.isnan(out[0][0])


def responses(l_max, cross):
    module = Responses(l_max, cross)
    for parameter in module.parameters():
        parameter.data += 0.5 * torch.randn_like(parameter)
    return module


@pytest.mark.parametrize(("l_max", "cross"), [(0, True), (1, True), (2, False), (2, True)])
def test_agrees_with_autograd(l_max, cross):
    """Values and every gradient to 1e-5 of the plain version in float64."""
    fused, plain = responses(l_max, cross), Responses(l_max, cross).double()
    plain.load_state_dict(fused.state_dict())
    # Heavy tails as in a density field, and enough voxels for several blocks and slices, the last one not full.
    maps = [torch.randn(3, 41, 43) ** 3 for _ in range((l_max + 1) ** 2)]
    cotangent = torch.randn(3, 41, 43)
    single = [f.clone().requires_grad_() for f in maps]
    double = [f.double().requires_grad_() for f in maps]
    eta, exact = fused(single), plain(double)
    np.testing.assert_allclose(eta.detach(), exact.detach(), rtol=1e-5, atol=1e-5)
    ours = torch.autograd.grad(eta, [*single, *fused.parameters()], cotangent)
    theirs = torch.autograd.grad(exact, [*double, *plain.parameters()], cotangent.double())
    for a, b in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5 * float(b.abs().max()))


def test_gradients_are_finite_on_empty_and_constant_maps():
    module = responses(2, True)
    for value in (0.0, 1e-20, 3.0):
        maps = [torch.full((4, 4, 4), value, requires_grad=True) for _ in range(9)]
        grads = torch.autograd.grad(module(maps).sum(), [*maps, *module.parameters()])
        assert all(torch.isfinite(g).all() for g in grads)


def test_the_number_of_threads_changes_nothing():
    module, maps = responses(2, True), [torch.randn(20, 20, 20, requires_grad=True) for _ in range(9)]
    threads, results = torch.get_num_threads(), []
    for count in (1, 2):
        torch.set_num_threads(count)
        eta = module(maps)
        results.append([eta, *torch.autograd.grad(eta.sum(), module.parameters())])
    torch.set_num_threads(threads)
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


def test_maps_that_are_not_finite_are_refused():
    maps = [torch.zeros(4, 4, 4) for _ in range(9)]
    maps[3][1, 2, 3] = torch.inf
    with pytest.raises(ValueError, match="not finite"):
        responses(2, True)(maps)
