"""Reading and writing at places, where the places, or what they index, are counted.

Past its elements, a counted tensor of places reads place 0, and writes past the end of the dim, where what is
written is dropped. Negative places along a counted dim count from its last true element.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from torch_pjrt.graph.face import contiguous_face
from torch_pjrt.overloads import aten
from torch_pjrt.tensor import record
from torch_pjrt.tensor.counted import Roomy, count_tensor, counted, roomy
from torch_pjrt.tensor.counted_run import (
    Given,
    Key,
    Unsuited,
    Way,
    filled,
    padded_call,
    record_on,
    replacing,
    result_dims,
    rooms_of,
    tensors_of,
)
from torch_pjrt.tensor.counts import Count, recent
from torch_pjrt.tensor.padding import Padding
from torch_pjrt.tensor.view import value_of

_SELF: Key = ("self", None)

# Which tensors of places go along which dim of `self`.
PlacesOf = Callable[[Given], dict[Key, int]]


def _by_dim(given: Given) -> dict[Key, int]:
    return {("index", None): given["dim"] % max(given["self"].ndim, 1)}


def _check_sizes(given: Given) -> None:
    """Raise `Unsuited` where true sizes do not fit along a dim: PyTorch refuses, but with room they may."""
    if "dim" not in given:
        return
    x, index, dim = given["self"], given["index"], given["dim"] % max(given["self"].ndim, 1)
    if (source := given.get("source")) is not None:
        rows = [index.numel() if d == dim else n for d, n in enumerate(x.shape)]
        if list(source.shape) != rows:
            raise Unsuited
        return
    if index.ndim != x.ndim:  # places of rows, which are as long as the tensor's
        return
    held = list(x.shape)
    held[dim : dim + 1] = index.shape[dim : dim + 1]
    for sizes in (held, given.get("src", index).shape):
        if any(n > most for n, most in zip(index.shape, sizes, strict=False)):
            raise Unsuited


def _by_order(given: Given) -> dict[Key, int]:
    return {("indices", i): i for i, t in enumerate(given["indices"]) if t is not None}


def _reading(places_of: PlacesOf, *, negative: bool = False) -> Way:
    """The way of an operator that reads; `negative`: places may count from the end."""

    def way(op: Any, given: Given) -> Any:
        places, rooms = _rooms(given, places_of)
        own = rooms.get(_SELF)
        tensors = {
            key: filled(room, 0) if key in places else room.tensor() for key, room in rooms.items()
        }
        if own is not None and negative:
            _count_from_true_end(given, places, own, tensors)
        kept = [room.count for key, room in rooms.items() if key in places]
        if own is not None and own.dim not in places.values():
            kept.append(own.count)
        [dim] = result_dims(op, given, rooms)
        result = record_on(op, replacing(given, tensors))
        return result if dim is None else counted(result, dim, _the_one(kept))

    return way


def _writing(places_of: PlacesOf, *, negative: bool = False) -> Way:
    """The way of an operator that gives `self` with something written at the places."""

    def way(op: Any, given: Given) -> Any:
        places, rooms = _rooms(given, places_of)
        own = rooms.get(_SELF)
        shape = own.face.shape if own is not None else given["self"].shape
        if not given["self"].ndim:
            raise Unsuited
        tensors = {
            key: filled(room, shape[places[key]]) if key in places else room.tensor()
            for key, room in rooms.items()
        }
        if own is not None and negative:
            _count_from_true_end(given, places, own, tensors)
        if "indices" in given:
            _check_broadcast(given, rooms)
        [dim] = result_dims(op, given, rooms)
        if dim != (None if own is None else own.dim):
            raise Unsuited
        result = record_on(op, replacing(given, tensors))
        return result if own is None else counted(result, own.dim, own.count)

    return way


def _rooms(given: Given, places_of: PlacesOf) -> tuple[dict[Key, int], dict[Key, Roomy]]:
    """The places, and what is counted, with the same room wherever the counts are the same."""
    places, rooms = places_of(given), rooms_of(given, aligned=False)
    if not rooms or any(room.count.n == 0 for room in rooms.values()):
        raise Unsuited
    _check_sizes(given)
    least: dict[int, int] = {}
    for room in rooms.values():
        size = room.face.shape[room.dim]
        least[room.count.n] = min(size, least.get(room.count.n, size))
    return places, {key: room.with_room(least[room.count.n]) for key, room in rooms.items()}


def _the_one(counts: list[Count]) -> Count:
    if len({count.n for count in counts}) != 1:
        raise Unsuited
    return counts[0]


def _count_from_true_end(
    given: Given, places: dict[Key, int], own: Roomy, tensors: dict[Key, torch.Tensor]
) -> None:
    given_tensors = dict(tensors_of(given))
    for key, dim in places.items():
        if dim == own.dim and key in given_tensors:
            index = tensors.get(key, given_tensors[key])
            n = _recorded(aten.mul.Scalar, count_tensor(own.count), own.count.scale)
            from_end = _recorded(aten.add.Tensor, index, n)
            is_negative = _recorded(aten.lt.Scalar, index, 0)
            tensors[key] = _recorded(aten.where.self, is_negative, from_end, index)


def _check_broadcast(given: Given, rooms: dict[Key, Roomy]) -> None:
    """Raise `Unsuited` for values that do not have the selection's shape whatever the room."""
    if any(t is not None and t.device.type != "pjrt" for t in (*given["indices"], given["values"])):
        raise Unsuited
    for by in (0, 1):
        meta = {key: _larger(room, by) for key, room in rooms.items()}
        for key, t in tensors_of(given):
            meta.setdefault(key, torch.empty(t.shape, dtype=t.dtype, device="meta"))
        there = replacing(given, meta)
        try:
            selected = aten.index.Tensor(there["self"], there["indices"]).shape
            if torch.broadcast_shapes(selected, there["values"].shape) != selected:
                raise Unsuited
        except (IndexError, RuntimeError):
            raise Unsuited from None


def _larger(room: Roomy, by: int) -> torch.Tensor:
    shape = [n + by if d == room.dim else n for d, n in enumerate(room.face.shape)]
    return contiguous_face(tuple(shape), room.face.dtype).meta()


def _recorded(op: Any, *args: Any) -> Any:
    return record.call(op, args, {})


def _cat(op: Any, given: Given) -> Any:
    """Joined along the counted dim, each part is moved to where the true elements of those before it end."""
    tensors = list(given["tensors"])
    dim = given["dim"] % max(tensors[0].ndim, 1)
    rooms = rooms_of(given, aligned=False)
    if not rooms:
        raise Unsuited
    if all(room.dim != dim for room in rooms.values()):
        return padded_call(op, given, Padding())
    if any(room.dim != dim for room in rooms.values()):
        raise Unsuited
    given = {**given, "tensors": [t for t in tensors if t.shape != (0,)]}
    rooms = rooms_of(given, aligned=False)
    parts = [
        rooms[key].tensor() if (key := ("tensors", i)) in rooms else t
        for i, t in enumerate(given["tensors"])
    ]
    padded = {**given, "tensors": parts}
    if [dim] != list(result_dims(op, padded, dict(list(rooms.items())[:1]))):
        raise Unsuited
    result = record_on(op, padded)
    end: Any = 0
    for i, part in enumerate(parts):
        size = part.shape[dim]
        if i and not isinstance(end, int):
            places = record.call(aten.arange.default, (size,), {"dtype": torch.int64})
            places = _recorded(aten.add.Tensor, places, end)
            same = record.call(aten._to_copy.default, (part,), {"dtype": result.dtype})
            result = _recorded(aten.index_copy.default, result, dim, places, same)
        room = rooms.get(("tensors", i))
        n: Any = size
        if room is not None:
            n = _recorded(aten.mul.Scalar, count_tensor(room.count), room.count.scale)
        end = end + n if isinstance(end, int) and isinstance(n, int) else _sum(end, n)
    total = sum(t.shape[dim] for t in given["tensors"])
    count = Count(total, value_of(end), result.shape[dim])
    recent.add(count)
    return counted(result, dim, count)


def _sum(a: Any, b: Any) -> torch.Tensor:
    """Of two numbers, one of which at least is a tensor."""
    return _recorded(aten.add.Tensor, *((a, b) if isinstance(a, torch.Tensor) else (b, a)))


def _masked_scatter(op: Any, given: Given) -> Any:
    """Only as many elements of the source are taken as the mask has true ones: the room is not seen."""
    room = roomy(given["source"])
    if room is None or room.dim or len(rooms_of(given, aligned=False)) > 1:
        raise Unsuited
    return padded_call(op, given, Padding())


def _new(value: float | None) -> Way:
    """A tensor of one number. In backward it is of the size of an input: counted as the gradient may be."""

    def way(op: Any, given: Given) -> Any:
        dtype = given.get("dtype") or given["self"].dtype
        number = given["fill_value"] if value is None else value
        size = list(given["size"])
        room = roomy(given["self"])
        is_like = room is not None and size[room.dim : room.dim + 1] == [room.count.n] != [1]
        if room is None or not is_like or torch._C._current_graph_task_id() == -1:
            return record.call(aten.full.default, (size, number), {"dtype": dtype})
        size[room.dim] = room.face.shape[room.dim]
        padded = record.call(aten.full.default, (size, number), {"dtype": dtype})
        return counted(padded, room.dim, room.count)

    return way


WAYS: dict[Any, Way] = {
    aten.cat.default: _cat,
    aten.gather.default: _reading(_by_dim),
    aten.index.Tensor: _reading(_by_order, negative=True),
    aten._unsafe_index.Tensor: _reading(_by_order, negative=True),
    aten.index_select.default: _reading(_by_dim),
    aten.index_put.default: _writing(_by_order, negative=True),
    aten._unsafe_index_put.default: _writing(_by_order, negative=True),
    **dict.fromkeys(
        (
            aten.index_add.default,
            aten.index_copy.default,
            aten.index_fill.int_Scalar,
            aten.scatter.src,
            aten.scatter.value,
            aten.scatter_add.default,
            aten.scatter_reduce.two,
        ),
        _writing(_by_dim),
    ),
    aten.masked_scatter.default: _masked_scatter,
    aten.new_empty.default: _new(0),
    aten.new_full.default: _new(None),
    aten.new_ones.default: _new(1),
    aten.new_zeros.default: _new(0),
}
