"""Adam's steps that are recorded at once: the programs, values and versions of PyTorch's own function."""

from __future__ import annotations

import importlib
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from fixture_types import Count
from torch_pjrt.device.adam import stand_before
from torch_pjrt.tensor.recording import adam_steps
from torch_pjrt.tensor.recording.adam_steps import _steps

adam: Any = importlib.import_module("torch.optim.adam")
SHAPES = ((3, 4), (4,), (3, 4), (2, 3, 1), ())
OPTIONS: dict[str, dict[str, Any]] = {
    "as it comes": {},
    "other numbers": {"lr": 0.25, "betas": (0.5, 0.75), "eps": 1e-3},
    "decay": {"weight_decay": 0.1},
    "amsgrad": {"amsgrad": True},
    "maximize": {"maximize": True},
    "all": {"amsgrad": True, "maximize": True, "weight_decay": 0.1},
}
CASES = [
    pytest.param(kind, options, id=f"{kind.__name__}, {name}")
    for kind, (name, options) in itertools.product(
        (torch.optim.Adam, torch.optim.AdamW), OPTIONS.items()
    )
]


@pytest.fixture(autouse=True)
def _started() -> Iterator[None]:
    torch.zeros((), device="pjrt")
    _steps.clear()
    yield
    _steps.clear()


def put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch's own function, for the rest of the test."""
    monkeypatch.setattr(adam, "_multi_tensor_adam", adam._multi_tensor_adam.before)


def parameters(dtype: torch.dtype = torch.float32) -> list[nn.Parameter]:
    torch.manual_seed(1)
    return [nn.Parameter(torch.randn(shape, dtype=dtype).to("pjrt")) for shape in SHAPES]


def trained(
    kind: Callable[..., torch.optim.Optimizer],
    options: dict[str, Any],
    dtype: torch.dtype = torch.float32,
) -> tuple[list[Tensor], list[int]]:
    """All tensors after five steps, and the versions of those written; the third joins at the second step."""
    weights = parameters(dtype)
    optimizer = kind(weights, **options)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2)
    for step in range(5):
        optimizer.zero_grad()
        used = [w for i, w in enumerate(weights) if i != 2 or step]
        torch.stack([(w * (i + step + 1)).cos().sum() for i, w in enumerate(used)]).sum().backward()
        optimizer.step()
        schedule.step()
    moments = [x for w in weights for x in optimizer.state[w].values()]
    written = [*weights, *moments]
    return [x.detach().cpu() for x in written], [x._version for x in written]


def templates() -> list[Any]:
    return [step for step in _steps.values() if step is not False]


@pytest.mark.parametrize(("kind", "options"), CASES)
def test_steps_are_those_of_pytorchs_function(
    kind: Any, options: dict[str, Any], compiled: Count, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained(kind, options)  # from then on it is known which numbers change, and are inputs
    values, versions = trained(kind, options)
    n_ours = compiled()
    assert len(templates()) == len(_steps) == 2  # without the third weight, and with it

    put_back(monkeypatch)
    expected, their_versions = trained(kind, options)

    torch.testing.assert_close(values, expected, rtol=0, atol=0)
    assert versions == their_versions
    assert compiled() == n_ours > 0, "the programs differ"


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16], ids=str)
def test_steps_of_other_dtypes(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    values, _ = trained(torch.optim.AdamW, {}, dtype)
    assert len(templates()) == 2

    put_back(monkeypatch)

    torch.testing.assert_close(values, trained(torch.optim.AdamW, {}, dtype)[0], rtol=0, atol=0)


def test_gradients_that_are_views_are_read() -> None:
    weight = nn.Parameter(torch.ones(2, 3, device="pjrt"))
    weight.grad = torch.arange(6.0, device="pjrt").reshape(3, 2).t()
    on_cpu = nn.Parameter(torch.ones(2, 3))
    on_cpu.grad = torch.arange(6.0).reshape(3, 2).t()

    torch.optim.Adam([weight], lr=0.5).step()
    torch.optim.Adam([on_cpu], lr=0.5).step()

    assert len(templates()) == 1
    torch.testing.assert_close(weight.detach().cpu(), on_cpu.detach())


def of_two_dtypes() -> list[nn.Parameter]:
    return [*parameters()[:2], *parameters(torch.float64)[2:]]


def sharing_memory() -> list[nn.Parameter]:
    whole = torch.ones(4, 3, device="pjrt")
    return [nn.Parameter(whole[:2]), nn.Parameter(whole[2:])]


def of_a_class_of_their_own() -> list[nn.Parameter]:
    class Marked(nn.Parameter):
        pass

    return [Marked(w.detach()) for w in parameters()]


UNUSUAL: dict[str, tuple[Callable[[], list[nn.Parameter]], dict[str, Any]]] = {
    "counts on the device": (parameters, {"capturable": True}),
    "rates on the device": (parameters, {"capturable": True, "lr": torch.tensor(0.5)}),
    "two dtypes": (of_two_dtypes, {}),
    "a whole number of decay": (parameters, {"weight_decay": 1}),
    "complex": (lambda: parameters(torch.complex64), {}),
    "views": (sharing_memory, {}),
    "a class of parameters": (of_a_class_of_their_own, {}),
}


@pytest.mark.parametrize("case", UNUSUAL)
def test_unusual_steps_are_left_to_pytorchs_function(
    case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    make, options = UNUSUAL[case]

    def stepped() -> list[Tensor]:
        weights = make()
        optimizer = torch.optim.Adam(weights, **options)
        for w in weights:
            w.grad = (w.detach() + 1) * 0.5
        optimizer.step()
        return [w.detach().cpu() for w in weights]

    values = stepped()
    assert not templates()
    put_back(monkeypatch)
    torch.testing.assert_close(values, stepped(), rtol=0, atol=0)


def test_one_parameter_given_twice_is_left_to_pytorchs_function() -> None:
    weight = nn.Parameter(torch.ones(2, device="pjrt"))
    weight.grad = torch.ones(2, device="pjrt")
    with pytest.warns(UserWarning, match="duplicate parameters"):
        optimizer = torch.optim.Adam([weight, weight])

    optimizer.step()

    assert not templates()


def test_modes_see_the_operators() -> None:
    seen: list[str] = []

    class Mode(TorchDispatchMode):
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            seen.append(func.overloadpacket._qualified_op_name)
            return func(*args, **(kwargs or {}))

    weights = parameters()
    for w in weights:
        w.grad = torch.ones_like(w)
    with Mode():
        torch.optim.Adam(weights).step()

    assert "aten::_foreach_addcdiv_" in seen


def test_default_device_is_no_such_mode() -> None:
    weights = parameters()
    for w in weights:
        w.grad = torch.ones_like(w)
    with torch.device("pjrt"):
        torch.optim.Adam(weights).step()

    assert len(templates()) == 1


def of_another_rate(original: Callable[..., None], *lists: Any, lr: float, **options: Any) -> None:
    original(*lists, lr=2 * lr, **options)


def with_one_more_operator(
    original: Callable[..., None], params: Any, *lists: Any, **options: Any
) -> None:
    torch._foreach_mul_(params, 0.5)
    original(params, *lists, **options)


def of_a_rate_that_is_no_number(
    original: Callable[..., None], params: Any, *lists: Any, lr: float, **options: Any
) -> None:
    """What it records depends on a number that the program does not have."""
    for _ in range(int(lr > 0.0049) + 1):
        torch._foreach_abs_(params)
    original(params, *lists, lr=lr, **options)


CHANGED = (of_another_rate, with_one_more_operator, of_a_rate_that_is_no_number)


@pytest.mark.parametrize("change", CHANGED)
def test_another_function_of_pytorchs_is_obeyed(change: Callable[..., None]) -> None:
    """No template is made of it, since it records other nodes or numbers."""

    class Module:
        @staticmethod
        def _multi_tensor_adam(*args: Any, **options: Any) -> None:
            change(adam._multi_tensor_adam.before, *args, **options)

    theirs = Module._multi_tensor_adam
    stand_before(Module)
    options = {"lr": 0.005, "beta1": 0.9, "beta2": 0.99, "eps": 1e-8, "weight_decay": 0.0}
    flags = dict.fromkeys((*adam_steps._FLAGS, *adam_steps._REFUSED), False)

    def stepped(function: Any) -> Tensor:
        weight = torch.full((3,), -2.0, device="pjrt")
        zeros = [[torch.zeros(3, device="pjrt")] for _ in range(2)]
        grads = [torch.ones(3, device="pjrt")]
        with torch.no_grad():
            function(
                *([weight], grads, *zeros, [], [torch.tensor(0.0)]),
                grad_scale=None, found_inf=None, **options, **flags,
            )  # fmt: skip
        return weight.cpu()

    result = stepped(Module._multi_tensor_adam)

    assert Module._multi_tensor_adam is not theirs
    assert list(_steps.values()) == [False]
    torch.testing.assert_close(result, stepped(theirs), rtol=0, atol=0)
