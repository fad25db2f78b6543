"""`flex_attention` in blocks gives what its definition gives, and computes no block that the mask hides."""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch.nn.attention.flex_attention import (
    AuxRequest,
    BlockMask,
    create_block_mask,
    flex_attention,
)

import torch_pjrt
from torch_pjrt.extend import counters
from torch_pjrt_kernels.flex.operator import objection

pytestmark = pytest.mark.filterwarnings(
    "ignore::DeprecationWarning", "ignore:.*flex_attention called without"
)
BATCH, HEADS, QUERIES, KEYS, WIDTH = 2, 4, 40, 56, 8
# Blocks of the mask, and those that are computed at once.
SPARSE = 8
BLOCKS: Any = {"BLOCK_M": 16, "BLOCK_N": 8}
Mod = Callable[..., torch.Tensor]


@dataclass(frozen=True)
class Form:
    """How scores are changed and masked, from a captured tensor of one number for each head."""

    score: Callable[[torch.Tensor], Mod] | None = None
    mask: Callable[[torch.Tensor], Mod] | None = None
    key_heads: int = HEADS
    by_batch: bool = False


def slopes(c: torch.Tensor) -> Mod:
    return lambda s, b, h, i, j: s + c[h] * (i - j)


def capped(c: torch.Tensor) -> Mod:
    return lambda s, b, h, i, j: torch.tanh(s / 2) * 2 * (1 + c[b])


def causal(c: torch.Tensor) -> Mod:
    return lambda b, h, i, j: i >= j


def window_of_head(c: torch.Tensor) -> Mod:
    return lambda b, h, i, j: (i - j).abs() < 4 + h


def nothing_for_some(c: torch.Tensor) -> Mod:
    return lambda b, h, i, j: (i > 20) & (j < 30)


def of_batch(c: torch.Tensor) -> Mod:
    return lambda b, h, i, j: (i // 9 == j // 9) | (b == 1)


FORMS = {
    "plain": Form(),
    "a score with a gradient": Form(score=slopes),
    "a score that is bent": Form(score=capped, mask=causal),
    "heads that see different keys": Form(mask=window_of_head),
    "nowhere to look": Form(mask=nothing_for_some, score=slopes),
    "batches that see different keys": Form(mask=of_batch, score=slopes, by_batch=True),
    "shared key heads": Form(mask=causal, score=slopes, key_heads=2),
}


def leaves(form: Form, device: str, dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    """Query, key, value, and what is captured."""
    generator = torch.Generator().manual_seed(0)
    shapes = ((HEADS, QUERIES), (form.key_heads, KEYS), (form.key_heads, KEYS))
    made = [torch.randn(BATCH, *s, WIDTH, generator=generator) for s in shapes]
    given = (*made, torch.linspace(-1, 1, HEADS))
    return [x.to(dtype).to(device).requires_grad_() for x in given]


def defined(form: Form, q: Any, k: Any, v: Any, c: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Output and logsumexp by the definition, with all scores at once."""
    k, v = (x.repeat_interleave(HEADS // form.key_heads, 1) for x in (k, v))
    sizes = (BATCH, HEADS, QUERIES, KEYS)
    at = [
        torch.arange(n).view([-1 if d == i else 1 for d in range(4)]) for i, n in enumerate(sizes)
    ]
    scores = (q @ k.mT) / math.sqrt(WIDTH)
    if form.score is not None:
        scores = form.score(c)(scores, *at)
    if form.mask is not None:
        scores = scores.masked_fill(~form.mask(c)(*at), -torch.inf)
    return torch._safe_softmax(scores, -1) @ v, scores.logsumexp(-1)  # pyright: ignore[reportPrivateImportUsage]


def attended(form: Form, flex: Any, q: Any, k: Any, v: Any, c: Any) -> Any:
    mask = None
    if form.mask is not None:
        batch = BATCH if form.by_batch else None
        rule = form.mask(c.detach())
        mask = create_block_mask(rule, batch, HEADS, QUERIES, KEYS, "pjrt", SPARSE)
    output, aux = flex(
        q, k, v, score_mod=None if form.score is None else form.score(c), block_mask=mask,
        enable_gqa=form.key_heads != HEADS, return_aux=AuxRequest(lse=True), kernel_options=BLOCKS,
    )  # fmt: skip
    return output, aux.lse


def with_gradients(results: Any, given: list[torch.Tensor]) -> list[torch.Tensor | None]:
    """Those of the output and of the logsumexp, where there is one."""
    output, lse = results
    start = torch.cos(torch.arange(output.numel())).reshape(output.shape).to(output)
    loss = (output * start).sum() + lse.masked_fill(lse == -torch.inf, 0).sin().sum()
    gradients = torch.autograd.grad(loss, given, allow_unused=True)
    return [None if x is None else x.detach().cpu() for x in (output, lse, *gradients)]


@pytest.mark.slow
@pytest.mark.parametrize("way", ["called as it is", "compiled"])
@pytest.mark.parametrize("name", FORMS)
def test_values_and_gradients_are_those_of_the_definition(name: str, way: str) -> None:
    torch._dynamo.reset()
    form, flex = FORMS[name], flex_attention
    if way == "compiled":
        flex = torch.compile(flex_attention, fullgraph=True)
    given = leaves(form, "pjrt")

    ours = with_gradients(attended(form, flex, *given), given)

    exact = leaves(form, "cpu", torch.float64)
    expected = with_gradients(defined(form, *exact), exact)
    for a, b in zip(ours, expected, strict=True):
        if b is None:
            assert a is None or not a.any()
        else:
            assert a is not None
            torch.testing.assert_close(a.double(), b, rtol=1e-4, atol=1e-4)


def test_a_block_that_the_mask_hides_is_not_computed() -> None:
    q, k, v, _ = leaves(FORMS["plain"], "pjrt")
    mask = create_block_mask(lambda b, h, i, j: j < 24, None, None, QUERIES, KEYS, "pjrt", SPARSE)
    with torch.no_grad():
        k[:, :, 24:] = torch.nan
        v[:, :, 24:] = torch.nan
    compiled = torch.compile(flex_attention, fullgraph=True)

    y = compiled(q, k, v, block_mask=mask, kernel_options=BLOCKS)
    found = torch.autograd.grad(y.sum(), q)[0]

    assert bool(y.isfinite().all())
    assert bool(found.isfinite().all())


def test_blocks_alone_say_what_is_seen_where_there_is_no_other_mask() -> None:
    q, k, v, _ = leaves(FORMS["plain"], "pjrt")
    rows = torch.arange(QUERIES // SPARSE, dtype=torch.int32, device="pjrt")
    # Block i of the queries sees block i of the keys; for odd heads, block i + 1, too.
    columns = torch.stack([rows, rows + 1], -1).expand(1, HEADS, -1, -1)
    columns = torch.nn.functional.pad(columns, (0, KEYS // SPARSE - 2))
    counts = (torch.arange(HEADS, device="pjrt") % 2 + 1).int()[None, :, None].expand(1, -1, 5)
    mask = BlockMask.from_kv_blocks(
        counts.contiguous(), columns.contiguous(), BLOCK_SIZE=SPARSE, seq_lengths=(QUERIES, KEYS)
    )

    y = torch.compile(flex_attention, fullgraph=True)(
        q, k, v, block_mask=mask, kernel_options=BLOCKS
    )

    i, j, h = torch.arange(QUERIES) // SPARSE, torch.arange(KEYS) // SPARSE, torch.arange(HEADS)
    nearer = (j == i[:, None]) | ((j == i[:, None] + 1) & (h[:, None, None] % 2 == 1))
    expected = torch.nn.functional.scaled_dot_product_attention(
        *(x.detach().cpu() for x in (q, k, v)), attn_mask=nearer
    )
    torch.testing.assert_close(y.detach().cpu(), expected, rtol=1e-4, atol=1e-5)


def test_long_attention_makes_no_array_of_all_scores_and_one_program_serves_equal_calls() -> None:
    q = torch.zeros(1, 2, 1500, 8, device="pjrt", requires_grad=True)
    bias = torch.zeros(2, device="pjrt", requires_grad=True)
    mask = create_block_mask(lambda b, h, i, j: i >= j, None, None, 1500, 1500, "pjrt")
    torch.accelerator.synchronize()  # PyTorch makes it of an array of all pairs

    def both() -> list[torch.Tensor]:
        y = flex_attention(q, q, q, score_mod=lambda s, b, h, i, j: s * bias[h], block_mask=mask)
        return [y, *torch.autograd.grad(y.sum(), (q, bias))]

    assert objection(q, q, q, {}, (bias,)) is None
    assert "1500x1500" not in torch_pjrt.to_stablehlo(both())
    compiled = []
    for _ in range(4):
        before = counters.programs_compiled
        both()[1].cpu()
        compiled.append(counters.programs_compiled - before)
    assert compiled[2:] == [0, 0]


def test_bfloat16_is_as_near_as_its_rounding() -> None:
    form = FORMS["shared key heads"]
    given = leaves(form, "pjrt", torch.bfloat16)

    output, _ = attended(form, flex_attention, *given)

    exact, _ = defined(form, *[x.detach().cpu().double() for x in given])
    assert output.dtype == torch.bfloat16
    torch.testing.assert_close(output.detach().cpu().double(), exact, rtol=1.6e-2, atol=1.6e-2)


def test_what_blocks_do_not_take_is_said() -> None:
    def like(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        return torch.empty(shape, dtype=dtype, device="meta")

    long, short = like(1, 8, 4096, 64), like(1, 8, 16, 64)
    table = like(4096, 4096).requires_grad_()

    assert objection(long, long, long, {}) is None
    assert "16 queries on 16 keys are few" in str(objection(short, short, short, {}))
    assert objection(short, short, short, {"BLOCK_M": 16}) is None
    half = long.to(torch.float16)
    assert "several dtypes" in str(objection(long, half, half, {}))
    assert "16777216 captured numbers" in str(objection(long, long, long, {}, (table,)))


@pytest.mark.slow
def test_it_is_in_blocks_on_a_tpu_compiled_ahead() -> None:
    pytest.importorskip("libtpu")
    mask = create_block_mask(lambda b, h, i, j: i >= j, None, None, 4096, 4096, "pjrt")
    torch.accelerator.synchronize()

    def step(*given: torch.Tensor) -> Any:
        q, k, v = (x.detach().requires_grad_() for x in given)
        y: Any = flex_attention(q, k, v, block_mask=mask)
        return torch.autograd.grad(y.sum(), (q, k, v))

    given = [torch.empty(1, 4, 4096, 64, dtype=torch.bfloat16, device="meta") for _ in range(3)]

    assert torch_pjrt.compile_for("v5e:2x2", step, *given).temporary_bytes < 8e6


@pytest.mark.filterwarnings("always")
@pytest.mark.parametrize(("device", "count"), [("pjrt", 0), ("cpu", 1)])
def test_pytorchs_warning_of_eager_calls_is_of_other_devices_alone(
    device: str, count: int, monkeypatch: pytest.MonkeyPatch, recwarn: pytest.WarningsRecorder
) -> None:
    module: Any = importlib.import_module("torch.nn.attention.flex_attention")
    monkeypatch.setattr(module, "_WARNINGS_SHOWN", set())
    q = torch.randn(1, 2, 8, 4, device=device)

    flex_attention(q, q, q)

    found = [w for w in recwarn if "flex_attention called without" in str(w.message)]
    assert len(found) == count
