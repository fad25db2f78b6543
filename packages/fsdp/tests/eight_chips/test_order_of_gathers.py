"""A block's parameters are gathered once there is what the block computes on, or as early as is asked."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch
from learner import Block, Gpt, trained
from torch import nn
from torch.distributed.fsdp import BackwardPrefetch

from torch_pjrt import config
from torch_pjrt.errors import SettingError
from torch_pjrt.extend import annotation_of, graph_of, recorded
from torch_pjrt.plugin import Graph, client, run_passes
from torch_pjrt_fsdp import FullyShardedDataParallel, fully_shard
from torch_pjrt_fsdp.annotated.blocks import block_of
from torch_pjrt_spmd import Mesh, ShardingError, program_reports

N_BLOCKS = 3


def mesh() -> Mesh:
    return Mesh((8,), ("fsdp",))


def sharded(again: str = "", **options: Any) -> Any:
    torch.manual_seed(0)
    return fully_shard(Gpt(N_BLOCKS, again=again), mesh=mesh(), wrap=Block, **options)


def graph_of_a_step(model: Any, compiled: bool = False) -> Graph:
    called = torch.compile(model, backend="pjrt", fullgraph=True) if compiled else model

    def step(x: torch.Tensor) -> torch.Tensor:
        loss = called(x).logsumexp(-1).mean()
        loss.backward()
        return loss.detach()

    with recorded(step, [torch.zeros(16, 8, dtype=torch.int64)]) as found:
        graph = graph_of(found.tape, found.outputs)
    return run_passes(client().passes, graph)


def ties_before_gathers(graph: Graph) -> list[int]:
    """Of each gather of a weight that each block has one of, in order, how many ties come first."""
    ties: dict[int, frozenset[int]] = {}
    found = []
    for i, node in enumerate(graph.nodes):
        before = frozenset[int]().union(*[ties.get(v, frozenset()) for v in node.inputs])
        if str(node.op) == "fsdp.tied":
            before |= {i}
        ties.update(dict.fromkeys(node.outputs, before))
        annotation = annotation_of(node)
        is_whole = annotation is not None and annotation.args[3:4] == ((None, None),)
        if is_whole and node.signature.outs[0].shape == (128, 32):
            found.append(len(before))
    return found


# In forward the blocks from the first one on, in backward from the last one on. The other ties are of the
# head, whose logits and their gradient count as a block's end and beginning.
ASKED = {
    "at any time":      (None, [0, 0, 0], [0, 0, 0]),
    "not ahead":        (False, [1, 2, 3], [5, 6, 7]),
    "one block ahead":  (True, [0, 1, 2], [4, 5, 6]),
    "two blocks ahead": (2, [0, 0, 1], [3, 4, 5]),
}  # fmt: skip


@pytest.mark.parametrize("again", ["", "around", "inside"])
@pytest.mark.parametrize("asked", ASKED)
def test_gathers_wait_for_what_their_block_computes_on(asked: str, again: str) -> None:
    ahead, forward, backward = ASKED[asked]

    graph = graph_of_a_step(sharded(again, forward_prefetch=ahead, backward_prefetch=ahead))

    assert ties_before_gathers(graph) == [*forward, *backward]


@pytest.mark.slow
def test_they_wait_in_a_compiled_graph() -> None:
    torch._dynamo.reset()

    graph = graph_of_a_step(sharded(forward_prefetch=False, backward_prefetch=False), compiled=True)

    assert ties_before_gathers(graph) == [1, 2, 3, 5, 6, 7]


def test_forward_and_backward_are_asked_apart() -> None:
    graph = graph_of_a_step(sharded(forward_prefetch=None, backward_prefetch=False))

    found = ties_before_gathers(graph)

    assert found[:3] == [0, 0, 0]
    assert 0 < found[3] < found[4] < found[5]


def test_blocks_say_by_pytorchs_methods_which_ones_are_gathered_ahead() -> None:
    model = sharded(forward_prefetch=False, backward_prefetch=False)
    first, second, third = model.blocks
    first.set_modules_to_forward_prefetch([second, third])
    third.set_modules_to_backward_prefetch([second])

    found = ties_before_gathers(graph_of_a_step(model))

    assert found == [1, 1, 1, 3, 3, 4]
    with pytest.raises(ShardingError, match="Linear"):
        first.set_modules_to_forward_prefetch([second.up])


def test_options_are_those_of_pytorchs_older_class() -> None:
    def asked_of(**options: Any) -> tuple[Any, Any]:
        model = FullyShardedDataParallel(nn.Linear(8, 8), mesh=mesh(), **options)
        block = block_of(model.module)
        assert block is not None
        return block.forward_prefetch, block.backward_prefetch

    assert asked_of(forward_prefetch=True)[0] == 1
    assert asked_of(backward_prefetch=BackwardPrefetch.BACKWARD_PRE)[1] == 1
    assert asked_of(backward_prefetch=BackwardPrefetch.BACKWARD_POST)[1] == 0
    with pytest.raises(SettingError, match="forward_prefetch"):
        asked_of(forward_prefetch=-1)


@cache
def on_one_chip(options: Any = ()) -> list[float]:
    return trained(None, n_steps=4, n_layers=N_BLOCKS, **dict(options))[0]


ROWS = [
    (ahead, how)
    for ahead in (None, False, True, 2)
    for how in ("", "around", "reentrant", "inside", "compiled", "captured")
]


@pytest.mark.parametrize(
    ("ahead", "how"),
    [p if p == (False, "") else pytest.param(*p, marks=pytest.mark.slow("rows")) for p in ROWS],
)
def test_values_and_programs_are_the_same_however_early_parameters_are_gathered(
    ahead: Any, how: str
) -> None:
    torch._dynamo.reset()
    options: dict[str, Any] = {"how": how} if how in ("compiled", "captured") else {"again": how}

    losses, _, _, programs = trained(
        lambda m: fully_shard(
            m, mesh=mesh(), wrap=Block, forward_prefetch=ahead, backward_prefetch=ahead
        ),
        n_steps=4,
        n_layers=N_BLOCKS,
        **options,
    )

    assert losses == pytest.approx(on_one_chip(), rel=1e-5)
    # The optimizer's state, a step, and a captured step.
    assert programs <= 2 + (how == "captured")


class Writes(nn.Module):
    """Writes to what it is called with, which may be a part of something."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.layer(x * 1)
        x.add_(1)
        return y


@pytest.mark.parametrize("part", [slice(None), slice(0, 8)])
def test_what_a_block_writes_to_its_input_is_there_for_its_caller(part: slice) -> None:
    torch.manual_seed(0)
    block: Any = Writes()
    x = torch.randn(16, 8)

    def run(x: torch.Tensor) -> list[Any]:
        whole = x * 2
        y = block(whole[part])
        (y * whole.sum()).sum().backward()
        return [y.detach().cpu(), whole.cpu(), block.layer.weight.grad.cpu()]

    expected = run(x)
    block.zero_grad()
    fully_shard(block, mesh=mesh(), batch_dim=None, forward_prefetch=False, backward_prefetch=False)

    for found, wanted in zip(run(x.to("pjrt")), expected, strict=True):
        torch.testing.assert_close(found, wanted)


def test_functions_of_torch_func_go_through_blocks() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
    x = torch.randn(16, 8)

    def loss(x: torch.Tensor) -> torch.Tensor:
        return model(x).sin().sum()

    expected = torch.func.grad(loss)(x)
    fully_shard(model, mesh=mesh(), wrap=nn.Linear, batch_dim=None, reshard_after_forward=False)

    found = torch.func.grad(loss)(x.to("pjrt"))

    torch.testing.assert_close(found.cpu(), expected)


@pytest.mark.slow
def test_rolled_layers_are_ordered_by_their_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config, "roll_layers", "on")

    def compiled(ahead: Any) -> tuple[list[float], Any]:
        losses, *_ = trained(
            lambda m: fully_shard(
                m, mesh=mesh(), wrap=Block, forward_prefetch=ahead, backward_prefetch=ahead
            ),
            n_steps=2,
            n_layers=5,
        )
        return losses, program_reports()[-1]

    free_losses, free = compiled(None)
    losses, tied = compiled(False)

    assert losses == pytest.approx(free_losses, rel=1e-5)
    assert n_bytes_exchanged(tied) == n_bytes_exchanged(free)
    assert tied.temporary_bytes <= 1.05 * free.temporary_bytes


def n_bytes_exchanged(report: Any) -> dict[str, int]:
    found: dict[str, int] = {}
    for c in report.collectives:
        found[c.kind] = found.get(c.kind, 0) + c.runs * c.n_bytes
    return found
