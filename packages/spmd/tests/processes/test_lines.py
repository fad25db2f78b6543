"""Where groups lie among the ranks of a run: lines of a grid, or none. Meshes and groups are random."""

from __future__ import annotations

import random

import numpy as np
import pytest

from torch_pjrt_spmd.distributed.lines import Ground, ground_of, steps_of


def _random_mesh(chance: random.Random) -> tuple[np.ndarray, tuple[int, ...]]:
    """Numbers of ranks as a mesh has them, and where one of them is."""
    shape = [chance.randint(1, 4) for _ in range(chance.randint(1, 4))]
    mesh = np.arange(np.prod(shape)).reshape(shape) + chance.choice((0, 0, 7))
    return mesh, tuple(chance.randrange(n) for n in shape)


def _through(mesh: np.ndarray, own: tuple[int, ...], dims: set[int]) -> tuple[int, ...]:
    """The ranks along these dims of a mesh, flattened."""
    at = tuple(slice(None) if d in dims else i for d, i in enumerate(own))
    return tuple(int(rank) for rank in mesh[at].flatten())


def test_groups_along_dims_of_meshes_are_lines_of_the_least_grid_of_these_dims():
    chance, tried = random.Random(0), 0
    for _ in range(2000):
        mesh, own = _random_mesh(chance)
        chosen = [{d for d in range(mesh.ndim) if chance.random() < 0.5} for _ in range(3)]
        groups = [_through(mesh, own, dims) for dims in chosen]
        groups = [ranks for ranks in groups if len(ranks) > 1]
        if not groups:
            continue
        tried += 1

        ground = ground_of(int(mesh[own]), groups)

        assert ground is not None
        assert ground.ranks == _through(mesh, own, set().union(*chosen))
        for ranks in groups:
            lines = ground.parallel(ranks)
            assert ranks in lines
            assert sorted(rank for line in lines for rank in line) == list(ground.ranks)
    assert tried > 1500


def test_groups_of_any_ranks_are_lines_of_a_grid_or_of_none():
    chance, found = random.Random(1), 0
    for _ in range(20_000):
        own = chance.randrange(9)
        groups = [
            tuple(sorted({own, *chance.sample(range(9), chance.randint(1, 4))})) for _ in range(2)
        ]
        ground = ground_of(own, [ranks for ranks in groups if len(ranks) > 1] or [(0, 1, 3)])
        if ground is not None:
            found += 1
            assert len(set(ground.ranks)) == len(ground.ranks)
            for ranks in groups:
                assert len(ranks) == 1 or ranks in ground.parallel(ranks)
    assert found > 1000


@pytest.mark.parametrize(
    "groups",
    [
        [(0, 1), (1, 2)],  # two lines along one axis
        [(0, 1, 2), (0, 2)],
        [(0, 1, 3), (0, 2)],
        [(1, 0), (0, 2)],
    ],
)
def test_what_is_no_grid(groups: list[tuple[int, ...]]):
    assert ground_of(set(groups[0]).intersection(groups[1]).pop(), groups) is None


def test_strides_of_a_group():
    assert steps_of((3, 5, 7, 9)) == ((2, 4),)
    assert steps_of((0, 1, 8, 9)) == ((8, 2), (1, 2))
    assert steps_of((5,)) == steps_of((0, 1, 3)) == steps_of((2, 1)) == ()
    assert ground_of(2, [(0, 2), (2, 3)]) == Ground((0, 1, 2, 3), ((2, 2), (1, 2)))
