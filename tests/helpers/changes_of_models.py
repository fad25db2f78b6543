"""Kinds of change between two calls of a captured step: models, optimizers, PyTorch itself."""

# The steps are functions of their own, whatever they call.
# ruff: noqa: PLW0108

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from changes_of_steps import ROWS, Made, Make, Step, documented, row


class Net(nn.Module):
    """A module with everything that modules have."""

    gain = 1.0

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(3, 3)
        self.norm = nn.BatchNorm1d(3)
        self.last = nn.Linear(3, 3)
        self.act: Any = F.relu
        self.scale = 1.0
        self.options: dict[str, Any] = {"skip": [1.0]}
        self.register_buffer("shift", torch.zeros(3))
        with torch.no_grad():
            for i, p in enumerate(self.parameters()):
                p.copy_(torch.linspace(-1, 1 + i, p.numel()).reshape(p.shape))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.act(self.norm(self.first(x))) * self.scale * self.gain + self.shift
        return self.last(y) + x * self.options["skip"][0]


def net() -> Net:
    return Net().to("pjrt").eval()


def predicting(model: nn.Module) -> Step:
    def step(x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            return model(x)

    return step


def training(model: Net, optimizer: torch.optim.Optimizer, loss_fn: Any = F.mse_loss) -> Step:
    def step(x: torch.Tensor) -> Any:
        optimizer.zero_grad()
        loss = loss_fn(model(x), x)
        loss.backward()
        optimizer.step()
        return loss.detach(), [p.detach().clone() for p in model.parameters()]

    return step


def trained(**options: Any) -> tuple[Net, torch.optim.SGD, Step]:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.5, **options)
    return model, optimizer, training(model, optimizer)


def _of_model(change: Callable[[Net], Any]) -> Make:
    def make() -> Made:
        model, kept = net(), []
        return predicting(model), lambda: kept.append(change(model))

    return make


def _of_training(change: Callable[[Net, Any], Any]) -> Make:
    def make() -> Made:
        model, optimizer, step = trained()
        kept: list[Any] = []
        return step, lambda: kept.append(change(model, optimizer))

    return make


hook = nn.Module.register_forward_hook
backward_hook = nn.Module.register_full_backward_hook
after = torch.Tensor.register_post_accumulate_grad_hook


def double_gradient(parameter: torch.Tensor) -> None:
    assert parameter.grad is not None
    parameter.grad.mul_(2)


def doubled_gradients(module: nn.Module, inputs: Any, outputs: Any) -> Any:
    return tuple(x if x is None else x * 2 for x in inputs)


def doubled_input(module: nn.Module, inputs: Any) -> Any:
    return (inputs[0] * 2,)


def doubled(*args: Any) -> torch.Tensor:
    return args[-1] * 2


def _replace_parameter(model: Net) -> None:
    model.first.weight = nn.Parameter(model.first.weight.detach() * 3)


def _other_data(model: Net) -> Any:
    old = model.first.weight.data
    model.first.weight.data = torch.full((3, 3), 0.5, device="pjrt")
    return old


def _kept(function: Callable[[Net], Any]) -> Callable[[Net], Any]:
    """Whatever it replaces lives on."""
    kept: list[Any] = []
    return lambda model: kept.append((*model.parameters(), function(model)))


def _other_forward(model: Net) -> None:
    model.forward = lambda x: x * 5  # type: ignore[method-assign]


def _other_class(model: Net) -> None:
    class Other(Net):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x) * 2

    model.__class__ = Other


def _share(model: Net) -> None:
    model.first.weight = model.last.weight


def _swap(model: Net) -> None:
    model.first, model.last = model.last, model.first


#   what changes                               of a model that predicts
OF_MODELS: dict[str, Callable[[Net], Any]] = {
    "a module's mode":                         lambda m: m.train(),
    "the mode of a module inside":             lambda m: m.norm.train(),
    "a module's plain attribute":              lambda m: setattr(m, "scale", 3.0),
    "a new attribute in front of a class's":   lambda m: setattr(m, "gain", 3.0),
    "a module's function":                     lambda m: setattr(m, "act", torch.tanh),
    "a module in place of a function":         lambda m: setattr(m, "act", nn.Sigmoid()),
    "a module's `forward`":                    _other_forward,
    "a module's class":                        _other_class,
    "a module's list in a dictionary":         lambda m: m.options["skip"].__setitem__(0, 4.0),
    "a module's dictionary":                   lambda m: setattr(m, "options", {"skip": [4.0]}),
    "a parameter":                             _kept(_replace_parameter),
    "a parameter's memory (`.data =`)":        _kept(_other_data),
    "a parameter that two modules share now":  _share,
    "a buffer":                                lambda m: setattr(m, "shift", torch.ones(3, device="pjrt")),
    "a buffer that is None now":               lambda m: setattr(m.last, "bias", None),
    "a module inside":                         lambda m: setattr(m, "last", nn.Identity()),
    "modules in another order":                _swap,
    "a number of a module of PyTorch":         lambda m: setattr(m.norm, "eps", 0.5),
    "a forward hook":                          lambda m: m.first.register_forward_hook(doubled),
    "a forward pre-hook":                      lambda m: m.last.register_forward_pre_hook(doubled_input),
    "a hook with keywords":                    lambda m: hook(m, doubled, with_kwargs=True),
}  # fmt: skip

for _name, _change in OF_MODELS.items():
    ROWS[_name] = _of_model(_change)


def _add_group(model: Net, optimizer: torch.optim.Optimizer) -> None:
    optimizer.add_param_group({"params": [model.shift.requires_grad_()], "lr": 0.5})


def _fewer(model: Net, optimizer: torch.optim.Optimizer) -> None:
    del optimizer.param_groups[0]["params"][0]


def _other_state(model: Net, optimizer: torch.optim.Optimizer) -> None:
    state = optimizer.state[model.last.weight]
    model.kept = state["momentum_buffer"]  # type: ignore[assignment]
    state["momentum_buffer"] = torch.ones(3, 3, device="pjrt")


def _other_optimizer_step(model: Net, optimizer: Any) -> None:
    take = optimizer.step

    def step() -> None:
        with torch.no_grad():
            model.last.bias.mul_(2)
        take()

    optimizer.step = step


def _hook_of_optimizer(model: Net, optimizer: torch.optim.Optimizer) -> Any:
    return optimizer.register_step_pre_hook(lambda *_: double_gradient(model.last.bias))


def _load(model: Net, optimizer: torch.optim.Optimizer) -> None:
    state = optimizer.state_dict()
    state["param_groups"][0]["lr"] = 0.7
    optimizer.load_state_dict(state)


#   what changes                               of a model that is trained
OF_TRAINING: dict[str, Callable[[Net, Any], Any]] = {
    "a weight that is frozen":                 lambda m, o: m.first.weight.requires_grad_(False),
    "a model that is frozen":                  lambda m, o: m.first.requires_grad_(False),
    "a tensor that needs gradients now":       lambda m, o: m.shift.requires_grad_(),
    "a learning rate":                         lambda m, o: o.param_groups[0].update(lr=0.01),
    "another number of an optimizer":          lambda m, o: o.param_groups[0].update(momentum=0.1),
    "a flag of an optimizer":                  lambda m, o: o.param_groups[0].update(nesterov=True),
    "an optimizer's list of parameters":       _fewer,
    "an optimizer's new list of parameters":   lambda m, o: o.param_groups[0].update(params=[m.last.bias]),
    "a group of parameters":                   _add_group,
    "an optimizer's state, loaded":            _load,
    "a tensor of an optimizer's state":        _other_state,
    "an optimizer's whole state":              lambda m, o: o.state.clear(),
    "an optimizer's `step`":                   _other_optimizer_step,
    "a hook of an optimizer":                  _hook_of_optimizer,
    "a hook of a tensor's gradient":           lambda m, o: m.first.weight.register_hook(lambda g: g * 2),
    "a hook after a gradient":                 lambda m, o: after(m.first.weight, double_gradient),
    "a backward hook of a module":             lambda m, o: backward_hook(m.last, doubled_gradients),
}  # fmt: skip

for _name, _change_both in OF_TRAINING.items():
    ROWS[_name] = _of_training(_change_both)


@row("a hook that is removed")
def removed_hook() -> Made:
    model = net()
    handle = model.last.register_forward_hook(doubled)
    return predicting(model), handle.remove


@row("gradients that are cleared between calls")
def gradients_cleared() -> Made:
    weight = torch.ones(3, device="pjrt", requires_grad=True)

    def step(x: torch.Tensor) -> Any:
        (weight * x).sum().backward()
        return weight.grad.clone()  # type: ignore[union-attr]

    return step, lambda: setattr(weight, "grad", None)


@row("gradients that are put in place of others")
def gradients_replaced() -> Made:
    weight = torch.ones(3, device="pjrt", requires_grad=True)
    kept = []

    def step(x: torch.Tensor) -> Any:
        (weight * x).sum().backward()
        return weight.grad.clone()  # type: ignore[union-attr]

    def change() -> None:
        kept.append(weight.grad)
        weight.grad = torch.ones(3, device="pjrt")

    return step, change


class _Patched:
    """Puts a function in the place of PyTorch's; what it returns takes it back."""

    def __init__(self, home: Any, name: str, other: Any) -> None:
        self.home, self.name, self.other = home, name, other

    def __call__(self) -> Callable[[], None]:
        home, name = self.home, self.name
        before = vars(home).get(name)
        setattr(home, name, self.other)
        return lambda: delattr(home, name) if before is None else setattr(home, name, before)


@row("a function of PyTorch, replaced")
def patched_function() -> Made:
    return lambda x: F.softplus(x), _Patched(F, "softplus", torch.tanh)


@row("a function of PyTorch that one of its modules calls")
def patched_below() -> Made:
    model = nn.LeakyReLU()
    return lambda x: model(x), _Patched(F, "leaky_relu", lambda x, *_: x * 7)


@row("a method of tensors, replaced")
def patched_method() -> Made:
    return lambda x: x.softmax(0), _Patched(torch.Tensor, "softmax", lambda x, _: x * 7)


@row("the `forward` of a class of PyTorch")
def patched_forward() -> Made:
    model = nn.Softsign()
    return lambda x: model(x), _Patched(nn.Softsign, "forward", lambda _, x: x * 7)


@row("a hook of all modules")
def global_hook() -> Made:
    model = net()
    register = torch.nn.modules.module.register_module_forward_hook

    def change() -> Any:
        return register(lambda m, _, y: y * 2 if m is model.last else None).remove

    return predicting(model), change


def _mode(turn_on: Callable[[], Any], turn_off: Callable[[], Any], step: Step) -> Make:
    def change() -> Callable[[], Any]:
        turn_on()
        return turn_off

    return lambda: (step, change)


ROWS["the default dtype"] = _mode(
    lambda: torch.set_default_dtype(torch.float64),
    lambda: torch.set_default_dtype(torch.float32),
    lambda x: torch.ones(3, device="pjrt") * x.double(),
)
ROWS["whether gradients are recorded"] = _mode(
    lambda: torch.set_grad_enabled(False),
    lambda: torch.set_grad_enabled(True),
    lambda x: x * (2 if torch.is_grad_enabled() else 3),
)
ROWS["autocast"] = _mode(
    lambda: torch.set_autocast_enabled("pjrt", True),
    lambda: torch.set_autocast_enabled("pjrt", False),
    lambda x: (x @ x).double(),
)


@documented(
    "functions that are replaced deeper inside PyTorch or an installed package than a `forward`, "
    "or than a function that the step itself calls"
)
def patched_deep_below() -> Made:
    _, _, step = trained()
    home = sys.modules["torch.optim.sgd"]
    names = ("_single_tensor_sgd", "_multi_tensor_sgd")

    def change() -> Callable[[], None]:
        undo = [_Patched(home, name, lambda *_, **__: None)() for name in names]

        def take_back() -> None:
            for undo_one in undo:
                undo_one()

        return take_back

    return step, change


@documented(
    "`.data =` on a tensor of an optimizer's state, while something holds the memory that it had"
)
def data_of_state() -> Made:
    model, optimizer, step = trained()
    kept = []

    def change() -> None:
        moment = optimizer.state[model.last.weight]["momentum_buffer"]
        kept.append(moment.data)
        moment.data = torch.ones(3, 3, device="pjrt")

    return step, change
