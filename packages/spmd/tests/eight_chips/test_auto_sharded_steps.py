"""Whatever a step's tensors are kept in, each lies as the plan says once it is applied."""

from __future__ import annotations

import copy
import gc
import io
import weakref
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from torch_pjrt_spmd import Mesh, Plan, auto_shard, mark_sharding, sharding_of
from torch_pjrt_spmd.autoshard.again import compute_again, is_computed_again, keep_all
from torch_pjrt_spmd.spec import ShardingError

WIDTH = 64


class Step(NamedTuple):
    """A training step, its tensors by the names that a plan should have for them, and its optimizers."""

    run: Callable[[torch.Tensor], torch.Tensor]
    tensors: dict[str, torch.Tensor]
    optimizers: tuple[torch.optim.Optimizer, ...]


def _net() -> nn.Module:
    model = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.ReLU(), nn.Linear(4 * WIDTH, WIDTH))
    return model.to("pjrt")


def _named(*modules: nn.Module) -> dict[str, torch.Tensor]:
    found: dict[str, torch.Tensor] = {}
    for k, m in enumerate(modules):
        front = f"{k}." if len(modules) > 1 else ""
        found |= {front + n: t for n, t in (*m.named_parameters(), *m.named_buffers())}
    return found


def _trained(
    loss_of: Callable[[torch.Tensor], torch.Tensor],
    tensors: dict[str, torch.Tensor],
    *optimizers: torch.optim.Optimizer,
) -> Step:
    def run(x: torch.Tensor) -> torch.Tensor:
        loss = loss_of(x)
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        return loss.detach()

    return Step(run, tensors, optimizers)


def with_a_function_as_loss() -> Step:
    model = _net()
    adam = torch.optim.AdamW(model.parameters())
    return _trained(lambda x: F.mse_loss(model(x), x), _named(model), adam)


def with_a_module_as_loss() -> Step:
    model, loss = _net(), nn.MSELoss()
    adam = torch.optim.AdamW(model.parameters())
    return _trained(lambda x: loss(model(x), x), _named(model), adam)


def with_a_loss_that_has_weights() -> Step:
    model, loss = _net(), nn.CrossEntropyLoss(torch.ones(WIDTH)).to("pjrt")
    adam = torch.optim.AdamW(model.parameters())
    return _trained(lambda x: loss(model(x), x.softmax(-1)), _named(model, loss), adam)


def with_two_models_and_two_optimizers() -> Step:
    generator, discriminator = _net(), _net()
    own = torch.optim.AdamW(generator.parameters()), torch.optim.Adam(discriminator.parameters())
    named = _named(generator, discriminator)
    return _trained(lambda x: discriminator(generator(x)).square().mean(), named, *own)


def with_parts_of_a_model_called_one_by_one() -> Step:
    model = _net()
    sgd = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    parts = list(model.children())
    named = _named(parts[0], parts[2])
    return _trained(lambda x: parts[2](parts[0](x).relu()).square().mean(), named, sgd)


def with_a_part_called_before_the_model() -> Step:
    model = _net()
    first: Any = model.get_submodule("0")
    adam = torch.optim.AdamW(model.parameters())

    def loss_of(x: torch.Tensor) -> torch.Tensor:
        return first(x).mean() + model(x).square().mean()

    return _trained(loss_of, _named(model), adam)


def with_parameters_in_no_module() -> Step:
    up, down = (nn.Parameter(torch.randn(WIDTH, WIDTH, device="pjrt")) for _ in range(2))
    adam = torch.optim.AdamW([{"params": [up]}, {"params": [down], "lr": 0.1}])
    named: dict[str, torch.Tensor] = {"parameter 0": up, "parameter 1": down}
    return _trained(lambda x: ((x @ up).relu() @ down).square().mean(), named, adam)


def with_a_parameter_beside_a_module() -> Step:
    model, scale = _net(), nn.Parameter(torch.ones(WIDTH, device="pjrt"))
    adam = torch.optim.AdamW([*model.parameters(), scale])
    named = {**_named(model), "parameter 0": scale}
    return _trained(lambda x: (model(x) * scale).square().mean(), named, adam)


def with_tied_weights() -> Step:
    model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(2))).to("pjrt")
    first, second = list(model.children())
    second.weight = first.weight
    adam = torch.optim.AdamW(model.parameters())
    return _trained(lambda x: model(x).square().mean(), _named(model), adam)


def with_buffers() -> Step:
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH)).to("pjrt")
    adam = torch.optim.AdamW(model.parameters())
    return _trained(lambda x: model(x).square().mean(), _named(model), adam)


STEPS = [
    with_a_function_as_loss,
    with_a_module_as_loss,
    with_a_loss_that_has_weights,
    with_two_models_and_two_optimizers,
    with_parts_of_a_model_called_one_by_one,
    with_a_part_called_before_the_model,
    with_parameters_in_no_module,
    with_a_parameter_beside_a_module,
    with_tied_weights,
    with_buffers,
]
X = torch.randn(16, WIDTH, generator=torch.Generator().manual_seed(3))


def tight(step: Step, mesh: Mesh) -> Plan:
    """A plan that has to spread parameters: each copy would not fit."""
    roomy = auto_shard(step.run, X, mesh, chip="v5e", seconds=4, apply=False)
    kept = sum(p.n_bytes * len(p.names) for p in roomy.placements)
    return auto_shard(step.run, X, mesh, chip="v5e", seconds=4, memory_per_device=kept // 2)


def spec_of(tensor: torch.Tensor) -> tuple[Any, ...]:
    how = sharding_of(tensor)
    return (None,) * tensor.dim() if how is None else tuple(how.spec)


@pytest.mark.slow("rows")
@pytest.mark.parametrize("make", STEPS, ids=lambda f: f.__name__)
def test_each_tensor_of_a_step_lies_as_its_plan_says(make: Callable[[], Step]) -> None:
    torch.manual_seed(0)
    alone = make()
    expected = [alone.run(X.to("pjrt")).item() for _ in range(2)]
    torch.manual_seed(0)
    step = make()
    plan = tight(step, Mesh((8,), ("x",)))

    losses = [step.run(plan.place(X)).item() for _ in range(2)]

    assert losses == pytest.approx(expected, rel=1e-4)
    planned = {name: p for p in plan.placements for name in p.names}
    of_parameters = {n: p.spec for n, p in planned.items() if p.role in ("parameter", "buffer")}
    assert {n: spec_of(step.tensors[n]) for n in of_parameters} == of_parameters
    assert any("x" in spec for spec in of_parameters.values())
    names = {id(t): n for n, t in step.tensors.items()}
    for optimizer in step.optimizers:
        for parameter, states in optimizer.state.items():
            for key, state in states.items():
                name = f"{names[id(parameter)]}/{key}"
                if name in planned:
                    assert spec_of(state) == planned[name].spec, name


@pytest.mark.slow
def test_two_models_have_a_plan_each() -> None:
    mesh = Mesh((8,), ("x",))
    steps = [with_a_function_as_loss(), with_buffers(), with_a_function_as_loss()]
    plans = [tight(step, mesh) for step in steps]

    losses = [step.run(plan.place(X)).item() for step, plan in zip(steps, plans, strict=True)]

    assert torch.tensor(losses).isfinite().all()


def test_what_nobody_marks_is_planned_to_lie_as_it_does() -> None:
    mesh = Mesh((8,), ("x",))
    table = torch.randn(4096, WIDTH).to("pjrt")
    spread = torch.randn(4096, WIDTH).to("pjrt")
    mark_sharding(spread, mesh, ("x", None))
    model = _net()

    def step(x: torch.Tensor) -> torch.Tensor:
        return model(x @ (table + spread).T @ table)

    plan = auto_shard(step, X, mesh, chip="v5e", seconds=2)

    others = [p.spec for p in plan.placements if p.role == "other"]
    assert sorted(map(str, others)) == ["('x', None)", "(None, None)"]


def test_a_plan_that_does_not_know_a_module_is_not_applied_to_it() -> None:
    mesh = Mesh((8,), ("x",))
    step = with_two_models_and_two_optimizers()
    plan = auto_shard(step.run, X, mesh, chip="v5e", seconds=2, apply=False)
    other = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)).to("pjrt")

    with pytest.raises(ShardingError, match=r"does not know the parameter `0\.weight`") as raised:
        plan.apply(_net())
    assert "within" in str(raised.value)
    with pytest.raises(ShardingError, match=r"`1\.1\.weight`"):
        plan.apply(other, within="1")
    plan.apply(_net(), within="1")


def test_a_module_of_the_host_has_its_buffers_moved_too() -> None:
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH))
    expected = copy.deepcopy(model)(X).detach()

    plan = auto_shard(model, X, Mesh((8,), ("x",)), chip="v5e", seconds=2)

    torch.testing.assert_close(model(plan.place(X)).cpu(), expected, rtol=1e-4, atol=1e-5)


class TestModulesThatAreComputedAgain:
    """`torch.utils.checkpoint` around `forward`, in copies, files and plans that are made again."""

    def test_a_copy_computes_with_its_own_weights(self) -> None:
        model = nn.Sequential(nn.Linear(2, 2))
        compute_again(model[0])
        average = copy.deepcopy(model)
        with torch.no_grad():
            for p in average.parameters():
                p.zero_()

        assert average(torch.ones(1, 2)).tolist() == [[0.0, 0.0]]
        assert model(torch.ones(1, 2)).tolist() != [[0.0, 0.0]]
        assert is_computed_again(average[0])

    def test_a_module_is_saved_whole(self) -> None:
        model = nn.Sequential(nn.Linear(2, 2))
        compute_again(model[0])
        file = io.BytesIO()

        torch.save(model, file)
        file.seek(0)
        loaded = torch.load(file, weights_only=False)

        x = torch.ones(1, 2)
        torch.testing.assert_close(loaded(x), model(x))
        assert is_computed_again(loaded[0])
        assert loaded.state_dict().keys() == nn.Sequential(nn.Linear(2, 2)).state_dict().keys()

    def test_a_forward_of_the_module_itself_is_called_and_comes_back(self) -> None:
        layer: Any = nn.Linear(2, 2)
        layer.forward = lambda x: 2 * x
        compute_again(layer)
        compute_again(layer)

        assert layer(torch.ones(1, 2)).tolist() == [[2.0, 2.0]]
        keep_all(layer)
        assert layer(torch.ones(1, 2)).tolist() == [[2.0, 2.0]]
        assert not is_computed_again(layer)

    def test_a_module_goes_when_its_last_name_does(self) -> None:
        layer = nn.Linear(2, 2)
        compute_again(layer)
        gone = weakref.ref(layer)
        gc.disable()
        try:
            del layer
            assert gone() is None
        finally:
            gc.enable()

    def test_a_plan_that_is_made_again_is_of_the_step_as_it_is_written(self) -> None:
        model = nn.Sequential(
            *(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU()) for _ in range(3))
        )
        mesh, options = Mesh((8,), ("x",)), {"optimizer": torch.optim.SGD, "chip": "v5e"}
        before = auto_shard(model, X, mesh, seconds=4, **options)
        for layer in model:
            compute_again(layer)

        after = auto_shard(model, X, mesh, seconds=4, **options)

        assert after.flops == before.flops
        assert not any(map(is_computed_again, model))  # this plan keeps all
