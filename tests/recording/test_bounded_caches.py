"""Recording goes on, with the same values, while the caches of what it has learnt drop entries."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
import torch

import torch_pjrt
from fixture_types import Count
from torch_pjrt.caches import Cache
from torch_pjrt.graph.signature import Signature
from torch_pjrt.graph.tensor_spec import TensorSpec, spec_of
from torch_pjrt.session import session
from torch_pjrt.tensor.storage.buffer import buffer_of


@pytest.fixture
def tight() -> Iterator[list[Cache[Any, Any]]]:
    """All caches of two entries."""
    torch.ones(1, device="pjrt").add(1).tolist()
    caches = list(session.caches)
    before = [(cache, cache.most, cache.dropped) for cache in caches]
    for cache in caches:
        cache.most = 2
    yield caches
    for cache, most, dropped in before:
        cache.most, cache.dropped = most, dropped


def step(x: torch.Tensor) -> torch.Tensor:
    y = x.clone()
    for n in range(1, 6):
        y[n : x.numel()].mul_(x[:-n].sin() + n)
        y = torch.cat([y, torch.stack([x[n], x[-n]])]).sort().values
    return y.view(-1)[: x.numel()].cumsum(0) + y.std()


def test_values_are_the_same_when_all_has_to_go(tight: list[Cache[Any, Any]]) -> None:
    x = torch.linspace(-1, 2, 12)

    for _ in range(3):
        torch.testing.assert_close(step(x.to("pjrt")).cpu(), step(x))

    assert sum(cache.dropped for cache in tight) > 100
    assert all(len(cache) <= max(cache.most, 1) for cache in tight if cache.dropped)


def test_what_is_pending_keeps_its_signatures(tight: list[Cache[Any, Any]]) -> None:
    x = torch.linspace(-1, 2, 12)
    pending = [step(x[n:].to("pjrt")) for n in range(4)]
    for n in range(1, 9):  # meanwhile all that was learnt goes
        torch.ones(n, device="pjrt").add(n)

    for n, y in enumerate(pending):
        torch.testing.assert_close(y.cpu(), step(x[n:]))


def test_programs_are_found_again_when_all_has_to_go(
    tight: list[Cache[Any, Any]], compiled: Count
) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Tanh(), torch.nn.Linear(4, 2))
    model.to("pjrt")
    optimizer = torch.optim.Adam(model.parameters())
    x = torch.ones(3, 4, device="pjrt")
    counts = []
    for n in range(5):
        before = compiled()
        model(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        torch_pjrt.sync()
        counts.append(compiled() - before)
        torch.ones(n + 20, device="pjrt").add(n).tolist()  # others come between

    assert counts[2:] == [0, 0, 0]


@pytest.mark.slow
def test_specs_and_signatures_that_nobody_needs_go(tight: list[Cache[Any, Any]]) -> None:
    def run(sizes: range) -> None:
        for n in sizes:
            torch.ones(n, 2, device="pjrt").mul(3).t().contiguous().sum(1).tolist()
        session.forget()
        gc.collect()

    def alive() -> dict[type, int]:
        return Counter(type(x) for x in gc.get_objects() if type(x) in (TensorSpec, Signature))

    run(range(20, 30))
    before = alive()
    run(range(30, 60))

    assert all(alive()[kind] <= before[kind] + 2 for kind in (TensorSpec, Signature))


def test_a_spec_is_the_one_while_a_tensor_has_it(tight: list[Cache[Any, Any]]) -> None:
    x = torch.ones(3, 5, device="pjrt")
    spec = buffer_of(x).spec
    for n in range(1, 20):
        torch.ones(n, device="pjrt").add(n)

    assert spec_of((3, 5), torch.float32, (5, 1)) is spec
    assert buffer_of(x + 1).spec is spec
