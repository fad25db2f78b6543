"""`scaled_dot_product_attention` within `torch.vmap`: one call whose batch has that of vmap, too.

PyTorch decomposes it there into simpler operators, which make all scores. Where a gradient is taken within
vmap (`vmap(grad(f))`, `jacrev`), it is the one operator and its backward that are batched.
"""

from __future__ import annotations

from typing import Any

import torch
from torch._functorch.pyfunctorch import retrieve_current_functorch_interpreter
from torch._functorch.vmap import unwrap_batched, wrap_batched

from torch_pjrt.overloads import aten

Tensor = torch.Tensor
Optional = torch.Tensor | None

_OPERATOR = aten.scaled_dot_product_attention.default
_ONE = aten._scaled_dot_product_fused_attention_overrideable.default
_BACKWARD = aten._scaled_dot_product_fused_attention_overrideable_backward.default
# PyTorch's decomposition has the first, which comes before that of batching rules.
VMAP, BATCHING = "FuncTorchVmapMode", "FuncTorchBatched"
_OF_THIS_LEVEL = torch._C.DispatchKeySet(
    torch._C._dispatch_key_parse(VMAP)  # pyright: ignore[reportAttributeAccessIssue]
) | torch._C.DispatchKeySet(torch._C.DispatchKey.FuncTorchBatched)


def scaled_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Optional = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """The kernel for whatever device: other devices' calls, and what does not fit, are PyTorch's composition.

    What is dropped is another for each of the batch where vmap says `randomness="different"`, and else the
    composition says what the words of vmap mean.
    """
    interpreter: Any = retrieve_current_functorch_interpreter()
    dims = query.dim()
    options = {"scale": scale, "enable_gqa": enable_gqa}
    is_dropped = dropout_p > 0 and interpreter.randomness() != "different"
    if query.device.type != "pjrt" or not key.dim() == value.dim() == dims or is_dropped:
        return _OPERATOR.decompose(query, key, value, attn_mask, dropout_p, is_causal, **options)
    level, n = interpreter.level(), interpreter.batch_size()
    given, at = unwrap_batched((query, key, value, attn_mask), level)
    with torch._C._ExcludeDispatchKeyGuard(_OF_THIS_LEVEL):
        if all(dim is None for dim in at):  # the batch is that of another vmap
            return _OPERATOR(*given, dropout_p, is_causal, **options)
        parts = [
            x.expand(n, *x.shape) if dim is None else x.movedim(dim, 0)
            for x, dim in zip(given[:3], at[:3], strict=True)
        ]
        mask = given[3]
        if mask is not None and at[3] is not None:
            mask = mask.movedim(at[3], 0)
            mask = mask.reshape(n, *(1,) * (dims + 1 - mask.dim()), *mask.shape[1:])
        out = _OPERATOR(*parts, mask, dropout_p, is_causal, **options)
    return wrap_batched((out,), (0,), level)[0]


def one_operator(
    query: Tensor, key: Tensor, value: Tensor, attn_bias: Optional = None, *rest: Any, **scale: Any
) -> tuple[Any, ...]:
    """The batching rule of the operator that attention is recorded as."""
    level, n, tensors, at = _unwrapped(query, key, value, attn_bias)
    with torch._C._ExcludeDispatchKeyGuard(_OF_THIS_LEVEL):
        if all(dim is None for dim in at):
            return _ONE(*tensors, *rest, **scale)
        given = [_together(x, dim, n) for x, dim in zip(tensors[:3], at[:3], strict=True)]
        bias = tensors[3]
        if bias is not None:
            bias = _bias_of_all(bias, at[3], n, given[0].shape[0] // n)
        out, logsumexp, *others = _ONE(*given, bias, *rest, **scale)
        found = (_apart(out, n), _apart(logsumexp, n))
    return *wrap_batched(found, (0, 0), level), *others


def one_operator_backward(
    grad_out: Tensor, query: Tensor, key: Tensor, value: Tensor, attn_bias: Optional,
    wanted: Any, out: Tensor, logsumexp: Tensor, *rest: Any, **scale: Any,
) -> tuple[Any, ...]:  # fmt: skip
    """That of its backward. A bias gets a gradient for each of vmap's batch."""
    given = (grad_out, query, key, value, out, logsumexp, attn_bias)
    level, n, tensors, at = _unwrapped(*given)
    with torch._C._ExcludeDispatchKeyGuard(_OF_THIS_LEVEL):
        if all(dim is None for dim in at):
            grad, q, k, v, y, sums, bias = tensors
            return _BACKWARD(grad, q, k, v, bias, wanted, y, sums, *rest, **scale)
        pairs = zip(tensors[:6], at[:6], strict=True)
        grad, q, k, v, y, sums = (_together(x, dim, n) for x, dim in pairs)
        bias = tensors[6]
        is_wanted = bias is not None and bias.is_floating_point() and wanted[3]
        if bias is not None:
            bias = _bias_of_all(bias, at[6], n, q.shape[0] // n, of_each=is_wanted)
        *found, of_bias = _BACKWARD(grad, q, k, v, bias, wanted, y, sums, *rest, **scale)
        results = [_apart(x, n) for x in found]
        if attn_bias is None:
            return *wrap_batched(tuple(results), (0,) * 3, level), None
        shape = attn_bias.shape
        if is_wanted:
            of_bias = _apart(of_bias, n).sum_to_size(n, *(1,) * (4 - len(shape)), *shape)
            of_bias = of_bias.reshape(n, *shape)
        else:  # nobody reads it
            of_bias = of_bias.new_zeros((n, *shape))
    return wrap_batched((*results, of_bias), (0,) * 4, level)


def _unwrapped(*tensors: Optional) -> tuple[int, int, tuple[Any, ...], tuple[Any, ...]]:
    """The level and the size of vmap's batch; the tensors beneath, and where in them it is."""
    interpreter: Any = retrieve_current_functorch_interpreter()
    level = interpreter.level()
    given, at = unwrap_batched(tensors, level)
    return level, interpreter.batch_size(), given, at


def _together(x: Tensor, dim: int | None, n: int) -> Tensor:
    """With vmap's batch within the first dim."""
    whole = x.expand(n, *x.shape) if dim is None else x.movedim(dim, 0)
    return whole.flatten(0, 1)


def _apart(x: Tensor, n: int) -> Tensor:
    return x.unflatten(0, (n, -1))


def _bias_of_all(
    bias: Tensor, dim: int | None, n: int, batch: int, *, of_each: bool = False
) -> Tensor:
    """A bias of four dims, of all batches or of one.

    of_each   whether each of vmap's batch has its own, though they are the same.
    """
    n_dims = bias.dim() - (dim is not None)
    if dim is None:
        whole = bias.reshape(1, *(1,) * (4 - n_dims), *bias.shape)
        if whole.shape[1] == 1 and not of_each:
            return whole[0]
        whole = whole.expand(n, *whole.shape[1:])
    else:
        moved = bias.movedim(dim, 0)
        whole = moved.reshape(n, *(1,) * (4 - n_dims), *moved.shape[1:])
    return whole.expand(n, batch, *whole.shape[2:]).flatten(0, 1)


# By key: the kernels that stand there, for whatever device.
BATCHED: dict[str, dict[Any, Any]] = {
    VMAP: {_OPERATOR: scaled_dot_product_attention},
    BATCHING: {_ONE: one_operator, _BACKWARD: one_operator_backward},
}
