"""Kernels for TPUs, interpreted: on a mesh each chip computes its batches and heads, without exchanges."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.nn.functional import linear, scaled_dot_product_attention

import torch_pjrt
from torch_pjrt.errors import LoweringError
from torch_pjrt_kernels import flash_attention, ragged_paged_attention, rotary
from torch_pjrt_kernels.attention import tpu
from torch_pjrt_kernels.own import sharding
from torch_pjrt_kernels.own.rule_of_dims import SplittingRule
from torch_pjrt_kernels.paged import ragged_tpu
from torch_pjrt_kernels.rotary import operator as of_rotary
from torch_pjrt_spmd import Mesh, mark_sharding

GATHERS = ("all-gather", "all-to-all", "collective-permute")


@pytest.fixture(autouse=True)
def taken(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[list[tuple[int, ...]]]]:
    """Kernels take calls on a CPU, too. Of each call on a chip: the shapes of its arrays there."""
    seen: list[list[tuple[int, ...]]] = []
    for module in (tpu, of_rotary, ragged_tpu):
        monkeypatch.setattr(module, "objection_of_the_chip", lambda: None)
    traced = sharding.traced_on_the_chip

    def noted(function: Callable[..., Any], *arrays: Any) -> Any:
        seen.append([tuple(x.shape) for x in arrays])
        return traced(function, *arrays)

    monkeypatch.setattr(sharding, "traced_on_the_chip", noted)
    yield seen
    torch_pjrt.sync()


def mesh() -> Mesh:
    return Mesh((4, 2), ("data", "model"))


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).bfloat16()


def spread(x: torch.Tensor, spec: Any) -> torch.Tensor:
    return mark_sharding(x.to("pjrt"), mesh(), spec)


def attended(attend: Any, qkv: list[torch.Tensor], **form: Any) -> list[torch.Tensor]:
    leaves = [x.detach().requires_grad_() for x in qkv]
    y = attend(*leaves, is_causal=True, **form)
    return [y.detach(), *torch.autograd.grad(y.float().square().sum(), leaves)]


def near(ours: list[torch.Tensor], theirs: list[torch.Tensor]) -> None:
    """As bfloat16 has it: an output is off by its own rounding, 2**-9, and by those of the weights."""
    for mine, exact in zip(ours, theirs, strict=True):
        assert (mine.cpu().double() - exact).norm() < 2**-6 * exact.norm()


#   batch, heads, key heads     how they lie                    what a chip has of q
SPREAD: dict[str, tuple[tuple[int, int, int], Any, tuple[int, int]]] = {
    "batch and heads": ((4, 4, 2), ("data", "model"), (1, 2)),
    "heads": ((1, 16, 8), (None, ("data", "model")), (1, 2)),
    "batch": ((8, 2, 1), (("data", "model"),), (1, 2)),
    "nothing": ((1, 4, 4), (), (1, 4)),
    "one key head": ((4, 4, 1), ("data", "model"), (1, 2)),
    "fewer key heads than chips": ((1, 8, 2), (None, ("data", "model")), (1, 1)),
    "key heads that chips do not divide": ((4, 6, 3), ("data", "model"), (1, 3)),
}
# Where keys are repeated, so that each chip has its own, their gradients are added up over chips.
REPEATED = ("fewer key heads than chips", "key heads that chips do not divide")


@pytest.mark.slow("rows")
@pytest.mark.parametrize("name", SPREAD)
def test_attention_is_computed_where_its_batches_and_heads_are(name: str, taken: list[Any]) -> None:
    (batch, heads, key_heads), spec, part = SPREAD[name]
    n = 512 if batch * heads > 8 else 1024
    qkv = [normal(batch, h, n, 64, seed=i) for i, h in enumerate((heads, key_heads, key_heads))]

    n_chips: dict[Any, int] = {"data": 4, "model": 2, ("data", "model"): 8}
    of_keys = [e if i != 1 or key_heads % n_chips[e] == 0 else None for i, e in enumerate(spec)]

    given = [spread(x, of_keys if i else spec) for i, x in enumerate(qkv)]

    explained = torch_pjrt.explain(
        lambda: attended(scaled_dot_product_attention, given, enable_gqa=True)
    )

    exact = attended(scaled_dot_product_attention, [x.double() for x in qkv], enable_gqa=True)
    near(explained.result, exact)
    assert "splash" in str(explained)
    text = str(explained)
    if name in REPEATED:
        q, k, v = given
        forward = torch_pjrt.explain(
            lambda: scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        )
        text = str(forward)
    assert not any(name in text for name in GATHERS)
    assert (*part, n, 64) in [shapes[0] for shapes in taken]


@pytest.mark.slow
def test_segments_are_split_by_their_batches_alone() -> None:
    qkv = [normal(4, 2, 512, 64, seed=i) for i in range(3)]
    ids = (torch.arange(512) // 100).expand(4, 512).contiguous()
    given = [spread(x, ("data", "model")) for x in qkv]

    ours = attended(flash_attention, given, segments=spread(ids, ("data",)), window=(300, None))

    theirs = attended(flash_attention, [x.double() for x in qkv], segments=ids, window=(300, None))
    near(ours, theirs)


@pytest.mark.slow
def test_layers_that_are_rolled_know_how_the_arrays_of_all_of_them_lie(
    monkeypatch: pytest.MonkeyPatch, taken: list[Any]
) -> None:
    """Queries are made of the layers before, in a loop: nothing but weights and inputs is marked."""
    weights = [[normal(128, 128, seed=8 * i + j) / 16 for j in range(4)] for i in range(6)]
    x = normal(4, 1024, 128)
    angles = torch.arange(1024)[:, None] / 100 ** (torch.arange(128) % 64 / 64)
    tables = [t.bfloat16() for t in (angles.cos(), angles.sin())]

    def layers(x: torch.Tensor, weights: Any, tables: Any, turn: Any) -> torch.Tensor:
        for *qkv, out in weights:
            q, k, v = (linear(x, w).unflatten(-1, (2, 64)).transpose(1, 2) for w in qkv)
            turned = turn(x[:, None], *tables)[:, 0]
            y = scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + linear(y.transpose(1, 2).flatten(2), out) + turned / 8
        return x

    along = [("model",), ("model",), ("model",), (None, "model")]
    marked = [
        [spread(w, spec) for w, spec in zip(of_layer, along, strict=True)] for of_layer in weights
    ]
    monkeypatch.setattr(torch_pjrt.config, "roll_layers", "on")

    explained = torch_pjrt.explain(
        lambda: layers(spread(x, ("data",)), marked, [t.to("pjrt") for t in tables], rotary)
    )

    def turn(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        first, second = x.chunk(2, -1)
        return x * cos + torch.cat((-second, first), -1) * sin

    wide = [[w.double() for w in of_layer] for of_layer in weights]
    near([explained.result], [layers(x.double(), wide, [t.double() for t in tables], turn)])
    assert not any(name in str(explained) for name in GATHERS)
    assert (1, 1, 1024, 64) in [shapes[0] for shapes in taken]
    assert (1, 1, 1024, 128) in [shapes[0] for shapes in taken]  # of the rotary positions


def test_ragged_attention_is_split_by_key_heads(
    taken: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By one that stands for JAX's kernel, which JAX cannot interpret: it looks at the first position."""

    def of_the_first(query: Any, pages: Any, *rest: Any, **form: Any) -> Any:
        first = pages[0, 0].reshape(-1, 2, 128).repeat(query.shape[1] * 2 // pages.shape[2], 0)
        return query * first[:, 0] + first[:, 1]

    module = SimpleNamespace(ragged_paged_attention=of_the_first)
    monkeypatch.setattr(ragged_tpu, "import_module", lambda name: module)
    query, pages = normal(16, 8, 128), normal(4, 16, 8, 128, seed=1)
    rest = [torch.tensor(x).int().to("pjrt") for x in ([[3, 1], [0, 2]], [20, 9], [0, 8, 16])]

    y = ragged_paged_attention(
        spread(query, (None, "model")), spread(pages, (None, None, "model")), None, *rest
    )

    keys, values = (pages[0, 0, i::2].repeat_interleave(2, 0) for i in (0, 1))
    near([y], [query.double() * keys + values])
    assert ((16, 4, 128), (4, 16, 4, 128)) in [tuple(shapes[:2]) for shapes in taken]


def test_names_of_one_size_and_axes_that_do_not_divide_are_left_out() -> None:
    """What chips cannot share evenly is whole; an axis serves one name."""
    rule = SplittingRule.parsed("b (n g) w, b n w -> b (n g)", 2, 1, ("b", "n"))
    axes = {"data": 4, "model": 2}

    few = rule.of_shapes([(4, 6, 8), (4, 3, 8)], [(4, 6)])
    one = rule.of_shapes([(8, 2, 8), (8, 1, 8)], [(8, 2)])

    lies = ((("data",), ("model",), ()), (("data",), (), ()), (("data",), ("model",)))
    assert few.axes_of_names(lies, axes) == {"b": ("data",)}
    both = ((("data", "model"), ("model",), ()), ((), (), ()), ((), ()))
    assert one.axes_of_names(both, axes) == {"b": ("data", "model")}
    assert "([i, jk, l], [i, j, l])->([i, jk])" in few.of_shardy()
    assert "([i, j, k], [i, l, k])->([i, j])" in one.of_shardy()
    with pytest.raises(LoweringError, match=r"other dims(?s:.*)saw: \[4, 7, 8\]"):
        rule.of_shapes([(4, 7, 8), (4, 3, 8)], [(4, 6)])
