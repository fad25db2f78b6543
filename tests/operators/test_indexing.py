"""Indexing takes and sets what it does on CPU, with everything that Python allows between the brackets."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from as_on_cpu import assert_as_on_cpu, outcome

Tensor = torch.Tensor
everything = slice(None)


def at(positions: object, dtype: torch.dtype | None = None) -> Callable[[str], Tensor]:
    """A tensor of indices, or a mask, on the device."""
    return lambda device: torch.tensor(positions, dtype=dtype, device=device)


def on_host(positions: object) -> Callable[[str], Tensor]:
    return lambda device: torch.tensor(positions)


def made(index: Any, device: str) -> Any:
    """The index with the tensors in it made."""
    if isinstance(index, (list, tuple)):
        return type(index)(made(i, device) for i in index)
    return index(device) if callable(index) else index


T, F = True, False
none = at([], torch.int64)

# Of a tensor of 3 x 4 x 2.
INDICES: list[Any] = [
    # numbers
    0, -1, 3, -4, (0, 1), (0, 1, 1), (0, -5), (0, 0, 0, 0), (everything, 0), (0, everything),
    np.int64(1), np.int32(-1), np.array(1), (np.int64(0), everything), 1.0, 1j, 10**20, np.float32(1),
    at(1), at(-1), at(5), at(-4), (0, at(3)), (0, at(7)), at(1, torch.uint8), at(1, torch.int8),
    # slices
    everything, slice(1, None), slice(None, None, 2), slice(2, 1), slice(-2, None), slice(-9, 9),
    slice(None, None, -1), slice(0, 3, 0), slice(1.5, 2), slice(0, 10**12), slice(at(1), at(3)),
    (everything, slice(None, None, 2), 1), (slice(1, None), None, slice(None, 2)), (everything,) * 4,
    # None, ... and bools
    None, ..., (), (..., 0), (0, ...), (None, 0), (0, None), (..., None), (None, ..., None), (None, None),
    (..., 0, ...), T, F, (T, 0), (0, T), (everything, T), (F,), (T, T), (at(T), 0), at(T), at(F), np.bool_(T),
    # lists and what is like them
    [0, 1], [0, -1, 0], [[0, 1], [1, 2]], [T, F, T], [], ([],), ([0, 1], [1, 2]), (everything, [0, 1], 0),
    ([0, 1], everything, [1, 0]), (everything, [0, 1], [1, 0]), (0, everything, [0, 1]), ([0], everything, 0),
    ([[0], [1]], [0, 1]), ([0, 1], None, [0, 1]), (None, [0, 1]), (..., [0, 1]), ([0, 1], ...),
    (..., [0, 1], None), ([0, 1], ..., [1, 0]), ((0, 1),), ((0, 1), (1, 0)), range(2), (range(2), 0),
    np.array([0, 2]), np.array([T, F, T]), (np.array([0, 1]), np.array([[0], [1]])), np.array([0.5]),
    (0, np.array([0, 2])), np.array([[0, 1], [1, 2]]), [at(0), at(1)], [at([0, 1]), at([1, 2])],
    [everything, 0], [None, 0], [...], [5], [-4], (everything, [9]), ([0, 1], [9, 0]), "a", (0, "a"),
    # tensors
    at([0, 2]), at([[0, 2]]), at([-1]), at([0, 2], torch.int32), at([0, 2], torch.int16),
    at([0, 2], torch.int8), at([0.0, 1.0]), none, (none, 0), at([], torch.float32), (at([0, 2]), at([0, 1])),
    (at([0, 2]), at([[0], [1]])), (at([0, 2]), at([0, 1, 2])), (at([0, 2]), everything, at([0, 1])),
    (everything, at([0, 2]), at([0, 1])), (at(1), at([0, 1])), (at(1), everything, 0), (0, at([0, 1])),
    (0, everything, at([0, 1])), (at([0, 1]), 0), (at([0, 1]), None, at([0, 1])), (at(0), at(0), at(0)),
    (at([0]),) * 4, (..., at([0, 1])), (None, at([0, 2])), (at([0, 2]), None), (at([0, 2]), slice(1, None)),
    (slice(None, None, 2), at([0, 1])), (at([5]),), on_host([0, 2]), (on_host([0, 2]), on_host([0, 1])),
    (on_host([0, 2]), at([0, 1])), on_host(1),
    # masks
    at([T, F, T]), at([F, F, F]), at([T, F]), at([[T] * 4] * 3), at([[T, F, T, T], [F] * 4, [T] * 4]),
    (at([T, F, T]), 0), (at([T, F, T]), at([0, 1])), (at([T, F, T]), everything, at([0, 1])),
    (at([T, F, T]), everything, at([0])), (everything, at([T, F, T, F])), (everything, at([[T] * 3] * 4)),
    (at([T, F, T]), at([T, T, F, F])), (at([T, F, T]), at([T, T, T, F])), (at(T), everything, at([0, 1])),
    on_host([T, F, T]), at([1, 0], torch.uint8),
]  # fmt: skip

BASES: dict[str, Callable[[str], Tensor]] = {
    "contiguous": lambda d: torch.arange(24.0).reshape(3, 4, 2).clone().to(d),
    "view": lambda d: torch.arange(48).reshape(2, 4, 6).to(d).permute(2, 1, 0)[::2],
}
VALUES: dict[str, Callable[[str], Any]] = {
    "a number": lambda d: 7,
    "a float": lambda d: 2.5,
    "a bool": lambda d: True,
    "complex": lambda d: 1j,
    "a tensor": lambda d: torch.tensor([8.0, 9.0], device=d),
    "a scalar tensor": lambda d: torch.tensor(5.0, device=d),
    "a scalar of the host": lambda d: torch.tensor(5.0),
    "a scalar of float64": lambda d: torch.tensor(5.0, dtype=torch.float64, device=d),
    "another dtype": lambda d: torch.tensor([8, 9], device=d),
    "too many": lambda d: torch.ones(5, 7, device=d),
    "leading ones": lambda d: torch.full((1, 1, 1, 1, 2), 3.0, device=d),
    "of a graph": lambda d: torch.tensor([8.0, 9.0], device=d, requires_grad=True) * 1,
    "a view of itself": lambda d: None,
    "an array": lambda d: np.array([8, 9]),
    "a list": lambda d: [8, 9],
    "nothing": lambda d: None,
}
POSITIONS: list[Any] = [
    0, ..., slice(1, None), [0, 1], at([0, 2]), at([T, F, T]), (everything, 0), (0, 0, 0), True, F, [],
]  # fmt: skip


def outcome_of_take(base: str, index: Any, device: str) -> Any:
    def take(device: str) -> object:
        x = BASES[base](device)
        return x[made(index, device)], x

    return outcome(take, device)


@pytest.mark.slow("rows")
@pytest.mark.parametrize("base", BASES)
def test_getitem_gives_what_it_gives_on_cpu(base: str) -> None:
    for index in INDICES:
        ours, theirs = (outcome_of_take(base, index, d) for d in ("pjrt", "cpu"))
        for told in (ours, theirs):
            if (isinstance(told[0], dict) and 0 in told[0]["shape"]) or _leads_with_none(index):
                told[0].pop("strides")
        assert ours == theirs, f"[{made(index, 'cpu')}]\n{ours}\non CPU\n{theirs}"


def _leads_with_none(index: Any) -> bool:
    """And has a tensor behind it: the order of the strides is PyTorch's meta function's."""
    return (
        isinstance(index, tuple)
        and len(index) == 2
        and index[0] is None
        and not isinstance(index[1], int)
        and index[1] is not None
    )


@pytest.mark.slow("rows")
@pytest.mark.parametrize("base", BASES)
def test_setitem_sets_what_it_sets_on_cpu(base: str) -> None:
    for index in INDICES:

        def put(device: str, index: Any = index) -> object:
            x = BASES[base](device)
            view = x[1:]
            x[made(index, device)] = 7
            return x, view

        ours, theirs = outcome(put, "pjrt"), outcome(put, "cpu")
        assert ours == theirs, f"[{made(index, 'cpu')}] = 7\n{ours}\non CPU\n{theirs}"


@pytest.mark.parametrize("value", VALUES)
def test_setitem_takes_the_values_that_it_takes_on_cpu(value: str) -> None:
    for index in POSITIONS:

        def put(device: str, index: Any = index) -> object:
            x = BASES["contiguous"](device)
            x[made(index, device)] = x[0, 0] if "itself" in value else VALUES[value](device)
            return x

        ours, theirs = outcome(put, "pjrt"), outcome(put, "cpu")
        assert ours == theirs, f"[{made(index, 'cpu')}] = {value}\n{ours}\non CPU\n{theirs}"


# Between host and device: a copy goes either way, but at indices values of the same device are put.
TRANSFERS: dict[str, Callable[[], Any]] = {
    "a part from the host": lambda: _set(torch.zeros(3, device="pjrt"), slice(1, 3), torch.ones(2)),
    "a part to the host": lambda: _set(torch.zeros(3), slice(1, 3), torch.ones(2, device="pjrt")),
    "an element from the host": lambda: _set(torch.zeros(3, device="pjrt"), 1, torch.tensor(1.0)),
    "an element to the host": lambda: _set(torch.zeros(3), 1, torch.tensor(1.0, device="pjrt")),
    "a scalar to indices": lambda: _set(torch.zeros(3, device="pjrt"), [0, 2], torch.tensor(1.0)),
    "a scalar by a mask": lambda: _set(
        torch.zeros(2, device="pjrt"), torch.tensor([True, False]), torch.tensor(1.0)
    ),
}


def _set(x: Tensor, index: Any, value: Tensor) -> Any:
    x[index] = value
    return x.tolist()


@pytest.mark.parametrize(
    ("name", "expected"),
    list(
        zip(
            TRANSFERS,
            [[0, 1, 1], [0, 1, 1], [0, 1, 0], [0, 1, 0], [1, 0, 1], [1, 0]],
            strict=True,
        )
    ),
)
def test_value_of_another_device_is_copied(name: str, expected: list[float]) -> None:
    assert TRANSFERS[name]() == expected


def test_at_indices_no_vector_of_another_device_is_put() -> None:
    x = torch.zeros(3, device="pjrt")

    with pytest.raises(RuntimeError, match="same device"):
        x[[0, 2]] = torch.ones(2)


def vector(d: str) -> Tensor:
    return torch.arange(6.0).clone().to(d)


def grid(d: str) -> Tensor:
    return torch.arange(12.0).reshape(3, 4).clone().to(d)


# What indexes by name.
OPERATORS: dict[str, Callable[[str], object]] = {
    "take": lambda d: grid(d).take(at([[0, -1], [5, 3]])(d)),
    "take of a view": lambda d: grid(d).t().take(at([1, 2])(d)),
    "take of int32": lambda d: grid(d).take(at([1], torch.int32)(d)),
    "take of nothing": lambda d: grid(d).take(none(d)),
    "take_along_dim": lambda d: grid(d).take_along_dim(at([[0], [1], [0]])(d), 1),
    "take_along_dim, flat": lambda d: grid(d).take_along_dim(at([0, 11])(d)),
    "take_along_dim, broadcast": lambda d: grid(d).take_along_dim(at([[2]])(d), 0),
    "take_along_dim by argsort": lambda d: (x := -grid(d)).take_along_dim(x.argsort(1), 1),
    "put_": lambda d: grid(d).put_(at([0, -1])(d), vector(d)[3:5]),
    "put_, added": lambda d: grid(d).put_(at([0, 0, 1])(d), vector(d)[3:], accumulate=True),
    "put_ to a view": lambda d: _written(grid(d), lambda x: x.t().put_(at([1])(d), vector(d)[5:])),
    "put_ of a number of values": lambda d: grid(d).put_(at([0, 1])(d), vector(d)),
    "index_fill": lambda d: grid(d).index_fill(1, at([0, -1])(d), 9),
    "index_fill of a tensor": lambda d: grid(d).index_fill(1, at([0])(d), torch.tensor(9.0, device=d)),
    "index_fill_ of a view": lambda d: _written(grid(d), lambda x: x.t().index_fill_(0, at([1])(d), 5)),
    "index_fill of a vector": lambda d: grid(d).index_fill(0, at([0])(d), vector(d)),
    "index_fill of a dim": lambda d: grid(d).index_fill(2, at([0])(d), 1),
    "index_select": lambda d: grid(d).index_select(1, at([3, 0, 3])(d)),
    "index_select of a view": lambda d: grid(d).t().index_select(0, at([3], torch.int32)(d)),
    "index_select by a matrix": lambda d: grid(d).index_select(0, at([[0]])(d)),
    "index_add_": lambda d: grid(d).index_add_(0, at([1, 1])(d), grid(d)[:2], alpha=2),
    "index_add_ to a view": lambda d: _written(
        grid(d), lambda x: x.t().index_add_(0, at([1])(d), grid(d)[:1, :3])
    ),
    "index_add of a dtype": lambda d: grid(d).index_add(0, at([1])(d), grid(d)[:1].double()),
    "index_copy_": lambda d: grid(d).index_copy_(0, at([2, 0])(d), grid(d)[:2]),
    "index_put_, added": lambda d: grid(d).index_put_(
        (at([0, 0])(d),), torch.ones(2, 4, device=d), accumulate=True
    ),
    "index_put_ of views": lambda d: _written(
        grid(d), lambda x: x[1:].t().index_put_((at([0])(d), at([1])(d)), torch.tensor(5.0, device=d))
    ),
    "index_put_ by nothing": lambda d: grid(d).index_put_((), torch.tensor(1.0, device=d)),
    "index_put of a dtype": lambda d: grid(d).index_put((at([0])(d),), at(1)(d)),
    "masked_select": lambda d: grid(d).masked_select(grid(d) > 5),
    "masked_fill_ of a view": lambda d: _written(grid(d), lambda x: x[1].masked_fill_(x[1] > 5, 0.0)),
    "masked_scatter_": lambda d: grid(d).masked_scatter_(grid(d) > 5, -grid(d)),
    "gather": lambda d: grid(d).gather(1, at([[0, 3], [1, 1]])(d)),
    "gather of a dim": lambda d: grid(d).gather(2, at([[0]])(d)),
    "gather of too many": lambda d: grid(d).gather(0, torch.zeros(3, 5, dtype=torch.int64, device=d)),
    "scatter_": lambda d: grid(d).scatter_(1, at([[0, 3], [1, 1]])(d), 9.0),
    "select_scatter": lambda d: grid(d).select_scatter(vector(d)[:4], 0, -1),
    "slice_scatter": lambda d: grid(d).slice_scatter(grid(d)[:1], 0, 1, 2),
    "diagonal_scatter": lambda d: grid(d).diagonal_scatter(vector(d)[:3]),
    "as_strided_scatter": lambda d: grid(d).as_strided_scatter(vector(d)[:2], (2,), (5,), 1),
    "len, in, iteration": lambda d: [len(grid(d)), 3.0 in grid(d), list(grid(d)), *grid(d)[0].tolist()],
    "delete": lambda d: grid(d).__delitem__(0),  # type: ignore[attr-defined]
    "augmented": lambda d: _augmented(grid(d), at([0, 0, 1])(d)),
    "of a 0-d tensor": lambda d: [at(5)(d)[...], at(5)(d)[None], at(5)(d)[()], at(5)(d)[True]],
    "of a 0-d tensor by a number": lambda d: at(5)(d)[0],
    "set of a 0-d tensor": lambda d: _written(at(5)(d), lambda x: x.__setitem__((), 7)),
    "set of a 0-d tensor by a mask": lambda d: _written(at(5)(d), lambda x: x.__setitem__(x > 3, 7)),
    "of nothing": lambda d: torch.zeros(0, 3, device=d)[none(d)],
    "out of nothing": lambda d: torch.zeros(0, 3, device=d)[at([0])(d)],
    "a number as an index": lambda d: [10, 20, 30][at(1)(d)],
    "a range of a tensor": lambda d: list(range(at(3)(d))),
}  # fmt: skip


def _written(x: Tensor, write: Callable[[Tensor], object]) -> Tensor:
    write(x)
    return x


def _augmented(x: Tensor, index: Tensor) -> Tensor:
    x[index] += 1
    x[1:, ::2] *= 2
    x[0] -= x[1]
    return x


@pytest.mark.parametrize("name", OPERATORS)
@pytest.mark.filterwarnings("ignore:.*runs on the CPU:UserWarning")
def test_operator_that_indexes_does_what_it_does_on_cpu(name: str) -> None:
    assert_as_on_cpu(OPERATORS[name])
