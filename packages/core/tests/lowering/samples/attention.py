"""Samples for lowering/attention.py.

The operators have no CPU kernel: here they get one, the plain attention and autograd through it.
"""

from __future__ import annotations

import math
from typing import Any

import jax
import torch

from check import Sample
from torch_pjrt import dtypes
from torch_pjrt.lowering.attention import Attention, scaled_dot_product_attention
from torch_pjrt.overloads import aten

seed = torch.Generator().manual_seed(0)
cpu = torch.library.Library("aten", "IMPL")
forward = aten._scaled_dot_product_fused_attention_overrideable.default
backward = aten._scaled_dot_product_fused_attention_overrideable_backward.default
BF16 = torch.bfloat16


def _attend(q: Any, k: Any, v: Any, bias: Any, causal: bool, scale: float | None) -> Any:
    """Output and scores, in at least float32."""
    if causal:
        seen = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool).tril()
        causal_bias = torch.zeros(seen.shape).masked_fill(~seen, -math.inf)
        bias = causal_bias if bias is None else _added(bias) + causal_bias
    sharing = q.shape[-3] // k.shape[-3]
    k, v = (x.repeat_interleave(sharing, -3) for x in (k, v))
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    scores = q @ k.mT * scale
    if bias is not None:
        scores = scores + _added(bias)
    return torch._safe_softmax(scores, -1) @ v, scores


def _added(bias: torch.Tensor) -> torch.Tensor:
    """A mask as what is added."""
    if bias.dtype != torch.bool:
        return bias
    return torch.zeros(bias.shape).masked_fill(~bias, -math.inf)


def _wide(x: Any) -> Any:
    return x.float() if x is not None and x.dtype == BF16 else x


def _forward(
    q: Any, k: Any, v: Any, bias: Any = None, p: float = 0.0, causal: bool = False,
    debug: bool = False, *, scale: float | None = None,
) -> Any:  # fmt: skip
    out, scores = _attend(_wide(q), _wide(k), _wide(v), _wide(bias), causal, scale)
    lse = scores.logsumexp(-1).float().reshape(-1, *scores.shape[-3:-1])
    zero = torch.zeros((), dtype=torch.int64)
    return out.to(q.dtype), lse, None, None, q.shape[-2], k.shape[-2], zero, zero, None


def _backward(
    grad: Any, q: Any, k: Any, v: Any, bias: Any, mask: Any, out: Any, lse: Any, cum_q: Any,
    cum_k: Any, max_q: int, max_k: int, p: float, causal: bool, seed: Any, offset: Any, *,
    scale: float | None = None,
) -> Any:  # fmt: skip
    is_mask = bias is not None and bias.dtype == torch.bool
    given = [x for x in (q, k, v, None if is_mask else bias) if x is not None]
    inputs = [_wide(x).detach().requires_grad_() for x in given]
    q, k, v = inputs[:3]
    with torch.enable_grad():
        out, _ = _attend(q, k, v, bias if is_mask else (*inputs, None)[3], causal, scale)
        grads = torch.autograd.grad(out, inputs, grad.to(out.dtype))
    results = [g.to(x.dtype) for g, x in zip(grads, given, strict=True)]
    return *results[:3], torch.zeros_like(bias) if bias is not None and is_mask else (
        *results,
        None,
    )[3]


cpu.impl(forward.name().removeprefix("aten::"), _forward, "CPU")
cpu.impl(backward.name().removeprefix("aten::"), _backward, "AutogradCPU")


def normal(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, generator=seed, dtype=torch.float64).to(dtype)


def alike(dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Query, key and value."""
    q, k, v = (normal(1, 2, 5, 4, dtype=dtype) for _ in range(3))
    return q, k, v


def all_but_seed(actual: Any, expected: Any) -> None:
    for i, (ours, theirs) in enumerate(zip(actual, expected, strict=True)):
        if i == 6:
            assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape)
        elif not isinstance(theirs, torch.Tensor):
            assert ours == theirs
        else:
            atol, rtol = (2e-2, 2e-2) if theirs.dtype == BF16 else (1e-5, 1e-5)
            torch.testing.assert_close(ours, theirs, atol=atol, rtol=rtol)


def both(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, bias: Any = None, causal: bool = False,
    scale: float | None = None,
) -> list[Sample]:  # fmt: skip
    out, lse, *rest = _forward(q, k, v, bias, 0.0, causal, scale=scale)
    grad = normal(*out.shape, dtype=out.dtype)
    mask = [True, True, True, bias is not None]
    args = (grad, q, k, v, bias, mask, out, lse, *rest[:4], 0.0, causal, rest[4], rest[5])
    kwargs = {} if scale is None else {"scale": scale}
    atol, rtol = (4e-2, 4e-2) if q.dtype == BF16 else (1e-5, 1e-5)
    why = "sums in another order, and the oracle's bfloat16 is float32 throughout"
    return [
        Sample(forward, (q, k, v, bias, 0.0, causal), kwargs, why="random", compare=all_but_seed),
        Sample(backward, args, kwargs, rtol=rtol, atol=atol, why=why),
    ]


def dropped(p: float) -> list[Sample]:
    """With alike scores and the identity as value, the output is the weights that were kept."""
    n = 64
    q, eye = torch.zeros(1, 1, n, 4), torch.eye(n).reshape(1, 1, n, n)

    def weights_are_kept(actual: Any, _: Any) -> None:
        weights = actual[0] * n * (1 - p)
        kept = weights > 0.5
        torch.testing.assert_close(weights, kept.float())
        assert abs(kept.float().mean().item() - (1 - p)) < 5 * (p * (1 - p)) ** 0.5 / n

    halves = (5, 7)
    packed = torch.tensor(halves[1] << 32 | halves[0])

    def drops_as_forward_did(actual: Any, _: Any) -> None:
        key = jax.random.wrap_key_data(jax.numpy.asarray(halves, "uint32"), impl="threefry2x32")
        with jax.enable_x64(True):
            query, value = (jax.numpy.asarray(x.numpy()) for x in (q, eye))
            out, _, _, _, _, _, seed, _, _ = scaled_dot_product_attention(
                Attention(key, query, query, value, None, p)
            )
            assert dtypes.to_torch(seed.dtype) == torch.int64
            assert int(seed) == int(packed)
        torch.testing.assert_close(actual[2].mT, torch.from_numpy(jax.device_get(out).copy()))

    out = torch.full((1, 1, n, n), 1 / n)
    lse, zero = torch.zeros(1, 1, n), torch.tensor(0)
    mask = [True, True, True, False]
    args = (eye, q, q, eye, None, mask, out, lse, None, None, n, n, p, False, packed, zero)
    return [
        Sample(forward, (q, q, eye, None, p), why="random", compare=weights_are_kept),
        Sample(backward, args, why="random", compare=drops_as_forward_did),
    ]


allowed = torch.rand(2, 1, 5, 7, generator=seed) > 0.3
allowed[0, 0, 2] = False
masking = torch.zeros(allowed.shape).masked_fill(~allowed, -math.inf)

SAMPLES: list[Sample] = [
    *both(normal(2, 3, 5, 4), normal(2, 3, 7, 4), normal(2, 3, 7, 6)),
    *both(normal(2, 3, 5, 4), normal(2, 3, 5, 4), normal(2, 3, 5, 4), causal=True),
    *both(normal(2, 3, 5, 4), normal(2, 3, 7, 4), normal(2, 3, 7, 4), causal=True, scale=0.7),
    *both(normal(2, 3, 5, 4), normal(2, 3, 7, 4), normal(2, 3, 7, 4), normal(2, 3, 5, 7)),
    *both(normal(2, 3, 5, 4), normal(2, 3, 7, 4), normal(2, 3, 7, 4), normal(5, 7)),
    *both(normal(2, 3, 5, 4), normal(2, 3, 7, 4), normal(2, 3, 7, 4), masking),
    *both(normal(2, 3, 5, 4), normal(2, 3, 7, 4), normal(2, 3, 7, 4), allowed),
    *both(normal(2, 6, 5, 4), normal(2, 2, 7, 4), normal(2, 2, 7, 4)),
    *both(normal(3, 5, 4), normal(3, 7, 4), normal(3, 7, 6)),
    *both(*alike(torch.float64)),
    *both(*alike(BF16), causal=True),
    *dropped(0.25),
]
