"""Recording an operator on tensors with padding: filled as the table says, its results given their true size.

Where the padded dim went, shapes say: the meta function is asked for two capacities.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from torch_pjrt import operators
from torch_pjrt.caches import Cache
from torch_pjrt.client.client import client
from torch_pjrt.compile.abstract import Pattern, results_of_rule
from torch_pjrt.errors import TorchPjrtError
from torch_pjrt.graph.signature import Slot, hashable
from torch_pjrt.graph.tensor_spec import TensorSpec, contiguous_spec
from torch_pjrt.lowering.table import Lowering
from torch_pjrt.overloads import aten
from torch_pjrt.tensor.padding.dims import Dim, Unsuited, has_padding, packed
from torch_pjrt.tensor.padding.padded import (
    PaddedView,
    count_tensor,
    expanded,
    padded_view,
    with_count,
    with_size,
)
from torch_pjrt.tensor.padding.padded_call import PaddedCall, Sized
from torch_pjrt.tensor.padding.rules import is_pointwise
from torch_pjrt.tensor.recording import record
from torch_pjrt.tensor.recording.schema import Kind, plan_of
from torch_pjrt.tensor.storage.buffer import buffer_of, is_pjrt
from torch_pjrt.tensor.storage.counts import Count, is_data_dependent, recent
from torch_pjrt.tensor.storage.padded_buffer import resized
from torch_pjrt.tensor.storage.view import value_of

Given = dict[str, Any]  # the arguments of a functional overload, by name
Key = tuple[str, int | None]  # an argument's name, and the position in it if it is a list


class as_ordinary:
    """Within this, no size is taken to be a count."""

    def __enter__(self) -> None:
        self.hidden = recent.hide()

    def __exit__(self, *_: object) -> None:
        recent.restore(self.hidden)


class DataDependentCall(PaddedCall):
    """A call whose padded tensors each have one padded dim, of a size that was counted."""

    def __init__(self, op: Any, given: Given) -> None:
        self.op = op
        self.given = given
        is_aligned = is_pointwise(op)
        views = views_of(given, aligned=is_aligned)
        if not views:
            raise Unsuited("nothing is padded")
        least: dict[int, int] = {}
        for view in views.values():
            size = view.spec.shape[view.dim]
            least[view.count.n] = min(size, least.get(view.count.n, size))
        if 0 in least and not is_aligned and op is not aten.cat.default:
            raise Unsuited("PyTorch refuses some folds of nothing")
        self.least = least
        self.views = {key: view.with_capacity(least[view.count.n]) for key, view in views.items()}

    def __getitem__(self, name: str) -> Any:
        x = self.given[name]
        if isinstance(x, (list, tuple)):
            return [self._sized((name, i), item) for i, item in enumerate(x)]
        return self._sized((name, None), x)

    def _sized(self, key: Key, x: Any) -> Any:
        if not isinstance(x, torch.Tensor):
            return x
        dims: list[Dim] = [() if n == 1 else (n,) for n in x.shape]
        view = self.views.get(key)
        if view is None:
            return Sized(x, tuple(dims))
        dims[view.dim] = (view.count,)
        return Sized(view.tensor(), tuple(dims))

    def count(self, factor: Count) -> tuple[torch.Tensor, int]:
        return count_tensor(factor), factor.scale

    def capacity(self, dim: Dim) -> int:
        return math.prod(f if isinstance(f, int) else self.least[f.n] for f in dim)

    def is_at_most(self, part: Dim, whole: Dim) -> bool:
        return _true_size(part) <= _true_size(whole)

    def padded(self) -> dict[str, list[int]]:
        found: dict[str, list[int]] = {}
        for (name, _), view in self.views.items():
            if view.dim not in found.setdefault(name, []):
                found[name].append(view.dim)
        return found

    def do(self, /, **changed: Any) -> Any:
        tensors = {k: view.tensor() for k, view in self.views.items() if k[0] not in changed}
        given = replacing(self.given, tensors)
        for name, x in changed.items():
            given[name] = self.plain(x)
        return record_on(self.op, given)

    def result(self, tensor: torch.Tensor, dims: Sequence[Dim]) -> torch.Tensor:
        padded = [d for d, dim in enumerate(dims) if has_padding(dim)]
        if not padded:
            return tensor
        if len(padded) > 1:
            raise Unsuited("it is padded along several dims")
        return with_count(tensor, padded[0], dims[padded[0]][0])

    def flow(self) -> Callable[[Any], Any]:
        """Where the padded dim went, shapes say: the meta function is asked for two capacities."""
        if len(self.least) > 1:
            raise Unsuited("sizes differ")
        where = result_dims(self.op, self.given, self.views)
        count = next(iter(self.views.values())).count

        def flowed(results: Any) -> Any:
            if isinstance(results, torch.Tensor):
                return results if where[0] is None else with_count(results, where[0], count)
            return type(results)(
                r if dim is None or r is None else with_count(r, dim, count)
                for r, dim in zip(results, where, strict=True)
            )

        return flowed

    def resized(self, d: int, capacity: int, size: torch.Tensor | int, parts: list[Dim]) -> Dim:
        n = sum(map(_true_size, parts))
        if isinstance(size, int):
            return packed((n,))
        count = Count(n, value_of(size), capacity)
        recent.add(count)
        return (count,)

    def made_of(self, value: Any) -> torch.Tensor:
        """In backward it is of the size of an input: counted as the gradient may be."""
        shape = list(self.given["size"])
        dtype = self.given.get("dtype") or self.given["self"].dtype
        view = self.views.get(("self", None))
        if (
            view is None
            or torch._C._current_graph_task_id() == -1
            or shape[view.dim : view.dim + 1] != [view.count.n]
        ):
            return self.record(aten.full.default, shape, value, dtype=dtype)
        shape[view.dim] = view.spec.shape[view.dim]
        return with_count(
            self.record(aten.full.default, shape, value, dtype=dtype), view.dim, view.count
        )


def _true_size(dim: Dim) -> int:
    return math.prod(f if isinstance(f, int) else f.n for f in dim)


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


def size_tensor(count: Count) -> torch.Tensor:
    """`count.n` as a 0-d int64 tensor."""
    there = count_tensor(count)
    return there if count.scale == 1 else record.call(aten.mul.Scalar, (there, count.scale), {})


def with_rest(tensor: torch.Tensor, value: float) -> torch.Tensor:
    """A padded tensor's elements, and `value` past them, as an ordinary one; itself if it has no padding."""
    view = padded_view(tensor)
    if view is None:
        return tensor
    args = (view.tensor(), count_tensor(view.count), view.dim, view.count.scale, value)
    return record.call(operators.fill_rest, args, {})


def tensors_of(given: Given) -> Iterator[tuple[Key, torch.Tensor]]:
    for name, x in given.items():
        if is_pjrt(x):
            yield (name, None), x
        elif isinstance(x, (list, tuple)):
            yield from (((name, i), t) for i, t in enumerate(x) if is_pjrt(t))


def replacing(given: Given, tensors: dict[Key, torch.Tensor]) -> Given:
    """The arguments with some tensors replaced."""
    result = dict(given)
    for (name, position), tensor in tensors.items():
        if position is None:
            result[name] = tensor
        else:
            items = list(result[name])
            items[position] = tensor
            result[name] = items
    return result


def views_of(given: Given, *, aligned: bool) -> dict[Key, PaddedView]:
    """The padded tensors with their padding, and as such those that repeat one element `count.n` times.

    Raises `Unsuited` for a padded tensor that has lost its padding. `aligned`: arguments are broadcast.
    """
    views: dict[Key, PaddedView] = {}
    others: list[tuple[Key, torch.Tensor]] = []
    for key, tensor in tensors_of(given):
        if is_data_dependent(buffer_of(tensor)):
            view = padded_view(tensor)
            if view is None:
                raise Unsuited
            views[key] = view
        else:
            others.append((key, tensor))
    known = list(views.values())
    if not known and torch._C._current_graph_task_id() == -1:
        return {}
    for key, tensor in others:
        view = _repeated(tensor, known, aligned=aligned)
        if view is not None:
            views[key] = view
            known = known or [view]
    return views


def _repeated(tensor: torch.Tensor, known: list[PaddedView], *, aligned: bool) -> PaddedView | None:
    """A tensor that repeats one element as often as a known one has elements, or as was lately counted."""
    for dim, (size, stride) in enumerate(zip(tensor.shape, tensor.stride(), strict=True)):
        if stride != 0:
            continue
        counts = [
            view.count
            for view in known
            if not aligned or len(view.spec.shape) - view.dim == tensor.ndim - dim
        ]
        if not known and size in recent.by_size:
            counts = [recent.by_size[size]]
        for count in counts:
            if (view := expanded(tensor, dim, count)) is not None:
                return view
    return None


# Where the padded dim of the arguments went.

_NOT_KNOWN: Any = object()
_where: Cache[Any, tuple[int | None, ...] | None] = Cache("dims that are padded", 10_000)


def result_dims(op: Any, given: Given, views: dict[Key, PaddedView]) -> tuple[int | None, ...]:
    """For each result, the dim along which it is padded, or None. Raises `Unsuited` if that is not clear."""
    looks = tuple(
        (key, view.spec, view.dim)
        if (view := views.get(key)) is not None
        else (key, tuple(t.shape), t.stride(), t.dtype)
        for key, t in tensors_of(given)
    )
    rest = tuple(
        x.__class__ if a.kind is Kind.NUMBER else hashable(_without_tensors(x))
        for a in plan_of(op).arguments
        if not is_pjrt(x := given[a.name])
    )
    key = (op, looks, rest, torch.get_default_dtype())
    where = _where.get(key, _NOT_KNOWN)
    if where is _NOT_KNOWN:
        where = _where[key] = _asked(op, given, views)
    if where is None:
        raise Unsuited
    return where


def _without_tensors(x: Any) -> Any:
    if isinstance(x, (list, tuple)):
        return tuple(_without_tensors(i) for i in x)
    return "a tensor" if isinstance(x, torch.Tensor) else x


def _asked(op: Any, given: Given, views: dict[Key, PaddedView]) -> tuple[int | None, ...] | None:
    try:
        here, there = (_shapes(op, given, views, by) for by in (0, 1))
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
    op: Any, given: Given, views: dict[Key, PaddedView], by: int
) -> list[tuple[int, ...] | None]:
    """The shapes of the results where capacities are larger by so much."""
    meta = {
        key: (
            resized(
                _dense(view),
                with_size(view.spec.shape, view.dim, view.spec.shape[view.dim] + by),
            ).meta()
            if (view := views.get(key)) is not None
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
    specs: list[TensorSpec] = []
    arguments = [a for a in plan_of(op).arguments if a.kind is not Kind.DROPPED]
    args = tuple([_slotted(given[a.name], specs) for a in arguments if not a.keyword_only])
    kwargs = {a.name: _slotted(given[a.name], specs) for a in arguments if a.keyword_only}
    return results_of_rule(op, lowering, Pattern(specs, args, kwargs))


def _slotted(x: Any, specs: list[TensorSpec]) -> Any:
    """`x` with a slot for each tensor, whose spec is appended."""
    if isinstance(x, (list, tuple)):
        return tuple(_slotted(i, specs) for i in x)
    if not isinstance(x, torch.Tensor):
        return x
    specs.append(contiguous_spec(tuple(x.shape), x.dtype))
    return Slot(len(specs) - 1)


def _dense(view: PaddedView) -> TensorSpec:
    return view.spec if view.spec.dense else contiguous_spec(view.spec.shape, view.spec.dtype)
