"""A typical script is two programs that are worth the name: one for training and one for evaluation."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import torch_pjrt
from fixture_types import Count
from torch_pjrt.extend import Program, add_program_hooks, counters

N_CLASSES, LARGE = 4, 8  # so many operators have all programs but those of sums, zeros and reads
generator = torch.Generator().manual_seed(0)
TRAINED = TensorDataset(
    torch.randn(16, 8, generator=generator), torch.randint(N_CLASSES, (16,), generator=generator)
)
TESTED = TensorDataset(*TRAINED[:12])


@pytest.fixture
def large(compiled: Count) -> Iterator[list[Program]]:
    """The programs of more than a few operators that were made since the test began."""
    made: list[Program] = []

    def note(program: Program) -> None:
        if len(program.recorded.nodes) >= LARGE:
            made.append(program)

    with add_program_hooks(after_compile=note):
        yield made
    assert compiled() >= len(made)


def batches(data: TensorDataset, device: str) -> Iterator[Any]:
    for x, y in DataLoader(data, batch_size=4):
        yield x.to(device), y.to(device)


def batches_of_device_loader(data: TensorDataset, device: str) -> Iterator[Any]:
    yield from torch_pjrt.DeviceLoader(DataLoader(data, batch_size=4), device)


def batches_of_workers(data: TensorDataset, device: str) -> Iterator[Any]:
    for x, y in DataLoader(data, batch_size=4, num_workers=1):
        yield x.to(device), y.to(device)


class Script:
    """A training script of three epochs; subclasses do one thing otherwise.

    losses   what each epoch has said.
    """

    device = "pjrt"
    accumulated = 1
    batches: Callable[[TensorDataset, str], Iterator[Any]] = staticmethod(batches)

    def __init__(self, device: str, weights: dict[str, torch.Tensor]) -> None:
        self.device = device
        self.model = self.make_model()
        self.model.load_state_dict(weights)
        self.optimizer = self.make_optimizer()
        self.losses: list[float] = []

    def make_model(self) -> nn.Module:
        return model().to(self.device)

    def make_optimizer(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.model.parameters(), 1e-2)

    def loss(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(self.model(x), y)

    def step(self, loss: torch.Tensor) -> None:
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad()

    def train(self) -> None:
        self.model.train()
        total = torch.zeros((), device=self.device)
        for i, (x, y) in enumerate(self.batches(TRAINED, self.device), 1):
            loss = self.loss(x, y)
            if i % self.accumulated:
                loss.backward()
            else:
                self.step(loss)
            total += loss.detach()
            self.after_step()
        self.losses.append(total.item())

    def after_step(self) -> None:
        pass

    @torch.no_grad()
    def evaluate(self) -> None:
        self.model.eval()
        right = torch.zeros((), device=self.device)
        for x, y in self.batches(TESTED, self.device):
            right += (self.model(x).argmax(1) == y).sum()
        self.losses.append(right.item())

    def run(self) -> list[float]:
        for _ in range(3):
            self.train()
            self.evaluate()
        return self.losses


def model() -> nn.Sequential:
    """Without the bias that batch norm subtracts: its gradient is roundings; AdamW makes steps of them."""
    first = nn.Linear(8, 16, bias=False)
    return nn.Sequential(first, nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, N_CLASSES))


class MadeOnTheDevice(Script):
    def make_model(self) -> nn.Module:
        with torch.device(self.device):
            return model()


class Scheduled(Script):
    def make_optimizer(self) -> torch.optim.Optimizer:
        optimizer = super().make_optimizer()
        self.schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
        return optimizer

    def evaluate(self) -> None:
        self.schedule.step()
        super().evaluate()


class Averaged(Script):
    """Weights are averaged behind each step."""

    def make_optimizer(self) -> torch.optim.Optimizer:
        decay = torch.optim.swa_utils.get_ema_multi_avg_fn(0.9)
        self.averaged = torch.optim.swa_utils.AveragedModel(self.model, multi_avg_fn=decay)
        return super().make_optimizer()

    def after_step(self) -> None:
        self.averaged.update_parameters(self.model)


class Accumulating(Script):
    accumulated = 2


class Momentum(Script):
    def make_optimizer(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.model.parameters(), 1e-2, momentum=0.9)


class FromDeviceLoader(Script):
    batches = staticmethod(batches_of_device_loader)


class FromWorkers(Script):
    batches = staticmethod(batches_of_workers)


# Of each kind of script: how many programs of more than a few operators it has, and why it is more than two.
SCRIPTS = {
    Script: 2,
    Scheduled: 2,
    Momentum: 2,
    Accumulating: 2,
    FromDeviceLoader: 2,
    FromWorkers: 2,
    MadeOnTheDevice: 3,  # it is made
    Averaged: 2,
}


@pytest.mark.slow("rows")
@pytest.mark.parametrize("kind", SCRIPTS, ids=lambda kind: kind.__name__)
def test_a_typical_script_is_two_programs(kind: type[Script], large: list[Program]) -> None:
    torch.manual_seed(0)
    weights = copy.deepcopy(model().state_dict())
    wanted = kind("cpu", weights).run()
    large.clear()

    losses = kind("pjrt", weights).run()

    torch.testing.assert_close(losses, wanted, rtol=1e-5, atol=0)
    assert len(large) == SCRIPTS[kind], [
        (len(p.recorded.nodes), p.compilation.cause) for p in large
    ]


@pytest.fixture
def at_the_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps end where the next batch is fetched."""
    monkeypatch.setattr(torch_pjrt.config, "step_ends", "batch")


@pytest.mark.slow("rows")
@pytest.mark.parametrize("kind", SCRIPTS, ids=lambda kind: kind.__name__)
def test_steps_that_end_at_the_next_batch_train_alike(
    kind: type[Script], at_the_batch: None
) -> None:
    torch.manual_seed(0)
    weights = copy.deepcopy(model().state_dict())

    losses = kind("pjrt", weights).run()

    torch.testing.assert_close(losses, kind("cpu", weights).run(), rtol=1e-5, atol=0)


@pytest.mark.parametrize(("ends", "n_programs"), [("optimizer", 2), ("batch", 1)])
def test_averages_and_sums_are_part_of_a_step_that_ends_at_the_next_batch(
    ends: str, n_programs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch_pjrt.config, "step_ends", ends)
    script = Averaged("pjrt", model().state_dict())
    script.train()
    begun = counters.programs_run

    script.train()

    n_steps = len(TRAINED) // 4
    assert counters.programs_run - begun == n_programs * n_steps


def test_two_optimizers_of_a_batch_are_one_program(at_the_batch: None) -> None:
    layers = [nn.Linear(8, 1).to("pjrt") for _ in range(2)]
    optimizers = [torch.optim.SGD(layer.parameters(), 1e-2) for layer in layers]
    marks = []
    for x, _ in batches(TRAINED, "pjrt"):
        for layer, optimizer in zip(layers, optimizers, strict=True):
            optimizer.zero_grad()
            layer(x).square().mean().backward()
            optimizer.step()
        marks.append(counters.programs_run)

    assert [b - a for a, b in itertools.pairwise(marks)] == [1, 1, 1]


def test_a_loop_over_one_batch_does_not_go_on_forever(at_the_batch: None) -> None:
    layer = nn.Linear(8, 1).to("pjrt")
    optimizer = torch.optim.SGD(layer.parameters(), 1e-2)
    [x, _] = next(batches(TRAINED, "pjrt"))
    begun = counters.programs_run

    for _ in range(5):
        optimizer.zero_grad()
        layer(x).square().mean().backward()
        optimizer.step()

    assert counters.programs_run - begun == 4  # the first two are one


def n_syncs() -> int:
    return sum(torch_pjrt.report().as_dict()["syncs"].values())


def test_batches_whose_gradients_are_accumulated_are_one_program(compiled: Count) -> None:
    parameter = torch.zeros(8, device="pjrt", requires_grad=True)
    optimizer = torch.optim.SGD([parameter], 1.0)
    before = n_syncs()

    for _ in range(2):  # also where an epoch ends meanwhile
        for x, _ in batches(TRAINED, "pjrt"):
            (x @ parameter).sum().backward()
    optimizer.step()

    # What is behind the zeros, and the step.
    assert n_syncs() == before + 2
    torch.testing.assert_close(parameter.detach().cpu(), -2 * TRAINED.tensors[0].sum(0))


def test_an_evaluation_of_another_length_is_no_other_program(compiled: Count) -> None:
    weight = torch.ones(8).to("pjrt")

    def evaluate(n: int) -> float:
        total = torch.zeros((), device="pjrt")
        with torch.no_grad():
            for x, _ in batches(TensorDataset(*TRAINED[: 4 * n]), "pjrt"):
                total += (x @ weight).sum()
        return total.item()

    evaluate(2)
    before = compiled()

    assert evaluate(4) == pytest.approx(TRAINED.tensors[0].sum().item(), rel=1e-5)
    assert compiled() == before


def test_a_loop_in_a_forked_worker_leaves_what_is_pending_alone() -> None:
    pending = torch.ones(3, device="pjrt") + 1

    [batch] = DataLoader(Nested(), batch_size=None, num_workers=1)

    assert batch.tolist() == [0, 1, 2]
    assert pending.tolist() == [2, 2, 2]


class Nested(torch.utils.data.IterableDataset):
    """In a worker another loader is read."""

    def __iter__(self) -> Iterator[torch.Tensor]:
        with torch.no_grad():
            yield torch.cat(
                [x for (x,) in DataLoader(TensorDataset(torch.arange(3)), batch_size=1)]
            )


def test_stretches_of_a_text_on_the_device_are_two_programs(compiled: Count) -> None:
    """The first has a state that begins; where a stretch lies is an input of the second, and so of all."""
    text = torch.randn(60, 4, generator=generator).to("pjrt")
    weight = torch.randn(4, 4, generator=generator).to("pjrt")
    found = []

    state = weight.new_zeros(4)
    for begin in range(0, 60, 10):
        state = torch.tanh(text[begin : begin + 10] @ weight + state).mean(0).sin().cos()
        found.append(state.sum().item())

    wanted = torch.zeros(4)
    for begin, sum_ in zip(range(0, 60, 10), found, strict=True):
        part = text.cpu()[begin : begin + 10] @ weight.cpu()
        wanted = torch.tanh(part + wanted).mean(0).sin().cos()
        assert sum_ == pytest.approx(wanted.sum().item(), rel=1e-4)
    assert compiled() == 2
