"""PyTorch's `flex_attention` and its backward on the device: in blocks where scores are many.

Dong, Feng, Guessous, Liang, He: "Flex Attention: A Programming Model for Generating Optimized Attention
Kernels" (2024). As there, a block that the mask hides is not computed, and one that it shows as a whole is
not masked. What blocks do not take is PyTorch's composition of plain operators, with all scores at once.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from types import ModuleType
from typing import Any

import torch
from torch._C import DispatchKey

from torch_pjrt.extend import (
    FunctionOp,
    after_import,
    intern,
    number_key,
    record,
    value_of,
    wrap,
)
from torch_pjrt.plugin import Graph, Slot, TensorSpec, client, contiguous_spec
from torch_pjrt_kernels.attention.choice import Problem, objection_to_blocks
from torch_pjrt_kernels.attention.form import Sizes
from torch_pjrt_kernels.flex import warnings_of_flex
from torch_pjrt_kernels.flex.blocks import sizes_of
from torch_pjrt_kernels.flex.call import Call, attended, pulled_back
from torch_pjrt_kernels.flex.mods import Recorded, masked, modified, recorded
from torch_pjrt_kernels.flex.mods import pulled_back as gradient_of

Tensor = torch.Tensor
_MODULE = "torch._higher_order_ops.flex_attention"
# What a gradient of something captured may take more than a block of scores: it is made for each block.
_MOST_CAPTURED = 4
# The fields of PyTorch's tuple of a `BlockMask`, from its front and from its end.
_TABLE, _SPARSE, _MASK = slice(2, 6), slice(-3, -1), -1
_NO_MASK = 1 << 30
_LOG_2 = math.log(2)


def install() -> None:
    """Compute it in blocks from when PyTorch's module is imported."""
    after_import(_MODULE, _register)
    after_import("torch.nn.attention.flex_attention", warnings_of_flex.install)


def _register(module: ModuleType) -> None:
    """A kernel for the device: PyTorch asks for one before it takes its composition."""

    def forward(*args: Any, **kwargs: Any) -> tuple[Tensor, Tensor, Tensor]:
        return _forward(module, *args, **kwargs)

    def backward(*args: Any, **kwargs: Any) -> tuple[Any, ...]:
        return _backward(module, *args, **kwargs)

    module.flex_attention.py_impl(DispatchKey.PrivateUse1)(forward)
    module.flex_attention_backward.py_impl(DispatchKey.PrivateUse1)(backward)


def objection(
    query: Tensor, key: Tensor, value: Tensor, options: dict[str, Any], captured: Sequence[Any] = ()
) -> str | None:
    """What the blocks have against a call; None where they take it. `captured` wants gradients."""
    if not query.dtype == key.dtype == value.dtype or not query.is_floating_point():
        return "query, keys and values have several dtypes"
    sizes = (*query.shape, *key.shape, *value.shape)
    if not all(isinstance(n, int) for n in sizes) or 0 in sizes:
        return "sizes are not known, or are 0"
    if key.shape[0] not in (1, query.shape[0]):
        return "keys have another batch"
    asked = "BLOCK_M" in options or "BLOCK_N" in options
    few = None if asked else objection_to_blocks(_problem(query, key, value))
    if few is not None:
        return few
    problem = _problem(query, key, value)
    block = sizes_of(problem, None, options, on_cpu=_on_cpu())
    most = _MOST_CAPTURED * math.prod(block.scores)
    for x in captured:
        if isinstance(x, Tensor) and x.requires_grad and x.numel() > most and not asked:
            return f"a gradient of {x.numel()} captured numbers would be made for each block"
    return None


def _forward(
    module: ModuleType, query: Tensor, key: Tensor, value: Tensor, score_mod: Any, block_mask: Any,
    scale: float, kernel_options: dict[str, Any], score_read: tuple[Any, ...] = (),
    mask_read: tuple[Any, ...] = (),
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    against = objection(query, key, value, kernel_options)
    if against is not None:
        out, *rest = module.sdpa_dense(
            query, key, value, score_mod, block_mask, scale, kernel_options, score_read, mask_read
        )
        return module._permute_strides(_noted(out, query, key, against), query.stride()), *rest
    call, score, mask, read = _call(
        query, key, value, score_mod, block_mask, scale, kernel_options, score_read, mask_read
    )
    wide = torch.float64 if query.dtype == torch.float64 else torch.float32
    rows = tuple(query.shape[:3])
    outs = (
        contiguous_spec((*rows, value.shape[3]), query.dtype),
        contiguous_spec(rows, wide),
        contiguous_spec(rows, wide),
    )
    given = [value_of(x) for x in _of_one_batch(query, key, value)]
    op = _forward_op(call, score.graph if score else None, mask.graph)
    out, logsumexp, greatest = _recorded(op, [*given, *read], outs)
    return module._permute_strides(out, query.stride()), logsumexp / _LOG_2, greatest / _LOG_2


def _backward(
    module: ModuleType, query: Tensor, key: Tensor, value: Tensor, out: Tensor, logsumexp: Tensor,
    grad_out: Tensor | None, grad_logsumexp: Tensor | None, score_mod: Any, joint: Any,
    block_mask: Any, scale: float, kernel_options: dict[str, Any],
    score_read: tuple[Any, ...] = (), mask_read: tuple[Any, ...] = (),
) -> tuple[Any, ...]:  # fmt: skip
    if joint is None or objection(query, key, value, kernel_options, score_read) is not None:
        return module.sdpa_dense_backward(
            query, key, value, out, logsumexp, grad_out, grad_logsumexp, score_mod, joint,
            block_mask, scale, kernel_options, score_read, mask_read,
        )  # fmt: skip
    call, score, mask, read = _call(
        query, key, value, score_mod, block_mask, scale, kernel_options, score_read, mask_read
    )
    wanted = [isinstance(x, Tensor) and x.requires_grad for x in score_read]
    gradient: Recorded | None = None
    if score is not None:
        sizes = Sizes(*call.sizes)
        of_block = _of_block(sizes, logsumexp.dtype)
        pull = gradient_of(joint, wanted)
        gradient = recorded(pull, (*of_block, of_block[0]), score_read)
        is_tensor = [isinstance(x, Tensor) for x in score_read]
        of_read = [sum(is_tensor[:i]) for i, w in enumerate(wanted) if w]
        call = call._replace(n_gradient=len(gradient.read), of_read=tuple(of_read))
        read = [*read, *gradient.read]
    zeros = torch.zeros_like
    grad_out = zeros(out) if grad_out is None else grad_out.to(query.dtype)
    of_logsumexp = (
        zeros(logsumexp) if grad_logsumexp is None else grad_logsumexp.to(logsumexp.dtype)
    )
    given = (
        *_of_one_batch(query, key, value), out, grad_out, logsumexp * _LOG_2, of_logsumexp / _LOG_2,
    )  # fmt: skip
    batch = query.shape[0]
    buffers = [x for x, w in zip(score_read, wanted, strict=True) if w and gradient is not None]
    outs = (
        contiguous_spec(tuple(query.shape), query.dtype),
        *(contiguous_spec((batch, *x.shape[1:]), x.dtype) for x in (key, value)),
        *(contiguous_spec(tuple(x.shape), x.dtype) for x in buffers),
    )
    op = _backward_op(
        call, score.graph if score else None, mask.graph, gradient.graph if gradient else None
    )
    found = _recorded(op, [*map(value_of, given), *read], outs)
    of_qkv = [
        module._permute_strides(x if len(x) == len(y) else x.sum(0, keepdim=True), y.stride())
        for x, y in zip(found[:3], (query, key, value), strict=True)
    ]
    rest = iter(found[3:])
    of_buffers = [
        (next(rest) if gradient is not None else zeros(x)) if w else None
        for x, w in zip(score_read, wanted, strict=True)
    ]
    return *of_qkv, tuple(of_buffers)


def _call(
    query: Tensor, key: Tensor, value: Tensor, score_mod: Any, block_mask: Any, scale: Any,
    options: dict[str, Any], score_read: tuple[Any, ...], mask_read: tuple[Any, ...],
) -> tuple[Call, Recorded | None, Recorded, list[Any]]:  # fmt: skip
    """The call, its two functions, and what its node reads after the first arrays."""
    table = [x for x in block_mask[_TABLE] if x is not None]
    has_table = max(block_mask[_SPARSE]) < _NO_MASK
    sparse = tuple(block_mask[_SPARSE]) if has_table else None
    sizes = sizes_of(_problem(query, key, value), sparse, options, on_cpu=_on_cpu())
    if has_table and table[0].shape[0] > 1:  # each batch by itself
        sizes = Sizes(1, *_fields(sizes)[1:])
    of_block = _of_block(sizes, torch.float64 if query.dtype == torch.float64 else torch.float32)
    score = recorded(modified(score_mod, len(score_read)), of_block, score_read)
    mask = recorded(masked(block_mask[_MASK], len(mask_read)), of_block[1:], mask_read)
    score = None if score.is_identity() else score
    arrays = table if has_table else []
    read = [*map(value_of, arrays), *(score.read if score else ()), *mask.read]
    call = Call(
        _fields(sizes), sparse, len(arrays), len(score.read) if score else 0, len(mask.read), 0,
        float(scale),
    )  # fmt: skip
    return call, score, mask, read


def _of_block(sizes: Sizes, dtype: torch.dtype) -> tuple[TensorSpec, ...]:
    """Scores, and the numbers of batches, heads, queries and keys."""
    shape = (sizes.batch, sizes.key_heads * sizes.sharing, *sizes.scores[-2:])
    numbers = [contiguous_spec((size,), torch.int32) for size in shape]
    return contiguous_spec(shape, dtype), *numbers


def _of_one_batch(query: Tensor, *others: Tensor) -> list[Tensor]:
    return [query, *(x.expand(query.shape[0], *x.shape[1:]) for x in others)]


def _problem(query: Tensor, key: Tensor, value: Tensor) -> Problem:
    b, h, q, w = query.shape
    dtype = str(query.dtype).removeprefix("torch.")
    return Problem(b, h, key.shape[1], q, key.shape[2], w, value.shape[3], dtype)


def _fields(sizes: Sizes) -> tuple[int, ...]:
    return (
        sizes.batch, sizes.key_heads, sizes.sharing, sizes.queries, sizes.keys,
        sizes.block_queries, sizes.block_keys,
    )  # fmt: skip


def _on_cpu() -> bool:
    return client().device.name == "CPU"


def _noted(out: Tensor, query: Tensor, key: Tensor, against: str) -> Tensor:
    """The same, by a node that computes nothing and tells reports of the call."""
    sizes = (*query.shape, *key.shape)
    if not all(isinstance(n, int) for n in sizes) or 0 in sizes:
        return out
    op = _op_of_note((*query.shape[:3], *key.shape[:3]), against)
    return _recorded(op, [value_of(out)], (contiguous_spec(tuple(out.shape), out.dtype),))[0]


def same(sizes: tuple[int, ...], against: str, out: Any) -> list[Any]:
    """What a note computes: nothing."""
    return [out]


# Equal calls are one operator, so that equal steps are one program.


def _forward_op(call: Call, score: Graph | None, mask: Graph) -> FunctionOp:
    return _op_of_forward(call, score, mask, _numbers(score, mask))


def _backward_op(
    call: Call, score: Graph | None, mask: Graph, gradient: Graph | None
) -> FunctionOp:
    return _op_of_backward(call, score, mask, gradient, _numbers(score, mask, gradient))


def _numbers(*graphs: Graph | None) -> tuple[Any, ...]:
    """Graphs are equal though a number of one is -0.0 and of the other 0.0."""
    nodes = [node for graph in graphs if graph is not None for node in graph.nodes]
    return tuple(number_key(n) for node in nodes for n in node.numbers)


@lru_cache(maxsize=1024)
def _op_of_note(sizes: tuple[int, ...], against: str) -> FunctionOp:
    return FunctionOp("kernels.flex_at_once", same, (sizes, against))


@lru_cache(maxsize=1024)
def _op_of_forward(call: Call, score: Graph | None, mask: Graph, numbers: object) -> FunctionOp:
    return FunctionOp("kernels.flex_attention", attended, (call, score, mask))


@lru_cache(maxsize=1024)
def _op_of_backward(
    call: Call, score: Graph | None, mask: Graph, gradient: Graph | None, numbers: object
) -> FunctionOp:
    return FunctionOp("kernels.flex_backward", pulled_back, (call, score, mask, gradient))


def _recorded(op: FunctionOp, values: list[Any], outs: Sequence[TensorSpec]) -> list[Tensor]:
    specs = tuple(contiguous_spec(v.spec.shape, v.spec.dtype) for v in values)
    slots = tuple(map(Slot, range(len(values))))
    signature = intern(op, slots, {}, specs, tuple(outs), returns="list")
    return [wrap(v, s) for v, s in zip(record(signature, values, []), outs, strict=True)]
