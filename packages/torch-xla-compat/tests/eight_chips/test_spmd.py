"""`torch_xla.distributed.spmd`: meshes, marks, loaders, FSDP by annotations, on eight chips."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from torch import nn
from torch.distributed.tensor import DeviceMesh, Replicate, Shard, distribute_tensor

import torch_xla
import torch_xla.core.xla_model as xm
import torch_xla.distributed.spmd as xs
import torch_xla.runtime as xr
from torch_pjrt.errors import SettingError
from torch_xla import _XLAC
from torch_xla.distributed.parallel_loader import MpDeviceLoader
from torch_xla.experimental.spmd_fully_sharded_data_parallel import SpmdFullyShardedDataParallel

lies = _XLAC._get_xla_sharding_spec


@pytest.fixture
def mesh() -> xs.Mesh:
    return xs.Mesh(np.arange(8), (2, 4), ("data", "model"))


def test_chips_are_counted() -> None:
    assert (xr.global_runtime_device_count(), xr.addressable_runtime_device_count()) == (8, 8)
    assert xm.xla_real_devices() == [f"CPU:{n}" for n in range(8)]
    assert [a["name"] for a in xr.global_runtime_device_attributes()] == xm.xla_real_devices()


def test_a_mesh_has_torch_xlas_methods(mesh: xs.Mesh) -> None:
    assert mesh.size() == 8
    assert dict(mesh.shape()) == {"data": 2, "model": 4}
    assert mesh.get_logical_mesh().tolist() == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert (mesh.get_axis_name_idx("model"), mesh.get_axis_name_idx("other")) == (1, None)
    assert xs.Mesh.from_str(str(mesh)) == mesh
    assert xs.Mesh.from_str("no mesh") is None
    assert mesh.get_jax_mesh().axis_names == ("data", "model")
    assert xs.HybridMesh(ici_mesh_shape=(2, 4), axis_names=("data", "model")).mesh_shape == (2, 4)
    with pytest.raises(SettingError, match="as many axes"):
        xs.HybridMesh(ici_mesh_shape=(2, 4), dcn_mesh_shape=(2,))


@pytest.mark.parametrize(
    ("spec", "text"),
    [
        (("data", "model"), "{devices=[2,4]0,1,2,3,4,5,6,7}"),
        ((0, 1), "{devices=[2,4]0,1,2,3,4,5,6,7}"),
        ((None, 1), "{devices=[1,4,2]0,4,1,5,2,6,3,7 last_tile_dim_replicate}"),
        (((0, 1), None), "{devices=[8,1]0,1,2,3,4,5,6,7}"),
        ((None, None), "{replicated}"),
    ],
)
def test_a_tensor_lies_as_the_spec_says(mesh: xs.Mesh, spec: tuple, text: str) -> None:
    values = torch.arange(64.0).view(8, 8)
    tensor = values.to("xla")
    assert not isinstance(tensor, xs.XLAShardedTensor)

    marked = xs.mark_sharding(tensor, mesh, spec)

    assert marked is tensor
    assert isinstance(tensor, xs.XLAShardedTensor)
    assert lies(tensor) == text
    assert torch.equal(tensor.cpu(), values)
    for shard in xs.local_shards(tensor):
        indices = tuple(shard.indices) if isinstance(shard.indices, list) else shard.indices
        assert torch.equal(shard.unpadded_data, values[indices])


def test_a_gradient_is_marked_too(mesh: xs.Mesh) -> None:
    leaf = torch.ones(8, 4, device="xla", requires_grad=True)
    seen: list[str] = []

    marked = xs.mark_sharding_with_gradients(leaf * 2, mesh, ("data", None))
    (marked * 3).sum().backward()
    hooked = leaf.grad
    seen.append(lies(marked.detach()))

    assert hooked is not None
    assert hooked.tolist() == [[6.0] * 4] * 8
    assert seen == ["{devices=[2,1,4]0,1,2,3,4,5,6,7 last_tile_dim_replicate}"]


def test_a_tensor_can_lie_as_another_or_as_nobody_said(mesh: xs.Mesh) -> None:
    a, b = torch.ones(8, 4, device="xla"), torch.zeros(8, 4, device="xla")
    xs.mark_sharding(a, mesh, (0, 1))

    xs.shard_as(b, a)

    assert lies(b) == lies(a)
    assert lies(xs.clear_sharding(b)) == "{replicated}"


def test_a_loader_spreads_its_batches(mesh: xs.Mesh) -> None:
    spec = xs.ShardingSpec(mesh, ("data", None))
    batches = [{"x": torch.ones(4, 2), "y": torch.zeros(4)}]

    (whole,) = MpDeviceLoader([torch.ones(4, 2)], "xla", input_sharding=spec)
    (by_key,) = MpDeviceLoader(batches, "xla", input_sharding={"x": spec})

    assert (
        lies(whole)
        == lies(by_key["x"])
        == "{devices=[2,1,4]0,1,2,3,4,5,6,7 last_tile_dim_replicate}"
    )
    assert by_key["y"].device.type == "pjrt"


def test_fsdp_by_annotations_trains_as_the_cpu() -> None:
    mesh = xs.get_1d_mesh("fsdp")
    xs.set_global_mesh(mesh)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8))
    alone = copy.deepcopy(model)
    sharded = SpmdFullyShardedDataParallel(model.to("xla"))
    optimizer = torch.optim.AdamW(sharded.parameters(), 1e-2)
    optimizer_alone = torch.optim.AdamW(alone.parameters(), 1e-2)
    x = torch.randn(16, 8)
    spec = xs.ShardingSpec(mesh, ("fsdp", None))

    for batch in MpDeviceLoader([x] * 3, torch_xla.device(), input_sharding=spec):
        losses = []
        for it, data, step in ((sharded, batch, optimizer), (alone, x, optimizer_alone)):
            loss = it(data).square().mean()
            step.zero_grad()
            loss.backward()
            step.step()
            losses.append(loss.item())
        assert losses[0] == pytest.approx(losses[1], rel=1e-5)

    assert lies(sharded[0].weight) == "{devices=[8,1]0,1,2,3,4,5,6,7}"
    assert lies(optimizer.state[sharded[0].weight]["exp_avg"]) == "{devices=[8,1]0,1,2,3,4,5,6,7}"


def test_fsdp_needs_an_axis_of_that_name(mesh: xs.Mesh) -> None:
    with pytest.raises(SettingError, match="axis `fsdp`"):
        SpmdFullyShardedDataParallel(nn.Linear(2, 2), mesh=mesh)


def test_pytorchs_distribute_tensor_takes_a_mesh_of_xla() -> None:
    mesh = DeviceMesh("xla", [[0, 1, 2, 3], [4, 5, 6, 7]], mesh_dim_names=("data", "model"))
    values = torch.arange(32.0).view(8, 4)

    spread = distribute_tensor(values, mesh, [Replicate(), Shard(1)])

    assert lies(spread) == "{devices=[1,4,2]0,4,1,5,2,6,3,7 last_tile_dim_replicate}"
    assert torch.equal(spread.cpu(), values)
