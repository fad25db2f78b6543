"""The parts of marked tensors: their attributes, writing to them, and dims that chips do not divide."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

import torch_xla.core.xla_model as xm
import torch_xla.distributed.spmd as xs
from torch_pjrt_spmd import ShardingWarning
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
