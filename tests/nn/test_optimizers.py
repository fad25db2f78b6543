"""Every optimizer takes the steps that it takes on CPU, in every form; its state is saved and loaded."""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from optimizer_cases import optimizer_case, parameters
from sides import DEVICE, Tolerance, differences

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from torch.testing._internal.common_optimizers import OptimizerInfo, optim_db

EVERYTHING = os.environ.get("TORCH_PJRT_TEST_ALL_INPUTS") == "1"

MOST = 7

SHAPES = ((3, 4), ())
MATRICES = ((3, 4),)  # all that Muon takes

# A search that follows a loss takes another path after one rounding: compared in float64 only.
ONLY_FLOAT64 = frozenset((torch.optim.LBFGS,))
LINE_SEARCH = Tolerance(1e-6, 1e-6, "roundings grow along the path of the search")
BFLOAT16_INSIDE = Tolerance(
    1e-2, 1e-3, "orthogonalizes in bfloat16, which rounds elsewhere than on CPU"
)
TOLERANCES: dict[type[torch.optim.Optimizer], Tolerance] = {
    torch.optim.LBFGS: LINE_SEARCH,
    torch.optim.Muon: BFLOAT16_INSIDE,
}


@dataclass(frozen=True)
class Configuration:
    """Options on the device; and on CPU, which knows no `capturable`."""

    name: str
    options: dict[str, Any]

    @property
    def on_cpu(self) -> dict[str, Any]:
        options = {k: v for k, v in self.options.items() if k != "capturable"}
        if isinstance(options.get("lr"), torch.Tensor) and options.get("foreach"):
            options["foreach"] = False  # PyTorch refuses the two together unless capturable
        return options


def configurations(info: OptimizerInfo) -> list[Configuration]:
    """The options of the database in one form each, in turn: `MOST` of them, evenly from all.

    The database lists `capturable` for CUDA alone; the device takes it as well.
    """
    forms: list[dict[str, bool]] = [{"foreach": False}, {"foreach": True}, {"fused": True}]
    forms = [f for f in forms if next(iter(f)) in info.supported_impls] or [{}]
    inputs = info.optim_inputs_func("cuda")
    made = [
        Configuration(f"{given.desc} {form}", {**given.kwargs, **form})
        for i, given in enumerate(inputs)
        for j, form in enumerate(forms)
        if EVERYTHING or j == i % len(forms)
    ]
    return made if EVERYTHING else made[:: -(-len(made) // MOST)]


def class_of(info: OptimizerInfo) -> Any:
    """A class, though PyTorch annotates it as one of its instances."""
    return info.optim_cls


def dtypes_of(info: OptimizerInfo) -> Sequence[torch.dtype]:
    return (torch.float64,) if class_of(info) in ONLY_FLOAT64 else (torch.float32,)


DENSE = [info for info in optim_db if not info.only_supports_sparse_grads]
TRIALS = [(info, dtype) for info in DENSE for dtype in dtypes_of(info)]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # PyTorch's own, of schedulers and closures
@pytest.mark.parametrize(("info", "dtype"), TRIALS, ids=[f"{i.name} {d}" for i, d in TRIALS])
def test_optimizer_takes_the_steps_it_takes_on_cpu(info: OptimizerInfo, dtype: torch.dtype) -> None:
    shapes = MATRICES if class_of(info) is torch.optim.Muon else SHAPES

    cases = [
        optimizer_case(
            c.name,
            class_of(info),
            c.on_cpu,
            c.options,
            dtype,
            shapes,
            TOLERANCES.get(class_of(info)),
        )
        for c in configurations(info)
    ]

    assert len(cases) > 2
    assert not differences(cases)


OF_OTHER_DTYPES: list[tuple[type[torch.optim.Optimizer], dict[str, Any], torch.dtype]] = [
    (torch.optim.Adam, {"foreach": True}, torch.complex64),
    (torch.optim.Adam, {"foreach": False, "amsgrad": True}, torch.complex64),
    (torch.optim.SGD, {"momentum": 0.9}, torch.complex64),
    (torch.optim.RMSprop, {"momentum": 0.9, "centered": True}, torch.complex64),
    (torch.optim.AdamW, {"fused": True}, torch.float64),
    (torch.optim.Adagrad, {}, torch.float64),
    (torch.optim.SGD, {"momentum": 0.9, "nesterov": True}, torch.bfloat16),
    (torch.optim.SGD, {"fused": True, "momentum": 0.5}, torch.bfloat16),
]


@pytest.mark.slow("rows")
@pytest.mark.parametrize(
    ("cls", "options", "dtype"),
    OF_OTHER_DTYPES,
    ids=[f"{c.__name__} {o} {d}" for c, o, d in OF_OTHER_DTYPES],
)
def test_parameters_may_be_of_other_dtypes(
    cls: type[torch.optim.Optimizer], options: dict[str, Any], dtype: torch.dtype
) -> None:
    low = Tolerance(1.6e-2, 1e-2, "bfloat16 has 8 bits, and gradients cancel")

    case = optimizer_case(
        cls.__name__, cls, options, options, dtype, SHAPES, low if dtype == torch.bfloat16 else None
    )

    assert not differences([case])


ON_DEVICE: list[tuple[type[torch.optim.Optimizer], dict[str, Any]]] = [
    (torch.optim.Adam, {"capturable": True}),
    (torch.optim.AdamW, {"fused": True}),
    (torch.optim.NAdam, {"capturable": True}),
    (torch.optim.ASGD, {"capturable": True}),
]


@pytest.mark.parametrize(
    ("cls", "options"), ON_DEVICE, ids=[f"{c.__name__} {o}" for c, o in ON_DEVICE]
)
def test_state_lives_on_the_device(
    cls: type[torch.optim.Optimizer], options: dict[str, Any]
) -> None:
    [x] = parameters(DEVICE, torch.float32, ((2, 3),))
    optimizer = cls([x], **options)
    x.sum().backward()

    optimizer.step()

    [state] = optimizer.state.values()
    assert {t.device.type for t in state.values() if isinstance(t, torch.Tensor)} == {DEVICE}


def test_gradient_scaling_skips_a_step_of_infinite_gradients() -> None:
    [x] = parameters(DEVICE, torch.float32, ((2, 3),))
    before = x.detach().cpu()
    optimizer = torch.optim.SGD([x], 0.1)
    scaler = torch.amp.GradScaler(DEVICE, init_scale=4.0, growth_interval=1)

    for factor in (float("inf"), 1.0):
        optimizer.zero_grad()
        scaler.scale(x.sum() * factor).backward()
        scaler.step(optimizer)
        scaler.update()

    assert scaler.get_scale() == 4.0  # halved, then doubled
    torch.testing.assert_close(x.detach().cpu(), before - 0.1)


def test_differentiable_step_carries_gradients_to_the_rate() -> None:
    gradients = []
    for device in ("cpu", DEVICE):
        [x] = parameters(device, torch.float64, ((2, 3),))
        rate = torch.tensor(0.1, dtype=torch.float64, device=device, requires_grad=True)
        y = x.clone()
        y.grad = (x * 3).detach()
        optimizer = torch.optim.SGD([y], 0.1, differentiable=True, foreach=False)
        optimizer.param_groups[0]["lr"] = rate
        optimizer.step()
        [gradient] = torch.autograd.grad((y * y).sum(), [rate])
        gradients.append(gradient.cpu())

    torch.testing.assert_close(gradients[1], gradients[0])


def test_sparse_gradients_are_refused_with_a_hint() -> None:
    embedding = torch.nn.Embedding(5, 3, sparse=True, device=DEVICE)
    y = embedding(torch.tensor([1, 2], device=DEVICE))

    with pytest.raises(RuntimeError, match="sparse=True"):
        y.sum().backward()
