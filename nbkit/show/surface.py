"""Surfaces of equal value of a field as triangles, by marching tetrahedra, with another field carried along."""

from itertools import combinations, permutations
from typing import NamedTuple

import numpy as np


class Surface(NamedTuple):
    """Triangles that face the lower values."""

    points: np.ndarray  # (v, 3) in cells: point (1, 0, 0) is the centre of the second cell along x
    faces: np.ndarray  # (f, 3) indices of points
    values: np.ndarray  # (v,) of the carried field


# Six tetrahedra fill a cube: walk from corner 0 to corner 7 along the axes in each order. Neighbouring cubes agree.
TETRAHEDRA = [[0, 1 << a, (1 << a) | (1 << b), 7] for a, b, _ in permutations(range(3))]


def isosurface(field, level, carried):
    """The Surface where a field (n, m, o) equals a level, and a carried field of that shape on it; not periodic."""
    shape = field.shape
    flat, carried = np.asarray(field, np.float64).ravel(), np.asarray(carried, np.float64).ravel()
    first = np.stack(np.meshgrid(*(np.arange(n - 1) for n in shape), indexing="ij"), -1).reshape(-1, 3)
    corner = np.stack([first + np.array([c & 1, c >> 1 & 1, c >> 2]) for c in range(8)])
    corner = np.ravel_multi_index(np.moveaxis(corner, -1, 0), shape)
    # A cut is a lattice edge, as (inside, outside) point; each triangle has three.
    triangles = [part for tetrahedron in TETRAHEDRA for part in _cuts(corner[tetrahedron], flat >= level)]
    triangles = np.concatenate(triangles) if triangles else np.zeros((0, 3, 2), int)
    edges, faces = np.unique(triangles.reshape(-1, 2), axis=0, return_inverse=True)
    inside, outside = edges.T
    t = (level - flat[inside]) / (flat[outside] - flat[inside])
    at = [np.stack(np.unravel_index(ends, shape), -1).astype(float) for ends in (inside, outside)]
    points = at[0] + t[:, None] * (at[1] - at[0])
    faces = faces.reshape(-1, 3)
    normal = np.cross(*(points[faces[:, i]] - points[faces[:, 0]] for i in (1, 2)))
    outwards = (at[1] - at[0])[faces].sum(1)
    faces = np.where((normal * outwards).sum(1, keepdims=True) < 0, faces[:, ::-1], faces)
    return Surface(points, faces, carried[inside] + t * (carried[outside] - carried[inside]))


def _cuts(corners, high):
    """Triangles (f, 3, 2) between the high and the low corners (4, c) of many tetrahedra."""
    above = high[corners]
    for count in (1, 2, 3):
        for chosen in combinations(range(4), count):
            others = [c for c in range(4) if c not in chosen]
            here = above[list(chosen)].all(0) & ~above[others].any(0)
            if not here.any():
                continue
            ring = [(a, b) for a in chosen for b in others]
            if count == 2:
                ring = [ring[0], ring[1], ring[3], ring[2]]
            cut = np.stack([corners[list(edge)][:, here] for edge in ring]).transpose(2, 0, 1)
            yield cut[:, :3]
            if count == 2:
                yield cut[:, [0, 2, 3]]
