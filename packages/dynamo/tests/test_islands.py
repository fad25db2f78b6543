"""What cannot be recorded runs by itself, between two parts of the graph, and is counted and named."""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import Any

import pytest
import torch

from torch_pjrt.extend import counters
from torch_pjrt.plugin import LoweringTable, client


@pytest.fixture
def no_warnings() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def without_a_rule(x: torch.Tensor) -> torch.Tensor:
    y = x * 2 + 1
    factors, pivots, _ = torch.linalg.ldl_factor_ex(x[:4, None] * torch.eye(4, device=x.device))
    return y.sum() + factors.sum() * 2 + pivots.sum()


@torch.library.custom_op("torch_pjrt_tests::by_numpy", mutates_args=())
def by_numpy(x: torch.Tensor) -> torch.Tensor:
    """A custom operator that only knows tensors of the host."""
    return torch.from_numpy(x.numpy() * 3)


@by_numpy.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


@torch.library.custom_op("torch_pjrt_tests::by_numpy_too", mutates_args=())
def by_numpy_too(x: torch.Tensor) -> torch.Tensor:
    """Another, for which a plugin has a lowering."""
    return torch.from_numpy(x.numpy() * 3)


@by_numpy_too.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


def test_an_operator_without_a_rule_runs_on_the_cpu_and_is_counted(no_warnings: Any) -> None:
    x = torch.arange(1.0, 9.0)
    before = counters.fallbacks.total()
    compiled = torch.compile(without_a_rule, backend="pjrt", fullgraph=True)

    result = compiled(x.to("pjrt"))

    torch.testing.assert_close(result.cpu(), without_a_rule(x))
    assert counters.fallbacks.total() > before
    assert any("linalg_ldl_factor" in name for name in counters.islands)


def test_a_custom_operator_of_the_host_is_an_island(no_warnings: Any) -> None:
    compiled = torch.compile(lambda x: by_numpy(x + 1) * 2, backend="pjrt", fullgraph=True)
    x = torch.arange(4.0, device="pjrt")

    assert compiled(x).tolist() == [6.0, 12.0, 18.0, 24.0]
    assert compiled(x + 1).tolist() == [12.0, 18.0, 24.0, 30.0]
    assert any("by_numpy" in name for name in counters.islands)


by_numpy.register_autograd(lambda ctx, gradient: gradient * 3)


def test_a_custom_operator_with_a_lowering_is_part_of_the_program(
    programs: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.zeros((), device="pjrt")
    op = torch.ops.torch_pjrt_tests.by_numpy_too.default
    table = LoweringTable("test")
    table.add(op, lambda x: x * 3)
    both = client().lowerings.overlaid(table)
    monkeypatch.setattr(
        "torch_pjrt.client.client._running.client", replace(client(), lowerings=both)
    )
    compiled = torch.compile(lambda x: by_numpy_too(x + 1) * 2, backend="pjrt", fullgraph=True)
    x = torch.arange(4.0, device="pjrt")
    programs.forget()

    assert compiled(x).tolist() == [6.0, 12.0, 18.0, 24.0]
    assert programs.run == 1
    assert not any("by_numpy_too" in name for name in counters.islands)


def test_gradients_go_through_what_is_around_an_island(no_warnings: Any) -> None:
    x = torch.arange(4.0, device="pjrt", requires_grad=True)

    torch.compile(lambda x: (by_numpy(x * x) * x).sum(), backend="pjrt")(x).backward()

    assert x.grad is not None
    assert x.grad.tolist() == [0.0, 9.0, 36.0, 81.0]


def test_a_graph_that_reads_a_value_is_right() -> None:
    with torch._dynamo.config.patch(capture_scalar_outputs=True):
        compiled = torch.compile(lambda x: x * x.sum().item() + 1, backend="pjrt")

        assert compiled(torch.arange(3.0, device="pjrt")).tolist() == [1.0, 4.0, 7.0]
        assert compiled(torch.ones(3, device="pjrt")).tolist() == [4.0, 4.0, 4.0]


def test_an_index_out_of_range_is_told() -> None:
    compiled = torch.compile(torch.nn.functional.embedding, backend="pjrt")
    weight = torch.ones(4, 2, device="pjrt")

    with pytest.raises(IndexError, match="index out of range"):
        compiled(torch.tensor([1, 4]).to("pjrt"), weight).tolist()
    assert compiled(torch.tensor([1, 3]).to("pjrt"), weight).sum().item() == 4
