"""Pictures of universes show the mass they are given."""

import pictures
import torch


def test_sheet_between_unmoved_particles_is_smooth():
    """A lattice at rest has density 1 everywhere; a plane wave of displacements moves its mass, and keeps it."""
    q = torch.arange(16, dtype=torch.float32) * 6.25
    lattice = torch.stack(torch.meshgrid(q, q, q, indexing="ij"), -1).reshape(-1, 3)
    still = pictures.sheet_density(lattice, 100.0, depth=25.0, pixels=32, refine=4)
    torch.testing.assert_close(still, torch.ones(32, 32), rtol=0, atol=1e-3)
    moved = lattice.clone()
    moved[:, 0] -= 5 * torch.sin(2 * torch.pi * lattice[:, 0] / 100)
    dense = pictures.sheet_density(moved.remainder(100.0), 100.0, depth=25.0, pixels=32, refine=8)
    # At x = 0 the map contracts by 1 - 5 * 2 pi / 100.
    assert abs(dense[0].mean().item() * (1 - 0.1 * torch.pi) - 1) < 0.05
    assert abs(dense[16].mean().item() * (1 + 0.1 * torch.pi) - 1) < 0.05
