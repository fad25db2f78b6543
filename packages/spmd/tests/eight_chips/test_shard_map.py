"""`shard_map` computes on each chip's parts what PyTorch computes on the same parts one after the other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

import torch_pjrt
from torch_pjrt import config
from torch_pjrt.errors import LoweringError
from torch_pjrt.extend import counters
from torch_pjrt_spmd import (
    Mesh,
    ShardingError,
    all_gather,
    all_to_all,
    axis_index,
    axis_size,
    collectives,
    mark_sharding,
    pmax,
    pmean,
    pmin,
    ppermute,
    psum,
    reduce_scatter,
    shard_map,
    sharding_of,
)

N = 4
PAIRS = [(i, (i + 1) % N) for i in range(N)]

Parts = list[torch.Tensor]

# What the four chips along an axis have together after each collective, from what each had.
COLLECTIVES: dict[str, tuple[Callable[..., Any], Callable[[Parts], Parts]]] = {
    "psum": (lambda x: psum(x, "model"), lambda parts: [sum(parts)] * N),  # type: ignore[list-item]
    "pmean": (lambda x: pmean(x, "model"), lambda parts: [sum(parts) / N] * N),
    "pmax": (lambda x: pmax(x, "model"), lambda parts: [torch.stack(parts).amax(0)] * N),
    "pmin": (lambda x: pmin(x, "model"), lambda parts: [torch.stack(parts).amin(0)] * N),
    "all_gather": (lambda x: all_gather(x, "model"), lambda parts: [torch.cat(parts)] * N),
    "all_gather, dim -1": (
        lambda x: all_gather(x, "model", -1),
        lambda parts: [torch.cat(parts, -1)] * N,
    ),
    "reduce_scatter": (
        lambda x: reduce_scatter(x, "model"),
        lambda parts: list(sum(parts).chunk(N)),  # type: ignore[union-attr]
    ),
    "reduce_scatter, dim 1": (
        lambda x: reduce_scatter(x, "model", 1),
        lambda parts: list(sum(parts).chunk(N, 1)),  # type: ignore[union-attr]
    ),
    "all_to_all": (
        lambda x: all_to_all(x, "model", 1, 0),
        lambda parts: [torch.cat([p.chunk(N, 1)[i] for p in parts]) for i in range(N)],
    ),
    "ppermute": (lambda x: ppermute(x, "model", PAIRS), lambda parts: [parts[-1], *parts[:-1]]),
    "ppermute, not all": (
        lambda x: ppermute(x, "model", PAIRS[:2]),
        lambda parts: [torch.zeros_like(parts[0]), *parts[:2], torch.zeros_like(parts[0])],
    ),
}


def on_mesh_and_by_hand(
    name: str, x: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """An array (on the device) of what all chips have, what is expected (on the CPU), and its input there."""
    compute, by_hand = COLLECTIVES[name]
    mesh = Mesh((2, N), ("data", "model"))
    mapped = shard_map(compute, mesh, [("model", None)], ("model", None))
    host = x.detach().cpu().requires_grad_(x.requires_grad)
    return mapped(x), torch.cat(by_hand(list(host.chunk(N)))), host


@pytest.mark.parametrize("name", COLLECTIVES)
def test_collectives_and_their_gradients_are_those_of_the_parts_one_after_the_other(
    name: str,
) -> None:
    torch.manual_seed(0)
    x = torch.randn(16, 8, device="pjrt", requires_grad=True)

    found, expected, host = on_mesh_and_by_hand(name, x)
    weights = torch.randn_like(expected)
    (found * weights.to("pjrt")).sum().backward()
    (expected * weights).sum().backward()

    torch.testing.assert_close(found.cpu(), expected.detach())
    assert x.grad is not None
    torch.testing.assert_close(x.grad.cpu(), host.grad)


@pytest.mark.parametrize(
    "dtype", [torch.int64, torch.int32, torch.float64, torch.bfloat16, torch.float16]
)
def test_collectives_are_of_every_dtype(dtype: torch.dtype) -> None:
    x = torch.arange(128, device="pjrt").reshape(16, 8).to(dtype)
    for name in set(COLLECTIVES) - {"pmean"}:
        found, expected, _ = on_mesh_and_by_hand(name, x)
        assert found.dtype is expected.dtype is dtype, name
        torch.testing.assert_close(found.cpu(), expected, rtol=0, atol=0, msg=name)


def test_several_axes_are_one_in_their_order() -> None:
    mesh = Mesh((2, 4), ("data", "model"))
    x = torch.arange(16.0, device="pjrt")

    gathered = shard_map(
        lambda x: all_gather(x, ("data", "model")), mesh, [(("data", "model"),)], ()
    )(x)
    total = shard_map(lambda x: psum(x.sum(), ("data", "model")), mesh, [(("data", "model"),)], ())(
        x
    )

    assert gathered.tolist() == x.tolist()
    assert total.item() == 120


def test_each_chip_knows_its_index() -> None:
    mesh = Mesh((2, 4), ("data", "model"))

    def number() -> torch.Tensor:
        return (axis_index("data") * axis_size("model") + axis_index("model")).reshape(1, 1)

    found = shard_map(number, mesh, [], ("data", "model"))()

    assert found.tolist() == [[0, 1, 2, 3], [4, 5, 6, 7]]


def tensor_parallel(x: torch.Tensor, up: torch.Tensor, down: torch.Tensor) -> torch.Tensor:
    return psum(torch.nn.functional.gelu(x @ up) @ down, "model")


SPECS = [("data", None), (None, "model"), ("model", None)]


def leaves(requires_grad: bool = True) -> tuple[Parts, Parts]:
    torch.manual_seed(1)
    host = [torch.randn(8, 16), torch.randn(16, 32), torch.randn(32, 16)]
    device = [x.to("pjrt").requires_grad_(requires_grad) for x in host]
    return [x.requires_grad_(requires_grad) for x in host], device


def on_host(x: torch.Tensor, up: torch.Tensor, down: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.gelu(x @ up) @ down


@pytest.mark.parametrize("order", [1, 2])
def test_gradients_of_any_order_are_those_of_one_chip(order: int) -> None:
    mesh = Mesh((2, 4), ("data", "model"))
    host, device = leaves()
    of_host: Any = on_host(*host).square().mean()
    found: Any = shard_map(tensor_parallel, mesh, SPECS, ("data", None))(*device).square().mean()

    for i in range(order):
        more = i + 1 < order
        g_host = torch.autograd.grad(of_host, host, create_graph=more)
        g_found = torch.autograd.grad(found, device, create_graph=more)
        of_host, found = (sum(g.square().mean() for g in gs) for gs in (g_host, g_found))
        for a, b in zip(g_found, g_host, strict=True):
            torch.testing.assert_close(a.detach().cpu(), b.detach(), rtol=1e-4, atol=1e-5)


def test_backward_computes_nothing_of_forward_again() -> None:
    mesh = Mesh((2, 4), ("data", "model"))
    _, device = leaves()

    shard_map(tensor_parallel, mesh, SPECS, ("data", None))(*device).sum().backward()
    torch_pjrt.sync()

    newest = max(c.program for c in collectives())
    kinds = {(c.kind, c.axes): c.times for c in collectives() if c.program == newest}
    # Forward's over "model", one that comes back through it, and those of three gradients over the axes
    # along which their tensors are whole.
    assert sum(kinds.values()) <= 5, kinds


def test_axes_that_are_not_mapped_are_the_partitioners() -> None:
    mesh = Mesh((2, 4), ("data", "model"))
    host, device = leaves()
    mark_sharding(device[1], mesh, (None, "model"))
    mark_sharding(device[2], mesh, ("model", None))

    def by_row(x: torch.Tensor, up: torch.Tensor, down: torch.Tensor) -> torch.Tensor:
        assert x.shape == (4, 16)
        assert up.shape == (16, 32)
        return on_host(x, up, down) + 0 * psum(x, "data").sum()

    mapped = shard_map(by_row, mesh, [("data",), (), ()], ("data",), axis_names=("data",))
    found, expected = mapped(*device), on_host(*host)
    found.sum().backward()
    expected.sum().backward()

    torch.testing.assert_close(found.detach().cpu(), expected.detach(), rtol=1e-4, atol=1e-5)
    for a, b in zip(device, host, strict=True):
        assert a.grad is not None
        torch.testing.assert_close(a.grad.cpu(), b.grad, rtol=1e-4, atol=1e-4)


def test_a_step_is_one_program_lazily_captured_and_with_rolled_layers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    mesh = Mesh((2, 4), ("data", "model"))
    mapped = shard_map(tensor_parallel, mesh, SPECS, ("data", None))

    def losses(how: str) -> list[float]:
        torch.manual_seed(2)
        weights = [
            [(torch.randn(16, 32) / 8).to("pjrt").requires_grad_() for _ in range(8)],
            [(torch.randn(32, 16) / 8).to("pjrt").requires_grad_() for _ in range(8)],
        ]
        optimizer = torch.optim.SGD([*weights[0], *weights[1]], lr=0.1)
        layer = on_host if how == "one chip" else mapped

        def step(x: torch.Tensor) -> torch.Tensor:
            optimizer.zero_grad()
            y = x
            for up, down in zip(*weights, strict=True):
                y = y + layer(y, up, down)
            loss = y.square().mean()
            loss.backward()
            optimizer.step()
            return loss.detach()

        run = torch_pjrt.capture(step) if how == "captured" else step
        batches = torch.randn(5, 8, 16).to("pjrt")
        found = [run(batch.clone()).item() for batch in batches]
        assert how == "one chip" or sharding_of(weights[0][0]) is not None
        return found

    expected = losses("one chip")
    for how in ("lazy", "captured", "rolled"):
        monkeypatch.setattr(config, "roll_layers", "on" if how == "rolled" else "off")
        before, loops = counters.programs_compiled, counters.loops

        assert losses(how) == pytest.approx(expected, rel=1e-5), how

        assert counters.programs_compiled - before <= 5, how
        assert (counters.loops > loops) is (how == "rolled"), how


def test_trees_numbers_and_no_tensors_go_through() -> None:
    mesh = Mesh((8,), ("data",))

    def function(of: dict[str, Any], factor: float, nothing: None) -> tuple[torch.Tensor, ...]:
        assert nothing is None
        return of["a"] * factor + of["b"][0], of["a"].sum().reshape(1)

    a = torch.arange(16.0, device="pjrt")
    first, sums = shard_map(function, mesh, [("data",), (), ()], (("data",), ("data",)))(
        {"a": a, "b": [a]}, 2.0, None
    )

    assert first.tolist() == [3.0 * i for i in range(16)]
    assert sums.tolist() == [4.0 * i + 1 for i in range(8)]


def test_tensors_from_outside_are_whole_on_each_chip_pending_or_not() -> None:
    mesh = Mesh((8,), ("data",))
    x = torch.arange(16.0, device="pjrt", requires_grad=True)
    computed, pending = torch.arange(4.0).to("pjrt"), torch.arange(4.0).to("pjrt") * 2
    torch_pjrt.sync()
    still_pending = pending + 1

    y = shard_map(lambda x: x * (computed + still_pending).sum(), mesh, [("data",)], ("data",))(x)
    y.sum().backward()

    assert y.tolist() == [22.0 * i for i in range(16)]
    assert x.grad is not None
    assert x.grad.tolist() == [22.0] * 16
    assert still_pending.tolist() == [1.0, 3.0, 5.0, 7.0]


def test_numbers_of_unlike_sign_are_unlike_programs() -> None:
    mesh = Mesh((8,), ("data",))
    x = torch.zeros(8, device="pjrt")

    found = [
        torch.signbit(shard_map(lambda x, z=z: x.copysign(z), mesh, [("data",)], ("data",))(x))
        for z in (0.0, -0.0)
    ]

    assert [f.any().item() for f in found] == [False, True]


def _read(x: torch.Tensor) -> torch.Tensor:
    return x * x.sum().item()


MESH = (2, 4), ("data", "model")
WRONG: dict[str, tuple[type[Exception], str, Callable[[torch.Tensor, torch.Tensor], Any]]] = {
    "a collective outside": (ShardingError, "outside `shard_map`", lambda x, w: psum(x, "data")),
    "another axis": (
        ShardingError,
        "does not map",
        lambda x, w: mapped(lambda x: psum(x, "rows"))(x),
    ),
    "an axis that is not mapped": (
        ShardingError,
        "does not map",
        lambda x, w: mapped(lambda x: psum(x, "model"), axis_names=("data",))(x),
    ),
    "an axis to map that the mesh lacks": (
        ShardingError,
        "lacks axes",
        lambda x, w: mapped(lambda x: x, axis_names=("rows",)),
    ),
    "a spec along an axis that is not mapped": (
        ShardingError,
        "not cut along",
        lambda x, w: mapped(lambda x: x, [("model",)], axis_names=("data",))(x),
    ),
    "a dim that is not divided": (
        ShardingError,
        "do not divide",
        lambda x, w: mapped(lambda x: x, [(None, "model")])(x[:, :6]),
    ),
    "too few specs": (ShardingError, "for each argument", lambda x, w: mapped(torch.add)(x, x)),
    "too few out_specs": (
        ShardingError,
        "number of tensors",
        lambda x, w: mapped(lambda x: (x, x), out=(("data",),))(x),
    ),
    "a result that cannot have its spec": (
        ShardingError,
        "entries",
        lambda x, w: mapped(lambda x: x.sum())(x),
    ),
    "a tensor of the CPU": (TypeError, "saw one on cpu", lambda x, w: mapped(lambda x: x)(x.cpu())),
    "a result of the CPU": (
        LoweringError,
        "no tensor of the device",
        lambda x, w: mapped(lambda x: torch.zeros(2))(x),
    ),
    "a read": (LoweringError, "needs the value of a tensor", lambda x, w: mapped(_read)(x)),
    "a draw": (LoweringError, "draws random", lambda x, w: mapped(torch.rand_like)(x)),
    "a parameter from outside": (
        LoweringError,
        "from outside that needs a gradient",
        lambda x, w: mapped(lambda x: x * w)(x),
    ),
    "one chip sends twice": (
        ShardingError,
        "sends to one other",
        lambda x, w: mapped(lambda x: ppermute(x, "data", [(0, 1), (0, 0)]))(x),
    ),
    "a scatter of a dim that is not divided": (
        ShardingError,
        "do not divide",
        lambda x, w: mapped(lambda x: reduce_scatter(x[:3], "model"))(x),
    ),
}


def mapped(
    function: Callable[..., Any],
    ins: Sequence[Any] = (("data",),),
    out: Any = ("data",),
    axis_names: Sequence[str] | None = None,
) -> Callable[..., Any]:
    return shard_map(function, Mesh(*MESH), ins, out, axis_names)


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_call_is_refused_and_leaves_all_as_it_was(name: str) -> None:
    kind, text, call = WRONG[name]
    x = torch.ones(8, 8, device="pjrt")
    w = torch.ones((), device="pjrt", requires_grad=True)

    with pytest.raises(kind, match=text):
        call(x, w)

    assert mapped(lambda x: x * 2)(x).sum().item() == 128
