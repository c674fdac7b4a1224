"""f_lm -> E0, E1, E2, I3, eqs. 6-7: four numbers a voxel that do not change when the box is turned."""

from math import pi, sqrt

import torch

NAMES = ("E0", "E1", "E2", "I3")  # the first 1, 2 or all 4 for l_max = 0, 1, 2
EPSILON = 1e-9
# Q = sum_m f_2m B_m with Tr(B_m B_m') = 15 / (8 pi) delta_mm': the entries are ALPHA times the maps.
ALPHA = sqrt(15 / (16 * pi))


def quadrupole(f_2m):
    """(Q_xx, Q_yy, Q_zz, Q_xy, Q_yz, Q_xz) of the traceless symmetric tensor of the five maps m = -2 ... 2."""
    xy, yz, zz, xz, diagonal = (ALPHA * f for f in f_2m)
    zz = zz / sqrt(3)
    return diagonal - zz, -diagonal - zz, 2 * zz, xy, yz, xz


def invariants(f_lm):
    """E0 = f_00, E1 = |f_1m|, E2 = sqrt(Tr Q^2), I3 = Tr(Q^3) / E2^3, as a dict of maps.

    Q is minus a tidal-like tensor (i^2 = -1 in eq. 5), so I3 > 0 in filaments and I3 < 0 in sheets; |I3| <= 1/sqrt(6).

    Parameters
    ----------
    f_lm : 1, 4 or 9 maps of one shape, l = 0, 1, 2 and m = -l ... l.
    """
    maps = {"E0": f_lm[0]}
    if len(f_lm) > 1:
        maps["E1"] = torch.sqrt(sum(f**2 for f in f_lm[1:4]) + EPSILON)
    if len(f_lm) > 4:
        xx, yy, zz, xy, yz, xz = quadrupole(f_lm[4:])
        maps["E2"] = torch.sqrt(2 * ALPHA**2 * sum(f**2 for f in f_lm[4:]) + EPSILON)
        # Tr(Q^3) = 3 det(Q) for a traceless tensor.
        det = xx * (yy * zz - yz**2) - xy * (xy * zz - yz * xz) + xz * (xy * yz - yy * xz)
        maps["I3"] = 3 * det / (maps["E2"] ** 3 + EPSILON)
    return maps


def mlp_inputs(maps):
    """What the MLPs see: sgn(x) log(1 + |x|) of E0, log(1 + x) of E1 and E2, I3 as it is."""
    squeeze = {"E0": lambda x: x.sign() * x.abs().log1p(), "E1": torch.log1p, "E2": torch.log1p, "I3": lambda x: x}
    return {name: squeeze[name](x) for name, x in maps.items()}
