"""JAX's splash kernel, interpreted, gives what attention is, in all forms that it is used for."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

import torch_pjrt
from torch_pjrt_kernels import flash_attention, table
from torch_pjrt_kernels.attention import lowerings, reference, tpu
from torch_pjrt_kernels.attention.choice import AT_ONCE, BLOCKS, SPLASH, Problem
from torch_pjrt_kernels.attention.operator import way_of
from torch_pjrt_kernels.tuning.cli import main
from torch_pjrt_kernels.tuning.tune import tuned_on_tpu

FORMS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "causal": ({"behind": 0}, {"is_causal": True}),
    "full": ({}, {}),
    "window": ({"before": 70, "behind": 0}, {"is_causal": True, "window": (70, None)}),
    "window both ways": ({"before": 70, "behind": 3}, {"window": (70, 3)}),
    "seen behind": ({"behind": 5}, {"window": (None, 5)}),
    "capped": ({"behind": 0, "soft_cap": 2.0}, {"is_causal": True, "soft_cap": 2.0}),
    "segments": ({"behind": 0}, {"is_causal": True}),
}


@pytest.mark.slow("rows")
@pytest.mark.parametrize("name", FORMS)
def test_values_and_gradients_are_those_of_the_reference(name: str) -> None:
    """In bfloat16: an output is off by its own rounding, 2**-9, and by those of the weights."""
    torch.zeros((), device="pjrt").item()  # starts the device, which is asked for its chip
    pattern, form = FORMS[name]
    generator = torch.Generator().manual_seed(0)
    q, grad = (torch.randn(1, 2, 256, 64, generator=generator) for _ in range(2))
    k, v = (torch.randn(1, 1, 256, 64, generator=generator) for _ in range(2))
    given: Any = [jnp.asarray(x.numpy(), "bfloat16") for x in (q, k, v, grad)]
    ids = (torch.arange(256) // 100)[None] if name == "segments" else None
    segments = None if ids is None else jnp.asarray(ids.numpy())

    form_of_splash: Any = (0.125, tpu.Pattern(**pattern), segments)
    out, _ = tpu.forward(*given[:3], *form_of_splash)  # pyright: ignore[reportCallIssue]
    found = tpu.backward(given[3], *given[:3], *form_of_splash)  # pyright: ignore[reportCallIssue]

    leaves = [
        torch.from_numpy(np.array(x, np.float32)).double().requires_grad_() for x in given[:3]
    ]
    expected, _ = reference.attention(*leaves, None, None, ids, ids, None, scale=0.125, **form)
    gradients = torch.autograd.grad(expected, leaves, grad.bfloat16().double())
    for ours, theirs in zip((out, *found), (expected, *gradients), strict=True):
        mine = torch.from_numpy(np.array(ours, np.float64))
        assert (mine - theirs).norm() < 2**-7 * theirs.norm()


@pytest.fixture
def on_any_chip(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel is chosen on a CPU too, where it is interpreted."""
    monkeypatch.setattr(tpu, "objection_of_the_chip", lambda: None)


def like(n: int = 1024, dtype: str = "bfloat16") -> Any:
    return jnp.zeros((1, 4, n, 64), dtype)


#   what is special           arguments                 what the kernel has against it
WAYS: dict[str, tuple[dict[str, Any], str | None]] = {
    "plain": ({}, None),
    "causal window": ({"is_causal": True, "before": 100}, None),
    "soft cap": ({"soft_cap": 30.0}, None),
    "segments": ({"of_queries": 0, "of_keys": 0}, None),
    "a later position": ({"first_position": 5, "is_causal": True}, None),
    "bias": ({"bias": like()}, "no mask"),
    "slopes": ({"slopes": 0}, "no slopes"),
    "sinks": ({"sinks": 0}, "no slopes and no sinks"),
    "dropout": ({"dropout_p": 0.1}, "drops no weights"),
    "other segments": ({"of_queries": 0, "of_keys": 1}, "segments of their own"),
    "behind all keys": ({"first_position": 5, "before": 3}, "may see nothing"),
    "before all keys": ({"first_position": -5, "is_causal": True}, "may see nothing"),
}


@pytest.mark.parametrize("name", WAYS)
def test_flash_attention_takes_it_where_it_fits(name: str, on_any_chip: None) -> None:
    changed, why = WAYS[name]
    form: dict[str, Any] = {"bias": None, "slopes": None, "of_queries": None, "of_keys": None, "sinks": None,
            "is_causal": False, "before": None, "behind": None, "first_position": 0,
            "soft_cap": None, "dropout_p": 0.0, "scale": None}  # fmt: skip

    way = way_of(*[like()] * 3, **{**form, **changed})

    assert way.name == (SPLASH if why is None else BLOCKS)
    assert (why or "") in way.objections.get(SPLASH, "")


def test_short_calls_and_other_dtypes_are_left_to_blocks(on_any_chip: None) -> None:
    rest: Any = (None,) * 5 + (False, None, None, 0, None, 0.0, None)
    assert way_of(*[like(64)] * 3, *rest).name == AT_ONCE
    assert "bfloat16" in way_of(*[like(dtype="float32")] * 3, *rest).objections[SPLASH]


def test_a_jax_without_it_is_an_objection(
    monkeypatch: pytest.MonkeyPatch, on_any_chip: None
) -> None:
    monkeypatch.setattr(tpu, "_is_there", lambda: False)
    problem = Problem(1, 4, 4, 1024, 1024, 64, 64)

    assert "has none" in (tpu.objection(problem, "bfloat16", has_bias=False, dropout_p=0) or "")


@pytest.mark.slow
@pytest.mark.parametrize("function", [scaled_dot_product_attention, flash_attention])
def test_a_scale_that_changes_from_layer_to_layer_is_an_input(
    function: Any, on_any_chip: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As layers that are rolled have it, and steps whose scale changes."""
    assert lowerings.tpu is tpu
    x = torch.randn(1, 2, 512, 64, generator=torch.Generator().manual_seed(0)).bfloat16()

    def layers(x: torch.Tensor, attend: Any) -> torch.Tensor:
        for i in range(8):
            x = x + attend(x, x, x, is_causal=True, scale=0.1 + i / 100)
        return x

    monkeypatch.setattr(torch_pjrt.config, "roll_layers", "on")
    found = layers(x.to("pjrt"), function).cpu()

    expected = layers(x.double(), scaled_dot_product_attention)
    assert (found.double() - expected).norm() < 2**-5 * expected.norm()


def test_flash_attention_is_the_kernel_in_programs_for_tpus() -> None:
    """With a window, segments and a soft cap, forward and backward; with slopes it is in blocks."""
    pytest.importorskip("libtpu", reason="compiling for TPUs takes libtpu")
    inputs = [torch.empty(1, 4, 1024, 128, device="meta", dtype=torch.bfloat16) for _ in range(3)]
    ids = torch.empty(1, 1024, device="meta", dtype=torch.int64)
    slopes = torch.empty(4, device="meta")

    def step(*given: torch.Tensor, **form: Any) -> Any:
        q, k, v = (x.detach().requires_grad_() for x in given[:3])
        y = flash_attention(q, k, v, is_causal=True, window=(300, None), soft_cap=20.0, **form)
        return torch.autograd.grad(y.float().square().sum(), (q, k, v))

    by_kernel = torch_pjrt.compile_for(
        "v5e:2x2", lambda *x: step(*x[:3], segments=x[3]), *inputs, ids
    )
    in_blocks = torch_pjrt.compile_for(
        "v5e:2x2", lambda *x: step(*x[:3], slopes=x[3]), *inputs, slopes
    )

    assert "tpu_custom_call" in by_kernel.text()
    assert "tpu_custom_call" not in in_blocks.text()


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    torch.zeros(1, device="pjrt")  # starts the device
    monkeypatch.setenv(table.VARIABLE, str(tmp_path / "blocks.json"))
    return tmp_path / "blocks.json"


def test_blocks_are_the_measured_ones_where_they_divide_the_lengths(file: Path) -> None:
    def blocks() -> tuple[int, int]:
        return tpu._blocks(1024, 768, 64, is_causal=True)

    name = tpu.entry_of(1024, 768, 64, is_causal=True)

    assert blocks() == (512, 256)
    table.keep({name: (1024, 128)})
    assert blocks() == (1024, 128)
    assert tpu._blocks(1024, 768, 64, is_causal=False) == (512, 256)
    for unfit in ((1024, 512), (96, 128)):
        table.keep({name: unfit})
        assert blocks() == (512, 256)
    assert (1024, 256) in tpu.candidates(1024, 768)


@pytest.mark.slow
def test_tuning_times_the_kernel_and_keeps_what_calls_then_have(
    file: Path, on_any_chip: None
) -> None:
    problem = Problem(1, 2, 1, 256, 256, 64, 64, "bfloat16", is_causal=True)
    unfit = replace(problem, queries=250)

    # The kernel does not compile with blocks of 96.
    found = tuned_on_tpu([unfit, problem], sizes=[(96, 128), (128, 128)], repetitions=1)
    [(entry, best, took)] = found

    assert entry == tpu.entry_of(256, 256, 64, is_causal=True)
    assert set(took) == {(256, 256), (128, 128)}
    assert took[best] == min(took.values())


def test_without_a_tpu_there_is_nothing_to_tune(file: Path, capsys: Any) -> None:
    assert main(["tune", "--op", "splash", "--shapes", "1x1x256x64"]) == 0
    assert "no TPU: there is nothing to tune" in capsys.readouterr().out
    assert not file.exists()
