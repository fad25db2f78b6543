"""Reading and writing at indices, where the indices, or what they index, are padded.

In its padding, a tensor of indices reads index 0, and writes past the end of the dim, where what is
written is dropped. Negative indices along a padded dim count from its last true element.
"""

from __future__ import annotations

from typing import Any

import torch

from torch_pjrt.overloads import aten
from torch_pjrt.tensor.padding.dims import Dim, Unsuited, broadcast, has_padding, joined, one_factor
from torch_pjrt.tensor.padding.padded_call import PaddedCall, Sized

_MASKS = (torch.bool, torch.uint8)


def _fits(call: PaddedCall, part: Dim, whole: Dim) -> None:
    """Raises `Unsuited` where elements along `part` may not be the first along `whole`."""
    if part != whole:
        one_factor(part)
        one_factor(whole)
        if not call.is_at_most(part, whole):
            raise Unsuited("PyTorch refuses it")


def _along_dim(call: PaddedCall) -> tuple[int, Sized]:
    """The dim that is indexed, and the indices, as long as the tensor is along the others at most."""
    x, index, d = call["self"], call["index"], call.dim()
    if not x.ndim or not index.ndim:
        raise Unsuited("it indexes a tensor without dims")
    one_factor(x.dims[d])
    for i, (part, whole) in enumerate(zip(index.dims, x.dims, strict=True)):
        if i != d:
            _fits(call, part, whole)
    return d, index


def gather(call: PaddedCall) -> Any:
    _, index = _along_dim(call)
    return call.result(call.do(index=call.all_filled(index, 0)), index.dims)


def scatter(call: PaddedCall) -> Any:
    """Whatever is done with the values that are written."""
    d, index = _along_dim(call)
    source = call["src"] if "src" in call.given else None
    for part, whole in zip(index.dims, () if source is None else source.dims, strict=False):
        _fits(call, part, whole)
    return _written(call, d, index)


def _written(call: PaddedCall, d: int, index: Sized) -> Any:
    x: Sized = call["self"]
    return call.result(call.do(index=call.all_filled(index, x.tensor.shape[d])), x.dims)


def index_select(call: PaddedCall) -> Any:
    x, index, d = call["self"], call["index"], call.dim()
    one_factor(x.dims[d])
    dims = (*x.dims[:d], *(index.dims or ((),)), *x.dims[d + 1 :])
    return call.result(call.do(index=call.all_filled(index, 0)), dims)


def index_rows(call: PaddedCall) -> Any:
    """Writing at indices along a dim: as many rows as there are indices."""
    x, index, d = call["self"], call["index"], call.dim()
    if not x.ndim:
        raise Unsuited("it writes to a tensor without dims")
    one_factor(x.dims[d])
    if "source" in call.given:
        source: Sized = call["source"]
        joined([x.dims, source.dims], but=d)
        if (source.dims[d : d + 1] or ((),)) != (index.dims or ((),)):
            raise Unsuited("it writes not as many rows as there are indices")
    return _written(call, d, index)


def _by_order(call: PaddedCall, *, writes: bool) -> tuple[list[Any], tuple[Dim, ...]]:
    """The indices of `x[i, :, j]`, filled, and the dims of what they select."""
    x: Sized = call["self"]
    indices: list[Sized | None] = call["indices"]
    given = [d for d, index in enumerate(indices) if index is not None]
    if any(index is not None and index.dtype in _MASKS for index in indices):
        raise Unsuited("a mask decides how many elements there are")
    filled: list[Any] = list(indices)
    for d in given:
        one_factor(x.dims[d])
        filled[d] = call.all_filled(indices[d], x.tensor.shape[d] if writes else 0)  # type: ignore[arg-type]
        if has_padding(x.dims[d]):
            filled[d] = _from_true_end(call, filled[d], x.dims[d])
    chosen = broadcast([index.dims for index in indices if index is not None])
    rest = [dim for d, dim in enumerate(x.dims) if d not in given]
    first = given[0] if given == [*range(given[0], given[0] + len(given))] else 0
    return filled, (*rest[:first], *chosen, *rest[first:])


def _from_true_end(call: PaddedCall, index: Sized, dim: Dim) -> Sized:
    from_end = call.record(aten.add.Tensor, index.tensor, call.size(dim))
    is_negative = call.record(aten.lt.Scalar, index.tensor, 0)
    there = call.record(aten.where.self, is_negative, from_end, index.tensor)
    return Sized(there, index.dims)


def index(call: PaddedCall) -> Any:
    indices, dims = _by_order(call, writes=False)
    return call.result(call.do(indices=indices), dims)


def index_put(call: PaddedCall) -> Any:
    indices, dims = _by_order(call, writes=True)
    if broadcast([dims, call["values"].dims]) != dims:
        raise Unsuited("it writes something that is repeated")
    return call.result(call.do(indices=indices), call["self"].dims)


RULES: dict[Any, Any] = {
    aten.gather.default: gather,
    aten.index_select.default: index_select,
    **dict.fromkeys((aten.index.Tensor, aten._unsafe_index.Tensor), index),
    **dict.fromkeys((aten.index_put.default, aten._unsafe_index_put.default), index_put),
    **dict.fromkeys(
        (aten.index_add.default, aten.index_copy.default, aten.index_fill.int_Scalar), index_rows
    ),
    **dict.fromkeys(
        (
            aten.scatter.src,
            aten.scatter.value,
            aten.scatter_add.default,
            aten.scatter_reduce.two,
        ),
        scatter,
    ),
}
