"""What scripts for PyTorch's FSDP call is there, and does the same to a model that lies in parts."""

from __future__ import annotations

import copy
import inspect
from typing import Any

import pytest
import torch
import torch.distributed.fsdp as pytorchs
from torch import nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    get_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
    set_state_dict,
)

import torch_pjrt
from torch_pjrt.errors import UnsupportedError
from torch_pjrt_fsdp import FSDPModule, FullyShardedDataParallel, fully_shard, summon_full_params
from torch_pjrt_spmd import Mesh, ShardingError, distribute_tensor, local_shards, sharding_of

# Deprecated there for years: each has a successor that is here.
_OLD = {
    "flatten_sharded_optim_state_dict",
    "full_optim_state_dict",
    "rekey_optim_state_dict",
    "scatter_full_optim_state_dict",
    "shard_full_optim_state_dict",
    "sharded_optim_state_dict",
}


@pytest.fixture
def mesh() -> Mesh:
    return Mesh((8,), ("fsdp",))


def model_of(seed: int = 0) -> Any:
    torch.manual_seed(seed)
    inner = nn.Sequential(nn.Linear(16, 8), nn.BatchNorm1d(8))
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), inner, nn.Linear(8, 8))


class Around(nn.Module):
    """A model that has another one, in parts, within it."""

    def __init__(self, seed: int, mesh: Mesh) -> None:
        super().__init__()
        self.head = nn.Linear(8, 8).to("pjrt")
        self.body = FullyShardedDataParallel(model_of(seed), auto_wrap_policy=nn.Linear, mesh=mesh)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(x))


WAYS: dict[str, Any] = {
    "fully_shard": lambda seed, mesh: fully_shard(model_of(seed), wrap=nn.Linear, mesh=mesh),
    "class": lambda seed, mesh: FullyShardedDataParallel(
        model_of(seed), auto_wrap_policy=nn.Linear, mesh=mesh
    ),
    "class in class": lambda seed, mesh: FullyShardedDataParallel(
        nn.Sequential(FullyShardedDataParallel(model_of(seed), mesh=mesh), nn.Linear(8, 8)),
        mesh=mesh,
    ),
    "class in module": Around,
    "compiled": lambda seed, mesh: torch.compile(
        FullyShardedDataParallel(model_of(seed), mesh=mesh), backend="eager"
    ),
}


def trained(way: str, seed: int, mesh: Mesh) -> tuple[Any, torch.optim.Optimizer]:
    model = WAYS[way](seed, mesh)
    optimizer = torch.optim.AdamW(model.parameters(), 0.1)
    step(model, optimizer)
    return model, optimizer


def step(model: Any, optimizer: torch.optim.Optimizer) -> float:
    loss = model(torch.arange(64.0).view(8, 8) / 64).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss.item()


def specs(model: nn.Module) -> list[Any]:
    return [how and how.spec for how in map(sharding_of, model.parameters())]


@pytest.mark.slow("rows")
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"full_state_dict": True},
        {"full_state_dict": True, "cpu_offload": True},
        {"flatten_optimizer_state_dict": True},
    ],
    ids=str,
)
@pytest.mark.parametrize("way", WAYS)
def test_state_dict_functions_bring_a_run_over(
    way: str, options: dict[str, Any], mesh: Mesh
) -> None:
    model, optimizer = trained(way, 0, mesh)
    how = StateDictOptions(**options)
    of_model: Any
    of_model, of_optimizer = copy.deepcopy(get_state_dict(model, optimizer, options=how))
    if options.get("cpu_offload"):
        assert {x.device.type for x in of_model.values()} == {"cpu"}
    expected = [step(model, optimizer) for _ in range(2)]
    other, others_optimizer = trained(way, 1, mesh)
    lay = specs(other)

    set_state_dict(
        other,
        others_optimizer,
        model_state_dict=of_model,
        optim_state_dict=of_optimizer,
        options=how,
    )

    assert set(of_model) == set(dict(model.state_dict()))
    assert specs(other) == lay
    assert [step(other, others_optimizer) for _ in range(2)] == expected


@pytest.mark.slow("rows")
@pytest.mark.parametrize("way", WAYS)
def test_names_are_those_of_the_model(way: str, mesh: Mesh) -> None:
    model, optimizer = trained(way, 0, mesh)
    if way != "compiled":
        names = [name for name, _ in model.named_parameters()]
        buffers = [name for name, _ in model.named_buffers()]
        assert not any("module" in name for name in names)
        assert set(names) | set(buffers) == set(model.state_dict())
        assert len(names) == len(set(names)) == len(list(model.parameters()))
    found = get_optimizer_state_dict(model, optimizer)
    state = get_model_state_dict(model)
    assert set(found["state"]) <= set(state)
    set_model_state_dict(model, state)
    set_optimizer_state_dict(model, optimizer, found)


@pytest.mark.parametrize("kind", ["FULL_STATE_DICT", "SHARDED_STATE_DICT"])
def test_state_dict_types_of_the_older_class(kind: str, mesh: Mesh) -> None:
    model, optimizer = trained("class", 0, mesh)
    of_kind = pytorchs.StateDictType[kind]
    configs: tuple[Any, Any] = (
        (pytorchs.FullStateDictConfig, pytorchs.FullOptimStateDictConfig)
        if of_kind == pytorchs.StateDictType.FULL_STATE_DICT
        else (pytorchs.ShardedStateDictConfig, pytorchs.ShardedOptimStateDictConfig)
    )
    settings = [config(offload_to_cpu=True) for config in configs]
    with FullyShardedDataParallel.state_dict_type(model, of_kind, *settings):
        state = model.state_dict()
        of_optimizer = FullyShardedDataParallel.optim_state_dict(model, optimizer)
        assert FullyShardedDataParallel.get_state_dict_type(model).state_dict_type == of_kind
    assert {x.device.type for x in state.values()} == {"cpu"}
    assert {x.device.type for of in of_optimizer["state"].values() for x in of.values()} == {"cpu"}
    assert {x.device.type for x in model.state_dict().values()} == {"pjrt"}
    expected = step(model, optimizer)

    other, others_optimizer = trained("class", 1, mesh)
    other.load_state_dict(state)
    others_optimizer.load_state_dict(
        FullyShardedDataParallel.optim_state_dict_to_load(other, others_optimizer, of_optimizer)
    )
    assert step(other, others_optimizer) == expected
    with pytest.raises(UnsupportedError, match="LOCAL_STATE_DICT"):
        FullyShardedDataParallel.set_state_dict_type(model, pytorchs.StateDictType.LOCAL_STATE_DICT)


def test_all_public_names_of_pytorchs_classes_are_here() -> None:
    for theirs, ours, left_out in (
        (pytorchs.FSDPModule, FSDPModule, set()),
        (pytorchs.FullyShardedDataParallel, FullyShardedDataParallel, _OLD),
    ):
        names = {name for name in vars(theirs) if not name.startswith("_")}
        # `module` is an attribute of each instance.
        assert names - left_out - set(dir(ours)) - {"module"} == set()
        for name in names & set(vars(ours)):
            asked = inspect.signature(getattr(theirs, name)).parameters
            taken = inspect.signature(getattr(ours, name)).parameters
            takes_any = any(p.kind is p.VAR_KEYWORD for p in taken.values())
            assert takes_any or set(asked) <= set(taken), name


_VALUES: dict[str, Any] = {"event": None, "max_input_buffers": 2, "modules": []}


def test_methods_about_collectives_change_nothing_or_say_why_not(mesh: Mesh) -> None:
    model, optimizer = trained("fully_shard", 0, mesh)
    expected = [step(*trained("fully_shard", 0, mesh)), step(model, optimizer)]
    assert expected[0] == expected[1]
    expected = step(model, optimizer)
    model, optimizer = trained("fully_shard", 0, mesh)
    step(model, optimizer)
    refused = []
    for name in sorted(vars(pytorchs.FSDPModule)):
        if name.startswith("_"):
            continue
        method = getattr(model, name)
        asked = inspect.signature(method).parameters.values()
        needed = [
            p.name for p in asked if p.default is p.empty and p.kind is p.POSITIONAL_OR_KEYWORD
        ]
        try:
            method(*(_VALUES.get(parameter, True) for parameter in needed))
        except UnsupportedError as error:
            refused.append(name)
            assert "hint" in str(error)
    assert refused == [
        "set_all_reduce_hook",
        "set_custom_all_gather",
        "set_custom_reduce_scatter",
        "set_gradient_divide_factor",
        "set_reduce_scatter_divide_factor",
    ]
    handle = model.unshard(async_op=True)
    handle.wait()
    model.reshard()
    assert step(model, optimizer) == expected


def test_a_list_of_modules_is_as_many_blocks(mesh: Mesh) -> None:
    model = model_of()
    assert fully_shard([model[0], model[3]], mesh=mesh, reshard_after_forward=False) == [
        model[0],
        model[3],
    ]
    fully_shard(model, mesh=mesh)
    assert all(isinstance(model[i], FSDPModule) for i in (0, 3))
    assert any(specs(model))


# --- what a model is given, and where it is


def last_batches() -> list[torch.Tensor]:
    return [torch.randn(n, 8, generator=torch.Generator().manual_seed(n)) for n in (8, 3, 1, 5)]


@pytest.mark.slow("rows")
@pytest.mark.parametrize("compiled", [False, True])
def test_batches_that_the_chips_do_not_divide_come_to_the_device(
    compiled: bool, mesh: Mesh
) -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(8, 8)

        def forward(self, x: torch.Tensor, mask: torch.Tensor, by: torch.Tensor) -> torch.Tensor:
            return self.linear(x) * mask * by

    torch.manual_seed(0)
    whole = Scaled()
    model = fully_shard(copy.deepcopy(whole), mesh=mesh)
    run = torch.compile(model, backend="pjrt", dynamic=False) if compiled else model
    for x in last_batches():
        mask = torch.ones(1, 8)
        y = run(x, mask=mask, by=torch.tensor(2.0))
        y.sum().backward()
        whole(x, mask, torch.tensor(2.0)).sum().backward()
        torch.testing.assert_close(y.detach().cpu(), whole(x, mask, torch.tensor(2.0)).detach())
    expected = whole.linear.weight.grad
    torch.testing.assert_close(model.linear.weight.grad.cpu(), expected)


def test_an_optimizer_made_before_trains_the_same_parameters(mesh: Mesh) -> None:
    model = model_of()
    model[3].weight.grad = torch.ones(8, 8)
    tied = model[0].weight
    model.register_parameter("tied", tied)
    optimizer = torch.optim.SGD(model.parameters(), 1.0)
    parameters = list(model.parameters())

    fully_shard(model, mesh=mesh, wrap=nn.Linear)

    assert all(a is b for a, b in zip(parameters, model.parameters(), strict=True))
    assert model.tied is model[0].weight is tied
    before = model[3].weight.detach().cpu().clone()
    optimizer.step()
    assert torch.equal(model[3].weight.detach().cpu(), before - 1)
    assert sharding_of(model[3].weight.grad) == sharding_of(model[3].weight)


def test_a_model_goes_to_the_cpu_and_back(mesh: Mesh) -> None:
    model, _ = trained("fully_shard", 0, mesh)
    lay = specs(model)
    x = torch.ones(8, 8)
    expected = model(x).detach().cpu()

    model.cpu()

    assert {p.device.type for p in model.parameters()} == {"cpu"}
    with pytest.raises(ShardingError, match=r"on cpu(.*\n)*.*model\.to\(\"pjrt\"\)"):
        model(x)
    model.to("pjrt")
    assert specs(model) == lay
    assert torch.equal(model(x).detach().cpu(), expected)


@pytest.mark.parametrize("writeback", [True, False])
def test_full_parameters_are_summoned_to_the_cpu(writeback: bool, mesh: Mesh) -> None:
    model = WAYS["class"](0, mesh)
    model(torch.ones(8, 8)).sum().backward()
    lay = specs(model)
    was = [p.detach().cpu() for p in model.parameters()]
    gradients = [p.grad.cpu() for p in model.parameters()]
    with summon_full_params(
        model, offload_to_cpu=True, rank0_only=True, writeback=writeback, with_grads=True
    ):
        assert {p.device.type for p in model.parameters()} == {"cpu"}
        for p, value, gradient in zip(model.parameters(), was, gradients, strict=True):
            assert torch.equal(p, value)
            assert torch.equal(p.grad, gradient)
            p.data.add_(1)
            p.grad.mul_(2)
    assert specs(model) == lay
    for p, value, gradient in zip(model.parameters(), was, gradients, strict=True):
        assert torch.equal(p.detach().cpu(), value + writeback)
        assert torch.equal(p.grad.cpu(), gradient * (1 + writeback))


# --- whole tensors


@pytest.mark.parametrize("assign", [False, True])
def test_whole_tensors_of_the_host_go_to_the_chips_by_parts(
    assign: bool, mesh: Mesh, uploads: list[int]
) -> None:
    size = 64
    model = fully_shard(nn.Sequential(nn.Linear(size, size)), mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters())
    set_model_state_dict(model, get_model_state_dict(model))
    get_optimizer_state_dict(model, optimizer)  # makes one
    state = {"0.weight": torch.rand(size, size), "0.bias": torch.rand(size)}
    torch_pjrt.sync()
    uploads.clear()
    how = StateDictOptions(full_state_dict=True)
    if assign:
        momenta = {
            n: {"step": torch.tensor(3.0), "exp_avg": x, "exp_avg_sq": x} for n, x in state.items()
        }
        groups = get_optimizer_state_dict(model, optimizer)["param_groups"]
        found = {"state": momenta, "param_groups": groups}
        set_optimizer_state_dict(model, optimizer, found, options=how)
        held = optimizer.state[model[0].weight]["exp_avg"]
    else:
        set_model_state_dict(model, dict(state), options=how)
        held = model[0].weight

    torch_pjrt.sync()

    assert max(uploads) <= size * size * 4 // 8
    assert torch.equal(held.detach().cpu(), state["0.weight"])
    assert sharding_of(held) == sharding_of(model[0].weight)


_N = 16
# Ways to write over all of a parameter with what is on one chip, or on the host.
WRITES: dict[str, Any] = {
    "copy_":               lambda w, x: w.copy_(x),
    "copy_ of what is to be computed": lambda w, x: w.copy_(x * 2),
    "copy_ of another dtype": lambda w, x: w.copy_(x.double()),
    "copy_ of a row":      lambda w, x: w.copy_(x[0]),
    "copy_ of the host's": lambda w, x: w.copy_(x.cpu()),
    "copy_ to a part":     lambda w, x: w[:8].copy_(x[:8]),
    "copy_ transposed":    lambda w, x: w.t().copy_(x),
    "copy_ of copies":     lambda w, x: w.copy_(distribute_tensor(x.cpu(), Mesh((8,), ("fsdp",)), ())),
    "_foreach_copy_":      lambda w, x: torch._foreach_copy_([w], [x]),
    "data.copy_":          lambda w, x: w.data.copy_(x),
    "fill_":               lambda w, x: w.fill_(2.0),
    "normal_":             lambda w, x: w.normal_(),
    "orthogonal_":         lambda w, x: nn.init.orthogonal_(w),
    "out=":                lambda w, x: torch.mm(x, x, out=w),
    "mul_":                lambda w, x: w.mul_(x),
    "[:] =":               lambda w, x: w.__setitem__(slice(None), x),
    "[...] =":             lambda w, x: w.__setitem__(Ellipsis, x),
    "index_copy_":         lambda w, x: w.index_copy_(0, torch.arange(_N, device="pjrt"), x),
}  # fmt: skip


@pytest.mark.slow("rows")
@pytest.mark.parametrize("way", WRITES)
def test_a_parameter_lies_in_parts_whatever_is_written_to_it(way: str, mesh: Mesh) -> None:
    model = fully_shard(nn.Sequential(nn.Linear(_N, _N, bias=False)), mesh=mesh)
    weight: Any = model[0].weight
    x = torch.rand(_N, _N, device="pjrt")
    torch_pjrt.sync()
    lay = sharding_of(weight)
    torch.manual_seed(0)
    whole = weight.detach().cpu()

    with torch.no_grad():
        WRITES[way](weight, x)
        torch_pjrt.sync()
        torch.manual_seed(0)
        WRITES[way](on_one := whole.to("pjrt"), x)

    assert sharding_of(weight) == lay
    assert [tuple(shard.data.shape) for shard in local_shards(weight)] == [(2, _N)] * 8
    assert torch.equal(weight.cpu(), on_one.cpu())
