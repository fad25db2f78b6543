"""`flash_attention`: attention in forms that PyTorch has no arguments for, as an operator with a backward."""

from __future__ import annotations

from typing import Any

import torch

from torch_pjrt.extend import lowers
from torch_pjrt.plugin import client, rules
from torch_pjrt_kernels.as_autocast import as_autocast
from torch_pjrt_kernels.attention import batched, check, reference, tpu
from torch_pjrt_kernels.attention.choice import (
    AT_ONCE,
    BLOCKS,
    SPLASH,
    Problem,
    Way,
    first_without,
    objection_to_blocks,
    sizes_of,
)
from torch_pjrt_kernels.attention.form import Form, Sizes
from torch_pjrt_kernels.attention.groups import backward, forward
from torch_pjrt_kernels.one_node import one_node
from torch_pjrt_kernels.refusals import without_derivative

Tensor = torch.Tensor
Optional = torch.Tensor | None


@one_node
def flash_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    bias: Optional = None,
    slopes: Optional = None,
    segments: Tensor | tuple[Tensor, Tensor] | None = None,
    sinks: Optional = None,
    is_causal: bool = False,
    window: tuple[int | None, int | None] = (None, None),
    first_position: int = 0,
    soft_cap: float | None = None,
    dropout_p: float = 0.0,
    scale: float | None = None,
) -> Tensor:
    """Attention in memory that grows with the length, not with its square, forward and backward.

    query       of shape (batch, heads, queries, width). key: (batch, key_heads, keys, width); value: (batch,
                key_heads, keys, value_width), all of one floating dtype. `heads` is a multiple of
                `key_heads`: consecutive query heads share one.
    bias        is added to the scores; its four dims are (batch, heads, queries, keys), each or 1. One of
                bools says instead which keys a query sees. Floats get a gradient.
    slopes      (heads,): ALiBi; the distance of two positions, times this, is taken off a score. They get no
                gradient.
    segments    (batch, length), integers: queries see keys of their own segment. A pair has those of the
                queries and of the keys.
    sinks       (heads,): the score of a key without a value, which takes weight. Gets a gradient.
    is_causal   no query sees a later key. window: nor one more than so many positions before it, or behind.
    first_position   the position of the first query, where the first key's is 0: `keys - queries` for
                queries that continue a sequence.
    soft_cap    scores become `soft_cap * tanh(scores / soft_cap)`, before all that is said above.
    dropout_p   of the weights. scale: of the products; None: one over the root of the width.

    The result is (batch, heads, queries, value_width), of the query's dtype; softmax and sums are in float32,
    in float64 for float64. A query that sees nothing gets zeros. Under autocast query, keys and values are
    cast, as by PyTorch's function. Tensors that are not on `pjrt` are computed with all scores at once. It
    has a derivative, which has none itself. Raises `ValueError` for what does not fit.

        y = flash_attention(q, k, v, is_causal=True, window=(4096, None), soft_cap=50.0)
    """
    of_queries, of_keys = segments if isinstance(segments, tuple) else (segments, segments)
    query, key, value = as_autocast(query, key, value)  # type: ignore[assignment]
    arrays = (query, key, value, bias, slopes, of_queries, of_keys, sinks)
    check.arrays(*arrays)
    check.numbers(window, first_position, soft_cap, dropout_p)
    out, _, _ = torch.ops.torch_pjrt_kernels.attention(
        *arrays, is_causal, *window, first_position, soft_cap, dropout_p, scale
    )
    return out


# How weights are dropped on a CPU: drawn anew from a seed, in the backward too.


def _kept(query: Tensor, key: Tensor, dropout_p: float, seed: Tensor) -> Optional:
    if not dropout_p:
        return None
    generator = torch.Generator(query.device).manual_seed(int(seed))
    shape = (*query.shape[:3], key.shape[2])
    return torch.rand(shape, generator=generator, device=query.device) >= dropout_p


@torch.library.custom_op("torch_pjrt_kernels::attention", mutates_args=())
def _attention(
    query: Tensor, key: Tensor, value: Tensor, bias: Optional, slopes: Optional,
    query_segments: Optional, key_segments: Optional, sinks: Optional,
    is_causal: bool, before: int | None, behind: int | None, first_position: int,
    soft_cap: float | None, dropout_p: float, scale: float | None,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Output, logsumexp of the scores, and what the backward needs to drop the same weights."""
    wide = _wide(query.dtype)
    seed = torch.zeros((), dtype=torch.int64, device=query.device)
    if dropout_p:
        seed = torch.randint(2**62, (), device=query.device)
    out, logsumexp = reference.attention(
        query.to(wide), key.to(wide), value.to(wide), bias, slopes, query_segments, key_segments,
        sinks, kept=_kept(query, key, dropout_p, seed), dropout_p=dropout_p, is_causal=is_causal,
        window=(before, behind), first_position=first_position, soft_cap=soft_cap, scale=scale,
    )  # fmt: skip
    return out.to(query.dtype), logsumexp, seed


@_attention.register_fake
def _(query: Tensor, key: Tensor, value: Tensor, *rest: Any) -> tuple[Tensor, Tensor, Tensor]:
    out = query.new_empty((*query.shape[:3], value.shape[3]))
    logsumexp = query.new_empty(query.shape[:3], dtype=_wide(query.dtype))
    return out, logsumexp, query.new_empty((), dtype=torch.int64)


@torch.library.custom_op("torch_pjrt_kernels::attention_backward", mutates_args=())
def _attention_backward(
    grad_out: Tensor, query: Tensor, key: Tensor, value: Tensor, bias: Optional, slopes: Optional,
    query_segments: Optional, key_segments: Optional, sinks: Optional,
    out: Tensor, logsumexp: Tensor, seed: Tensor,
    is_causal: bool, before: int | None, behind: int | None, first_position: int,
    soft_cap: float | None, dropout_p: float, scale: float | None, of_bias: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """The gradients of query, key, value, bias, sinks; of the last two without elements if not wanted."""
    wide = _wide(query.dtype)
    given = [x.to(wide) for x in (grad_out, query, key, value)]
    *found, found_bias, found_sinks = reference.backward(
        *given, bias, slopes, query_segments, key_segments, sinks,
        kept=_kept(query, key, dropout_p, seed), dropout_p=dropout_p, is_causal=is_causal,
        window=(before, behind), first_position=first_position, soft_cap=soft_cap, scale=scale,
    )  # fmt: skip
    of_query, of_key, of_value = (x.to(query.dtype) for x in found)
    return (
        of_query,
        of_key,
        of_value,
        found_bias.to(bias.dtype) if of_bias and bias is not None else query.new_empty(0),
        found_sinks.to(sinks.dtype) if sinks is not None else query.new_empty(0),
    )


@_attention_backward.register_fake
def _(
    grad_out: Tensor, query: Tensor, key: Tensor, value: Tensor, bias: Optional, slopes: Optional,
    query_segments: Optional, key_segments: Optional, sinks: Optional, *rest: Any,
) -> tuple[Tensor, ...]:  # fmt: skip
    of_bias = rest[-1]
    return (
        query.new_empty(query.shape),
        key.new_empty(key.shape),
        value.new_empty(value.shape),
        bias.new_empty(bias.shape) if of_bias and bias is not None else query.new_empty(0),
        query.new_empty(0) if sinks is None else sinks.new_empty(sinks.shape),
    )


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.save_for_backward(*inputs[:8], *output)
    ctx.form = inputs[8:]


def _differentiated(ctx: Any, grad_out: Tensor, *unused: Any) -> tuple[Any, ...]:
    *inputs, out, logsumexp, seed = ctx.saved_tensors
    bias = inputs[3]
    of_bias = bias is not None and bias.is_floating_point() and ctx.needs_input_grad[3]
    of_query, of_key, of_value, found, of_sinks = torch.ops.torch_pjrt_kernels.attention_backward(
        grad_out, *inputs, out, logsumexp, seed, *ctx.form, of_bias
    )
    none = (None,) * len(ctx.form)
    of_sinks = None if inputs[7] is None else of_sinks
    return of_query, of_key, of_value, found if of_bias else None, None, None, None, of_sinks, *none


torch.library.register_autograd(
    "torch_pjrt_kernels::attention", _differentiated, setup_context=_keep
)
torch.library.register_vmap("torch_pjrt_kernels::attention", batched.attention)
without_derivative(
    "torch_pjrt_kernels::attention_backward", "flash_attention",
    "`scaled_dot_product_attention` has second derivatives under `sdpa_kernel(SDPBackend.MATH)`",
)  # fmt: skip


def way_of(
    query: Any, key: Any, value: Any, bias: Any, slopes: Any, of_queries: Any, of_keys: Any,
    sinks: Any, is_causal: bool, before: int | None, behind: int | None, first_position: int,
    soft_cap: float | None, dropout_p: float, scale: Any,
) -> Way:  # fmt: skip
    """How a call is computed, by shapes, dtypes and what there is; and what the kernel has against it."""
    problem, dtype = problem_of(query, key, value, is_causal), query.dtype.name
    in_blocks = objection_to_blocks(problem)
    against = in_blocks or tpu.objection_of_the_chip()
    against = against or tpu.objection(
        problem, dtype, has_bias=bias is not None, dropout_p=dropout_p
    )
    if slopes is not None or sinks is not None:
        against = against or "it takes no slopes and no sinks"
    if of_queries is not of_keys:
        against = against or "queries and keys have segments of their own"
    against = against or _pattern(is_causal, before, behind, first_position, soft_cap).objection(
        problem
    )
    if in_blocks is not None:  # one block, which is all
        return Way(AT_ONCE, {SPLASH: against, BLOCKS: in_blocks})  # type: ignore[dict-item]
    return first_without({SPLASH: against, BLOCKS: None})


def problem_of(query: Any, key: Any, value: Any, is_causal: bool = False) -> Problem:
    """The shapes of a call."""
    b, h, q, w = query.shape
    sizes = (b, h, key.shape[1], q, key.shape[2], w, value.shape[3])
    return Problem(*sizes, query.dtype.name, bool(is_causal))


@lowers(
    torch.ops.torch_pjrt_kernels.attention.default,
    random="dropout_p",
    static=("dropout_p", "soft_cap", "scale"),
)
def _rule(dropout_key: Any, query: Any, key: Any, value: Any, *form: Any) -> Any:
    from jax import lax

    seed = lax.full((), 0, "int64")
    if dropout_key is not None:
        seed = rules.seed_of(dropout_key)
        dropout_key = rules.key_of(seed)
    if way_of(query, key, value, *form).name == SPLASH:
        found = tpu.forward(query, key, value, *_of_splash(query, form))
        return *found, seed
    made, sizes = _form(query, form, dropout_key), _sizes(query, key, value, form)
    return *forward(query, key, value, made, sizes), seed


@lowers(
    torch.ops.torch_pjrt_kernels.attention_backward.default,
    static=("dropout_p", "soft_cap", "scale"),
)
def _rule_of_backward(
    grad_out: Any, query: Any, key: Any, value: Any, bias: Any, slopes: Any, query_segments: Any,
    key_segments: Any, sinks: Any, out: Any, logsumexp: Any, seed: Any, *rest: Any,
) -> Any:  # fmt: skip
    import jax.numpy as jnp

    *numbers, of_bias = rest
    form = (bias, slopes, query_segments, key_segments, sinks, *numbers)
    nothing = jnp.zeros((0,), query.dtype)
    if way_of(query, key, value, *form).name == SPLASH:
        given = (grad_out, query, key, value)
        return *tpu.backward(*given, *_of_splash(query, form)), nothing, nothing
    dropout_key = rules.key_of(seed) if numbers[5] else None
    found = backward(
        grad_out, query, key, value, out, logsumexp, _form(query, form, dropout_key),
        _sizes(query, key, value, form), of_bias=of_bias,
    )  # fmt: skip
    return (
        *found[:3],
        nothing if found.bias is None else found.bias,
        nothing if found.sinks is None else found.sinks,
    )


def _of_splash(query: Any, form: tuple[Any, ...]) -> tuple[Any, ...]:
    segments, (is_causal, before, behind, first, soft_cap, _, scale) = form[2], form[5:]
    pattern = _pattern(is_causal, before, behind, first, soft_cap)
    return query.shape[-1] ** -0.5 if scale is None else scale, pattern, segments


def _pattern(
    is_causal: bool, before: int | None, behind: int | None, first: int, soft_cap: float | None
) -> tpu.Pattern:
    return tpu.Pattern(before, 0 if is_causal else behind, first, soft_cap)


def _form(query: Any, form: tuple[Any, ...], dropout_key: Any) -> Form:
    bias, slopes, of_queries, of_keys, sinks, is_causal, before, behind, *rest = form
    first_position, soft_cap, dropout_p, scale = rest
    return Form(
        query.shape[-1] ** -0.5 if scale is None else scale,
        soft_cap=soft_cap,
        slopes=slopes,
        bias=bias,
        is_causal=is_causal,
        window=(before, behind),
        segments=None if of_queries is None or of_keys is None else (of_queries, of_keys),
        first_row=first_position,
        sinks=sinks,
        dropout_p=dropout_p,
        dropout_key=dropout_key,
    )


def _sizes(query: Any, key: Any, value: Any, form: tuple[Any, ...]) -> Sizes:
    problem = problem_of(query, key, value, form[5])
    return sizes_of(problem, on_cpu=client().device.name == "CPU")


def _wide(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype == torch.float64 else torch.float32
