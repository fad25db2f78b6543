"""Ragged paged attention is that of each sequence by itself, to what its pages stand for."""

from __future__ import annotations

from functools import partial
from typing import Any, cast

import jax
import pytest
import torch

import torch_pjrt
from torch_pjrt_kernels import ragged_paged_attention, update_ragged_pages
from torch_pjrt_kernels.paged import ragged_tpu

HEADS, KEY_HEADS, WIDTH, SIZE, PAGES, MOST = 4, 2, 8, 16, 24, 5
# A prompt, a part of one that continues, two single tokens, and a sequence without queries.
QUERIES, LENGTHS = [30, 7, 1, 0, 1], [30, 41, 80, 9, 1]
TOKENS = sum(QUERIES)


def normal(*shape: int, seed: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def rest(device: str) -> list[torch.Tensor]:
    """Table, lengths, and where queries start."""
    table = torch.randperm(PAGES, generator=torch.Generator().manual_seed(0)).int()
    table = torch.cat([table, table[:1]]).reshape(5, MOST)  # the last page of all is read by nobody
    starts = torch.tensor([0, *QUERIES]).cumsum(0).int()
    return [x.to(device) for x in (table, torch.tensor(LENGTHS).int(), starts)]


def cache() -> list[torch.Tensor]:
    return [normal(PAGES, SIZE, KEY_HEADS, WIDTH, seed=i) for i in (1, 2)]


QUERY = normal(TOKENS + 3, HEADS, WIDTH, seed=3)  # three tokens are of no sequence
SINKS = normal(HEADS, seed=4)


def one_by_one(keys: torch.Tensor, values: torch.Tensor, **form: Any) -> torch.Tensor:
    """In float64, each sequence by itself."""
    table, outs = rest("cpu")[0], []
    for i, q in enumerate(QUERY[:TOKENS].double().split(QUERIES)):
        n, m = QUERIES[i], LENGTHS[i]
        k, v = (x.double()[table[i].long()].flatten(0, 1)[:m] for x in (keys, values))
        k, v = (x.repeat_interleave(HEADS // KEY_HEADS, 1) for x in (k, v))
        scores = torch.einsum("qhw,khw->hqk", q, k) * form.get("scale", WIDTH**-0.5)
        if "soft_cap" in form:
            scores = form["soft_cap"] * torch.tanh(scores / form["soft_cap"])
        row, column = torch.arange(n)[:, None] + m - n, torch.arange(m)
        seen = (column <= row) & (column >= row - form.get("window", m))
        scores = scores.masked_fill(~seen, -torch.inf)
        if "sinks" in form:
            sinks = form["sinks"].double()[:, None, None].expand(HEADS, n, 1)
            scores = torch.cat([scores, sinks], -1)
        outs.append(torch.einsum("hqk,khw->qhw", scores.softmax(-1)[..., :m], v))
    return torch.cat([*outs, torch.zeros(3, HEADS, WIDTH, dtype=torch.float64)])


def attended(device: str, keys: torch.Tensor, values: torch.Tensor | None, **form: Any) -> Any:
    given = {k: v.to(device) if isinstance(v, torch.Tensor) else v for k, v in form.items()}
    values = None if values is None else values.to(device)
    return ragged_paged_attention(
        QUERY.to(device), keys.to(device), values, *rest(device), **given
    ).cpu()


FORMS: dict[str, dict[str, Any]] = {
    "plain": {},
    "window": {"window": 9},
    "capped and scaled": {"soft_cap": 2.0, "scale": 0.5},
    "sinks": {"sinks": SINKS},
    "all": {"sinks": SINKS, "window": 20, "soft_cap": 3.0},
}


@pytest.mark.parametrize("device", ["cpu", "pjrt"])
@pytest.mark.parametrize("name", FORMS)
def test_it_is_the_attention_of_each_sequence(device: str, name: str) -> None:
    found = attended(device, *cache(), **FORMS[name])

    expected = one_by_one(*cache(), **FORMS[name])
    torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("device", ["cpu", "pjrt"])
def test_keys_and_values_may_lie_side_by_side(device: str) -> None:
    keys, values = cache()
    both = torch.stack([keys, values], 3).flatten(2, 3)

    found = attended(device, both, None)

    torch.testing.assert_close(found.double(), one_by_one(keys, values), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.int8, torch.float8_e4m3fn])
@pytest.mark.parametrize("shape", [(KEY_HEADS,), (PAGES, SIZE, KEY_HEADS)])
def test_quantized_pages_are_what_they_stand_for(dtype: torch.dtype, shape: Any) -> None:
    largest = 127.0 if dtype == torch.int8 else 448.0
    over = (0, 1, 3) if len(shape) == 1 else (3,)
    scales = [x.abs().amax(over) / largest for x in cache()]
    quantized = [(x / s[..., None]) for x, s in zip(cache(), scales, strict=True)]
    small = [(x.round() if dtype == torch.int8 else x).to(dtype) for x in quantized]

    found = attended("pjrt", *small, key_scale=scales[0], value_scale=scales[1])

    meant = [x.double() * s[..., None] for x, s in zip(small, scales, strict=True)]
    torch.testing.assert_close(found.double(), one_by_one(*meant), rtol=1e-5, atol=1e-5)
    exact = one_by_one(*cache())
    assert float((found.double() - exact).abs().max()) < 0.15 * float(exact.abs().max())


def test_pages_that_no_query_sees_are_not_computed_with() -> None:
    keys, values = cache()
    table = rest("cpu")[0]
    used = torch.cat([t[: -(-n // SIZE)] for t, n in zip(table, LENGTHS, strict=True)]).long()
    unused = torch.ones(PAGES, dtype=torch.bool).index_fill(0, used, False)
    expected = one_by_one(keys, values)
    values[unused] = 1e30
    table = table.clone()
    table[4, 1:] = 10**6  # behind a sequence's end a table may hold anything

    _, lengths, starts = rest("pjrt")
    found = ragged_paged_attention(
        QUERY.to("pjrt"), keys.to("pjrt"), values.to("pjrt"), table.to("pjrt"), lengths, starts
    )

    torch.testing.assert_close(found.cpu().double(), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.int8])
def test_pages_are_written_where_the_table_says(dtype: torch.dtype) -> None:
    scale = torch.tensor([0.02, 0.05]) if dtype == torch.int8 else None
    new = normal(TOKENS + 3, KEY_HEADS, WIDTH, seed=5)
    table, _, starts = rest("cpu")
    expected = cache()[0].clamp(-1, 1).mul(100).to(dtype)
    pages = expected.to("pjrt")

    given = None if scale is None else scale.to("pjrt")
    table_there, lengths, starts_there = rest("pjrt")
    update_ragged_pages(pages, new.to("pjrt"), table_there, lengths, starts_there, given)

    stored = new if scale is None else (new / scale[:, None]).round().clamp(-127, 127)
    for i, n in enumerate(QUERIES):
        for j in range(n):
            page, within = divmod(LENGTHS[i] - n + j, SIZE)
            expected[int(table[i, page]), within] = stored[int(starts[i]) + j].to(dtype)
    torch.testing.assert_close(pages.cpu(), expected)


def test_a_step_is_one_compiled_graph() -> None:
    keys, values = (x.to("pjrt") for x in cache())
    k, v = (normal(TOKENS, KEY_HEADS, WIDTH, seed=i).to("pjrt") for i in (6, 7))
    table, lengths, starts = rest("pjrt")

    @torch.compile(fullgraph=True)
    def step(q: torch.Tensor) -> torch.Tensor:
        update_ragged_pages(keys, k, table, lengths, starts)
        update_ragged_pages(values, v, table, lengths, starts)
        return ragged_paged_attention(q, keys, values, table, lengths, starts)

    found = step(QUERY[:TOKENS].to("pjrt")).cpu()

    expected = one_by_one(keys.cpu(), values.cpu())[:TOKENS]
    torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-5)


def test_shapes_that_do_not_fit_are_refused() -> None:
    keys, values = cache()
    table, lengths, starts = rest("cpu")
    with pytest.raises(ValueError, match="shapes that fit together"):
        ragged_paged_attention(QUERY, keys, values, table, lengths, starts[:-1])
    with pytest.raises(ValueError, match=r"key_scale has shape \[3\]"):
        ragged_paged_attention(QUERY, keys, values, table, lengths, starts, key_scale=torch.ones(3))


@pytest.mark.parametrize("key_heads", [*range(1, 18), 24])
def test_the_kernel_for_tpus_refuses_what_it_cannot_trace(
    key_heads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What has no objection, JAX's kernel traces; what it does not trace, has one."""
    torch.zeros((), device="pjrt").item()  # starts the device, which is asked for its chip
    monkeypatch.setattr(ragged_tpu, "objection_of_the_chip", lambda: None)
    heads, pages = 2 * key_heads, (8, 16, 2 * key_heads, 128)
    shapes = ((16, heads, 128), pages)
    query, kv = (cast("Any", jax.ShapeDtypeStruct(s, "bfloat16")) for s in shapes)
    rest = [jax.ShapeDtypeStruct(s, "int32") for s in ((2, 4), (2,), (3,))]
    form: dict[str, Any] = {"window": None, "soft_cap": None, "scale": None}

    against = ragged_tpu.objection(query, kv, has_sinks=False, has_scales=False, width=128)

    def traced() -> None:
        run = partial(ragged_tpu.ragged_paged_attention, **form)
        jax.eval_shape(run, query, kv, *rest)

    if against is None:
        traced()
    else:
        with pytest.raises(ValueError, match="tiled"):
            traced()


def test_compiled_ahead_for_a_tpu_it_is_jaxs_kernel() -> None:
    pytest.importorskip("libtpu", reason="compiling for TPUs takes libtpu")

    def like(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
        return torch.empty(shape, dtype=dtype, device="meta")

    query, pages = like(64, 8, 128), like(256, 16, 4, 128)
    rest = [like(*s, dtype=torch.int32) for s in ((8, 32), (8,), (9,))]

    def attend(q: torch.Tensor, kv: torch.Tensor, *others: torch.Tensor) -> torch.Tensor:
        return ragged_paged_attention(q, kv, None, *others, window=100, soft_cap=30.0)

    by_kernel = torch_pjrt.compile_for("v5e:2x2", attend, query, pages, *rest)
    in_blocks = torch_pjrt.compile_for("v5e:2x2", attend, query.float(), pages.float(), *rest)

    assert "tpu_custom_call" in by_kernel.text()
    assert "tpu_custom_call" not in in_blocks.text()
    assert in_blocks.temporary_bytes < 8e6
