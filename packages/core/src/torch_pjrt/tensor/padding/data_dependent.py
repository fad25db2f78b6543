"""Kernels whose results have a size that only the values decide.

Each reads that size, once, and gives a padded tensor (`tensor/padding/padded.py`). The capacity is the most
there can be; of large tensors a half, a quarter, ... of that, whichever holds the elements; the next power
of two where there is no bound.
"""

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary

import torch

from torch_pjrt import operators
from torch_pjrt.graph.tape import Value
from torch_pjrt.graph.tensor_spec import TensorSpec
from torch_pjrt.observe.causes import because
from torch_pjrt.overloads import aten
from torch_pjrt.tensor.padding.padded import (
    PaddedView,
    count_tensor,
    padded_view,
    read_count,
    with_count,
)
from torch_pjrt.tensor.recording import record
from torch_pjrt.tensor.recording.argument_binding import mapped
from torch_pjrt.tensor.recording.cpu_errors import raise_as_on_cpu
from torch_pjrt.tensor.storage import counts
from torch_pjrt.tensor.storage.buffer import buffer_of, spec_and_offset, wrap
from torch_pjrt.tensor.storage.counts import Count, is_data_dependent, recent
from torch_pjrt.tensor.storage.mixed_devices import refuse_mixed
from torch_pjrt.tensor.storage.overlap import share_memory
from torch_pjrt.tensor.storage.transfer import download, host_view
from torch_pjrt.tensor.storage.view import resize_as, true_look, warn_of_elements

Tensor = torch.Tensor

_SMALL = 4096  # elements: of so few, any number may as well be all
_PARTS = 5  # how many capacities a large tensor may have: all, a half, ... a sixteenth
_LEAST = 64  # elements, where there is no bound


def _recorded(op: Any, *args: Any, **kwargs: Any) -> Any:
    return record.call(op, args, kwargs)


def _capacity_within(n: int, bound: int) -> int:
    if counts.exact:
        return max(n, 1)
    if bound <= _SMALL:
        return bound
    parts = [-(-bound // (1 << k)) for k in range(_PARTS)]
    return min(part for part in parts if part >= n)


def _capacity_without_bound(n: int) -> int:
    if counts.exact:
        return max(n, 1)
    return max(_LEAST, 1 << (n - 1).bit_length())


def _count_of(value: Tensor, *, bound: int | None) -> Count:
    """The count that a 0-d tensor holds, read and remembered."""
    count = read_count(value)
    n = count.n
    count.capacity = _capacity_without_bound(n) if bound is None else _capacity_within(n, bound)
    recent.add(count)
    return count


def _refuse(op: Any, *args: Any) -> None:
    """Raise what the CPU kernel raises for such tensors; tried on small ones, whose sizes are as equal."""
    names = {0: 0, 1: 1}

    def small(t: Tensor) -> Tensor:
        shape = [names.setdefault(size, len(names)) for size in t.shape]
        return torch.zeros(shape, dtype=t.dtype, device="cpu")

    try:
        op(*mapped(args, small))
    except Exception as error:
        raise_as_on_cpu(op, args, {}, error)  # in its words there may be sizes
        raise


def _settled(x: Tensor) -> tuple[Tensor, PaddedView | None]:
    """The tensor, and its padded view, if any; one that has lost its padding is cut to its true elements."""
    if not is_data_dependent(buffer_of(x)):
        return x, None
    view = padded_view(x)
    if view is not None and view.count.n:
        return x, view
    return _cut(x), None


def _cut(x: Tensor) -> Tensor:
    value, spec = true_look(x, buffer_of(x))
    return wrap(value, spec) if spec.dense else wrap(value, value.spec)


# Indices of what is not 0.


def nonzero(self: Tensor) -> Tensor:
    """Column after column in memory, as on CPU."""
    return _nonzero(self, by_columns=True)


def _nonzero(self: Tensor, *, by_columns: bool = False) -> Tensor:
    x, view = _settled(self)
    if not x.ndim:
        return aten.empty.memory_format(
            (int(bool(host_view(x))), 0), dtype=torch.int64, device=x.device
        )
    bound = x.numel() if view is None else view.spec.numel
    if not bound:
        return torch.empty((0, x.ndim), dtype=torch.int64, device=x.device)
    count = _count_of(_recorded(aten.count_nonzero.default, x), bound=bound)
    positions = _recorded(aten.nonzero_static.default, x, size=count.capacity, fill_value=0)
    return with_count(positions, 0, count, strides=(1, count.capacity) if by_columns else None)


# A mask is often used several times, and again by the backward pass.
# Buffers may share an array and lay it out differently: what a look selects, their spec says as well.
_positions: WeakKeyDictionary[Value, dict[tuple[TensorSpec, TensorSpec, int], Tensor]] = (
    WeakKeyDictionary()
)


def positions_of(mask: Tensor) -> list[Tensor]:
    """The indices of a mask's true elements, for each of its dims; found once until it is written to."""
    if not mask.ndim:
        mask = mask.unsqueeze(0)
    buffer = buffer_of(mask)
    value = buffer.padded if is_data_dependent(buffer) else buffer.value
    if value is None or value.is_slot:
        return list(_nonzero(mask).unbind(1))
    known = _positions.setdefault(value, {})
    look = (buffer.spec, *spec_and_offset(mask))
    if look not in known:
        known[look] = _nonzero(mask)
    return list(known[look].unbind(1))


def masked_select(self: Tensor, mask: Tensor) -> Tensor:
    refuse_mixed(aten.masked_select.default, (self, mask), {})
    _refuse(aten.masked_select.default, self, mask)
    shape = torch.broadcast_shapes(self.shape, mask.shape)
    x, chosen = self.expand(shape), mask.expand(shape)
    if not shape:
        x = x.unsqueeze(0)
    return _recorded(aten.index.Tensor, x, positions_of(chosen))


# Elements without repetition.

Found = tuple[Tensor, Tensor, Tensor]


def _unique(op: Any, x: Tensor, dim: int | None, consecutive: bool, args: tuple[Any, ...]) -> Found:
    """Values, inverse and counts; `args` are those of `op`, whose errors are raised."""
    _refuse(op, *args)
    if not x.numel():
        return _found_by_the_cpu(op, args)
    x, view = _settled(x)
    if view is not None and (dim is not None or view.dim):
        x, view = _cut(x), None
    whole = x if view is None else view.tensor()
    there = None
    if view is not None:
        there = _recorded(aten.mul.Scalar, count_tensor(view.count), view.count.scale)
    if dim is None:
        rest: tuple[int, ...] = ()
        rows = whole.reshape(-1)
        if there is not None:
            there = _recorded(aten.mul.Scalar, there, rows.numel() // view.spec.shape[0])  # type: ignore[union-attr]
    else:
        moved = whole.movedim(dim, 0)
        rest = tuple(moved.shape[1:])
        rows = moved.reshape(len(moved), -1)
    find = operators.unique if dim is None else operators.unique_rows
    sorts_rows = dim is not None and not consecutive and x.is_floating_point()
    nan = _recorded(aten.any.default, _recorded(aten.isnan.default, rows)) if sorts_rows else None
    values, inverse, counts, n = _recorded(find, rows, there, consecutive)
    count = _count_of(n, bound=len(rows))
    if nan is not None and bool(host_view(nan)):
        # The CPU's order puts nan nowhere, so what it finds depends on the steps of its sort.
        with because("the order of rows with nan"):
            return _found_by_the_cpu(op, args)
    values = values[: count.capacity].reshape(count.capacity, *rest)
    position = 0
    if dim is not None:
        position = dim % x.ndim
        values = values.movedim(0, position)
    if dim is None:
        inverse = inverse.view(whole.shape)
    if view is not None:
        inverse = with_count(inverse, 0, view.count)
    return (
        with_count(values, position, count),
        inverse,
        with_count(counts[: count.capacity], 0, count),
    )


def _found_by_the_cpu(op: Any, args: tuple[Any, ...]) -> Found:
    x = args[0]
    return tuple(t.to(x.device) for t in op(*mapped(args, download)))  # type: ignore[return-value]


def _wanted(found: Found, inverse: bool, counts: bool) -> Found:
    """What was not asked for is empty, as on CPU."""
    none = torch.empty(0, dtype=torch.int64, device=found[0].device)
    return found[0], found[1] if inverse else none, found[2] if counts else none


def _unique2(
    self: Tensor, sorted: bool = True, return_inverse: bool = False, return_counts: bool = False
) -> Found:
    """Always sorted."""
    args = (self, sorted, return_inverse, return_counts)
    found = _unique(aten._unique2.default, self, None, False, args)
    return _wanted(found, return_inverse, return_counts)


def unique_dim(
    self: Tensor,
    dim: int,
    sorted: bool = True,
    return_inverse: bool = False,
    return_counts: bool = False,
) -> Found:
    args = (self, dim, sorted, return_inverse, return_counts)
    return _unique(aten.unique_dim.default, self, dim, False, args)


def unique_consecutive(
    self: Tensor, return_inverse: bool = False, return_counts: bool = False, dim: int | None = None
) -> Found:
    args = (self, return_inverse, return_counts, dim)
    found = _unique(aten.unique_consecutive.default, self, dim, True, args)
    return _wanted(found, return_inverse, return_counts) if dim is None else found


def unique_dim_consecutive(
    self: Tensor, dim: int, return_inverse: bool = False, return_counts: bool = False
) -> Found:
    args = (self, dim, return_inverse, return_counts)
    return _unique(aten.unique_dim_consecutive.default, self, dim, True, args)


# How often.


def repeat_interleave(repeats: Tensor, *, output_size: int | None = None) -> Tensor:
    if output_size is not None:
        return _recorded(aten.repeat_interleave.Tensor, repeats, output_size=output_size)
    _refuse(aten.repeat_interleave.Tensor, repeats)
    repeats, _ = _settled(repeats)
    if not repeats.numel():
        return torch.empty(0, dtype=repeats.dtype, device=repeats.device)
    least = _recorded(aten.amin.default, repeats)
    count = _count_of(_recorded(aten.sum.default, repeats), bound=None)
    if host_view(least) < 0:
        raise RuntimeError("repeats can not be negative")
    padded = _recorded(aten.repeat_interleave.Tensor, repeats, output_size=count.capacity)
    return with_count(padded, 0, count)


def bincount(self: Tensor, weights: Tensor | None = None, minlength: int = 0) -> Tensor:
    refuse_mixed(aten.bincount.default, (self, weights), {})
    _refuse(aten.bincount.default, self, None, minlength)
    if not self.numel():
        return aten.bincount.default(*mapped((self, weights, minlength), download)).to(self.device)
    x, _ = _settled(self)
    least = _recorded(aten.amin.default, x)
    last = _recorded(aten._to_copy.default, _recorded(aten.amax.default, x), dtype=torch.int64)
    length = _recorded(aten.clamp_min.default, _recorded(aten.add.Scalar, last, 1), minlength)
    count = _count_of(length, bound=None)
    if host_view(least) < 0:
        raise RuntimeError("bincount only supports 1-d non-negative integral inputs.")
    _refuse(aten.bincount.default, self, weights, minlength)
    dtype = torch.int64
    if weights is not None:
        dtype = torch.float32 if weights.dtype == torch.float32 else torch.float64
    values = torch.ones((), dtype=dtype, device=x.device)
    if weights is not None:
        values = (
            weights
            if weights.dtype == dtype
            else _recorded(aten._to_copy.default, weights, dtype=dtype)
        )
    zeros = _recorded(aten.zeros.default, [count.capacity], dtype=dtype)
    positions = (
        x if x.dtype == torch.int64 else _recorded(aten._to_copy.default, x, dtype=torch.int64)
    )
    padded = _recorded(aten.index_put.default, zeros, [positions], values, True)
    return with_count(padded, 0, count)


def _into(op: Any, functional: Any) -> Any:
    """The kernel of `op`, which writes what `functional` gives into `out=`, with its new size."""

    def kernel(*args: Any, out: Tensor) -> Tensor:
        result = functional(*args) if not share_memory([out], args) else None
        if result is None or (out.dtype, out.device) != (result.dtype, result.device):
            return record.call(op, args, {"out": out})  # which raises
        if out.shape != result.shape:
            warn_of_elements(out, result.shape)
            resize_as(out, result.shape, result.stride())
        return out.copy_(result)

    return kernel


KERNELS: dict[Any, Any] = {
    aten._unique2.default: _unique2,
    aten.bincount.default: bincount,
    aten.masked_select.default: masked_select,
    aten.masked_select.out: _into(aten.masked_select.out, aten.masked_select.default),
    aten.nonzero.default: nonzero,
    aten.nonzero.out: _into(aten.nonzero.out, aten.nonzero.default),
    aten.repeat_interleave.Tensor: repeat_interleave,
    aten.unique_consecutive.default: unique_consecutive,
    aten.unique_dim.default: unique_dim,
    aten.unique_dim_consecutive.default: unique_dim_consecutive,
}
