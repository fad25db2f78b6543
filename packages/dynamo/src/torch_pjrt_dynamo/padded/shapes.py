"""Operators that lay elements out anew, or make tensors of sizes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from torch_pjrt.plugin import aten
from torch_pjrt_dynamo.operators import recorded
from torch_pjrt_dynamo.padded.arithmetic import number
from torch_pjrt_dynamo.padded.dims import (
    Dim,
    NotProvable,
    dim_of,
    dims_of,
    is_padded,
    packed,
    regrouped,
)
from torch_pjrt_dynamo.padded.sized import Call, Size, Sized, one_factor, only

_FAR = 1 << 62  # PyTorch's name for "to the end" is near it


def view(call: Call) -> Sized:
    x: Sized = call["self"]
    dims = regrouped(x.dims, call.shape)
    shape = [call.sizes.room(d) for d in dims]
    return call.sizes.sized(recorded(call.op, (x.tensor, shape), {}), dims)


def permute(call: Call) -> Sized:
    x: Sized = call["self"]
    dims = tuple(x.dims[d] for d in call["dims"])
    return call.sizes.sized(call.do(), dims)


def transpose(call: Call) -> Sized:
    dims = list(call["self"].dims)
    a, b = call.dim("dim0"), call.dim("dim1")
    if dims:
        dims[a], dims[b] = dims[b], dims[a]
    return call.sizes.sized(call.do(), dims)


def t(call: Call) -> Sized:
    return call.sizes.sized(call.do(), call["self"].dims[::-1])


def unsqueeze(call: Call) -> Sized:
    dims = list(call["self"].dims)
    dims.insert(call["dim"] % (len(dims) + 1), ())
    return call.sizes.sized(call.do(), dims)


def squeeze(call: Call) -> Sized:
    """A dim that varies is never 1, and so stays; though there may be room for one element only."""
    x: Sized = call["self"]
    asked = call.given.get("dim", range(x.ndim))
    asked = {d % max(x.ndim, 1) for d in ([asked] if isinstance(asked, int) else asked)}
    gone = [d for d in asked if d < x.ndim and not x.dims[d]]
    dims = [dim for d, dim in enumerate(x.dims) if d not in gone]
    return call.sizes.sized(recorded(aten.squeeze.dims, (x.tensor, gone), {}), dims)


def expand(call: Call) -> Sized:
    x: Sized = call["self"]
    shape = call.shape
    first = len(shape) - x.ndim
    dims = [
        x.dims[d - first] if d >= first and x.dims[d - first] else dim_of(size)
        for d, size in enumerate(shape)
    ]
    sizes = [call.sizes.room(d) for d in dims]
    return call.sizes.sized(recorded(aten.expand.default, (x.tensor, sizes), {}), dims)


def full(call: Call) -> Sized:
    """A factory: all elements are equal, or nobody knows them."""
    dims = dims_of(call.shape)
    shape = [call.sizes.room(d) for d in dims]
    name = "size"
    changed: dict[str, Any] = {name: shape}
    value = call.given.get("fill_value")
    if isinstance(value, Size):
        there = number(value.expr, call.sizes)
        made = there.to(call.traced.dtype) if isinstance(there, torch.Tensor) else None
        if made is None:
            changed["fill_value"] = there
        else:
            return call.sizes.sized(made.expand(shape).clone(), dims)
    return call.sizes.sized(call.do(**changed), dims)


def scalar_tensor(call: Call) -> Sized:
    value = number(call["s"].expr, call.sizes) if isinstance(call["s"], Size) else call["s"]
    if not isinstance(value, torch.Tensor):
        return call.sizes.sized(call.do(s=value), ())
    return call.sizes.sized(value.to(call.traced.dtype), ())


def arange(call: Call) -> Sized:
    """Counting from a number: so many more elements change nothing for the first ones."""
    [dim] = dims_of(call.shape)
    start, step = call.given.get("start", 0), call.given.get("step", 1)
    if isinstance(start, Size) or isinstance(step, Size) or len(dim) > 1:
        raise NotProvable("it counts from, or in steps of, a size")
    kwargs = {n: call[n] for n in ("dtype", "layout", "device", "pin_memory")}
    kwargs["dtype"] = call.traced.dtype
    end = start + step * call.sizes.room(dim)
    return call.sizes.sized(recorded(aten.arange.start_step, (start, end, step), kwargs), (dim,))


def select(call: Call) -> Sized:
    x: Sized = call["self"]
    d, index = call.dim(), call["index"]
    dims = [dim for i, dim in enumerate(x.dims) if i != d]
    if isinstance(index, Size):
        raise NotProvable("it takes the element at a size")
    if not is_padded(x.dims[d]) or index >= 0:
        one_factor(x.dims[d])
        return call.sizes.sized(call.do(), dims)
    place = (_count(call, x.dims[d]) + index).reshape(1)
    taken = recorded(aten.index_select.default, (x.tensor, d, place), {})
    return call.sizes.sized(recorded(aten.squeeze.dim, (taken, d), {}), dims)


def _count(call: Call, dim: Dim) -> torch.Tensor:
    one_factor(dim)
    return call.sizes.count(dim[0])


def slice_(call: Call) -> Sized:
    x: Sized = call["self"]
    d = call.dim()
    there, wanted = x.dims[d], dim_of(call.shape[d])
    dims = (*x.dims[:d], wanted, *x.dims[d + 1 :])
    if wanted == there:
        return x
    if not is_padded(there) and not is_padded(wanted):
        return call.sizes.sized(call.do(), dims)
    one_factor(there)
    one_factor(wanted)
    start, step = call["start"], call["step"]
    start = 0 if start is None else start
    if isinstance(start, Size) or step != 1:
        raise NotProvable("it takes a part that begins at a size, or not every element")
    room = call.sizes.room(wanted)
    if start < 0:
        if not is_padded(there) or is_padded(wanted):
            raise NotProvable("it takes a part from the end")
        places = _count(call, there) + start + torch.arange(room, device=x.tensor.device)
        places = places.clamp_min(0)
        return call.sizes.sized(
            recorded(aten.index_select.default, (x.tensor, d, places), {}), dims
        )
    end = min(start + room, x.tensor.shape[d])
    part = recorded(aten.slice.Tensor, (x.tensor, d, start, end), {})
    return call.sizes.sized(_with_room(part, d, room), dims)


def _with_room(x: torch.Tensor, d: int, room: int, value: float = 0) -> torch.Tensor:
    """The tensor with anything more along a dim."""
    if x.shape[d] == room:
        return x
    pad = [0, 0] * (x.ndim - d - 1) + [0, room - x.shape[d]]
    return recorded(aten.constant_pad_nd.default, (x, pad, value), {})


def slice_backward(call: Call) -> Sized:
    grad: Sized = call["grad_output"]
    dims = dims_of(call.shape)
    d = call["dim"] % len(dims)
    dims = tuple(grad.dims[i] if i != d else dim for i, dim in enumerate(dims))
    if grad.dims[d] == dims[d]:
        return grad
    if not is_padded(grad.dims[d]) and not is_padded(dims[d]):
        sizes = [call.sizes.room(dim) for dim in dims]
        return call.sizes.sized(call.do(input_sizes=sizes), dims)
    one_factor(grad.dims[d])
    one_factor(dims[d])
    start = call["start"]
    if isinstance(start, Size) or start < 0 or call["step"] != 1:
        raise NotProvable("a part began at a size, or at one from the end")
    grad = call.sizes.filled(grad, [d], 0)
    room = call.sizes.room(dims[d])
    part = grad.tensor
    if start + part.shape[d] > room:
        part = recorded(aten.slice.Tensor, (part, d, 0, room - start), {})
    pad = [0, 0] * (part.ndim - d - 1) + [start, room - start - part.shape[d]]
    return call.sizes.sized(recorded(aten.constant_pad_nd.default, (part, pad, 0), {}), dims)


def select_backward(call: Call) -> Sized:
    grad: Sized = call["grad_output"]
    shape = call.shape
    d, index = call["dim"] % len(shape), call["index"]
    dims = (*grad.dims[:d], dim_of(shape[d]), *grad.dims[d:])
    one_factor(dims[d])
    if isinstance(index, Size):
        raise NotProvable("it takes the element at a size")
    room = call.sizes.room(dims[d])
    places = torch.arange(room, device=grad.tensor.device)
    place = index
    if index < 0:
        place = _count(call, dims[d]) + index if is_padded(dims[d]) else room + index
    chosen = (places == place).view([-1 if i == d else 1 for i in range(len(shape))])
    made = torch.where(chosen, grad.tensor.unsqueeze(d), torch.zeros_like(grad.tensor).unsqueeze(d))
    return call.sizes.sized(made, dims)


def cat(call: Call) -> Sized:
    """Only the last may have room along the dim of the joint."""
    tensors: list[Sized] = [x for x in call["tensors"] if x.dims != ((0,),)]
    d = call["dim"] % tensors[0].ndim
    for x in tensors:
        if any(
            a != b for i, (a, b) in enumerate(zip(x.dims, tensors[0].dims, strict=True)) if i != d
        ):
            raise NotProvable("it joins sizes that vary in another order")
    if any(is_padded(x.dims[d]) for x in tensors[:-1]):
        raise NotProvable("something is put behind a dim that varies")
    dim = dim_of(call.shape[d])
    one_factor(dim)
    one_factor(tensors[-1].dims[d])
    dims = (*tensors[0].dims[:d], dim, *tensors[0].dims[d + 1 :])
    return call.sizes.sized(recorded(call.op, ([x.tensor for x in tensors], d), {}), dims)


def stack(call: Call) -> Sized:
    tensors: list[Sized] = call["tensors"]
    if any(x.dims != tensors[0].dims for x in tensors):
        raise NotProvable("it joins sizes that vary in another order")
    d = call["dim"] % (tensors[0].ndim + 1)
    dims = (*tensors[0].dims[:d], packed((len(tensors),)), *tensors[0].dims[d:])
    return call.sizes.sized(call.do(), dims)


def split(call: Call) -> Sequence[Sized]:
    x: Sized = call["self"]
    d = call.dim()
    only(call, "self")
    if is_padded(x.dims[d]):
        raise NotProvable("it splits a dim that varies")
    parts = call.do()
    dims = [(*x.dims[:d], packed((p.shape[d],)), *x.dims[d + 1 :]) for p in parts]
    return [call.sizes.sized(p, ds) for p, ds in zip(parts, dims, strict=True)]


def unbind(call: Call) -> Sequence[Sized]:
    x: Sized = call["self"]
    d = call.dim()
    if is_padded(x.dims[d]):
        raise NotProvable("it splits a dim that varies")
    dims = (*x.dims[:d], *x.dims[d + 1 :])
    return [call.sizes.sized(p, dims) for p in call.do()]


def triangle(call: Call) -> Sized:
    """`tril`, `triu`: an element's place decides whether it stays."""
    only(call, "self")
    for dim in call["self"].dims[-2:]:
        one_factor(dim)
    return call.sizes.sized(call.do(), call["self"].dims)


def flip(call: Call) -> Sized:
    x: Sized = call["self"]
    if any(is_padded(x.dims[d % x.ndim]) for d in call["dims"]):
        raise NotProvable("it works along a dim that varies")
    return call.sizes.sized(call.do(), x.dims)


def constant_pad_nd(call: Call) -> Sized:
    x: Sized = call["self"]
    only(call, "self")
    pad, value = call["pad"], call["value"]
    dims = list(x.dims)
    for i in range(len(pad) // 2):
        d, before, after = x.ndim - 1 - i, pad[2 * i], pad[2 * i + 1]
        if (before, after) == (0, 0):
            continue
        if is_padded(x.dims[d]) and (before < 0 or after < 0):
            raise NotProvable("it cuts a dim that varies")
        one_factor(x.dims[d])
        x = call.sizes.filled(x, [d], value)
        dims[d] = dim_of(call.shape[d])
    return call.sizes.sized(recorded(call.op, (x.tensor, pad, value), {}), dims)


RULES: dict[Any, Any] = {
    **dict.fromkeys((aten.view.default, aten._unsafe_view.default, aten.reshape.default), view),
    aten.permute.default: permute,
    aten.transpose.int: transpose,
    aten.t.default: t,
    aten.unsqueeze.default: unsqueeze,
    **dict.fromkeys((aten.squeeze.default, aten.squeeze.dim, aten.squeeze.dims), squeeze),
    aten.expand.default: expand,
    **dict.fromkeys((aten.full.default, aten.zeros.default, aten.ones.default), full),
    **dict.fromkeys((aten.new_zeros.default, aten.new_ones.default, aten.new_full.default), full),
    **dict.fromkeys((aten.empty.memory_format, aten.new_empty.default), full),
    aten.scalar_tensor.default: scalar_tensor,
    **dict.fromkeys((aten.arange.default, aten.arange.start, aten.arange.start_step), arange),
    aten.select.int: select,
    aten.slice.Tensor: slice_,
    aten.slice_backward.default: slice_backward,
    aten.select_backward.default: select_backward,
    aten.cat.default: cat,
    aten.stack.default: stack,
    **dict.fromkeys((aten.split.Tensor, aten.split_with_sizes.default), split),
    aten.unbind.int: unbind,
    **dict.fromkeys((aten.tril.default, aten.triu.default), triangle),
    aten.flip.default: flip,
    aten.constant_pad_nd.default: constant_pad_nd,
}
