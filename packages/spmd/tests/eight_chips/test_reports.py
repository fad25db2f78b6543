"""Reports of programs on several chips say what one expects by hand; what costs much is warned of."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

import torch_pjrt
from torch_pjrt_spmd import (
    Mesh,
    ProgramReport,
    ShardingWarning,
    collectives,
    config,
    distribute_tensor,
    mark_sharding,
    program_reports,
    use_mesh,
)

FLOAT = 4  # bytes
Marked = Callable[..., torch.Tensor]


@pytest.fixture(autouse=True)
def settings_stay() -> Iterator[None]:
    before = (
        dict(config.bandwidth),
        config.warn_of_replicated_bytes,
        config.warn_of_resharded_bytes,
    )
    yield
    config.bandwidth, config.warn_of_replicated_bytes, config.warn_of_resharded_bytes = before


@pytest.fixture
def mesh() -> Mesh:
    return Mesh((2, 4), ("data", "model"))


def on(mesh: Mesh, shape: tuple[int, ...], spec: Any) -> torch.Tensor:
    return distribute_tensor(torch.ones(shape), mesh, spec)


def last() -> ProgramReport:
    torch_pjrt.sync()
    number = torch_pjrt.report().programs[-1].number
    [found] = [r for r in program_reports() if r.program == number]
    return found


def test_bytes_on_a_chip_are_those_of_its_parts_of_parameters_state_and_batch(mesh: Mesh) -> None:
    up, down = nn.Linear(16, 64).to("pjrt"), nn.Linear(64, 16).to("pjrt")
    frozen = nn.Parameter(torch.ones(8, 16, device="pjrt"), requires_grad=False)
    mark_sharding(up.weight, mesh, ("model", None))
    mark_sharding(up.bias, mesh, ("model",))
    mark_sharding(down.weight, mesh, (None, "model"))
    mark_sharding(frozen, mesh, ("data",))
    optimizer = torch.optim.SGD([*up.parameters(), *down.parameters()], lr=0.1, momentum=0.9)
    x = on(mesh, (32, 16), ("data",))

    for _ in range(3):
        optimizer.zero_grad()
        (down(up(x).relu()).square().mean() + frozen.sum()).backward()
        optimizer.step()

    found = last()
    stepped = 16 * 64 // 4 + 64 // 4 + 64 * 16 // 4 + 16
    assert found.parameter_bytes == FLOAT * (stepped + 8 * 16 // 2)
    assert found.state_bytes == FLOAT * stepped
    assert found.other_bytes == FLOAT * 32 * 16 // 2
    assert found.temporary_bytes is not None
    assert found.mesh == {"data": 2, "model": 4}


#   how x (32, 16) and w (16, 8) lie                   what all do alike, along data, along model, of x @ w
SHARES = {
    "nothing is spread":     ((), (),                        (1.0, 1.0, 1.0)),
    "rows over data":        (("data",), (),                 (0.0, 0.0, 1.0)),
    "columns over model":    ((), (None, "model"),           (0.0, 1.0, 0.0)),
    "both":                  (("data",), (None, "model"),    (0.0, 0.0, 0.0)),
}  # fmt: skip


@pytest.mark.parametrize("case", SHARES)
def test_share_of_work_that_chips_do_alike(case: str, mesh: Mesh) -> None:
    of_x, of_w, expected = SHARES[case]

    y = on(mesh, (32, 16), of_x) @ on(mesh, (16, 8), of_w)

    found = last()
    along = found.replicated_along
    assert (found.replicated, along["data"], along["model"]) == pytest.approx(expected, abs=0.01)
    assert y.shape == (32, 8)


def test_time_of_collectives_is_that_of_rings_by_the_bandwidth_of_their_axis(mesh: Mesh) -> None:
    y = on(mesh, (16, 32), (None, "model")) @ on(mesh, (32, 8), ("model", None))

    found = last()
    n_bytes = 16 * 8 * FLOAT
    assert found.seconds_along() == {("model",): None}
    assert found.seconds_along({"data": 1.0}) == {("model",): None}
    assert found.seconds_along({"model": 100.0}) == {("model",): 2 * 3 / 4 * n_bytes / 100.0}
    config.bandwidth = {"model": 50.0}
    assert found.seconds_along() == {("model",): 2 * 3 / 4 * n_bytes / 50.0}
    assert y.shape == (16, 8)


def part_of_rows(x: torch.Tensor, mesh: Mesh) -> torch.Tensor:
    return (x * 2)[3:11].cumsum(0)


def marked_columns(x: torch.Tensor, mesh: Mesh) -> torch.Tensor:
    return mark_sharding((x * 2).exp(), mesh, (None, "model"))


def whole_parameter(x: torch.Tensor, mesh: Mesh) -> torch.Tensor:
    return mark_sharding(torch.ones(4, 16, device="pjrt"), mesh, ()) @ x


def whole_input(x: torch.Tensor, mesh: Mesh) -> torch.Tensor:
    """Two inputs that are spread over one axis: one of them is gathered, as are weights that are sharded."""
    return on(mesh, (32, 16), ("model", None)) @ x.T


def summed(x: torch.Tensor, mesh: Mesh) -> torch.Tensor:
    return (x * 2).sum(0)


@pytest.mark.parametrize(
    ("compute", "expected"),
    [
        (part_of_rows, True),
        (marked_columns, False),
        (summed, False),
        (whole_parameter, False),
        (whole_input, False),
    ],
)
def test_resharding_is_what_moves_computed_values_where_no_mark_asks_for_it(
    compute: Marked, expected: bool, mesh: Mesh
) -> None:
    y = compute(on(mesh, (16, 16), ("model", None)), mesh)

    found = last().collectives
    assert found
    assert any(c.resharding for c in found) is expected
    assert y.ndim


def test_reports_print_programs_on_several_chips_and_none_of_one(mesh: Mesh) -> None:
    def on_mesh() -> torch.Tensor:
        return (on(mesh, (16, 48), (None, "model")) @ on(mesh, (48, 8), ("model", None))).sum()

    explained = str(torch_pjrt.explain(on_mesh))
    plain = str(
        torch_pjrt.explain(
            lambda: torch.ones(3, 5, device="pjrt") @ torch.ones(5, 2, device="pjrt")
        )
    )

    for text in (explained, str(torch_pjrt.report())):
        assert "Bytes on each chip" in text
        assert "data 2 x model 4" in text
        assert "What chips exchange" in text
        assert "all-reduce" in text
    assert "each chip" not in plain
    assert "exchange" not in plain


def test_a_collective_in_a_loop_counts_as_often_as_it_runs(mesh: Mesh) -> None:
    linears = [nn.Linear(16, 16, bias=False).to("pjrt") for _ in range(6)]
    for layer in linears:
        mark_sharding(layer.weight, mesh, (None, "model"))
    x = on(mesh, (8, 16), ("data",))

    before = torch_pjrt.config.roll_layers
    torch_pjrt.config.roll_layers = "on"
    try:
        with torch.no_grad():
            y = nn.Sequential(*linears)(x)
        number = last().program
        found = [c for c in collectives() if c.program == number and c.kind == "all-reduce"]
    finally:
        torch_pjrt.config.roll_layers = before

    assert sum(c.runs for c in found) == 6
    assert sum(c.times for c in found) < 6
    assert y.shape == (8, 16)


def warned(compute: Callable[[], torch.Tensor]) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        kept = compute()
        torch_pjrt.sync()
        del kept
    return [str(w.message) for w in caught if issubclass(w.category, ShardingWarning)]


def test_a_large_input_that_is_whole_while_most_is_spread_is_warned_of_once(mesh: Mesh) -> None:
    config.warn_of_replicated_bytes = 1024

    def sums(n: int) -> torch.Tensor:
        with use_mesh(mesh):
            whole = torch.ones(n, 16).to("pjrt")
            return (on(mesh, (16, 512), (None, "model")).sum() + whole.sum()).cos()

    [message] = warned(lambda: sums(16))
    assert "An input (other) of [16, 16], 1,024 bytes, is whole on each chip" in message
    assert not warned(lambda: sums(16).cos())  # another program, the same tensor
    assert not warned(lambda: sums(15))
    assert not warned(lambda: sums(600))  # most of what it takes is whole
    config.warn_of_replicated_bytes = None
    assert not warned(lambda: sums(17))


def test_resharding_is_warned_of_only_if_that_is_asked_for(mesh: Mesh) -> None:
    def moved(n: int) -> torch.Tensor:
        return part_of_rows(on(mesh, (16, n), ("model", None)), mesh)

    assert not warned(lambda: moved(24))
    config.warn_of_resharded_bytes = 64
    found = warned(lambda: moved(32))
    assert found
    assert all("which no mark asks for" in message for message in found)
    assert not warned(lambda: moved(32))
