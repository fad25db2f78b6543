"""A model in parts is one graph for `torch.compile`, and learns and gathers as without it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any

import pytest
import torch
from learner import Block, Gpt, trained
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy
from torch.distributed.fsdp.wrap import transformer_auto_wrap_policy

from torch_pjrt import config
from torch_pjrt_fsdp import FullyShardedDataParallel, fully_shard
from torch_pjrt_spmd import Mesh, program_reports, sharding_of

LOW = MixedPrecisionPolicy(torch.bfloat16, torch.float32, torch.float32)


@pytest.fixture(autouse=True)
def nothing_is_compiled_yet() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def by(**options: Any) -> Callable[[Any, Mesh], Any]:
    return lambda model, mesh: fully_shard(model, mesh=mesh, **{"wrap": Block, **options})


BY_BLOCKS = by()


def wrapped(model: Gpt, mesh: Mesh) -> Any:
    policy = partial(transformer_auto_wrap_policy, transformer_layer_cls={Block})
    return FullyShardedDataParallel(model, auto_wrap_policy=policy, mesh=mesh)


@dataclass(frozen=True)
class Case:
    """shard: as in `test_fully_sharded.py`; options: of `trained`, and of what it is compared with."""

    shard: Callable[[Any, Mesh], Any] = BY_BLOCKS
    options: dict[str, Any] = field(default_factory=dict)
    axes: tuple[tuple[int, ...], tuple[str, ...]] = ((8,), ("fsdp",))
    how: str = "compiled"
    in_low_precision: bool = False
    slow: bool = True


CASES = {
    "blocks":              Case(slow=False),
    "the model alone":     Case(by(wrap=None)),
    "blocks, kept":        Case(by(reshard_after_forward=False)),
    "blocks in blocks":    Case(by(wrap=(Block, nn.Linear))),
    "wrapper":             Case(wrapped),
    "hybrid":              Case(axes=((2, 4), ("replica", "fsdp"))),
    "tied weights":        Case(options={"tied": True}),
    "in bfloat16":         Case(by(mp_policy=LOW), in_low_precision=True),
    "checkpoints around":  Case(options={"again": "around"}),
    "checkpoints inside":  Case(options={"again": "inside"}),
    "each block":          Case(how="compiled blocks"),
    "each block, one gathered":   Case(by(wrap=None), how="compiled blocks"),
}  # fmt: skip
ROWS = [
    pytest.param(name, marks=pytest.mark.slow("rows")) if case.slow else name
    for name, case in CASES.items()
]


@cache
def on_one_chip(options: Any) -> list[float]:
    return trained(None, n_steps=3, **dict(options))[0]


@pytest.mark.parametrize("name", ROWS)
def test_losses_are_those_of_one_chip(name: str) -> None:
    case = CASES[name]
    mesh = Mesh(*case.axes)
    if case.in_low_precision:
        expected = trained(lambda m: case.shard(m, mesh), n_steps=3)[0]
    else:
        alike = {k: v for k, v in case.options.items() if k != "again"}
        expected = on_one_chip(tuple(alike.items()))

    losses, model, _, programs = trained(
        lambda m: case.shard(m, mesh), n_steps=3, how=case.how, **case.options
    )

    assert losses == pytest.approx(expected, rel=1e-3 if case.in_low_precision else 1e-5)
    assert programs <= 2  # one makes the optimizer's state
    assert not torch._dynamo.utils.counters["graph_break"]
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] > 0
    for p in model.parameters():
        assert sharding_of(p) == sharding_of(p.grad)


def _exchanged(how: str, n_layers: int = 4, **options: Any) -> tuple[int, dict[str, int]]:
    """Bytes between inputs and results of a step, and bytes of collectives by their kind."""
    mesh = Mesh((8,), ("fsdp",))
    trained(lambda m: by(**options)(m, mesh), n_steps=2, how=how, n_layers=n_layers, width=128)
    report = program_reports()[-1]
    n_bytes: dict[str, int] = {}
    for c in report.collectives:
        n_bytes[c.kind] = n_bytes.get(c.kind, 0) + c.runs * c.n_bytes
    return report.temporary_bytes or 0, n_bytes


@pytest.mark.slow
@pytest.mark.parametrize("rolled", ["off", "on"])
def test_a_compiled_model_gathers_as_one_that_is_not(
    rolled: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(config, "roll_layers", rolled)
    between, expected = _exchanged("lazy")

    compiled_between, exchanged = _exchanged("compiled")

    assert exchanged == expected
    assert compiled_between < 1.2 * between
    if rolled == "off":
        kept_between, once = _exchanged("compiled", reshard_after_forward=False)
        assert once["all-gather"] < 0.6 * exchanged["all-gather"]
        assert kept_between > 2 * compiled_between


def test_models_on_two_meshes_share_no_graph() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(8, 16, bias=False)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return 2 * self.layer(x)

    torch.manual_seed(0)
    models: list[Any] = [Twice() for _ in range(3)]
    x = torch.randn(8, 8)
    expected = [model(x) for model in models]
    fully_shard(models[0], mesh=Mesh((8,), ("fsdp",)))
    fully_shard(models[1], mesh=Mesh((2, 4), ("replica", "fsdp")))
    models[2].to("pjrt")
    call = torch.compile(lambda model, x: model(x), backend="pjrt", fullgraph=True)

    for model, y in zip(models, expected, strict=True):
        found = call(model, x.to("pjrt"))
        found.sum().backward()
        torch.testing.assert_close(found.detach().cpu(), y)
        assert sharding_of(model.layer.weight.grad) == sharding_of(model.layer.weight)


def test_layers_keep_their_names_and_classes() -> None:
    model = fully_shard(Gpt(1), mesh=Mesh((8,), ("fsdp",)), wrap=Block)

    assert isinstance(model.blocks[0].up, nn.Linear)
    assert type(model.blocks[0].up).__qualname__ == "Linear"
    assert repr(model.blocks[0].up) == repr(Gpt(1).blocks[0].up)
    model.blocks[0].up.weight = nn.Parameter(torch.zeros(128, 32))
    assert not model.blocks[0].up.weight.any()
