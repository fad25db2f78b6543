"""Placements mean what PyTorch's do, and so do `redistribute`, `full_tensor` and `to_local`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import permutations, product
from typing import Any

import pytest
import torch
from torch.distributed.tensor import Partial, Replicate, Shard
from torch.distributed.tensor.placement_types import _StridedShard

import torch_pjrt
from torch_pjrt_spmd import (
    Mesh,
    ShardingError,
    distribute_tensor,
    full_tensor,
    local_shards,
    mark_sharding,
    placements_of,
    redistribute,
    sharding_of,
    to_local,
    use_mesh,
)
from torch_pjrt_spmd.placements import placements_of_spec, spec_of_placements
from torch_pjrt_spmd.spec import checked, partition_spec

NAMES = ("a", "b", "c")


@pytest.fixture
def mesh() -> Mesh:
    return Mesh((2, 4), ("data", "model"))


def specs() -> Iterator[tuple[Any, ...]]:
    """Every way to spread two dims over three axes, in every order of axes."""
    for dims in product((None, 0, 1), repeat=3):
        on = [[n for n, d in zip(NAMES, dims, strict=True) if d == dim] for dim in (0, 1)]
        yield from product(*(permutations(names) for names in on))


def test_placements_and_specs_say_the_same_as_pytorchs_own_splits() -> None:
    import jax

    mesh = Mesh((2, 2, 2), NAMES)
    x = torch.arange(64).reshape(8, 8)
    seen = set()
    for spec in specs():
        entries = checked(x.shape, mesh, spec)
        placements = placements_of_spec(entries, mesh)
        seen.add(placements)

        back = spec_of_placements(placements, mesh, 2)

        assert partition_spec(checked(x.shape, mesh, back)) == partition_spec(entries)
        how = jax.sharding.NamedSharding(mesh.jax_mesh, partition_spec(entries))
        where = how.devices_indices_map((8, 8))
        for at, chip in zip(product((0, 1), repeat=3), mesh.jax_mesh.devices.flat, strict=True):
            part = x
            for placement, i in zip(placements, at, strict=True):
                if not placement.is_replicate():
                    parts = placement._split_tensor(part, 2, with_padding=False)  # type: ignore[attr-defined]
                    part = parts[0][i]
            assert torch.equal(part, x[where[chip]]), (spec, placements)
    assert len(seen) == len(list(specs())) == 49


#   spec                              placements on a mesh (data, model)
PLACEMENTS: list[tuple[tuple[Any, ...], tuple[Any, ...]]] = [
    ((),                              (Replicate(), Replicate())),
    (("data",),                       (Shard(0), Replicate())),
    ((None, "model"),                 (Replicate(), Shard(1))),
    (("model", "data"),               (Shard(1), Shard(0))),
    ((("data", "model"),),            (Shard(0), Shard(0))),
    ((None, ("model", "data")),       (_StridedShard(1, split_factor=4), Shard(1))),
]  # fmt: skip


@pytest.mark.parametrize(("spec", "placements"), PLACEMENTS, ids=str)
def test_a_tensor_is_placed_as_pytorch_says(mesh: Mesh, spec: Any, placements: Any) -> None:
    x = torch.arange(128.0).reshape(16, 8)

    for y in (
        distribute_tensor(x, mesh, placements),
        mark_sharding(x.to("pjrt"), mesh, placements),
        redistribute(x.to("pjrt"), mesh.to_device_mesh(), placements),
        distribute_tensor(x, mesh, spec),
    ):
        assert placements_of(y) == placements
        assert torch.equal(y.cpu(), x)
    assert placements_of(x.to("pjrt")) == ()
    negative = [Shard(p.dim - 2) if type(p) is Shard else p for p in placements]
    assert placements_of(distribute_tensor(x, mesh, negative)) == placements


def test_placements_on_some_axes_are_one_for_each_of_these(mesh: Mesh) -> None:
    x = torch.arange(128.0).reshape(16, 8)

    y = distribute_tensor(x, mesh["model"], (Shard(1),))

    assert placements_of(y) == (Replicate(), Shard(1))
    assert placements_of(mark_sharding(y, mesh["data"], (Shard(1),))) == (Shard(1), Shard(1))


def test_redistribute_gives_another_tensor_and_leaves_the_first(mesh: Mesh) -> None:
    host = torch.arange(128.0).reshape(16, 8)
    for x in (distribute_tensor(host, mesh, ("data", "model")), host.to("pjrt")):
        before = placements_of(x)
        for place in ((Replicate(), Replicate()), (Shard(1), Shard(0)), (Shard(0), Shard(0))):
            y = redistribute(x, mesh, place)
            assert placements_of(y) == place
            y.add_(1)
            torch_pjrt.sync()
            assert placements_of(y) == place
            assert torch.equal(y.cpu(), host + 1)
            assert torch.equal(x.cpu(), host)
            assert placements_of(x) == before or not before  # what was on one chip joins the mesh
        some = redistribute(host.to("pjrt") * 2, mesh["model"], (Shard(1),))
        assert placements_of(some)[1] == Shard(1)
        assert torch.equal(some.cpu(), host * 2)
    whole = full_tensor(distribute_tensor(host, mesh, ("data", "model")))
    assert placements_of(whole) == (Replicate(), Replicate())
    assert torch.equal(whole.cpu(), host)
    alone = host.to("pjrt")
    assert full_tensor(alone) is alone


@pytest.mark.parametrize("compiled", [False, True])
def test_gradients_pass_through_redistribute(mesh: Mesh, compiled: bool) -> None:
    host = torch.randn(16, 8)
    theirs = host.clone().requires_grad_()
    ours = distribute_tensor(host, mesh, ("data", "model")).requires_grad_()

    def loss(x: torch.Tensor, lies: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
        return lies(x * 2).tanh().square().sum()

    def moved(x: torch.Tensor) -> torch.Tensor:
        return redistribute(redistribute(x, mesh, (None, "data")), mesh["model"], ("model",))

    loss(theirs, lambda x: x).backward()
    run = torch.compile(loss, backend="pjrt", fullgraph=True) if compiled else loss
    run(ours, moved).backward()

    assert ours.grad is not None
    assert theirs.grad is not None
    torch.testing.assert_close(ours.grad.cpu(), theirs.grad)
    if not compiled:
        assert sharding_of(ours.grad) == sharding_of(ours)


def test_a_chips_part_is_a_tensor_of_the_device(mesh: Mesh) -> None:
    for host in (
        torch.arange(128.0).reshape(16, 8),
        torch.arange(128).reshape(16, 8),
        torch.randn(16, 8).bfloat16(),
        torch.randn(16, 8) > 0,
    ):
        x = distribute_tensor(host, mesh, ("model", "data"))
        for shard in local_shards(x):
            part = to_local(x, shard.device)
            assert (part.device.type, part.dtype) == ("pjrt", host.dtype)
            assert sharding_of(part) is None
            assert torch.equal(part.cpu(), shard.data)
            part.zero_()
        assert torch.equal(x.cpu(), host)
    with use_mesh(mesh):
        assert placements_of(to_local(x, 3)) == (Replicate(), Replicate())
    assert torch.equal(to_local(host.to("pjrt")).cpu(), host)


def test_the_gradient_of_a_chips_part_is_that_of_a_slice(mesh: Mesh) -> None:
    host = torch.arange(128.0).reshape(16, 8)
    x = distribute_tensor(host, mesh, ("model", "data")).requires_grad_()

    (to_local(x, 5) ** 2).sum().backward()

    expected = torch.zeros(16, 8)
    expected[4:8, 4:] = 2 * host[4:8, 4:]
    assert x.grad is not None
    assert torch.equal(x.grad.cpu(), expected)


def on_two() -> torch.Tensor:
    return mark_sharding(torch.ones(4).to("pjrt"), Mesh((2,), ("a",), (0, 1)), ("a",))


X = torch.ones(16, 8)
#   what is wrong             raises         and says
WRONG: dict[str, tuple[Callable[[Mesh], Any], type[Exception], str]] = {
    "a sum at the start":     (lambda m: distribute_tensor(X, m, (Partial(), Replicate())),
                               ShardingError, "as parts of a sum"),
    "a sum as a target":      (lambda m: redistribute(X.to("pjrt"), m, (Replicate(), Partial("avg"))),
                               ShardingError, "as parts of a sum"),
    "too few":                (lambda m: distribute_tensor(X, m, (Shard(0),)),
                               ShardingError, "1 placements, axes .'data', 'model'"),
    "too many for an axis":   (lambda m: distribute_tensor(X, m["data"], (Shard(0), Shard(1))),
                               ShardingError, "2 placements, axes .'data',"),
    "no such dim":            (lambda m: distribute_tensor(X, m, (Shard(2), Replicate())),
                               ShardingError, "no dim 2"),
    "no such dim before":     (lambda m: distribute_tensor(X, m, (Shard(-3), Replicate())),
                               ShardingError, "no dim -3"),
    "a factor of no axis":    (lambda m: distribute_tensor(
                                   X, m, (_StridedShard(0, split_factor=2), Shard(0))),
                               ShardingError, "as often as the placement says"),
    "a factor and no axis":   (lambda m: distribute_tensor(
                                   X, m, (_StridedShard(0, split_factor=4), Replicate())),
                               ShardingError, "no axis of the dim"),
    "not divisible":          (lambda m: redistribute(X[:3].to("pjrt"), m, (Shard(0), Replicate())),
                               ShardingError, "which 2 chips do not divide"),
    "of the host":            (lambda m: redistribute(X, m, ()), TypeError, "saw cpu"),
    "whole, of the host":     (lambda m: full_tensor(X), TypeError, "saw cpu"),
    "a part of the host":     (lambda m: to_local(X), TypeError, "saw cpu"),
    "on other chips":         (lambda m: redistribute(on_two(), m, ()), ShardingError, "chips .0, 1., the"),
    "a chip without a part":  (lambda m: to_local(on_two(), 2), ShardingError, "one of .0, 1."),
    "a chip that is not":     (lambda m: to_local(on_two(), 8), ShardingError, "Chip 8 has no part"),
    "a chip before the first": (lambda m: to_local(on_two(), -1), ShardingError, "Chip -1 has no"),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_what_cannot_be_raises(mesh: Mesh, case: str) -> None:
    call, kind, says = WRONG[case]
    with pytest.raises(kind, match=says):
        call(mesh)
