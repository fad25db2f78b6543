"""Which implementation takes attention is decided by device, shapes and dtype, and reports say why."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

import torch_pjrt
from torch_pjrt_kernels.attention import reference, tpu
from torch_pjrt_kernels.attention.choice import AT_ONCE, BLOCKS, OWN, SPLASH, Problem
from torch_pjrt_kernels.attention.lowerings import way_of

LONG = Problem(1, 4, 4, 4096, 4096, 128, 128)


def call(dtype: str = "float32", **changed: Any) -> Any:
    """A call's shapes, as the rule sees them."""
    q = SimpleNamespace(shape=(1, 4, 4096, 128), dtype=SimpleNamespace(name=dtype))
    given = {"query": q, "key": q, "value": q, "attn_bias": None, "dropout_p": 0.0}
    given |= {"is_causal": False, "first_row": 0}
    return SimpleNamespace(**{**given, **changed})


def test_report_says_how_each_call_is_computed_and_why() -> None:
    long, short = (torch.randn(1, 8, n, 8, device="pjrt") for n in (1024, 64))

    def both() -> list[torch.Tensor]:
        return [scaled_dot_product_attention(x, x, x) for x in (long, short)]

    text = " ".join(str(torch_pjrt.explain(both)).split())

    assert "in blocks" in text
    assert "all scores at once" in text
    assert "are few" in text
    assert "JAX's splash kernel: it is for" in text


def test_kernel_of_the_device_comes_first_where_it_takes_the_call() -> None:
    def rule(call: Any) -> None: ...

    assert way_of(call(), rule).name == BLOCKS
    rule.objection = lambda call: None  # type: ignore[attr-defined]
    assert way_of(call(), rule).name == OWN
    rule.objection = lambda call: "no such card"  # type: ignore[attr-defined]
    assert way_of(call(), rule).objections[OWN] == "no such card"


def test_splash_takes_what_it_can_on_a_tpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tpu, "objection_of_the_chip", lambda: None)

    assert way_of(call("bfloat16"), len).name == SPLASH
    for changed, why in [
        ({"dtype": "float32"}, "multiplies in bfloat16"),
        ({"dtype": "bfloat16", "attn_bias": 0}, "no mask"),
        ({"dtype": "bfloat16", "dropout_p": 0.5}, "drops no weights"),
    ]:
        way = way_of(call(**changed), len)
        assert way.name == BLOCKS
        assert why in way.objections[SPLASH]
    odd = Problem(1, 4, 4, 4100, 4096, 128, 128)
    assert "no multiples of 128" in (
        tpu.objection(odd, "bfloat16", has_bias=False, dropout_p=0) or ""
    )


@pytest.mark.parametrize(
    ("batch", "heads", "length", "is_in_blocks"),
    [
        (1, 4, 1024, False),   # 16 MiB: the CPU's own rule is faster
        (1, 8, 1024, True),    # 32 MiB
        (8, 12, 512, False),   # 96 MiB, of many heads: its backward is faster
        (32, 12, 512, False),  # 384 MiB
        (64, 12, 512, True),
        (64, 12, 256, False),  # few positions, whatever the heads are
    ],
)  # fmt: skip
def test_blocks_begin_on_a_cpu_where_they_are_no_slower(
    batch: int, heads: int, length: int, is_in_blocks: bool
) -> None:
    torch.zeros((), device="pjrt").item()
    q = SimpleNamespace(shape=(batch, heads, length, 64), dtype=SimpleNamespace(name="float32"))

    way = way_of(call(query=q, key=q, value=q), len)

    assert way.name == (BLOCKS if is_in_blocks else AT_ONCE)


def test_short_calls_are_left_to_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tpu, "objection_of_the_chip", lambda: None)
    q = SimpleNamespace(shape=(1, 4, 64, 128), dtype=SimpleNamespace(name="bfloat16"))

    assert way_of(call(query=q, key=q, value=q), len).name == AT_ONCE


@pytest.mark.slow
def test_splash_kernel_interpreted_gives_what_attention_is() -> None:
    """In bfloat16: an output is off by its own rounding, 2**-9, and by those of the weights."""
    torch.zeros((), device="pjrt").item()  # starts the device, which is asked for its chip
    generator = torch.Generator().manual_seed(0)
    q = torch.randn(1, 4, 256, 64, generator=generator)
    k, v = (torch.randn(1, 2, 256, 64, generator=generator) for _ in range(2))
    grad = torch.randn(1, 4, 256, 64, generator=generator)
    given = [jnp.asarray(x.numpy(), "bfloat16") for x in (q, k, v, grad)]

    query, key, value, of_out = given
    out, logsumexp = tpu.forward(query, key, value, 0.125, tpu.Pattern(behind=0))
    found = tpu.backward(of_out, query, key, value, 0.125, tpu.Pattern(behind=0))

    leaves = [
        torch.from_numpy(np.array(x, np.float32)).double().requires_grad_() for x in given[:3]
    ]
    expected, of_scores = reference.attention(*leaves, is_causal=True, scale=0.125)
    gradients = torch.autograd.grad(expected, leaves, grad.bfloat16().double())
    for ours, theirs in zip((out, *found), (expected, *gradients), strict=True):
        mine = torch.from_numpy(np.array(ours, np.float64))
        assert (mine - theirs).norm() < 2**-7 * theirs.norm()
    ours = torch.from_numpy(np.array(logsumexp, np.float64))
    torch.testing.assert_close(ours, of_scores, rtol=2**-8, atol=2**-8)


def test_splash_kernel_is_in_programs_for_tpus() -> None:
    """Also where they are for several chips, each of which computes its batches."""
    pytest.importorskip("libtpu", reason="compiling for TPUs takes libtpu")
    inputs = [torch.empty(8, 4, 1024, 128, device="meta", dtype=torch.bfloat16) for _ in range(3)]

    def step(*inputs: torch.Tensor) -> Any:
        q, k, v = (x.detach().requires_grad_() for x in inputs)
        y = scaled_dot_product_attention(q, k, v, is_causal=True)
        return torch.autograd.grad(y.float().square().sum(), (q, k, v))

    one = torch_pjrt.compile_for("v5e:2x2", step, *inputs)
    spread = torch_pjrt.compile_for("v5e:2x2", step, *inputs, sharded=True)

    assert "tpu_custom_call" in one.text()
    assert one.temporary_bytes < 64e6
    assert "tpu_custom_call" in spread.text()
    assert "all-gather" not in spread.text()
    assert spread.n_chips == 4


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:.*flex_attention called without")
def test_report_has_calls_of_flex_attention_too() -> None:
    """Those in blocks, those with all scores at once, and why; in a compiled function as well."""
    from torch.nn.attention.flex_attention import flex_attention

    long, short = (torch.randn(1, 4, n, 8, device="pjrt") for n in (1024, 64))

    def both() -> list[torch.Tensor]:
        return [flex_attention(x, x, x) for x in (long, short)]  # type: ignore[list-item]

    for called in (both, torch.compile(both)):
        text = " ".join(str(torch_pjrt.explain(called)).split())

        assert "1 x 4 x 1024 1 x 4 x 1024 flex_attention, in blocks" in text
        assert "flex_attention, all scores at once in blocks: 64 queries on 64 keys are few" in text


def test_note_of_a_call_changes_nothing() -> None:
    from torch.nn.attention.flex_attention import flex_attention

    x = torch.randn(2, 64, 4, 8).transpose(1, 2)
    y = x.to("pjrt").requires_grad_()

    found: Any = flex_attention(y, y, y)
    expected = scaled_dot_product_attention(x, x, x)

    assert found.stride() == y.stride()
    torch.testing.assert_close(found.detach().cpu(), expected, rtol=1e-5, atol=1e-5)
