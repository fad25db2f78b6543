"""Every scheduler sets the rates that it sets on CPU: as numbers, and as tensors on the device."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.optim import Optimizer, swa_utils
from torch.optim import lr_scheduler as schedulers

from optimizer_cases import parameters
from sides import DEVICE

N_STEPS = 10
N_WARM = 4

Make = Callable[[Optimizer], Any]


def chained(optimizer: Optimizer) -> schedulers.ChainedScheduler:
    parts = [schedulers.ConstantLR(optimizer), schedulers.ExponentialLR(optimizer, 0.9)]
    return schedulers.ChainedScheduler(parts)


def sequential(optimizer: Optimizer) -> schedulers.SequentialLR:
    warm = schedulers.LinearLR(optimizer, 0.1, total_iters=N_WARM)
    parts = [warm, schedulers.CosineAnnealingLR(optimizer, N_STEPS)]
    return schedulers.SequentialLR(optimizer, parts, [N_WARM])


SCHEDULERS: dict[str, Make] = {
    "ChainedScheduler": chained,
    "ConstantLR": lambda o: schedulers.ConstantLR(o, 0.5, 3),
    "CosineAnnealingLR": lambda o: schedulers.CosineAnnealingLR(o, 6, 0.01),
    "CosineAnnealingWarmRestarts": lambda o: schedulers.CosineAnnealingWarmRestarts(o, 3, 2),
    "CyclicLR": lambda o: schedulers.CyclicLR(o, 0.01, 0.1, 3),
    "ExponentialLR": lambda o: schedulers.ExponentialLR(o, 0.8),
    "LambdaLR": lambda o: schedulers.LambdaLR(o, lambda epoch: 1 / (1 + epoch)),
    "LinearLR": lambda o: schedulers.LinearLR(o, 0.25, total_iters=6),
    "MultiStepLR": lambda o: schedulers.MultiStepLR(o, [2, 5]),
    "MultiplicativeLR": lambda o: schedulers.MultiplicativeLR(o, lambda epoch: 0.9),
    "OneCycleLR": lambda o: schedulers.OneCycleLR(o, 0.2, total_steps=N_STEPS + 1),
    "PolynomialLR": lambda o: schedulers.PolynomialLR(o, 7, 2.0),
    "ReduceLROnPlateau": lambda o: schedulers.ReduceLROnPlateau(o, patience=1),
    "SequentialLR": sequential,
    "StepLR": lambda o: schedulers.StepLR(o, 3, 0.5),
    "SWALR": lambda o: swa_utils.SWALR(o, 0.01, 4),
}


def trained(make: Make, device: str, rate: Any) -> tuple[list[float], torch.Tensor, Any]:
    """The rates of some steps, the parameter after them, and the scheduler's state."""
    [x] = parameters(device, torch.float64, ((2, 3),))
    momentum = torch.optim.SGD([x], rate, momentum=0.9, foreach=False)
    scheduler = make(momentum)
    rates = []
    for _ in range(N_STEPS):
        momentum.zero_grad()
        loss = (x.sin() * 2).sum()
        loss.backward()
        momentum.step()
        if isinstance(scheduler, schedulers.ReduceLROnPlateau):
            scheduler.step(loss.detach().abs() * 0 + 1)
        else:
            scheduler.step()
        rates.append(float(momentum.param_groups[0]["lr"]))
    return rates, x.detach().cpu(), scheduler.state_dict()


@pytest.mark.parametrize("name", SCHEDULERS)
def test_rates_and_steps_are_those_of_the_cpu(name: str) -> None:
    rates, parameter, _ = trained(SCHEDULERS[name], "cpu", 0.1)

    ours = trained(SCHEDULERS[name], DEVICE, 0.1)

    assert ours[0] == pytest.approx(rates)
    torch.testing.assert_close(ours[1], parameter)


# It computes new rates from the old ones in Python, and puts numbers in the place of tensors.
TENSOR_RATES = [n for n in SCHEDULERS if n not in ("CyclicLR", "OneCycleLR")]


@pytest.mark.parametrize("name", TENSOR_RATES)
def test_rate_may_be_a_tensor_on_the_device(name: str) -> None:
    def rate(device: str) -> torch.Tensor:
        return torch.tensor(0.1, dtype=torch.float64, device=device)

    rates, parameter, _ = trained(SCHEDULERS[name], "cpu", rate("cpu"))

    ours = trained(SCHEDULERS[name], DEVICE, rate(DEVICE))

    assert ours[0] == pytest.approx(rates)
    torch.testing.assert_close(ours[1], parameter)


@pytest.mark.parametrize("name", SCHEDULERS)
def test_state_is_loaded_into_another_scheduler(name: str) -> None:
    make = SCHEDULERS[name]
    _, _, state = trained(make, DEVICE, 0.1)
    [x] = parameters(DEVICE, torch.float64, ((2, 3),))

    loaded = make(torch.optim.SGD([x], 0.1, momentum=0.9))
    loaded.load_state_dict(copy.deepcopy(state))

    assert loaded.state_dict().keys() == state.keys()
    assert loaded.state_dict().get("last_epoch") == state.get("last_epoch")


def test_averaged_model_is_the_mean_of_what_it_saw() -> None:
    model = torch.nn.Linear(2, 2, bias=False, device=DEVICE)
    average: Any = swa_utils.AveragedModel(model)
    seen = []

    for value in (1.0, 2.0, 6.0):
        with torch.no_grad():
            model.weight.fill_(value)
        average.update_parameters(model)
        seen.append(value)

    assert average.module.weight.tolist() == [[3.0, 3.0], [3.0, 3.0]]


def test_every_scheduler_is_tried() -> None:
    known = {
        name
        for name, x in vars(schedulers).items()
        if isinstance(x, type) and issubclass(x, schedulers.LRScheduler)
    }

    assert known - {"LRScheduler", "_LRScheduler"} <= set(SCHEDULERS)
