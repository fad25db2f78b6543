"""Ring attention, pipelines and mixtures of experts give what one chip gives, with gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import torch_pjrt
from torch_pjrt_spmd import (
    Mesh,
    ShardingError,
    collectives,
    local_shards,
    mark_sharding,
    mixture_of_experts,
    pipeline,
    ring_attention,
)

Tensors = list[torch.Tensor]


def gradients(
    function: Callable[..., torch.Tensor], tensors: Tensors
) -> tuple[torch.Tensor, Tensors]:
    """The result and the gradients of a weighted sum of it, on the CPU."""
    for t in tensors:
        t.requires_grad_()
    y = function(*tensors)
    weights = torch.linspace(-1, 1, y.numel()).reshape(y.shape).to(y.device)
    return y.detach().cpu(), [g.cpu() for g in torch.autograd.grad((y * weights).sum(), tensors)]


def same(
    here: Callable[..., torch.Tensor], there: Callable[..., torch.Tensor], tensors: Tensors
) -> None:
    expected = gradients(here, [t.clone() for t in tensors])
    found = gradients(there, [t.to("pjrt") for t in tensors])
    torch.testing.assert_close(found[0], expected[0], rtol=1e-4, atol=1e-5)
    for a, b in zip(found[1], expected[1], strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)


def exchanged() -> dict[tuple[str, tuple[str, ...]], int]:
    """How many collectives of each kind and axes the newest program has."""
    torch_pjrt.sync()
    found = collectives()
    newest = max(c.program for c in found)
    kinds: dict[tuple[str, tuple[str, ...]], int] = {}
    for c in found:
        if c.program == newest:
            kinds[c.kind, c.axes] = kinds.get((c.kind, c.axes), 0) + c.times
    return kinds


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize(
    "mesh", [Mesh((8,), ("sequence",)), Mesh((2, 4), ("data", "sequence"))], ids=["8", "2x4"]
)
def test_attention_round_a_ring_is_attention(mesh: Mesh, is_causal: bool) -> None:
    torch.manual_seed(0)
    qkv = [torch.randn(2, 2, 16, 8) for _ in range(3)]

    same(
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=is_causal),
        lambda q, k, v: ring_attention(q, k, v, mesh, "sequence", is_causal=is_causal),
        qkv,
    )


def test_keys_and_values_go_once_round() -> None:
    mesh = Mesh((8,), ("sequence",))
    qkv = [
        mark_sharding(torch.randn(2, 16, 8, device="pjrt"), mesh, (None, "sequence")) for _ in "qkv"
    ]
    torch_pjrt.sync()

    y = ring_attention(*qkv, mesh, "sequence")  # type: ignore[misc]

    assert [tuple(s.data.shape) for s in local_shards(y)] == [(2, 2, 8)] * 8
    assert exchanged() == {("collective-permute", ("sequence",)): 2 * 7}


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_attention_round_a_ring_keeps_the_dtype(dtype: torch.dtype) -> None:
    qkv = [torch.randn(1, 8, 4).to(dtype) for _ in range(3)]

    found = ring_attention(*[t.to("pjrt") for t in qkv], Mesh((8,), ("s",)), "s")  # type: ignore[misc]

    assert found.dtype is dtype
    expected = F.scaled_dot_product_attention(*[t.double() for t in qkv])  # type: ignore[misc]
    torch.testing.assert_close(found.cpu().double(), expected, rtol=1e-2, atol=1e-2)


def _layer(parameters: dict[str, torch.Tensor], x: torch.Tensor) -> torch.Tensor:
    return x + torch.tanh(x @ parameters["w"] + parameters["b"])


def _in_a_row(w: torch.Tensor, b: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    for i in range(len(w)):
        x = _layer({"w": w[i], "b": b[i]}, x)
    return x


@pytest.mark.parametrize("n_microbatches", [1, 2, 4])
def test_a_pipeline_is_its_layers_in_a_row(n_microbatches: int) -> None:
    torch.manual_seed(1)
    mesh = Mesh((2, 4), ("data", "stage"))
    tensors = [torch.randn(8, 6, 6) / 3, torch.randn(8, 6), torch.randn(8, 6)]

    def staged(w: torch.Tensor, b: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return pipeline(_layer, {"w": w, "b": b}, x, mesh, "stage", n_microbatches=n_microbatches)

    same(_in_a_row, staged, tensors)


def test_each_chip_has_the_layers_of_its_stage_and_hands_parts_on() -> None:
    mesh = Mesh((8,), ("stage",))
    w = mark_sharding(torch.randn(8, 6, 6, device="pjrt"), mesh, ("stage",))
    b = mark_sharding(torch.randn(8, 6, device="pjrt"), mesh, ("stage",))
    x = mark_sharding(torch.randn(8, 6, device="pjrt"), mesh, ())
    torch_pjrt.sync()

    y = pipeline(_layer, {"w": w, "b": b}, x, mesh, "stage", n_microbatches=4)

    kinds = exchanged()
    assert kinds == {("collective-permute", ("stage",)): 4 + 8 - 2, ("all-reduce", ("stage",)): 1}
    expected = _in_a_row(w.cpu(), b.cpu(), x.cpu())
    torch.testing.assert_close(y.cpu(), expected, rtol=1e-4, atol=1e-5)


def _expert(parameters: Tensors, x: torch.Tensor) -> torch.Tensor:
    return torch.relu(x @ parameters[0]) @ parameters[1]


def _each_token(
    up: torch.Tensor, down: torch.Tensor, x: torch.Tensor, logits: torch.Tensor
) -> torch.Tensor:
    best, chosen = logits.topk(2)
    weights = torch.zeros_like(logits).scatter(1, chosen, best.softmax(-1))
    of_all = torch.stack([_expert([u, d], x) for u, d in zip(up, down, strict=True)], 1)
    return (weights[:, :, None] * of_all).sum(1)


def test_a_mixture_of_experts_sends_each_token_to_its_experts() -> None:
    torch.manual_seed(2)
    mesh = Mesh((2, 4), ("data", "expert"))
    shapes = (8, 6, 12), (8, 12, 6), (32, 6), (32, 8)

    def spread(
        up: torch.Tensor, down: torch.Tensor, x: torch.Tensor, logits: torch.Tensor
    ) -> torch.Tensor:
        of = mesh, "expert"
        return mixture_of_experts(_expert, [up, down], x, logits, *of, capacity_factor=8)

    same(_each_token, spread, [torch.randn(s) for s in shapes])


def test_an_expert_takes_as_many_tokens_as_it_has_room_for_in_their_order() -> None:
    mesh = Mesh((4,), ("expert",))
    x = torch.ones(16, 2, device="pjrt")
    logits = torch.zeros(16, 4, device="pjrt")
    logits[:, 1] = 5.0  # all want the second
    scale = [torch.arange(1.0, 5.0, device="pjrt").reshape(4, 1)]

    y = mixture_of_experts(
        lambda p, x: x * p[0], scale, x, logits, mesh, "expert", top_k=1, capacity_factor=2
    )

    # Two of each chip's four.
    assert y[:, 0].tolist() == [2.0, 2.0, 0.0, 0.0] * 4


def test_tokens_go_to_experts_and_come_back_in_two_exchanges() -> None:
    mesh = Mesh((8,), ("expert",))

    def spread(*shape: int) -> torch.Tensor:
        return mark_sharding(torch.randn(shape, device="pjrt"), mesh, ("expert",))

    of = [spread(8, 6, 12), spread(8, 12, 6)], spread(32, 6), spread(32, 8)
    torch_pjrt.sync()

    mixture_of_experts(_expert, *of, mesh, "expert").sum(1)  # type: ignore[misc]
    y = mixture_of_experts(_expert, *of, mesh, "expert")  # type: ignore[misc]

    assert exchanged() == {("all-to-all", ("expert",)): 2}
    assert [tuple(s.data.shape) for s in local_shards(y)] == [(4, 6)] * 8


def _moe(tokens: Any, logits: Any, n: int = 8, **kwargs: Any) -> torch.Tensor:
    mesh = Mesh((8,), ("expert",))
    parameters = [torch.ones(n, 6, 6, device="pjrt")]
    x, scores = (torch.ones(shape, device="pjrt") for shape in (tokens, logits))
    return mixture_of_experts(
        lambda p, x: x @ p[0], parameters, x, scores, mesh, "expert", **kwargs
    )


def _pipe(
    n_layers: int, batch: int, n_microbatches: int, layer: Any = lambda p, x: x * p[0]
) -> torch.Tensor:
    of = [torch.ones(n_layers, 1, device="pjrt")], torch.ones(batch, 4, device="pjrt")
    return pipeline(layer, *of, Mesh((8,), ("stage",)), "stage", n_microbatches=n_microbatches)


def _ring(*lengths: int) -> torch.Tensor:
    q, k, v = (torch.ones(1, n, 4, device="pjrt") for n in lengths)
    return ring_attention(q, k, v, Mesh((8,), ("s",)), "s")


WRONG: dict[str, tuple[str, Callable[[], Any]]] = {
    "lengths that differ": ("of one length", lambda: _ring(8, 16, 16)),
    "a length that chips do not divide": ("do not divide", lambda: _ring(12, 12, 12)),
    "layers that chips do not divide": ("do not divide", lambda: _pipe(12, 8, 2)),
    "a batch that parts do not divide": ("do not divide", lambda: _pipe(8, 8, 3)),
    "no parts": ("do not divide", lambda: _pipe(8, 8, 0)),
    "a layer that changes the shape": (
        "another shape",
        lambda: _pipe(8, 8, 2, lambda p, x: x[:, :2]),
    ),
    "tokens without a width": ("do not fit", lambda: _moe((16,), (16, 8))),
    "other experts than logits": ("do not fit", lambda: _moe((16, 6), (16, 4))),
    "tokens that chips do not divide": ("do not divide", lambda: _moe((12, 6), (12, 8))),
    "more choices than experts": ("only once", lambda: _moe((16, 6), (16, 8), top_k=9)),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_cannot_be_spread_is_refused(name: str) -> None:
    text, call = WRONG[name]
    with pytest.raises(ShardingError, match=text):
        call()
