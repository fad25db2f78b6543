"""What `fully_shard` accepts, and says of what it does not; what the model is afterwards."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from learner import Block, Gpt
from torch import nn
from torch.distributed.fsdp import ShardingStrategy
from torch.distributed.tensor import Shard

from torch_pjrt.errors import SettingError
from torch_pjrt_fsdp import FSDPModule, FullyShardedDataParallel, fully_shard, summon_full_params
from torch_pjrt_spmd import Mesh, ShardingError, local_shards, sharding_of


@pytest.fixture
def mesh() -> Mesh:
    return Mesh((8,), ("fsdp",))


def linear(*sizes: int) -> Any:
    return nn.Linear(*sizes, bias=False)


BAD: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "no policy":           ({"wrap": 1.5}, SettingError, "no policy"),
    "a name of nothing":   ({"wrap": "layer.*"}, SettingError, "No module has a name"),
    "a list":              ({"wrap": nn.ModuleList}, SettingError, "never called"),
    "an axis":             ({"shard_axes": "model"}, ShardingError, "lacks axes"),
    "an axis twice":       ({"shard_axes": "fsdp", "replicate_axes": "fsdp"}, ShardingError, "one use"),
    "a precision":         ({"mp_policy": torch.bfloat16}, SettingError, "no policy of mixed"),
    "a dim":               ({"shard_placement_fn": lambda p: Shard(3)}, ShardingError, "along dim 3"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_what_cannot_be_is_said(name: str, mesh: Mesh) -> None:
    options, error, message = BAD[name]

    with pytest.raises(error, match=message):
        fully_shard(Gpt(1), mesh=mesh, **options)


def test_a_module_is_given_once(mesh: Mesh) -> None:
    model = fully_shard(linear(8, 8), mesh=mesh)

    with pytest.raises(ShardingError, match="sharded once"):
        fully_shard(model, mesh=mesh)


def test_a_mesh_of_three_axes_needs_a_word() -> None:
    mesh = Mesh((2, 2, 2), ("replica", "fsdp", "model"))

    with pytest.raises(ShardingError, match="several axes"):
        fully_shard(linear(8, 8), mesh=mesh)
    model = fully_shard(linear(8, 8), mesh=mesh, shard_axes=("fsdp", "model"))

    assert sharding_of(model.weight).spec == (("fsdp", "model"), None)  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("shape", "spec"),
    [((8, 3), (None, "fsdp")), ((16, 8), ("fsdp", None)), ((5, 3), (None, None))],
)
def test_a_weight_lies_along_a_dim_that_chips_divide(
    shape: tuple[int, int], spec: Any, mesh: Mesh
) -> None:
    model = fully_shard(linear(*shape), mesh=mesh)

    found = sharding_of(model.weight)
    assert found is not None
    assert found.spec == spec
    assert isinstance(model, FSDPModule)
    assert isinstance(model, nn.Linear)


def test_a_chosen_dim_is_taken(mesh: Mesh) -> None:
    model = fully_shard(linear(16, 8), mesh=mesh, shard_placement_fn=lambda p: Shard(1))

    assert sharding_of(model.weight).spec == (None, "fsdp")  # type: ignore[union-attr]


def test_a_model_on_meta_lies_in_parts_before_it_is_initialized(mesh: Mesh) -> None:
    with torch.device("meta"):
        model = nn.Sequential(nn.Linear(8, 16), nn.Linear(16, 8))

    fully_shard(model, mesh=mesh, wrap=nn.Linear).to_empty(device="pjrt")
    for layer in model:
        layer.reset_parameters()  # type: ignore[operator]

    assert [sharding_of(p).spec for p in model.parameters()] == [  # type: ignore[union-attr]
        ("fsdp", None), ("fsdp",), ("fsdp", None), ("fsdp",),
    ]  # fmt: skip
    assert local_shards(model[0].weight)[0].data.shape == (2, 8)  # type: ignore[arg-type]
    assert model[0].weight.abs().max() > 0  # type: ignore[union-attr, operator]


def test_the_wrapper_has_the_names_of_its_model_and_initializes_it(mesh: Mesh) -> None:
    with torch.device("meta"):
        inner = nn.Sequential(nn.Linear(8, 16), nn.Linear(16, 8))
    expected = list(inner.state_dict())

    model = FullyShardedDataParallel(
        inner, mesh=mesh, sharding_strategy=ShardingStrategy.SHARD_GRAD_OP, use_orig_params=True
    )

    assert list(model.state_dict()) == expected
    assert [name for name, _ in model.named_parameters()] == expected
    saved = {name: torch.ones(x.shape) for name, x in model.state_dict().items()}
    model.load_state_dict(saved)
    assert all((p == 1).all() for p in model.parameters())
    assert sharding_of(model[0].weight).spec == ("fsdp", None)  # type: ignore[union-attr]


def test_full_parameters_are_written_back_or_not(mesh: Mesh) -> None:
    model = fully_shard(linear(8, 16), mesh=mesh)
    before = model.weight.detach().cpu().clone()

    with summon_full_params(model):
        assert local_shards(model.weight)[3].data.shape == (16, 8)
        with torch.no_grad():
            model.weight.add_(1)
    with summon_full_params(model, writeback=False), torch.no_grad():
        model.weight.zero_()

    torch.testing.assert_close(model.weight.detach().cpu(), before + 1)
    assert local_shards(model.weight)[3].data.shape == (2, 8)


def test_parameters_are_their_parts_again_after_a_forward_that_raises(mesh: Mesh) -> None:
    model = fully_shard(Gpt(1), mesh=mesh, wrap=Block)
    before = dict(model.named_parameters())

    with pytest.raises((RuntimeError, IndexError, ValueError)):
        model(torch.zeros(8, 5, dtype=torch.int64))  # of another length than the model's

    assert {name: id(p) for name, p in model.named_parameters()} == {
        name: id(p) for name, p in before.items()
    }
    assert torch._C._autograd._top_saved_tensors_default_hooks(True) is None  # pyright: ignore


def test_stepping_before_backward_is_an_error(mesh: Mesh) -> None:
    model = fully_shard(nn.Sequential(linear(8, 8), nn.Tanh(), linear(8, 8)), mesh=mesh)
    loss = model(torch.randn(8, 8)).sum()

    with torch.no_grad():
        model[2].weight.add_(1)

    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()
