"""`flash_attention` on the device gives what the plain definition gives on the CPU, in all its forms."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import torch_pjrt
from torch_pjrt.errors import UnsupportedError
from torch_pjrt_kernels import flash_attention

BATCH, HEADS, KEY_HEADS, LENGTH = 2, 4, 2, 40


def normal(*shape: int, seed: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


TRIPLE = [normal(BATCH, n, LENGTH, 8, seed=i) for i, n in enumerate((HEADS, KEY_HEADS, KEY_HEADS))]
SEGMENTS = (torch.arange(LENGTH) // 16).expand(BATCH, LENGTH)

#   what is special      arguments
FORMS: dict[str, dict[str, Any]] = {
    "plain": {},
    "causal window": {"is_causal": True, "window": (8, None)},
    "ALiBi": {"is_causal": True, "slopes": torch.tensor([0.5, 0.25, 0.125, 0.0625])},
    "soft cap": {"soft_cap": 3.0, "scale": 0.7},
    "segments": {"segments": SEGMENTS, "is_causal": True},
    "sinks": {"sinks": normal(HEADS, seed=4), "is_causal": True},
    "bias": {"bias": normal(1, HEADS, LENGTH, LENGTH, seed=5)},
    "mask": {"bias": normal(BATCH, 1, 1, LENGTH, seed=5) > -1},
}


def attended(device: str, form: dict[str, Any]) -> list[torch.Tensor]:
    """The output and all gradients."""
    given = {k: v.to(device) if isinstance(v, torch.Tensor) else v for k, v in form.items()}
    leaves = [x.to(device).requires_grad_() for x in TRIPLE]
    for name in ("bias", "sinks"):
        if name in given and given[name].is_floating_point():
            leaves.append(given[name].requires_grad_())
    y = flash_attention(*leaves[:3], **given)
    return [y, *torch.autograd.grad(y.square().sum(), leaves)]


def test_values_and_gradients_are_those_of_the_cpu() -> None:
    on_device = {name: attended("pjrt", form) for name, form in FORMS.items()}

    for name, form in FORMS.items():
        for ours, theirs in zip(on_device[name], attended("cpu", form), strict=True):
            torch.testing.assert_close(ours.cpu(), theirs, rtol=1e-4, atol=1e-4, msg=name)


def test_it_is_plain_attention_where_pytorch_has_it() -> None:
    q, k, v = TRIPLE
    expected = torch.nn.functional.scaled_dot_product_attention(
        q, k, v, is_causal=True, enable_gqa=True
    )

    torch.testing.assert_close(flash_attention(q, k, v, is_causal=True), expected)


def test_it_is_one_operator_of_a_compiled_function() -> None:
    @torch.compile(fullgraph=True)
    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return flash_attention(q, k, v, is_causal=True, window=(8, None)) * 2

    found = attend(*(x.to("pjrt") for x in TRIPLE))

    expected = flash_attention(*TRIPLE, is_causal=True, window=(8, None)) * 2
    torch.testing.assert_close(found.cpu(), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("device", ["cpu", "pjrt"])
def test_dropped_weights_are_the_same_in_the_backward(device: str) -> None:
    q = torch.zeros(1, 2, 64, 4, device=device)
    v = torch.ones(1, 2, 64, 1, device=device).requires_grad_()
    y = flash_attention(q, q, v, dropout_p=0.5)
    rows = normal(1, 2, 64, 1, seed=1).to(device)

    (of_value,) = torch.autograd.grad(y, v, rows)

    torch.testing.assert_close((y * rows).sum().cpu(), of_value.sum().cpu(), rtol=1e-4, atol=1e-3)
    assert 0.3 < float((y.detach() / 2).mean()) < 0.7


def test_long_queries_make_no_array_of_all_scores() -> None:
    q = torch.zeros(1, 4, 1100, 8, device="pjrt")

    text = torch_pjrt.to_stablehlo([flash_attention(q, q, q, is_causal=True, soft_cap=5.0)])

    assert "1100x1100" not in text


def test_shapes_that_do_not_fit_are_refused() -> None:
    q, k, v = TRIPLE
    with pytest.raises(ValueError, match=r"keys and values that fit the query"):
        flash_attention(q, k[..., :4], v)
    with pytest.raises(ValueError, match=r"share key heads evenly"):
        flash_attention(q[:, :3], k, v)
    with pytest.raises(ValueError, match=r"slopes have shape \[3\]; expected \[4\]"):
        flash_attention(q, k, v, slopes=torch.zeros(3))
    with pytest.raises(ValueError, match=r"the bias has shape"):
        flash_attention(q, k, v, bias=torch.zeros(LENGTH, LENGTH))
    with pytest.raises(ValueError, match=r"of one dtype"):
        flash_attention(q, k, v.double())


#   what is wrong                arguments                       what is said
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "no bound as -1":          ({"window": (-1, -1)},            r"None for all; saw \(-1, -1\)"),
    "a negative bound":        ({"window": (None, -1)},          r"None for all"),
    "one number":              ({"window": 5},                   r"None for all; saw 5"),
    "three numbers":           ({"window": (1, 2, 3)},           r"None for all"),
    "a part of a position":    ({"window": (1.5, None)},         r"None for all"),
    "more than all dropped":   ({"dropout_p": 1.5},              r"between 0 and 1; saw 1.5"),
    "less than none":          ({"dropout_p": -0.1},             r"between 0 and 1"),
    "a cap of 0":              ({"soft_cap": 0.0},               r"above 0; saw 0.0"),
    "half a position":         ({"first_position": 0.5},         r"a whole number"),
    "slopes that learn":       ({"slopes": torch.ones(HEADS).requires_grad_()}, r"no gradient of slopes"),
}  # fmt: skip


@pytest.mark.parametrize("device", ["cpu", "pjrt"])
@pytest.mark.parametrize("name", REFUSED)
def test_what_does_not_fit_is_refused_in_words(name: str, device: str) -> None:
    form, said = REFUSED[name]
    given = {
        k: v.to(device).detach().requires_grad_(v.requires_grad)
        if isinstance(v, torch.Tensor)
        else v
        for k, v in form.items()
    }
    with pytest.raises(ValueError, match=said):
        flash_attention(*(x.to(device) for x in TRIPLE), **given)


@pytest.mark.parametrize("name", ["bias", "sinks", "slopes", "segments", "key", "value"])
def test_tensors_of_another_device_are_refused_by_name(name: str) -> None:
    q, k, v = (x.to("pjrt") for x in TRIPLE)
    given: dict[str, Any] = {"key": k, "value": v}
    others = {"sinks": torch.zeros(HEADS), "slopes": torch.zeros(HEADS), "segments": SEGMENTS,
              "bias": torch.zeros(1, 1, 1, LENGTH), "key": TRIPLE[1], "value": TRIPLE[2]}  # fmt: skip
    given[name] = others[name]

    with pytest.raises(ValueError, match=f"pjrt.* {name}.* on cpu"):
        flash_attention(q, **given)


@pytest.mark.parametrize("device", ["cpu", "pjrt"])
def test_a_sink_of_minus_infinity_is_none(device: str) -> None:
    """Also for a query that sees no key."""
    q, k, v = (x.to(device).requires_grad_() for x in TRIPLE)
    seen = torch.ones(1, 1, LENGTH, LENGTH, dtype=torch.bool, device=device).tril(-1)
    sinks = torch.full((HEADS,), -torch.inf, device=device)

    found = flash_attention(q, k, v, bias=seen, sinks=sinks)
    expected = flash_attention(q, k, v, bias=seen)

    assert bool((found[:, :, 0] == 0).all())
    torch.testing.assert_close(found, expected)
    gradients = [torch.autograd.grad(y.square().sum(), (q, k, v)) for y in (found, expected)]
    for ours, theirs in zip(*gradients, strict=True):
        torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("device", ["cpu", "pjrt"])
def test_under_autocast_all_three_are_cast(device: str) -> None:
    """Queries and keys in float32 after rotary positions, say, and values in bfloat16."""
    q, k, v = (x.to(device) for x in TRIPLE)
    with torch.autocast(device, torch.bfloat16):
        found = flash_attention(q, k, v.bfloat16(), is_causal=True)

    expected = flash_attention(q.bfloat16(), k.bfloat16(), v.bfloat16(), is_causal=True)
    assert found.dtype == torch.bfloat16
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("device", ["cpu", "pjrt"])
def test_a_second_derivative_is_refused_in_words(device: str) -> None:
    q, k, v = (x.to(device).requires_grad_() for x in TRIPLE)
    (first,) = torch.autograd.grad(flash_attention(q, k, v).sum(), q, create_graph=True)

    with pytest.raises(UnsupportedError, match="`flash_attention` has no derivative"):
        torch.autograd.grad(first.sum(), q)


def _bias(n: int) -> torch.Tensor:
    return torch.randn(n, 1, 24, 24, generator=torch.Generator().manual_seed(3))


#   of each name: its tensor, and along which dim vmap takes it
BATCHED: dict[str, tuple[dict[str, tuple[torch.Tensor, int | None]], dict[str, Any]]] = {
    "causal": ({}, {"is_causal": True}),
    "bias of each": ({"bias": (_bias(6).reshape(3, 2, 1, 24, 24), 0)}, {}),
    "one bias": ({"bias": (_bias(1), None)}, {"window": (5, 0)}),
    "bias of each batch": ({"bias": (_bias(2), None)}, {}),
    "segments": ({"segments": (torch.arange(24).expand(2, 24) // 7, None)}, {"soft_cap": 3.0}),
    "slopes of each": ({"slopes": (torch.rand(3, 4), 0)}, {"is_causal": True}),
    "sinks": ({"sinks": (torch.rand(4), None)}, {"is_causal": True}),
}


@pytest.mark.slow("rows")
@pytest.mark.parametrize("name", BATCHED)
def test_within_vmap_it_is_one_call(name: str, recwarn: pytest.WarningsRecorder) -> None:
    """Against a call for each; queries have vmap's batch last, and keys have none."""
    arrays, form = BATCHED[name]
    generator = torch.Generator().manual_seed(0)
    q = torch.randn(2, 4, 24, 8, 3, generator=generator)
    k, v = (torch.randn(2, 2, 24, 8, generator=generator) for _ in range(2))
    leaves = [x.to("pjrt").requires_grad_() for x in (q, k, v)]

    def call(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *more: torch.Tensor) -> Any:
        return flash_attention(q, k, v, **dict(zip(arrays, more, strict=True)), **form)

    more = [x.to("pjrt") for x, _ in arrays.values()]
    ours = torch.vmap(call, (4, None, None, *(at for _, at in arrays.values())))(*leaves, *more)
    found = [ours, *torch.autograd.grad(ours.square().sum(), leaves)]

    on_cpu = [x.requires_grad_() for x in (q, k, v)]
    theirs = torch.stack(
        [
            call(q[..., i], k, v, *(x if at is None else x[i] for x, at in arrays.values()))
            for i in range(3)
        ]
    )
    expected = [theirs, *torch.autograd.grad(theirs.square().sum(), on_cpu)]
    for mine, its in zip(found, expected, strict=True):
        torch.testing.assert_close(mine.detach().cpu(), its.detach(), rtol=1e-4, atol=1e-4)
    assert not any("performance drop" in str(w.message) for w in recwarn)


def test_dropout_within_vmap_wants_other_weights_in_each_call() -> None:
    x = torch.randn(3, 1, 2, 16, 8, device="pjrt")

    def call(x: torch.Tensor) -> torch.Tensor:
        return flash_attention(x, x, x, dropout_p=0.5)

    with pytest.raises(RuntimeError, match='expected randomness="different", saw "error"'):
        torch.vmap(call)(x)
    assert torch.vmap(call, randomness="different")(x).shape == x.shape
