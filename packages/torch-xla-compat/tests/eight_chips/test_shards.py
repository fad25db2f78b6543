"""The parts of marked tensors: their attributes, writing to them, and dims that chips do not divide."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.distributed.tensor import (
    Replicate,
    Shard,
    distribute_module,
    distribute_tensor,
    init_device_mesh,
)

import torch_xla.core.xla_model as xm
import torch_xla.distributed.spmd as xs
from torch_pjrt_spmd import ShardingWarning
from torch_xla import _XLAC
from torch_xla.distributed.parallel_loader import MpDeviceLoader

CHIPS = 8


def mesh(*shape: int) -> xs.Mesh:
    return xs.Mesh(np.arange(CHIPS), shape)


def placed(*shape: int) -> tuple[torch.Tensor, Any]:
    values = torch.arange(1.0, 1 + math.prod(shape)).view(shape)
    return values, values.to(xm.xla_device())


@pytest.mark.parametrize(
    ("shape", "spec", "kind", "replicas"),
    [
        ((8,), (0,), xs.ShardingType.TILED, [0] * 8),
        ((2, 4), (0, 1), xs.ShardingType.TILED, [0] * 8),
        ((2, 4), (1, 0), xs.ShardingType.TILED, [0] * 8),
        ((1, 8), ((0, 1), None), xs.ShardingType.TILED, [0] * 8),
        ((4, 2), (None, 1), xs.ShardingType.PARTIAL, [0, 0, 1, 1, 2, 2, 3, 3]),
        ((2, 4), (0, None), xs.ShardingType.PARTIAL, [0, 1, 2, 3, 0, 1, 2, 3]),
        ((8, 1), (1, None), xs.ShardingType.REPLICATED, list(range(8))),
        ((2, 4), (None, None), xs.ShardingType.REPLICATED, list(range(8))),
    ],
)
def test_shards_are_parts_of_the_values(
    shape: tuple[int, ...], spec: tuple, kind: xs.ShardingType, replicas: list[int]
) -> None:
    values, tensor = placed(*([16] * len(spec)))

    marked: Any = xs.mark_sharding(tensor, mesh(*shape), spec)

    assert marked.sharding_type is kind
    assert marked.global_tensor is tensor
    shards = marked.local_shards
    assert [shard.replica_id for shard in shards] == replicas
    assert len(shards) == CHIPS
    for shard in shards:
        assert shard.data.device.type == "cpu"
        indices = shard.indices if shard.indices is ... else tuple(shard.indices)
        assert torch.equal(shard.data, values[indices])
        assert (shard.indices is ...) == (kind is xs.ShardingType.REPLICATED)


def test_shards_can_be_written() -> None:
    values, tensor = placed(8, 4)
    xs.mark_sharding(tensor, mesh(4, 2), (0, None))
    shards = tensor.local_shards
    for shard in shards:
        shard.data *= -1

    tensor.load_local_shards_(shards)

    assert torch.equal(tensor.cpu(), -values)
    assert tensor.sharding_type is xs.ShardingType.PARTIAL
    with pytest.raises(RuntimeError, match="7 shards were given for a tensor of 8 shards"):
        tensor.load_local_shards_(shards[:-1])
    shards[0].data = torch.ones(3)
    with pytest.raises(RuntimeError, match=r"\[3\] was given where \[2, 4\] lies"):
        tensor.load_local_shards_(shards)
    assert torch.equal(tensor.cpu(), -values)
    _, whole = placed(8)
    xs.mark_sharding(whole, mesh(8), (None,))
    with pytest.raises(RuntimeError, match="no shards to be written"):
        whole.load_local_shards_(whole.local_shards)


@pytest.mark.parametrize(
    "name", ["local_shards", "sharding_type", "sharding_spec", "global_tensor"]
)
def test_a_tensor_that_lies_on_no_mesh_has_no_such_attribute(name: str) -> None:
    assert not hasattr(torch.ones(2), name)
    assert not hasattr(torch.ones(2).to("xla"), name)


@pytest.mark.parametrize(
    ("size", "shape", "spec", "kind"),
    [
        ((9,), (8,), (0,), xs.ShardingType.REPLICATED),
        ((7, 16), (8, 1), (0, None), xs.ShardingType.REPLICATED),
        ((7, 16), (2, 4), (0, 1), xs.ShardingType.PARTIAL),
        ((12, 5), (2, 4), ((0, 1), None), xs.ShardingType.REPLICATED),
        ((0, 8), (2, 4), (0, 1), xs.ShardingType.TILED),
    ],
)
def test_a_dim_that_chips_do_not_divide_is_whole_on_each(
    size: tuple[int, ...], shape: tuple[int, ...], spec: tuple, kind: xs.ShardingType
) -> None:
    values, tensor = placed(*size)

    if all(size):
        with pytest.warns(ShardingWarning, match="do not divide it"):
            xs.mark_sharding(tensor, mesh(*shape), spec)
    else:
        xs.mark_sharding(tensor, mesh(*shape), spec)

    assert tensor.sharding_type is kind
    assert torch.equal((tensor * 2).cpu(), values * 2)


def test_the_last_batch_may_be_smaller() -> None:
    spec = xs.ShardingSpec(mesh(8), (0, None))
    batches = [torch.full((rows, 4), float(rows)) for rows in (8, 8, 3)]

    with pytest.warns(ShardingWarning, match="8 chips do not divide it"):
        sums = [b.sum().item() for b in MpDeviceLoader(batches, "xla", input_sharding=spec)]

    assert sums == [256.0, 256.0, 36.0]


def test_the_text_of_a_sharding_names_chips_one_by_one() -> None:
    turned = xs.Mesh(range(7, -1, -1), (1, 8), ("a", "b"))
    crossed = xs.Mesh(range(8), (2, 4), ("a", "b"))

    text_of = _XLAC._get_xla_sharding_spec
    x = xs.mark_sharding(torch.ones(1, 8).to("xla"), turned, ("a", "b"))
    y = xs.mark_sharding(torch.ones(8).to("xla"), crossed, (("b", "a"),))
    z = xs.mark_sharding(torch.ones(4, 4).to("xla"), crossed, ("a", None))

    assert text_of(x) == "{devices=[1,8]7,6,5,4,3,2,1,0}"
    assert text_of(y) == "{devices=[8]0,4,1,5,2,6,3,7}"
    assert text_of(z) == "{devices=[2,1,4]0,1,2,3,4,5,6,7 last_tile_dim_replicate}"


@pytest.mark.parametrize("spec", [(0, 1), (1, 0), ((0, 1), None), (None, 1), (None, None)])
def test_shards_of_the_cpu_become_the_tensor_that_has_them(spec: tuple[Any, ...]) -> None:
    on = xs.Mesh(range(8), (2, 4))
    whole = torch.arange(64.0).view(8, 8)
    marked = xs.mark_sharding(whole.to("xla"), on, spec)
    shards = [shard.data for shard in marked.local_shards]  # type: ignore[attr-defined]

    make = _XLAC._global_tensor_from_cpu_shards
    made = make(shards, on.get_op_sharding(spec))

    assert torch.equal(made.cpu(), whole)
    assert made.sharding_spec == marked.sharding_spec  # type: ignore[attr-defined]
    for wrong in ((9, 8), (8,), (1, 1)):
        with pytest.raises(RuntimeError, match="are no tensor of"):
            make(shards, on.get_op_sharding(spec), torch.Size(wrong))
    with pytest.raises(RuntimeError, match="7 shards"):
        make(shards[1:], on.get_op_sharding(spec))


def test_a_marked_tensor_has_pytorchs_placements() -> None:
    on = xs.Mesh(range(8), (2, 4), ("a", "b"))
    marked: Any = xs.mark_sharding(torch.ones(8, 8).to("xla"), on, (None, "a"))

    assert marked.placements == (Shard(1), Replicate())
    assert not hasattr(torch.ones(2), "placements")


def test_a_small_batch_is_divided_by_the_chips_of_its_process() -> None:
    spec = xs.ShardingSpec(xs.Mesh(range(8), (8,), ("a",)), ("a", None), minibatch=True)

    placed = xm.send_cpu_data_to_device([torch.ones(16, 2)], "xla", spec)[0]

    assert "devices=[8,1]" in placed.sharding_spec
    with pytest.raises(RuntimeError, match="per-host batch size must be divisible"):
        xm.send_cpu_data_to_device([torch.ones(7, 2)], "xla", spec)


def test_a_module_is_distributed_by_a_function_of_pytorchs_mesh() -> None:
    of_pytorch = init_device_mesh("xla", mesh_shape=(8,))
    meshes = []

    def shard(name: str, module: nn.Module, given: Any) -> None:
        meshes.append(given)
        for parameter in module.parameters(recurse=False):
            distribute_tensor(parameter, given, [Shard(0)])

    with pytest.warns(ShardingWarning, match="Dim 0"):
        model = distribute_module(nn.Linear(4, 8).to("xla"), of_pytorch, shard)
        small = distribute_module(nn.Linear(4, 1).to("xla"), of_pytorch, shard)

    assert set(map(id, meshes)) == {id(of_pytorch)}
    assert "devices=[8,1]" in model.weight.sharding_spec  # type: ignore[operator]
    assert small(torch.ones(2, 4, device="xla")).shape == (2, 1)
