"""PyTorch's own plans: weights lie as by PyTorch, and the GPT learns what it learns on one chip."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest
import torch
from small_gpt import Gpt, trained
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.device_mesh import init_device_mesh as pytorchs_init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    PrepareModuleOutput,
    RowwiseParallel,
    SequenceParallel,
)
from torch.distributed.tensor.parallel import parallelize_module as pytorchs_parallelize_module

from torch_pjrt_spmd import collectives, init_device_mesh, parallelize_module, placements_of

SHAPE, NAMES = (2, 4), ("data", "model")


def tensor_plan() -> dict[str, Any]:
    return {
        "blocks.*.[qkv]": ColwiseParallel(),
        "blocks.*.out": RowwiseParallel(),
        "blocks.*.up": ColwiseParallel(),
        "blocks.*.down": RowwiseParallel(),
    }


def sequence_plan() -> dict[str, Any]:
    """Between the layers, activations are in parts of the sequence: those of Megatron's second paper."""
    return {
        "tokens": RowwiseParallel(output_layouts=Shard(1)),
        "blocks.*.norms.?": SequenceParallel(),
        "blocks.*.[qkv]": ColwiseParallel(input_layouts=Shard(1)),
        "blocks.*.out": RowwiseParallel(output_layouts=Shard(1)),
        "blocks.*.up": ColwiseParallel(input_layouts=Shard(1)),
        "blocks.*.down": RowwiseParallel(output_layouts=Shard(1)),
        "norm": SequenceParallel(),
        "head": ColwiseParallel(input_layouts=Shard(1), output_layouts=Replicate()),
    }


def prepared_plan() -> dict[str, Any]:
    """The tensor plan, with what goes into blocks and comes out of them in parts of the sequence."""
    return {
        "blocks.*": PrepareModuleInput(input_layouts=Shard(1), desired_input_layouts=Replicate()),
        "blocks": {"*": PrepareModuleOutput(
            output_layouts=Replicate(), desired_output_layouts=Shard(1))},
        **tensor_plan(),
    }  # fmt: skip


PLANS = {"tensor": tensor_plan, "sequence": sequence_plan, "prepared": prepared_plan}


def by_plan(plan: str) -> Any:
    def spread(model: Gpt) -> tuple[Any, tuple[Any, ...]]:
        mesh = init_device_mesh("pjrt", SHAPE, mesh_dim_names=NAMES)
        assert parallelize_module(model, mesh["model"], PLANS[plan]()) is model
        return mesh, ("data", None)

    return spread


@cache
def found(plan: str | None, how: str, n_layers: int = 1) -> tuple[list[float], Any, Any]:
    """Losses, placements of parameters, and how many collectives of a kind the program of a step has."""
    before = {c.program for c in collectives()}
    spread = None if plan is None else by_plan(plan)
    losses, model, _ = trained(spread, how, n_steps=3, n_layers=n_layers)
    placements = {name: placements_of(p) for name, p in model.named_parameters()}
    new = [c for c in collectives() if c.program not in before]
    steps = Counter()
    last = max((c.program for c in new), default=0)
    for c in new:
        if c.program == last:
            steps[c.kind, c.axes] += c.times
    return losses, placements, steps


@pytest.fixture
def pytorchs_mesh() -> Iterator[DeviceMesh]:
    """Of eight processes of which only this one is there: nothing is sent."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    torch.distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=8)
    try:
        yield pytorchs_init_device_mesh("cpu", SHAPE, mesh_dim_names=NAMES)
    finally:
        torch.distributed.destroy_process_group()


@pytest.mark.parametrize("plan", PLANS)
def test_weights_lie_as_pytorch_would_have_them(plan: str, pytorchs_mesh: DeviceMesh) -> None:
    theirs, ours = Gpt(), Gpt().to("pjrt")
    pytorchs_parallelize_module(theirs, pytorchs_mesh["model"], PLANS[plan]())
    identities = [id(p) for p in ours.parameters()]

    by_plan(plan)(ours)

    assert [id(p) for p in ours.parameters()] == identities
    for (name, p), q in zip(theirs.named_parameters(), ours.parameters(), strict=True):
        if isinstance(p, DTensor):
            assert placements_of(q) == (Replicate(), *p.placements), name
        else:
            assert placements_of(q) == (), name


@pytest.mark.parametrize(
    ("plan", "how"),
    [
        ("tensor", "lazy"),
        *[
            pytest.param(plan, how, marks=pytest.mark.slow)
            for plan in PLANS
            for how in ("lazy", "compiled", "captured", "checkpointed")
            if (plan, how) != ("tensor", "lazy")
        ],
    ],
)
def test_losses_are_those_of_one_chip(plan: str, how: str) -> None:
    expected, _, _ = found(None, "lazy")

    losses, placements, _ = found(plan, how)

    assert losses == pytest.approx(expected, rel=1e-5)
    assert placements["blocks.0.up.weight"] == (Replicate(), Shard(0))
    assert placements["blocks.0.down.weight"] == (Replicate(), Shard(1))
    assert placements["blocks.0.down.bias"] == (Replicate(), Replicate())


def test_tensor_parallelism_exchanges_what_one_expects() -> None:
    _, _, steps = found("tensor", "lazy")

    # Forward a sum after `out` and `down`, backward one for what goes into (q, k, v) and into `up`.
    assert steps["all-reduce", ("model",)] == 4
    # Sums of gradients, and the mean loss: of all that is ready at a time XLA makes one exchange.
    assert 1 <= steps["all-reduce", ("data",)] <= 3
    assert set(steps) == {("all-reduce", ("model",)), ("all-reduce", ("data",))}


def test_sequence_parallelism_gathers_the_sequence_where_it_is_needed() -> None:
    _, _, steps = found("sequence", "lazy")

    # Gathered: forward what goes into (q, k, v), `up` and `head`, backward into `out` and `down`.
    assert steps["all-gather", ("model",)] >= 5
    # Scattered sums, which are sums and slices on a CPU: of `tokens`, `out` and `down` forward, of
    # (q, k, v), `up` and `head` backward; and the gradients of the norms' weights.
    assert steps["all-reduce", ("model",)] >= 6
    assert steps["all-reduce", ("data",)] >= 1
    # Of activations, nothing goes along `data`: only the numbers of tokens do, for the embedding's gradient.
    assert steps["all-gather", ("data",)] <= 1
    assert not {kind for kind, _ in steps} - {"all-gather", "all-reduce", "reduce-scatter"}
