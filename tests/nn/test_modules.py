"""Modules, optimizers and `torch.func` do on the device what they do on CPU."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations, parametrize
from torch.utils._pytree import tree_map

import torch_pjrt


def test_moving_keeps_the_parameters_themselves() -> None:
    model = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))
    before = list(model.parameters())

    model.to("pjrt")

    assert all(a is b for a, b in zip(before, model.parameters(), strict=True))
    assert {t.device.type for t in model.state_dict().values()} == {"pjrt"}


def test_moving_there_and_back_keeps_the_values() -> None:
    model = nn.Linear(3, 2)
    weight = model.weight.detach().clone()

    model.to("pjrt").to("cpu")

    assert model.weight.device.type == "cpu"
    assert torch.equal(model.weight, weight)


@pytest.mark.parametrize("move", [lambda m: m.to("pjrt"), lambda m: m.pjrt()], ids=["to", "pjrt"])
def test_module_moves_by_name_and_by_method(move: Callable[[nn.Module], nn.Module]) -> None:
    assert move(nn.Linear(2, 2)).weight.device.type == "pjrt"


def test_module_can_be_made_on_the_device() -> None:
    with torch.device("pjrt"):
        inside = nn.Linear(3, 2)
    outside = nn.Linear(3, 2, device="pjrt")

    assert inside.weight.device == outside.weight.device == torch.device("pjrt", 0)
    assert 0 < inside.weight.abs().max().item() <= 3**-0.5


class Tied(nn.Module):
    """A language model whose first and last layers share their weight."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(5, 4)
        self.head = nn.Linear(4, 5, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.embedding(tokens))


def test_tied_weights_stay_tied() -> None:
    torch.manual_seed(0)
    on_cpu = Tied()
    on_device = copy.deepcopy(on_cpu).to("pjrt")
    for model, device in ((on_cpu, "cpu"), (on_device, "pjrt")):
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        F.cross_entropy(
            model(torch.arange(5, device=device)), torch.arange(5, device=device)
        ).backward()
        optimizer.step()

    assert on_device.head.weight is on_device.embedding.weight
    torch.testing.assert_close(on_device.head.weight.cpu(), on_cpu.head.weight)


def test_optimizer_made_before_the_move_trains_the_moved_parameters() -> None:
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.5)
    model.to("pjrt")
    before = model.weight.detach().clone()

    model(torch.ones(2, 3, device="pjrt")).sum().backward()
    optimizer.step()

    torch.testing.assert_close((before - model.weight).cpu(), torch.ones(1, 3))


class Symmetric(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.triu() + x.triu(1).t()


def test_parametrized_weight_obeys_its_rule_and_trains() -> None:
    model = nn.Linear(3, 3)
    parametrize.register_parametrization(model, "weight", Symmetric())
    model.to("pjrt")
    optimizer = torch.optim.SGD(model.parameters(), 0.1)

    model(torch.ones(1, 3, device="pjrt")).sum().backward()
    optimizer.step()

    weight = model.weight.detach().cpu()
    assert torch.equal(weight, weight.t())


@pytest.mark.filterwarnings("ignore:.*runs on the CPU:UserWarning")
@pytest.mark.parametrize("norm", [parametrizations.weight_norm, parametrizations.spectral_norm])
def test_normalized_weight_gives_what_the_cpu_gives(norm: Callable[[nn.Module], nn.Module]) -> None:
    torch.manual_seed(0)
    on_cpu = norm(nn.Linear(4, 3)).eval()
    on_device = copy.deepcopy(on_cpu).to("pjrt")
    x = torch.randn(2, 4)

    on_cpu(x).sum().backward()
    on_device(x.to("pjrt")).sum().backward()

    for ours, theirs in zip(on_device.parameters(), on_cpu.parameters(), strict=True):
        torch.testing.assert_close(ours.grad.cpu(), theirs.grad)


def test_hooks_see_what_passes() -> None:
    model = nn.Linear(2, 2).to("pjrt")
    seen: list[tuple[str, str]] = []
    model.register_forward_pre_hook(lambda m, i: seen.append(("before", i[0].device.type)))
    model.register_forward_hook(lambda m, i, o: seen.append(("after", o.device.type)))
    model.register_full_backward_hook(lambda m, i, o: seen.append(("backward", o[0].device.type)))
    model.weight.register_hook(lambda g: g * 2)

    model(torch.ones(1, 2, device="pjrt", requires_grad=True)).sum().backward()

    assert seen == [("before", "pjrt"), ("after", "pjrt"), ("backward", "pjrt")]
    assert model.weight.grad.tolist() == [[2, 2], [2, 2]]


def test_clipping_by_norm_scales_all_gradients() -> None:
    model = nn.Linear(3, 3).to("pjrt")
    (model(torch.ones(2, 3, device="pjrt")) * 100).sum().backward()

    norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)

    assert norm.item() > 100
    clipped = torch.cat([p.grad.cpu().flatten() for p in model.parameters()]).norm().item()
    assert clipped == pytest.approx(1.0, rel=1e-3)


FUNCTIONAL: dict[str, Callable[[torch.Tensor], Any]] = {
    "grad": torch.func.grad(lambda x: (x**2).sum()),
    "grad of grad": torch.func.grad(torch.func.grad(lambda x: x**4)),
    "vmap": torch.vmap(lambda x: x.sin() * 2),
    "vmap of grad": torch.vmap(torch.func.grad(lambda x: x**3)),
    "jacrev": torch.func.jacrev(lambda x: x.sin() * x.sum()),
    "jacfwd": torch.func.jacfwd(lambda x: x.sin() * x.sum()),
    "hessian": torch.func.hessian(lambda x: (x**3).sum() * x[0]),
    "jvp": lambda x: torch.func.jvp(torch.sin, (x,), (x,)),
    "vjp": lambda x: torch.func.vjp(torch.sin, x)[1](x),
}


@pytest.mark.parametrize("name", FUNCTIONAL)
def test_transform_gives_what_the_cpu_gives(name: str) -> None:
    x = torch.tensor([0.5, 1.0, 2.0])
    if name == "grad of grad":
        x = x[0]

    expected = FUNCTIONAL[name](x)
    ours = FUNCTIONAL[name](x.to("pjrt"))

    torch.testing.assert_close(tree_map(torch.Tensor.cpu, ours), expected)


def test_gradient_for_each_sample_gives_what_the_cpu_gives() -> None:
    torch.manual_seed(0)
    model, x, y = nn.Linear(3, 2), torch.randn(4, 3), torch.tensor([0, 1, 1, 0])
    gradients = []

    for device in ("cpu", "pjrt"):
        parameters = {k: v.detach().to(device) for k, v in model.named_parameters()}

        def loss(p: dict[str, torch.Tensor], x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return F.cross_entropy(torch.func.functional_call(model, p, (x[None],)), y[None])

        each = torch.func.vmap(torch.func.grad(loss), (None, 0, 0))
        gradients.append(each(parameters, x.to(device), y.to(device)))

    for name, theirs in gradients[0].items():
        torch.testing.assert_close(gradients[1][name].cpu(), theirs)


OPTIMIZERS: list[tuple[type[torch.optim.Optimizer], dict[str, Any]]] = [
    (torch.optim.SGD, {"lr": 0.1}),
    (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 0.1}),
    (torch.optim.Adam, {"lr": 0.01}),
    (torch.optim.Adam, {"lr": torch.tensor(0.01)}),
    (torch.optim.Adam, {"lr": 0.01, "maximize": True, "foreach": False}),
    (torch.optim.AdamW, {"lr": 0.01, "amsgrad": True}),
    (torch.optim.AdamW, {"lr": 0.01, "foreach": True}),
    (torch.optim.Adagrad, {}),
    (torch.optim.RMSprop, {"momentum": 0.5, "centered": True}),
    (torch.optim.Adadelta, {}),
    (torch.optim.NAdam, {}),
    (torch.optim.RAdam, {}),
    (torch.optim.Adamax, {}),
    (torch.optim.ASGD, {}),
    (torch.optim.Rprop, {}),
    (torch.optim.Adafactor, {}),
    (torch.optim.Muon, {}),
    (torch.optim.LBFGS, {"max_iter": 4}),
    (torch.optim.AdamW, {"lr": 0.01, "fused": True}),
    (torch.optim.SGD, {"lr": 0.1, "fused": True}),
]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*runs on the CPU:UserWarning")
@pytest.mark.parametrize(
    ("optimizer", "options"), OPTIMIZERS, ids=[f"{o.__name__} {k}" for o, k in OPTIMIZERS]
)
def test_optimizer_takes_the_steps_it_takes_on_cpu(
    optimizer: type[torch.optim.Optimizer], options: dict[str, Any]
) -> None:
    results = []
    for device in ("cpu", "pjrt"):
        torch.manual_seed(0)
        model = nn.Linear(3, 3, bias=optimizer is not torch.optim.Muon).to(device)
        x = torch.arange(6.0).view(2, 3).to(device)
        stepper: Any = optimizer(model.parameters(), **options)

        def closure(
            model: nn.Module = model,
            x: torch.Tensor = x,
            stepper: Any = stepper,
        ) -> torch.Tensor:
            stepper.zero_grad()
            loss = (model(x) ** 2).sum()
            loss.backward()
            return loss

        for _ in range(4):
            stepper.step(closure)
        results.append(torch.cat([p.detach().cpu().flatten() for p in model.parameters()]))

    # Four steps of float32 in another order of additions; Muon orthogonalizes in bfloat16.
    tolerance = 2e-2 if optimizer is torch.optim.Muon else 1e-4
    torch.testing.assert_close(results[1], results[0], rtol=tolerance, atol=tolerance / 10)


def test_every_optimizer_of_pytorch_is_tried() -> None:
    needs_other_gradients = {"SparseAdam", "Optimizer"}
    known = {
        name
        for name, x in vars(torch.optim).items()
        if isinstance(x, type) and issubclass(x, torch.optim.Optimizer)
    }

    assert {o.__name__ for o, _ in OPTIMIZERS} == known - needs_other_gradients


def test_autocast_runs_where_no_operator_has_a_rule_of_its_own() -> None:
    model = nn.Linear(3, 3).to("pjrt")

    with torch.autocast("pjrt", dtype=torch.bfloat16):
        y = model(torch.ones(2, 3, device="pjrt"))

    torch.testing.assert_close(
        y.float().cpu(), model.cpu()(torch.ones(2, 3)), rtol=1e-2, atol=1e-2
    )  # bfloat16 if a rule says so


def test_training_gives_the_losses_of_the_cpu() -> None:
    torch.manual_seed(0)
    on_cpu = nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 3)
    )
    on_device = copy.deepcopy(on_cpu).to("pjrt")
    data = [(torch.randn(8, 1, 8, 8), torch.randint(0, 3, (8,))) for _ in range(3)]
    losses: dict[str, list[float]] = {"cpu": [], "pjrt": []}

    for model, device in ((on_cpu, "cpu"), (on_device, "pjrt")):
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        for step in range(12):
            x, y = (t.to(device) for t in data[step % 3])
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses[device].append(loss.item())

    assert losses["pjrt"] == pytest.approx(losses["cpu"], rel=1e-3)
    torch_pjrt.sync()
