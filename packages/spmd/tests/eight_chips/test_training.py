"""A small GPT learns on a mesh what it learns on one chip, whichever way it is run and spread."""

from __future__ import annotations

from functools import cache

import pytest
from small_gpt import WAYS, trained

from torch_pjrt import config
from torch_pjrt.extend import counters
from torch_pjrt_spmd import sharding_of

#   how a step is run   how far losses may differ, relative: halves are rounded in another order
HOW = {"lazy": 1e-5, "captured": 1e-5, "compiled": 1e-5, "checkpointed": 1e-5, "autocast": 1e-3}
# The way that has an axis of each kind.
ALL = "data 2, sequence 2, tensor 2"


@cache
def on_one_chip(how: str) -> list[float]:
    return trained(None, how, n_layers=1)[0]


@pytest.mark.slow("rows")
@pytest.mark.parametrize(
    ("how", "way"), [*((how, ALL) for how in HOW), *(("lazy", way) for way in WAYS if way != ALL)]
)
def test_losses_are_those_of_one_chip(how: str, way: str) -> None:
    expected = on_one_chip(how)
    before = counters.programs_compiled

    losses, model, optimizer = trained(WAYS[way], how, n_layers=1)

    assert losses == pytest.approx(expected, rel=HOW[how])
    # The optimizer's state, a step, and a captured step.
    assert counters.programs_compiled - before <= 2 + (how == "captured")
    for p in model.parameters():
        where = sharding_of(p)
        assert where is not None
        assert [sharding_of(s) for s in optimizer.state[p].values() if s.shape == p.shape] == (
            [where] * 2
        )
        if how != "captured":  # its gradients are the recording's own
            assert p.grad is not None
            assert sharding_of(p.grad) == where


@pytest.mark.slow
def test_rolled_layers_keep_their_weights_as_stacks_that_are_spread(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    expected, *_ = trained(n_layers=4)
    monkeypatch.setattr(config, "roll_layers", "on")
    before, stacks = counters.loops, counters.stacks_made

    losses, model, _ = trained(WAYS["data 2, tensor 4"], n_layers=4)

    assert losses == pytest.approx(expected, rel=1e-5)
    assert counters.loops > before
    assert counters.stacks_made - stacks <= 3 * 16  # weights and two states, once; not in each step
    found = sharding_of(model.blocks[1].up.weight)  # type: ignore[union-attr]
    assert found is not None
    assert found.spec == ("model", None)
