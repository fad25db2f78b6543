"""A device's own kernel of attention is called on each chip of a mesh, for its batches and heads.

On a CPU the rule of its plugin stands for one: it says then that it has nothing against a call.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

import torch_pjrt
from torch_pjrt_cpu import attention as of_cpu
from torch_pjrt_kernels.attention import own_on_chips
from torch_pjrt_spmd import Mesh, mark_sharding

GATHERS = ("all-gather", "all-to-all", "collective-permute")
LENGTH = 64
Shapes = list[tuple[int, ...]]


@pytest.fixture(autouse=True)
def taken(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Shapes]]:
    """Of each call on a chip: the shapes of its arrays there."""
    seen: list[Shapes] = []
    split = own_on_chips.split
    for name in ("scaled_dot_product_attention", "scaled_dot_product_attention_backward"):
        monkeypatch.setattr(getattr(of_cpu, name), "objection", lambda call: None, raising=False)

    def noted(function: Callable[..., Any], rule: Any, arrays: Any) -> Any:
        def on_chip(*parts: Any) -> Any:
            seen.append([tuple(x.shape) for x in parts])
            return function(*parts)

        return split(on_chip, rule, arrays)

    monkeypatch.setattr(own_on_chips, "split", noted)
    yield seen
    torch_pjrt.sync()


def normal(*shape: int, seed: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def spread(x: torch.Tensor, spec: Any) -> torch.Tensor:
    return mark_sharding(x.to("pjrt"), Mesh((4, 2), ("data", "model")), spec)


def attended(qkv: list[torch.Tensor], mask: torch.Tensor | None) -> list[torch.Tensor]:
    leaves = [x.detach().requires_grad_() for x in qkv]
    if mask is not None and mask.is_floating_point():
        leaves.append(mask.detach().requires_grad_())
        mask = leaves[-1]
    attend: Any = scaled_dot_product_attention
    y = attend(*leaves[:3], attn_mask=mask, is_causal=mask is None, enable_gqa=True)
    return [y.detach(), *torch.autograd.grad(y.square().sum(), leaves)]


#   batch, heads, key heads     how queries lie             and keys            what a chip has of q
SPREAD: dict[str, tuple[tuple[int, int, int], Any, Any, tuple[int, int]]] = {
    "batch and heads": ((4, 4, 2), ("data", "model"), ("data", "model"), (1, 2)),
    "heads": ((1, 16, 8), (None, ("data", "model")), (None, ("data", "model")), (1, 2)),
    "nothing": ((1, 4, 4), (), (), (1, 4)),
    "one key head": ((4, 4, 1), ("data", "model"), ("data",), (1, 2)),
    "fewer key heads than chips": ((1, 8, 2), (None, ("data", "model")), (), (1, 1)),
}
MASKS: dict[str, torch.Tensor] = {
    "of bools": normal(LENGTH, LENGTH, seed=5) > -1,
    "of floats": normal(1, 4, LENGTH, LENGTH, seed=5),
    "of batches": normal(4, 1, 1, LENGTH, seed=5),
}


@pytest.mark.slow("rows")
@pytest.mark.parametrize("name", SPREAD)
def test_it_computes_the_batches_and_heads_of_its_chip(name: str, taken: list[Shapes]) -> None:
    (batch, heads, key_heads), spec, of_keys, part = SPREAD[name]
    shapes = [(batch, h, LENGTH, 8) for h in (heads, key_heads, key_heads)]
    qkv = [normal(*shape, seed=i) for i, shape in enumerate(shapes)]
    given = [spread(x, of_keys if i else spec) for i, x in enumerate(qkv)]

    explained = torch_pjrt.explain(lambda: attended(given, None))

    for mine, its in zip(explained.result, attended(qkv, None), strict=True):
        torch.testing.assert_close(mine.cpu(), its, rtol=1e-4, atol=1e-4)
    assert "the device's own kernel" in " ".join(str(explained).split())
    assert (*part, LENGTH, 8) in [shapes[0] for shapes in taken]
    if name == "batch and heads":
        assert not any(name in str(explained) for name in GATHERS)


@pytest.mark.slow("rows")
@pytest.mark.parametrize("name", MASKS)
def test_masks_are_split_with_it_and_their_gradients_added_up(
    name: str, taken: list[Shapes]
) -> None:
    mask, spec = MASKS[name], ("data", "model")
    qkv = [normal(4, 4, LENGTH, 8, seed=i) for i in range(3)]
    given = [spread(x, spec) for x in qkv]

    found = attended(given, mask.to("pjrt"))

    for mine, its in zip(found, attended(qkv, mask), strict=True):
        torch.testing.assert_close(mine.cpu(), its, rtol=1e-4, atol=1e-4)
    assert (1, 2, LENGTH, 8) in [shapes[0] for shapes in taken]
