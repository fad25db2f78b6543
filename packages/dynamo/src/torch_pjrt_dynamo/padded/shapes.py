"""Operators that lay elements out anew, or make tensors of sizes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from torch_pjrt.extend.padding import Dim, Sized, Unsuited, has_padding, one_factor, only, packed
from torch_pjrt.plugin import aten
from torch_pjrt_dynamo.operators import recorded
from torch_pjrt_dynamo.padded.arithmetic import number
from torch_pjrt_dynamo.padded.dims import dim_of, dims_of, regrouped
from torch_pjrt_dynamo.padded.sized import NodeCall, Size


def view(call: NodeCall) -> Sized:
    x: Sized = call["self"]
    dims = regrouped(x.dims, call.shape)
    shape = [call.capacity(d) for d in dims]
    return call.result(recorded(call.op, (x.tensor, shape), {}), dims)


def permute(call: NodeCall) -> Sized:
    x: Sized = call["self"]
    dims = tuple(x.dims[d] for d in call["dims"])
    return call.result(call.do(), dims)


def transpose(call: NodeCall) -> Sized:
    dims = list(call["self"].dims)
    a, b = call.dim("dim0"), call.dim("dim1")
    if dims:
        dims[a], dims[b] = dims[b], dims[a]
    return call.result(call.do(), dims)


def t(call: NodeCall) -> Sized:
    return call.result(call.do(), call["self"].dims[::-1])


def unsqueeze(call: NodeCall) -> Sized:
    dims = list(call["self"].dims)
    dims.insert(call["dim"] % (len(dims) + 1), ())
    return call.result(call.do(), dims)


def squeeze(call: NodeCall) -> Sized:
    """A dim that varies is never 1, and so stays; though there may be room for one element only."""
    x: Sized = call["self"]
    asked = call.given.get("dim", range(x.ndim))
    asked = {d % max(x.ndim, 1) for d in ([asked] if isinstance(asked, int) else asked)}
    gone = [d for d in asked if d < x.ndim and not x.dims[d]]
    dims = [dim for d, dim in enumerate(x.dims) if d not in gone]
    return call.result(recorded(aten.squeeze.dims, (x.tensor, gone), {}), dims)


def expand(call: NodeCall) -> Sized:
    x: Sized = call["self"]
    shape = call.shape
    first = len(shape) - x.ndim
    dims = [
        x.dims[d - first] if d >= first and x.dims[d - first] else dim_of(size)
        for d, size in enumerate(shape)
    ]
    sizes = [call.capacity(d) for d in dims]
    return call.result(recorded(aten.expand.default, (x.tensor, sizes), {}), dims)


def full(call: NodeCall) -> Sized:
    """A factory: all elements are equal, or nobody knows them."""
    return call.made_of(call.given.get("fill_value", int(call.op is aten.ones.default)))


def scalar_tensor(call: NodeCall) -> Sized:
    value = number(call["s"].expr, call.sizes.counts) if isinstance(call["s"], Size) else call["s"]
    if not isinstance(value, torch.Tensor):
        return call.result(call.do(s=value), ())
    return call.result(value.to(call.traced.dtype), ())


def arange(call: NodeCall) -> Sized:
    """Counting from a number: so many more elements change nothing for the first ones."""
    [dim] = dims_of(call.shape)
    start, step = call.given.get("start", 0), call.given.get("step", 1)
    if isinstance(start, Size) or isinstance(step, Size) or len(dim) > 1:
        raise Unsuited("it counts from, or in steps of, a size")
    kwargs = {n: call[n] for n in ("dtype", "layout", "device", "pin_memory")}
    kwargs["dtype"] = call.traced.dtype
    end = start + step * call.capacity(dim)
    return call.result(recorded(aten.arange.start_step, (start, end, step), kwargs), (dim,))


def select(call: NodeCall) -> Sized:
    x: Sized = call["self"]
    d, index = call.dim(), call["index"]
    dims = [dim for i, dim in enumerate(x.dims) if i != d]
    if isinstance(index, Size):
        raise Unsuited("it takes the element at a size")
    if not has_padding(x.dims[d]) or index >= 0:
        one_factor(x.dims[d])
        return call.result(call.do(), dims)
    position = (_count(call, x.dims[d]) + index).reshape(1)
    taken = recorded(aten.index_select.default, (x.tensor, d, position), {})
    return call.result(recorded(aten.squeeze.dim, (taken, d), {}), dims)


def _count(call: NodeCall, dim: Dim) -> torch.Tensor:
    one_factor(dim)
    return call.sizes.count(dim[0])


def slice_(call: NodeCall) -> Sized:
    x: Sized = call["self"]
    d = call.dim()
    there, wanted = x.dims[d], dim_of(call.shape[d])
    dims = (*x.dims[:d], wanted, *x.dims[d + 1 :])
    if wanted == there:
        return x
    if not has_padding(there) and not has_padding(wanted):
        return call.result(call.do(), dims)
    one_factor(there)
    one_factor(wanted)
    start, step = call["start"], call["step"]
    start = 0 if start is None else start
    if isinstance(start, Size) or step != 1:
        raise Unsuited("it takes a part that begins at a size, or not every element")
    capacity = call.capacity(wanted)
    if start < 0:
        if not has_padding(there) or has_padding(wanted):
            raise Unsuited("it takes a part from the end")
        positions = _count(call, there) + start + torch.arange(capacity, device=x.tensor.device)
        positions = positions.clamp_min(0)
        return call.result(recorded(aten.index_select.default, (x.tensor, d, positions), {}), dims)
    end = min(start + capacity, x.tensor.shape[d])
    part = recorded(aten.slice.Tensor, (x.tensor, d, start, end), {})
    return call.result(_with_padding(part, d, capacity), dims)


def _with_padding(x: torch.Tensor, d: int, capacity: int, value: float = 0) -> torch.Tensor:
    """The tensor with padding along a dim, up to `capacity`."""
    if x.shape[d] == capacity:
        return x
    pad = [0, 0] * (x.ndim - d - 1) + [0, capacity - x.shape[d]]
    return recorded(aten.constant_pad_nd.default, (x, pad, value), {})


def slice_backward(call: NodeCall) -> Sized:
    grad: Sized = call["grad_output"]
    dims = dims_of(call.shape)
    d = call["dim"] % len(dims)
    dims = tuple(grad.dims[i] if i != d else dim for i, dim in enumerate(dims))
    if grad.dims[d] == dims[d]:
        return grad
    if not has_padding(grad.dims[d]) and not has_padding(dims[d]):
        sizes = [call.capacity(dim) for dim in dims]
        return call.result(call.do(input_sizes=sizes), dims)
    one_factor(grad.dims[d])
    one_factor(dims[d])
    start = call["start"]
    if isinstance(start, Size) or start < 0 or call["step"] != 1:
        raise Unsuited("a part began at a size, or at one from the end")
    grad = call.filled(grad, [d], 0)
    capacity = call.capacity(dims[d])
    part = grad.tensor
    if start + part.shape[d] > capacity:
        part = recorded(aten.slice.Tensor, (part, d, 0, capacity - start), {})
    pad = [0, 0] * (part.ndim - d - 1) + [start, capacity - start - part.shape[d]]
    return call.result(recorded(aten.constant_pad_nd.default, (part, pad, 0), {}), dims)


def select_backward(call: NodeCall) -> Sized:
    grad: Sized = call["grad_output"]
    shape = call.shape
    d, index = call["dim"] % len(shape), call["index"]
    dims = (*grad.dims[:d], dim_of(shape[d]), *grad.dims[d:])
    one_factor(dims[d])
    if isinstance(index, Size):
        raise Unsuited("it takes the element at a size")
    capacity = call.capacity(dims[d])
    positions = torch.arange(capacity, device=grad.tensor.device)
    position = index
    if index < 0:
        position = _count(call, dims[d]) + index if has_padding(dims[d]) else capacity + index
    chosen = (positions == position).view([-1 if i == d else 1 for i in range(len(shape))])
    made = torch.where(chosen, grad.tensor.unsqueeze(d), torch.zeros_like(grad.tensor).unsqueeze(d))
    return call.result(made, dims)


def split(call: NodeCall) -> Sequence[Sized]:
    x: Sized = call["self"]
    d = call.dim()
    only(call, "self")
    if has_padding(x.dims[d]):
        raise Unsuited("it splits a dim that varies")
    parts = call.do()
    dims = [(*x.dims[:d], packed((p.shape[d],)), *x.dims[d + 1 :]) for p in parts]
    return [call.result(p, ds) for p, ds in zip(parts, dims, strict=True)]


def unbind(call: NodeCall) -> Sequence[Sized]:
    x: Sized = call["self"]
    d = call.dim()
    if has_padding(x.dims[d]):
        raise Unsuited("it splits a dim that varies")
    dims = (*x.dims[:d], *x.dims[d + 1 :])
    return [call.result(p, dims) for p in call.do()]


RULES: dict[Any, Any] = {
    **dict.fromkeys((aten.view.default, aten._unsafe_view.default, aten.reshape.default), view),
    aten.permute.default: permute,
    aten.transpose.int: transpose,
    aten.t.default: t,
    aten.unsqueeze.default: unsqueeze,
    **dict.fromkeys((aten.squeeze.default, aten.squeeze.dim, aten.squeeze.dims), squeeze),
    aten.expand.default: expand,
    **dict.fromkeys((aten.full.default, aten.zeros.default, aten.ones.default), full),
    aten.empty.memory_format: full,
    aten.scalar_tensor.default: scalar_tensor,
    **dict.fromkeys((aten.arange.default, aten.arange.start, aten.arange.start_step), arange),
    aten.select.int: select,
    aten.slice.Tensor: slice_,
    aten.slice_backward.default: slice_backward,
    aten.select_backward.default: select_backward,
    **dict.fromkeys((aten.split.Tensor, aten.split_with_sizes.default), split),
    aten.unbind.int: unbind,
}
