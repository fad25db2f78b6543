"""Attention to a cache in pages is attention to what the pages hold, and the cache is written in place."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

import torch_pjrt
from torch_pjrt_kernels import paged_attention, update_pages
from torch_pjrt_kernels.paged import ragged_blocks, ragged_tpu

HEADS, KEY_HEADS, WIDTH, SIZE, MOST = 4, 2, 8, 16, 5
LENGTHS = [37, 80, 3]


def cache(device: str) -> tuple[torch.Tensor, ...]:
    """Pages of keys and of values, in any order, the table, and the lengths."""
    generator = torch.Generator().manual_seed(0)
    shape = (20, SIZE, KEY_HEADS, WIDTH)
    keys, values = (torch.randn(shape, generator=generator) for _ in range(2))
    table = torch.randperm(20, generator=generator)[: 3 * MOST].reshape(3, MOST).int()
    return tuple(x.to(device) for x in (keys, values, table, torch.tensor(LENGTHS)))


def queries(n: int, device: str) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(3, n, HEADS, WIDTH, generator=generator).to(device)


@pytest.mark.parametrize("device", ["cpu", "pjrt"])
@pytest.mark.parametrize("n", [1, 3])
def test_it_is_attention_to_what_the_pages_hold(device: str, n: int) -> None:
    keys, values, table, _ = cache("cpu")
    found = paged_attention(queries(n, device), *cache(device)).cpu()

    for i, length in enumerate(LENGTHS):
        k, v = (x[table[i].long()].flatten(0, 1)[:length].transpose(0, 1) for x in (keys, values))
        seen = torch.ones(n, length, dtype=torch.bool).tril(length - n)
        q = queries(n, "cpu")[i].transpose(0, 1)
        expected = scaled_dot_product_attention(
            q[None], k[None], v[None], attn_mask=seen, enable_gqa=True
        )
        torch.testing.assert_close(found[i].transpose(0, 1), expected[0], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("form", [{"window": 9}, {"soft_cap": 2.0, "scale": 0.5}])
def test_other_forms_are_those_of_the_cpu(form: dict[str, Any]) -> None:
    ours = paged_attention(queries(2, "pjrt"), *cache("pjrt"), **form)
    theirs = paged_attention(queries(2, "cpu"), *cache("cpu"), **form)

    torch.testing.assert_close(ours.cpu(), theirs, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("by_position", [False, True])
@pytest.mark.parametrize("dtype", [torch.int8, torch.float8_e4m3fn, torch.float32])
def test_quantized_pages_and_sinks_give_attention_to_what_they_stand_for(
    dtype: torch.dtype, by_position: bool
) -> None:
    """Against attention to the dequantized pages, and a sink as one more key without a value."""
    wide_keys, wide_values, table, _ = cache("cpu")
    shape = (*wide_keys.shape[:2], KEY_HEADS) if by_position else (KEY_HEADS,)
    scales = [torch.rand(shape, generator=torch.Generator().manual_seed(i)) + 0.5 for i in (3, 4)]
    scales = [s / 40 if dtype == torch.int8 else s for s in scales]
    sinks = torch.tensor([-1.0, 0.0, 1.0, 2.0])
    pages = []
    for wide, scale in zip((wide_keys, wide_values), scales, strict=True):
        small = wide / scale[..., None]
        pages.append((small.round() if dtype == torch.int8 else small).to(dtype))
    keys, values = (p.float() * s[..., None] for p, s in zip(pages, scales, strict=True))

    found = paged_attention(
        queries(2, "pjrt"), *(x.to("pjrt") for x in (*pages, table, torch.tensor(LENGTHS))),
        sinks=sinks.to("pjrt"), key_scale=scales[0].to("pjrt"), value_scale=scales[1].to("pjrt"),
    ).cpu()  # fmt: skip

    for i, length in enumerate(LENGTHS):
        k, v = (x[table[i].long()].flatten(0, 1)[:length].transpose(0, 1) for x in (keys, values))
        k, v = (x.repeat_interleave(HEADS // KEY_HEADS, 0) for x in (k, v))
        q = queries(2, "cpu")[i].transpose(0, 1)
        scores = (q @ k.mT * WIDTH**-0.5).masked_fill(
            ~torch.ones(2, length, dtype=torch.bool).tril(length - 2), -torch.inf
        )
        with_sink = torch.cat([scores, sinks[:, None, None].expand(HEADS, 2, 1)], -1)
        expected = with_sink.softmax(-1)[..., :-1] @ v
        torch.testing.assert_close(found[i].transpose(0, 1), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("device", ["cpu", "pjrt"])
def test_written_positions_are_divided_by_the_scales(device: str) -> None:
    _, _, table, lengths = cache(device)
    new = torch.randn(3, 2, KEY_HEADS, WIDTH, generator=torch.Generator().manual_seed(5))
    scale = torch.tensor([0.02, 0.03], device=device)
    pages = torch.zeros(20, SIZE, KEY_HEADS, WIDTH, dtype=torch.int8, device=device)

    update_pages(pages, new.to(device), table, lengths, scale)

    page, slot = divmod(LENGTHS[1] - 1, SIZE)
    written = pages.cpu()[int(table[1, page]), slot] * scale.cpu()[:, None]
    limit = 127 * scale.cpu()[:, None]
    expected = new[1, 1].clamp(-limit, limit)
    assert bool(((written - expected).abs() <= scale.cpu()[:, None] / 2 + 1e-6).all())


def test_sinks_and_scales_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match=r"sinks of paged_attention have shape \[3\]"):
        paged_attention(queries(1, "cpu"), *cache("cpu"), sinks=torch.zeros(3))
    with pytest.raises(ValueError, match=r"key_scale has shape \[4\]"):
        paged_attention(queries(1, "cpu"), *cache("cpu"), key_scale=torch.ones(4))


def test_what_lies_behind_a_sequence_does_not_matter() -> None:
    keys, values, table, lengths = cache("pjrt")
    before = paged_attention(queries(1, "pjrt"), keys, values, table, lengths).cpu()
    table = table.clone()
    table[0, 3:] = 10**6
    table[2, 1:] = -1

    after = paged_attention(queries(1, "pjrt"), keys, values, table, lengths).cpu()

    torch.testing.assert_close(after, before)


def test_pages_are_written_where_the_table_says_and_in_place() -> None:
    on_device, on_cpu = ([x.clone() for x in cache(d)] for d in ("pjrt", "cpu"))
    new = torch.randn(3, 2, KEY_HEADS, WIDTH)
    for keys, _, table, lengths in (on_device, on_cpu):
        update_pages(keys, new.to(keys.device), table, lengths)

    torch.testing.assert_close(on_device[0].cpu(), on_cpu[0])
    page, slot = divmod(LENGTHS[1] - 1, SIZE)
    torch.testing.assert_close(on_cpu[0][int(on_cpu[2][1, page]), slot], new[1, 1])


def test_decoding_step_is_one_compiled_graph() -> None:
    keys, values, table, lengths = cache("pjrt")

    @torch.compile(fullgraph=True)
    def step(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        update_pages(keys, k, table, lengths)
        update_pages(values, v, table, lengths)
        return paged_attention(q, keys, values, table, lengths)

    new = torch.ones(3, 1, KEY_HEADS, WIDTH, device="pjrt")
    found = step(queries(1, "pjrt"), new, new).cpu()

    k, v, t, n = cache("cpu")
    for pages in (k, v):
        update_pages(pages, new.cpu(), t, n)
    torch.testing.assert_close(found, paged_attention(queries(1, "cpu"), k, v, t, n))


def test_long_tables_are_read_a_few_pages_at_a_time() -> None:
    keys = torch.zeros(8, SIZE, KEY_HEADS, WIDTH, device="pjrt")
    table = torch.zeros(3, 1000, dtype=torch.int32, device="pjrt")
    lengths = torch.tensor(LENGTHS, device="pjrt")

    text = torch_pjrt.to_stablehlo(
        [paged_attention(queries(1, "pjrt"), keys, keys, table, lengths)]
    )

    assert "x512x" in text
    assert f"x{1000 * SIZE}" not in text


def test_shapes_that_do_not_fit_are_refused() -> None:
    keys, values, table, lengths = cache("cpu")
    with pytest.raises(ValueError, match="shapes that fit together"):
        paged_attention(queries(1, "cpu"), keys, values, table[:2], lengths)


@pytest.mark.parametrize("device", ["cpu", "pjrt"])
@pytest.mark.parametrize(("n", "form"), [(1, {}), (3, {"window": 9, "soft_cap": 2.0})])
def test_keys_and_values_side_by_side_are_what_they_are_apart(
    device: str, n: int, form: dict[str, Any]
) -> None:
    keys, values, *rest = cache(device)
    joint = torch.stack((keys, values), 3).flatten(2, 3)

    ours = paged_attention(queries(n, device), joint, None, *rest, **form)

    theirs = paged_attention(queries(n, device), keys, values, *rest, **form)
    torch.testing.assert_close(ours.cpu(), theirs.cpu(), rtol=1e-5, atol=1e-5)
    with pytest.raises(ValueError, match=r"fit together(?s:.*)\[20, 16, 3, 8\], -"):
        paged_attention(queries(n, device), joint[:, :, :3], None, *rest)


def test_side_by_side_one_token_of_each_sequence_is_given_to_the_kernel_for_tpus(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By one that stands for it, JAX's blocks: a sequence without a position gets zeros."""
    seen: list[Any] = []

    def in_blocks(
        query: Any, pages: Any, table: Any, lengths: Any, starts: Any, **form: Any
    ) -> Any:
        seen.append((query.shape, starts.shape, form))
        apart = (pages[:, :, ::2], pages[:, :, 1::2])
        return ragged_blocks.ragged_paged_attention(
            query, *apart, table, lengths, starts, None, None, None, **form
        )

    monkeypatch.setattr(ragged_tpu, "objection", lambda *args, **kwargs: None)
    monkeypatch.setattr(ragged_tpu, "ragged_paged_attention", in_blocks)
    keys, values, table, lengths = cache("pjrt")
    lengths[1] = 0
    joint = torch.stack((keys, values), 3).flatten(2, 3)

    ours = paged_attention(queries(1, "pjrt"), joint, None, table, lengths, window=9).cpu()

    theirs = paged_attention(queries(1, "pjrt"), keys, values, table, lengths, window=9).cpu()
    assert seen == [((3, HEADS, WIDTH), (4,), {"window": 9, "soft_cap": None, "scale": None})]
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)
    assert not ours[1].any()
    several = torch_pjrt.explain(
        lambda: paged_attention(queries(3, "pjrt"), joint, None, table, lengths)
    )
    assert "3 queries for each sequence" in " ".join(str(several).split())


def test_compiled_ahead_for_a_tpu_one_token_of_each_sequence_is_jaxs_kernel() -> None:
    pytest.importorskip("libtpu", reason="compiling for TPUs takes libtpu")

    def like(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
        return torch.empty(shape, dtype=dtype, device="meta")

    def decode(
        q: torch.Tensor, pages: torch.Tensor, new: torch.Tensor, *rest: torch.Tensor
    ) -> torch.Tensor:
        update_pages(pages, new, *rest)
        return paged_attention(q, pages, None, *rest)

    rest = (like(8, 64, dtype=torch.int32), like(8, dtype=torch.int32))
    given = (like(8, 1, 16, 128), like(512, 16, 8, 128), like(8, 1, 8, 128), *rest)

    compiled = torch_pjrt.compile_for("v5e:2x2", decode, *given)

    assert compiled.text().count('custom_call_target="tpu_custom_call"') == 1
    assert compiled.temporary_bytes < 1e6  # the cache, of 16.8 MB, is not copied
