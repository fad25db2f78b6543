"""FlexAttention gives what its definition gives, with gradients, called as it is and compiled into one graph.

The CPU refuses its gradients, so the definition is written out here and differentiated there.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch._higher_order_ops.out_dtype import out_dtype
from torch.nn.attention.flex_attention import AuxRequest, create_block_mask, flex_attention

from torch_pjrt.extend import counters

BATCH, HEADS, QUERIES, KEYS, WIDTH, BLOCK = 2, 4, 16, 24, 8, 8
Mod = Callable[..., torch.Tensor]
pytestmark = pytest.mark.filterwarnings(
    "ignore::DeprecationWarning", "ignore:.*flex_attention called without"
)


@dataclass(frozen=True)
class Call:
    """How scores are modified and masked, from a captured tensor; how many heads keys have."""

    score: Callable[[torch.Tensor], Mod] | None = None
    mask: Callable[[torch.Tensor], Mod] | None = None
    key_heads: int = HEADS
    scale: float | None = None
    captured: torch.Tensor = torch.linspace(-1, 1, HEADS)  # noqa: RUF009


def _slopes(c: torch.Tensor) -> Mod:
    return lambda s, b, h, i, j: s + c[h] * (i - j)


def _capped(c: torch.Tensor) -> Mod:
    return lambda s, b, h, i, j: torch.tanh(s / 2) * 2 * (1 + c[b])


def _causal(c: torch.Tensor) -> Mod:
    return lambda b, h, i, j: i >= j


def _window(c: torch.Tensor) -> Mod:
    return lambda b, h, i, j: (i - j).abs() < 4 + h


def _nothing_for_some(c: torch.Tensor) -> Mod:
    return lambda b, h, i, j: (i > 2) & (j < 20)


def _documents(c: torch.Tensor) -> Mod:
    return lambda b, h, i, j: (c[h] > 0) | (i // 4 == j // 4)


CALLS: dict[str, Call] = {
    "plain": Call(),
    "scale": Call(scale=0.1),
    "slopes with a gradient": Call(score=_slopes),
    "capped": Call(score=_capped),
    "causal": Call(mask=_causal),
    "window": Call(mask=_window),
    "nowhere to look": Call(mask=_nothing_for_some),
    "a mask that captures": Call(mask=_documents),
    "grouped heads": Call(key_heads=2),
    "all at once": Call(score=_slopes, mask=_documents, key_heads=1, scale=0.3),
}

UNCOMPILED = ("nowhere to look", "all at once")


def leaves(call: Call, device: str, dtype: torch.dtype) -> list[torch.Tensor]:
    """Query, key, value, and what is captured."""
    generator = torch.Generator().manual_seed(0)
    shapes = ((HEADS, QUERIES), (call.key_heads, KEYS), (call.key_heads, KEYS))
    made = [torch.randn(BATCH, *s, WIDTH, generator=generator) for s in shapes]
    return [t.to(dtype).to(device).requires_grad_() for t in (*made, call.captured)]


def defined(call: Call, q: Any, k: Any, v: Any, captured: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Output and log-sum-exp by the definition."""
    k, v = (x.repeat_interleave(HEADS // call.key_heads, 1) for x in (k, v))
    sizes = (BATCH, HEADS, QUERIES, KEYS)
    positions = [
        torch.arange(n).view([-1 if d == i else 1 for d in range(4)]) for i, n in enumerate(sizes)
    ]
    scores = (q @ k.mT) * (1 / math.sqrt(WIDTH) if call.scale is None else call.scale)
    if call.score is not None:
        scores = call.score(captured)(scores, *positions)
    if call.mask is not None:
        scores = scores.masked_fill(~call.mask(captured)(*positions), -torch.inf)
    return torch._safe_softmax(scores, -1) @ v, scores.logsumexp(-1)


def attended(call: Call, flex: Any, q: Any, k: Any, v: Any, captured: Any) -> Any:
    mask = None
    if call.mask is not None:
        rule = call.mask(captured.detach())
        mask = create_block_mask(rule, BATCH, HEADS, QUERIES, KEYS, "pjrt", BLOCK)
    output, aux = flex(
        q,
        k,
        v,
        score_mod=None if call.score is None else call.score(captured),
        block_mask=mask,
        scale=call.scale,
        enable_gqa=call.key_heads != HEADS,
        return_aux=AuxRequest(lse=True),
    )
    return output, aux.lse


def with_gradients(results: Any, given: list[torch.Tensor]) -> list[torch.Tensor | None]:
    output, lse = results
    start = torch.cos(torch.arange(output.numel())).reshape(output.shape).to(output)
    gradients = torch.autograd.grad(output, given, start, allow_unused=True)
    return [None if t is None else t.detach().cpu() for t in (output, lse, *gradients)]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "way"),
    [*((name, "compiled") for name in CALLS), *((name, "called as it is") for name in UNCOMPILED)],
)
def test_output_and_gradients_are_those_of_the_definition(name: str, way: str) -> None:
    call = CALLS[name]
    torch._dynamo.reset()
    flex: Any = flex_attention
    if way == "compiled":
        flex = torch.compile(flex_attention, backend="pjrt", fullgraph=True)
    islands, fallbacks = counters.islands.total(), counters.fallbacks.total()
    given = leaves(call, "pjrt", torch.float32)

    ours = with_gradients(attended(call, flex, *given), given)

    theirs = leaves(call, "cpu", torch.float32)
    expected = with_gradients(defined(call, *theirs), theirs)
    for a, b in zip(ours, expected, strict=True):
        if b is None:
            assert a is None or not a.any()
        else:
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)  # sums in another order
    assert (counters.islands.total(), counters.fallbacks.total()) == (islands, fallbacks)


def test_bfloat16_is_as_near_to_float32_as_its_rounding() -> None:
    call = CALLS["causal"]
    given = leaves(call, "pjrt", torch.bfloat16)

    output, _ = attended(call, torch.compile(flex_attention, backend="pjrt"), *given)

    exact, _ = defined(call, *[t.detach().cpu().float() for t in given])
    assert output.dtype == torch.bfloat16
    torch.testing.assert_close(output.detach().cpu().float(), exact, rtol=1.6e-2, atol=1.6e-2)


def test_a_model_that_attends_so_trains_in_one_program_a_step() -> None:
    torch._dynamo.reset()
    layer = torch.nn.Linear(WIDTH, 3 * WIDTH).to("pjrt")
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    mask = create_block_mask(lambda b, h, i, j: i >= j, None, None, KEYS, KEYS, "pjrt", BLOCK)

    @torch.compile(backend="pjrt", fullgraph=True)
    def attend(x: torch.Tensor) -> torch.Tensor:
        q, k, v = layer(x).view(BATCH, KEYS, 2, -1).transpose(1, 2).chunk(3, -1)
        return flex_attention(q, k, v, block_mask=mask)

    compiled = []
    for seed in range(4):
        x = torch.randn(BATCH, KEYS, WIDTH, generator=torch.Generator().manual_seed(seed))
        before = counters.programs_compiled, counters.downloads
        attend(x.to("pjrt")).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        after = counters.programs_compiled, counters.downloads
        compiled.append(tuple(b - a for a, b in zip(before, after, strict=True)))

    assert compiled[2:] == [(0, 0)] * 2


def test_tensors_of_other_devices_are_refused_as_ever() -> None:
    q = torch.ones(1, 1, 4, 8, device="meta")

    with pytest.raises(ValueError, match="only supported on"):
        flex_attention(q, q, q)


def test_out_dtype_is_part_of_the_graph() -> None:
    torch._dynamo.reset()
    islands = counters.islands.total()
    x, y = torch.full((2, 3), 100, dtype=torch.int8), torch.full((3, 4), 100, dtype=torch.int8)

    @torch.compile(backend="pjrt", fullgraph=True)
    def product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return out_dtype(torch.ops.aten.mm.default, torch.int32, a, b)

    z = product(x.to("pjrt"), y.to("pjrt"))

    assert z.dtype == torch.int32
    assert z.tolist() == [[30000] * 4] * 2
    assert counters.islands.total() == islands
