"""Operators that take elements by their places: in the room, places are made 0, which is always inside."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from torch_pjrt.plugin import aten
from torch_pjrt_dynamo.padded.dims import Dim, NotProvable, is_padded
from torch_pjrt_dynamo.padded.pointwise import broadcast
from torch_pjrt_dynamo.padded.sized import Call, Sized, one_factor, only


def embedding(call: Call) -> Sized:
    only(call, "indices")
    places: Sized = call["indices"]
    made = call.do(indices=call.sizes.all_filled(places, 0))
    return call.sizes.sized(made, (*places.dims, *call["weight"].dims[1:]))


def embedding_dense_backward(call: Call) -> Sized:
    """Gradients of what is not there are 0, and so add nothing to the row at place 0."""
    only(call, "grad_output", "indices")
    grad, places = call["grad_output"], call["indices"]
    if grad.dims[: places.ndim] != places.dims:
        raise NotProvable("it joins sizes that vary in another order")
    if call["scale_grad_by_freq"]:
        raise NotProvable("it counts how often a row occurs")
    filled = {
        "grad_output": call.sizes.all_filled(grad, 0),
        "indices": call.sizes.all_filled(places, 0),
    }
    dims: list[Dim] = [(call["num_weights"],), *grad.dims[places.ndim :]]
    return call.sizes.sized(call.do(**filled), [d if d != (1,) else () for d in dims])


def gather(call: Call) -> Sized:
    only(call, "self", "index")
    x, places = call["self"], call["index"]
    if not x.ndim or not places.ndim:
        raise NotProvable("it takes from a tensor without dims")
    d = call.dim()
    for i, (there, wanted) in enumerate(zip(x.dims, places.dims, strict=True)):
        if i != d and there != wanted and (is_padded(there) or is_padded(wanted)):
            raise NotProvable("it takes fewer elements than there are along a size that varies")
    one_factor(x.dims[d])
    filled = call.sizes.all_filled(places, 0)
    return call.sizes.sized(call.do(index=filled), places.dims)


def index_select(call: Call) -> Sized:
    only(call, "self", "index")
    x, places = call["self"], call["index"]
    d = call.dim()
    one_factor(x.dims[d])
    filled = call.sizes.all_filled(places, 0)
    dims = (*x.dims[:d], *(places.dims or ((),)), *x.dims[d + 1 :])
    return call.sizes.sized(call.do(index=filled), dims)


def index(call: Call) -> Sized:
    """Places from the end count from the true one."""
    x: Sized = call["self"]
    indices: list[Sized | None] = call["indices"]
    given = [d for d, places in enumerate(indices) if places is not None]
    tensors = [places for places in indices if places is not None]
    if any(p.tensor.dtype in (torch.bool, torch.uint8) for p in tensors):
        raise NotProvable("a mask decides how many elements there are")
    if given != list(range(given[0], given[0] + len(given))):
        raise NotProvable("dims between those that are taken by places stay")
    filled: list[Any] = list(indices)
    for d in given:
        one_factor(x.dims[d])
        places = call.sizes.all_filled(indices[d], 0)  # type: ignore[arg-type]
        if is_padded(x.dims[d]):
            n = call.sizes.count(x.dims[d][0])
            tensor = torch.where(places.tensor < 0, places.tensor + n, places.tensor)
            places = Sized(tensor, places.dims)
        filled[d] = places
    joined = broadcast([p.dims for p in tensors])
    dims = (*x.dims[: given[0]], *joined, *x.dims[given[-1] + 1 :])
    return call.sizes.sized(call.do(indices=filled), dims)


def index_put(call: Call) -> Sized:
    """Adding only: 0 to the first element for each that is not there."""
    x, values = call["self"], call["values"]
    indices: list[Sized | None] = call["indices"]
    places = [p for p in indices if p is not None]
    if not call["accumulate"] or any(p.tensor.dtype in (torch.bool, torch.uint8) for p in places):
        raise NotProvable("it writes to places")
    given = [d for d, p in enumerate(indices) if p is not None]
    if given != list(range(len(given))) or any(is_padded(x.dims[d]) for d in given):
        raise NotProvable("it writes along a size that varies")
    joined = broadcast([p.dims for p in places])
    wanted = (*joined, *x.dims[len(given) :])
    if values.dims != wanted:
        raise NotProvable("it writes something that is repeated")
    filled = [None if p is None else call.sizes.all_filled(p, 0) for p in indices]
    made = call.do(indices=filled, values=call.sizes.all_filled(values, 0))
    return call.sizes.sized(made, x.dims)


def classes(results: Callable[[Call, tuple[Dim, ...]], Any]) -> Callable[[Call], Any]:
    """The rule of a loss by class: what is not there has the class that is ignored."""

    def rule(call: Call) -> Any:
        x, target = call["self"], call["target"]
        only(call, "self", "target", "grad_output")
        rows = (*x.dims[:-1],) if x.ndim < 3 else (x.dims[0], *x.dims[2:])
        if rows != target.dims or is_padded(x.dims[-1 if x.ndim < 3 else 1]):
            raise NotProvable("it joins sizes that vary in another order")
        filled = call.sizes.all_filled(target, call["ignore_index"])
        return results(
            Call(call.op, {**call.given, "target": filled}, call.sizes, call.traced), rows
        )

    return rule


def _loss(call: Call, rows: tuple[Dim, ...]) -> list[Sized]:
    loss, weight = call.do()
    return [
        call.sizes.sized(loss, () if call["reduction"] else rows),
        call.sizes.sized(weight, ()),
    ]


def _loss_backward(call: Call, rows: tuple[Dim, ...]) -> Sized:
    return call.sizes.sized(call.do(), call["self"].dims)


def scatter_zeros(call: Call) -> Sized:
    """`scatter_add` of what is 0 where it is not there."""
    x, places, source = call["self"], call["index"], call["src"]
    only(call, "self", "index", "src")
    d = call.dim()
    same = all(
        a == b == c
        for i, (a, b, c) in enumerate(zip(x.dims, places.dims, source.dims, strict=True))
        if i != d
    )
    if not same or places.dims != source.dims:
        raise NotProvable("it writes fewer elements than there are along a size that varies")
    one_factor(x.dims[d])
    filled = {
        "index": call.sizes.all_filled(places, 0),
        "src": call.sizes.all_filled(source, 0),
    }
    return call.sizes.sized(call.do(**filled), x.dims)


RULES: dict[Any, Any] = {
    aten.embedding.default: embedding,
    aten.embedding_dense_backward.default: embedding_dense_backward,
    aten.gather.default: gather,
    aten.index_select.default: index_select,
    aten.index.Tensor: index,
    **dict.fromkeys((aten.index_put.default, aten._unsafe_index_put.default), index_put),
    aten.scatter_add.default: scatter_zeros,
    **dict.fromkeys(
        (aten.nll_loss_forward.default, aten.nll_loss2d_forward.default), classes(_loss)
    ),
    **dict.fromkeys(
        (aten.nll_loss_backward.default, aten.nll_loss2d_backward.default), classes(_loss_backward)
    ),
}
