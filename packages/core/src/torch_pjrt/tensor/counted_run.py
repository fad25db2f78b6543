"""Recording an operator on tensors with room: filled as the table says, its results given their true size.

Where the counted dim went, shapes say: the meta function is asked for two sizes of the room.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from torch_pjrt import operators
from torch_pjrt.compile.abstract import Pattern, results_of_rule
from torch_pjrt.errors import TorchPjrtError
from torch_pjrt.graph.face import Face, contiguous_face
from torch_pjrt.graph.signature import Slot, hashable
from torch_pjrt.lowering.table import Lowering
from torch_pjrt.run.client import client
from torch_pjrt.tensor import record
from torch_pjrt.tensor.buffer import buffer_of, is_pjrt
from torch_pjrt.tensor.counted import (
    Roomy,
    count_tensor,
    counted,
    expanded,
    resized,
    roomy,
)
from torch_pjrt.tensor.counts import Count, is_counted, recent
from torch_pjrt.tensor.padding import Padding, is_pointwise
from torch_pjrt.tensor.schema import Kind, plan_of

Given = dict[str, Any]  # the arguments of a functional overload, by name
Key = tuple[str, int | None]  # an argument's name, and the place in it if it is a list
Way = Callable[[Any, Given], Any]


class Unsuited(Exception):
    """The call cannot be done on the room."""


@contextmanager
def as_ordinary() -> Iterator[None]:
    """Within this, no size is taken to be a count."""
    hidden = recent.hide()
    try:
        yield
    finally:
        recent.restore(hidden)


def padded_call(op: Any, given: Given, padding: Padding) -> Any:
    rooms = rooms_of(given, aligned=is_pointwise(op))
    if not rooms:
        raise Unsuited
    counts = {room.count.n for room in rooms.values()}
    if len(counts) > 1:
        raise Unsuited
    [n] = counts
    if n == 0 and not is_pointwise(op):
        raise Unsuited  # PyTorch refuses some folds of nothing
    least = min(room.face.shape[room.dim] for room in rooms.values())
    rooms = {key: room.with_room(least) for key, room in rooms.items()}
    count = next(iter(rooms.values())).count
    return run(op, given, rooms, padding, lambda out: count)


def run(
    op: Any,
    given: Given,
    rooms: dict[Key, Roomy],
    padding: Padding,
    count_of: Callable[[int], Count],
) -> Any:
    """Record the operator on filled tensors, and give the results that still have room their true size."""
    dims = {name: room.dim for (name, _), room in rooms.items()}
    if not padding.suits(given, dims):
        raise Unsuited
    where = result_dims(op, given, rooms)
    fills = dict(padding.always)
    if padding.fills and (None in where or padding.mixes(given, dims)):
        fills.update(padding.fills)
    tensors: dict[Key, torch.Tensor] = {}
    for key, room in rooms.items():
        fill = fills.get(key[0])
        if fill is None:
            tensors[key] = room.tensor()
        else:
            value = fill(room.face.dtype, given) if callable(fill) else fill
            tensors[key] = filled(room, value)
    results = record_on(op, replacing(given, tensors))
    is_one = isinstance(results, torch.Tensor)
    whole = [
        r if dim is None or r is None else counted(r, dim, count_of(i))
        for i, (r, dim) in enumerate(zip([results] if is_one else results, where, strict=True))
    ]
    return whole[0] if is_one else type(results)(whole)


def record_on(op: Any, given: Given) -> Any:
    """Record the functional overload on ordinary tensors."""
    arguments = plan_of(op).arguments
    positional = tuple(given[a.name] for a in arguments if not a.keyword_only)
    named = {a.name: given[a.name] for a in arguments if a.keyword_only}
    with as_ordinary():
        try:
            return record.call(op, positional, named)
        except TorchPjrtError:
            raise
        except (IndexError, RuntimeError, TypeError, ValueError) as error:
            raise Unsuited from error  # PyTorch's words are about true sizes


def filled(room: Roomy, value: float) -> torch.Tensor:
    """An ordinary tensor of the room's size with `value` past the true elements."""
    count = room.count
    args = (room.tensor(), count_tensor(count), room.dim, count.scale, value)
    return record.call(operators.fill_rest, args, {})


def with_rest(tensor: torch.Tensor, value: float) -> torch.Tensor:
    """A counted tensor's elements, and `value` past them, as an ordinary one; itself if it has no room."""
    room = roomy(tensor)
    return tensor if room is None else filled(room, value)


def tensors_of(given: Given) -> Iterator[tuple[Key, torch.Tensor]]:
    for name, x in given.items():
        if is_pjrt(x):
            yield (name, None), x
        elif isinstance(x, (list, tuple)):
            yield from (((name, i), t) for i, t in enumerate(x) if is_pjrt(t))


def replacing(given: Given, tensors: dict[Key, torch.Tensor]) -> Given:
    """The arguments with some tensors replaced."""
    result = dict(given)
    for (name, place), tensor in tensors.items():
        if place is None:
            result[name] = tensor
        else:
            items = list(result[name])
            items[place] = tensor
            result[name] = items
    return result


def rooms_of(given: Given, *, aligned: bool) -> dict[Key, Roomy]:
    """The counted tensors with their room; so are those that repeat one element as often as was counted.

    Raises `Unsuited` for a counted tensor that has lost its room. `aligned`: arguments are broadcast.
    """
    rooms: dict[Key, Roomy] = {}
    others: list[tuple[Key, torch.Tensor]] = []
    for key, tensor in tensors_of(given):
        if is_counted(buffer_of(tensor)):
            room = roomy(tensor)
            if room is None:
                raise Unsuited
            rooms[key] = room
        else:
            others.append((key, tensor))
    known = list(rooms.values())
    if not known and torch._C._current_graph_task_id() == -1:
        return {}
    for key, tensor in others:
        room = _repeated(tensor, known, aligned=aligned)
        if room is not None:
            rooms[key] = room
            known = known or [room]
    return rooms


def _repeated(tensor: torch.Tensor, known: list[Roomy], *, aligned: bool) -> Roomy | None:
    """A tensor that repeats one element as often as a known one has elements, or as was lately counted."""
    for dim, (size, stride) in enumerate(zip(tensor.shape, tensor.stride(), strict=True)):
        if stride != 0:
            continue
        counts = [
            room.count
            for room in known
            if not aligned or len(room.face.shape) - room.dim == tensor.ndim - dim
        ]
        if not known and size in recent.by_size:
            counts = [recent.by_size[size]]
        for count in counts:
            if (room := expanded(tensor, dim, count)) is not None:
                return room
    return None


# Where the counted dim of the arguments went.

_where: dict[Any, tuple[int | None, ...] | None] = {}


def result_dims(op: Any, given: Given, rooms: dict[Key, Roomy]) -> tuple[int | None, ...]:
    """For each result, the dim along which it has room, or None. Raises `Unsuited` if that is not clear."""
    looks = tuple(
        (key, room.face, room.dim)
        if (room := rooms.get(key)) is not None
        else (key, tuple(t.shape), t.stride(), t.dtype)
        for key, t in tensors_of(given)
    )
    rest = tuple(
        x.__class__ if a.kind is Kind.NUMBER else hashable(_without_tensors(x))
        for a in plan_of(op).arguments
        if not is_pjrt(x := given[a.name])
    )
    key = (op, looks, rest, torch.get_default_dtype())
    if key not in _where:
        _where[key] = _asked(op, given, rooms)
    where = _where[key]
    if where is None:
        raise Unsuited
    return where


def _without_tensors(x: Any) -> Any:
    if isinstance(x, (list, tuple)):
        return tuple(_without_tensors(i) for i in x)
    return "a tensor" if isinstance(x, torch.Tensor) else x


def _asked(op: Any, given: Given, rooms: dict[Key, Roomy]) -> tuple[int | None, ...] | None:
    try:
        here, there = (_shapes(op, given, rooms, by) for by in (0, 1))
    except Exception:  # whatever a meta function raises: the call on the true elements tells
        return None
    where: list[int | None] = []
    for a, b in zip(here, there, strict=True):
        if a is None or b is None:
            where.append(None)
            continue
        changed = [d for d, (m, n) in enumerate(zip(a, b, strict=True)) if m != n]
        if len(changed) > 1 or any(b[d] - a[d] != 1 for d in changed):
            return None
        where.append(changed[0] if changed else None)
    return tuple(where)


def _shapes(
    op: Any, given: Given, rooms: dict[Key, Roomy], by: int
) -> list[tuple[int, ...] | None]:
    """The shapes of the results with the rooms larger by so much."""
    meta = {
        key: (
            resized(_dense(room), room.dim, room.face.shape[room.dim] + by).meta()
            if (room := rooms.get(key)) is not None
            else torch.empty_strided(t.shape, t.stride(), dtype=t.dtype, device="meta")
        )
        for key, t in tensors_of(given)
    }
    arguments = plan_of(op).arguments
    replaced_ = replacing(given, meta)
    positional = [replaced_[a.name] for a in arguments if not a.keyword_only]
    named = {a.name: replaced_[a.name] for a in arguments if a.keyword_only}
    if named.get("device") is not None:
        named["device"] = torch.device("meta")
    shapes = _shapes_of(op(*positional, **named))
    lowering = client().lowerings.get(op)
    if by and lowering is not None and _shapes_of(_by_rule(op, lowering, replaced_)) != shapes:
        raise Unsuited
    return shapes


def _shapes_of(results: Any) -> list[tuple[int, ...] | None]:
    if isinstance(results, torch.Tensor):
        results = [results]
    return [None if r is None else tuple(r.shape) for r in results]


def _by_rule(op: Any, lowering: Lowering, given: Given) -> Any:
    """What the rule makes of meta tensors: it looks at shapes that meta functions take on trust."""
    faces: list[Face] = []

    def slotted(x: Any) -> Any:
        if isinstance(x, (list, tuple)):
            return tuple(slotted(i) for i in x)
        if not isinstance(x, torch.Tensor):
            return x
        faces.append(contiguous_face(tuple(x.shape), x.dtype))
        return Slot(len(faces) - 1)

    arguments = [a for a in plan_of(op).arguments if a.kind is not Kind.DROPPED]
    args = tuple([slotted(given[a.name]) for a in arguments if not a.keyword_only])
    kwargs = {a.name: slotted(given[a.name]) for a in arguments if a.keyword_only}
    return results_of_rule(lowering, Pattern(faces, args, kwargs))


def _dense(room: Roomy) -> Face:
    return room.face if room.face.dense else contiguous_face(room.face.shape, room.face.dtype)
