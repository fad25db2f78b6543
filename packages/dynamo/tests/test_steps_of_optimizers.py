"""Steps of optimizers in compiled functions are recorded: of all optimizers, with schedules, in functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn, optim
from torch._dynamo.exc import Unsupported
from torch._dynamo.utils import counters
from torch.testing import assert_close

LambdaLR = optim.lr_scheduler.LambdaLR
# By their names, with what makes a few steps more than a rounding error. (Muon takes no vectors.)
OPTIMIZERS: dict[str, dict[str, Any]] = {
    "Adadelta": {"lr": 1.0},
    "Adafactor": {"lr": 1e-2},
    "Adagrad": {"lr": 1e-2},
    "Adam": {"lr": 1e-2, "amsgrad": True},
    "AdamW": {"lr": 1e-2},
    "Adamax": {"lr": 1e-2},
    "ASGD": {"lr": 1e-2},
    "NAdam": {"lr": 1e-2},
    "RAdam": {"lr": 1e-2},
    "RMSprop": {"lr": 1e-2},
    "Rprop": {"lr": 1e-2},
    "SGD": {"lr": 1e-2, "momentum": 0.9, "nesterov": True},
}


class Training:
    """A model on a device, its optimizer, and a step as people write it."""

    def __init__(self, device: str, name: str, *, schedule: bool = False, **options: Any) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2)).to(device)
        self.optimizer = getattr(optim, name)(self.model.parameters(), **options)
        self.schedule = LambdaLR(self.optimizer, lambda n: 1 / (n + 1)) if schedule else None
        self.device = device

    def loss(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return nn.functional.mse_loss(self.model(x), y)

    def step(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        loss = self.loss(x, y)
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        if self.schedule:
            self.schedule.step()
        return loss.detach()

    def losses(self, step: Callable[..., torch.Tensor], n: int = 5) -> torch.Tensor:
        draws = torch.Generator().manual_seed(1)
        batches = [[torch.randn(5, width, generator=draws) for width in (4, 2)] for _ in range(n)]
        return torch.stack([step(*(x.to(self.device) for x in batch)).cpu() for batch in batches])


@pytest.fixture(autouse=True)
def nothing_compiled() -> None:
    torch._dynamo.reset()
    counters.clear()


def traced_graphs() -> int:
    return counters["stats"]["unique_graphs"]


@pytest.mark.parametrize("schedule", [False, True], ids=["constant", "schedule"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_losses_are_the_cpus_and_no_graph_has_the_step(name: str, schedule: bool) -> None:
    plain = Training("cpu", name, schedule=schedule, **OPTIMIZERS[name])
    ours = Training("pjrt", name, schedule=schedule, **OPTIMIZERS[name])
    compiled = torch.compile(ours.step, backend="pjrt")
    assert_close(ours.losses(compiled, 1), plain.losses(plain.step, 1))
    graphs, frames = traced_graphs(), counters["frames"]["ok"]
    assert graphs == 2  # the loss, and `detach`
    assert_close(ours.losses(compiled), plain.losses(plain.step))
    assert (traced_graphs(), counters["frames"]["ok"]) == (graphs, frames)


def test_a_step_in_a_function_is_recorded_too() -> None:
    ours, plain = Training("pjrt", "AdamW", lr=1e-2), Training("cpu", "AdamW", lr=1e-2)

    def take() -> None:
        ours.optimizer.step()

    @torch.compile(backend="pjrt")
    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        loss = ours.loss(x, y)
        loss.backward()
        take()
        ours.optimizer.zero_grad()
        return loss.detach()

    assert_close(ours.losses(step), plain.losses(plain.step))
    assert traced_graphs() == 2


def test_gradients_may_be_clipped_before() -> None:
    def clipping(training: Training) -> Callable[..., torch.Tensor]:
        def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            loss = training.loss(x, y)
            loss.backward()
            nn.utils.clip_grad_norm_(training.model.parameters(), 0.1)
            training.optimizer.step()
            training.optimizer.zero_grad()
            assert training.schedule
            training.schedule.step()
            return loss.detach()

        return step

    ours = Training("pjrt", "AdamW", lr=1e-2, schedule=True)
    plain = Training("cpu", "AdamW", lr=1e-2, schedule=True)
    compiled = torch.compile(clipping(ours), backend="pjrt")
    assert_close(ours.losses(compiled, 1), plain.losses(clipping(plain), 1))
    graphs = traced_graphs()
    assert_close(ours.losses(compiled), plain.losses(clipping(plain)))
    assert traced_graphs() == graphs


def test_a_closure_is_called() -> None:
    ours, plain = Training("pjrt", "SGD", lr=1e-2), Training("cpu", "SGD", lr=1e-2)

    def stepping(training: Training) -> Callable[..., torch.Tensor]:
        def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            def closure() -> torch.Tensor:
                training.optimizer.zero_grad()
                loss = training.loss(x, y)
                loss.backward()
                return loss

            return training.optimizer.step(closure).detach()

        return step

    assert_close(
        ours.losses(torch.compile(stepping(ours), backend="pjrt")), plain.losses(stepping(plain))
    )


def test_a_rate_that_is_a_tensor_has_the_step_traced() -> None:
    rate = torch.tensor(1e-2)
    ours, plain = Training("pjrt", "AdamW", lr=rate), Training("cpu", "AdamW", lr=1e-2)
    assert_close(ours.losses(torch.compile(ours.step, backend="pjrt")), plain.losses(plain.step))
    assert traced_graphs() == 3


def test_steps_of_models_on_the_cpu_are_traced_as_before() -> None:
    ours, plain = Training("cpu", "AdamW", lr=1e-2), Training("cpu", "AdamW", lr=1e-2)
    on_the_device = Training("pjrt", "AdamW", lr=1e-2)
    # Both have the same code, and the device's is compiled first.
    on_the_device.losses(torch.compile(on_the_device.step, backend="pjrt"))
    before = traced_graphs()
    assert_close(ours.losses(torch.compile(ours.step, backend="eager")), plain.losses(plain.step))
    assert traced_graphs() == before + 3


def test_a_step_that_is_to_be_one_graph_is_not_left_out_in_silence() -> None:
    ours = Training("pjrt", "SGD", lr=1e-2)
    ours.loss(torch.ones(5, 4, device="pjrt"), torch.ones(5, 2, device="pjrt")).backward()
    with pytest.raises(Unsupported):  # PyTorch's steps have breaks of their own
        torch.compile(ours.optimizer.step, backend="pjrt", fullgraph=True)()
