"""A model in parts learns what it learns on one chip, whatever is asked of `fully_shard`, in one program."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any

import pytest
import torch
from learner import Block, Gpt, trained
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy
from torch.distributed.fsdp.wrap import CustomPolicy, ModuleWrapPolicy

from torch_pjrt import config
from torch_pjrt_fsdp import (
    FSDPModule,
    FullyShardedDataParallel,
    fully_shard,
    size_based_auto_wrap_policy,
    transformer_auto_wrap_policy,
)
from torch_pjrt_spmd import Mesh, mark_sharding, program_reports, sharding_of


@dataclass(frozen=True)
class Case:
    """shard: called with the model and a mesh of eight chips; options: of `trained`, on one chip as well."""

    shard: Callable[[Any, Mesh], Any]
    options: dict[str, Any] = field(default_factory=dict)
    axes: tuple[tuple[int, ...], tuple[str, ...]] = ((8,), ("fsdp",))
    within: float = 1e-5
    # Of a weight of 128 x 32; None: it is not looked at.
    spec: tuple[Any, ...] | None = ("fsdp", None)
    slow: bool = False


def by(**options: Any) -> Callable[[Any, Mesh], Any]:
    return lambda model, mesh: fully_shard(model, mesh=mesh, **{"wrap": Block, **options})


def one_by_one(model: Gpt, mesh: Mesh) -> Gpt:
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def wrapped(model: Gpt, mesh: Mesh) -> Any:
    policy = partial(transformer_auto_wrap_policy, transformer_layer_cls={Block})
    return FullyShardedDataParallel(model, auto_wrap_policy=policy, mesh=mesh)


def tensor_parallel_too(model: Any, mesh: Mesh) -> Any:
    for block in model.blocks:
        for by_column in (block.q, block.k, block.v, block.up):
            mark_sharding(by_column.weight, mesh, ("model", None))
            mark_sharding(by_column.bias, mesh, ("model",))
        for by_row in (block.out, block.down):
            mark_sharding(by_row.weight, mesh, (None, "model"))
    return fully_shard(model, mesh=mesh["fsdp"], wrap=Block)


def frozen(model: Any) -> None:
    model.tokens.requires_grad_(False)
    model.blocks[0].requires_grad_(False)


def ignoring(model: Any, mesh: Mesh) -> Any:
    return fully_shard(
        model, mesh=mesh, wrap=Block, ignored_params=[b.up.weight for b in model.blocks]
    )


fused = partial(torch.optim.AdamW, fused=True)
one_at_a_time = partial(torch.optim.AdamW, foreach=False)
LAYERS_TOO = CustomPolicy(lambda m: isinstance(m, (Block, nn.Linear)))
SIZE = partial(size_based_auto_wrap_policy, min_num_params=5000)
TWO_AXES = ((2, 4), ("replica", "fsdp"))

CASES = {
    "the model alone":       Case(by(wrap=None), slow=True),
    "blocks":                Case(by()),
    "blocks, kept":          Case(by(reshard_after_forward=False), slow=True),
    "one by one":            Case(one_by_one, slow=True),
    "by size":               Case(by(wrap=SIZE), slow=True),
    "by a number":           Case(by(wrap=5000), slow=True),
    "by names":              Case(by(wrap="blocks.?"), slow=True),
    "by a function":         Case(by(wrap=lambda m: isinstance(m, Block)), slow=True),
    "by PyTorch's policy":   Case(by(wrap=ModuleWrapPolicy({Block})), slow=True),
    "blocks in blocks":      Case(by(wrap=LAYERS_TOO), slow=True),
    "wrapper":               Case(wrapped, spec=None, slow=True),
    "hybrid":                Case(by(), axes=TWO_AXES, slow=True),
    "with tensor parallel":  Case(tensor_parallel_too, {"device": "pjrt"}, ((2, 4), ("fsdp", "model")),
                                  spec=("model", "fsdp")),
    "tied weights":          Case(by(), {"tied": True}, slow=True),
    "frozen weights":        Case(by(), {"prepare": frozen}, slow=True),
    "ignored weights":       Case(ignoring, spec=(None, None), slow=True),
    "clipped":               Case(by(), {"clip": 0.1}, slow=True),
    "accumulated":           Case(by(), {"accumulate": 2}, slow=True),
    "checkpoints around":    Case(by(), {"again": "around"}, slow=True),
    "reentrant checkpoints": Case(by(), {"again": "reentrant"}, slow=True),
    "checkpoints inside":    Case(by(), {"again": "inside"}, slow=True),
    "captured":              Case(by(), {"how": "captured"}, slow=True),
    "autocast":              Case(by(), {"how": "autocast"}, within=2e-3, slow=True),
    "fused optimizer":       Case(by(), {"optimizer": fused}, slow=True),
    "one tensor at a time":  Case(by(), {"optimizer": one_at_a_time}, slow=True),
    "on the device before":  Case(by(), {"device": "pjrt"}, slow=True),
}  # fmt: skip
ROWS = [
    pytest.param(name, marks=pytest.mark.slow("rows")) if case.slow else name
    for name, case in CASES.items()
]


@cache
def on_one_chip(options: Any) -> list[float]:
    return trained(None, **dict(options))[0]


@pytest.mark.parametrize("name", ROWS)
def test_losses_are_those_of_one_chip(name: str) -> None:
    case = CASES[name]
    alike = {k: v for k, v in case.options.items() if k not in ("device", "how", "again")}
    expected = on_one_chip(tuple(alike.items()))
    mesh = Mesh(*case.axes)

    losses, model, optimizer, programs = trained(lambda m: case.shard(m, mesh), **case.options)

    assert losses == pytest.approx(expected, rel=case.within)
    # The optimizer's state, a step, and a captured step.
    assert programs <= 2 + (case.options.get("how") == "captured")
    for p in model.parameters():
        how = sharding_of(p)
        assert how is not None
        if p.requires_grad:
            states = [sharding_of(s) for s in optimizer.state[p].values() if s.shape == p.shape]
            assert states == [how] * len(states)
            if case.options.get("how") != "captured":  # its gradients are the recording's own
                assert sharding_of(p.grad) == how
    if case.spec is not None:
        found = sharding_of(model.blocks[1].up.weight)
        assert found is not None
        assert found.spec == case.spec
        assert isinstance(model, FSDPModule)


@pytest.mark.slow
def test_rolled_layers_gather_within_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    n_layers = 8
    expected = trained(None, n_layers=n_layers, width=128, n_steps=3)[0]
    monkeypatch.setattr(config, "roll_layers", "on")
    mesh = Mesh((8,), ("fsdp",))

    def rolled(**options: Any) -> tuple[list[float], Any]:
        shape: dict[str, Any] = {"n_layers": n_layers, "width": 128, "n_steps": 3}
        losses, *_ = trained(lambda m: by(**options)(m, mesh), **shape)
        return losses, program_reports()[-1]

    losses, again = rolled()
    kept = rolled(reshard_after_forward=False)[1]

    assert losses == pytest.approx(expected, rel=1e-5)
    whole = sum(p.nbytes for p in Gpt(n_layers, width=128).parameters())
    for weight, n_in_a_block in ((128 * 128 * 4, 4), (128 * 512 * 4, 2)):
        for kind, n_bytes, passes in (
            ("all-gather", weight, 2),
            ("reduce-scatter", weight // 8, 1),
        ):
            found = [c for c in again.collectives if (c.kind, c.n_bytes) == (kind, n_bytes)]
            # In the program once for each pass through the layers, and once for each layer when it runs.
            assert sum(c.times for c in found) == passes * n_in_a_block
            assert sum(c.runs for c in found) == passes * n_in_a_block * n_layers
    # No loop's stack of layers is gathered: nothing larger than a weight is.
    assert max(c.n_bytes for c in again.collectives) == 128 * 512 * 4
    assert again.temporary_bytes < whole / 2 < whole < kept.temporary_bytes


@pytest.mark.slow
def test_products_are_of_the_policys_dtype_and_gradients_of_the_parameters() -> None:
    policy = MixedPrecisionPolicy(torch.bfloat16, torch.float32, torch.float32)
    expected = trained(None, n_steps=5)[0]
    seen = []

    def shard(model: Any) -> Any:
        fully_shard(model, mesh=Mesh((8,), ("fsdp",)), wrap=Block, mp_policy=policy)
        model.blocks[1].down.register_forward_hook(
            lambda m, x, y: seen.append((x[0].dtype, m.weight.dtype, y.dtype))
        )
        return model

    losses, model, *_ = trained(shard, n_steps=5)

    assert losses == pytest.approx(expected, rel=2e-2)
    assert losses != expected
    assert set(seen) == {(torch.bfloat16,) * 3}
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    assert {p.grad.dtype for p in model.parameters()} == {torch.float32}


def _last(shard: Any, mesh: Mesh) -> Any:
    trained(lambda m: shard(m, mesh), n_steps=2, n_layers=4, width=128)
    return program_reports()[-1]


@pytest.mark.slow
def test_a_compiled_program_has_less_between_than_the_gathered_model() -> None:
    mesh = Mesh((8,), ("fsdp",))
    again = _last(by(), mesh)
    kept = _last(by(reshard_after_forward=False), mesh)

    whole = sum(p.nbytes for p in Gpt(4, width=128).parameters())
    assert again.temporary_bytes < whole / 2 < whole < kept.temporary_bytes
    scattered = sum(c.runs * c.n_bytes for c in again.collectives if c.kind == "reduce-scatter")
    summed = sum(c.runs * c.n_bytes for c in again.collectives if c.kind == "all-reduce")
    assert scattered == pytest.approx(whole / 8, rel=0.05)  # all gradients, a part for each chip
    assert summed < whole / 50  # weights of norms, and the loss
    assert again.parameter_bytes * 8 == whole
