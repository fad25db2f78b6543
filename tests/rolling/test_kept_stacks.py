"""Weights and optimizer state of layers in a loop stay stacked on the device from one step to the next."""

from __future__ import annotations

import copy
import gc
import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.exc import BackendCompilerFailed

import torch_pjrt
import warm
from fixture_types import Count
from torch_pjrt.client.stack_elements import StackElement
from torch_pjrt.compile.programs import forget_programs
from torch_pjrt.observe.counters import counters
from torch_pjrt.tensor.storage.buffer import buffer_of

pjrt: Any = torch.pjrt  # type: ignore[attr-defined]


@pytest.fixture(autouse=True)
def _rolled() -> Iterator[None]:
    before = torch_pjrt.config.roll_layers
    torch_pjrt.config.roll_layers = "on"
    torch_pjrt.sync()
    gc.collect()
    forget_programs()  # another test's may donate less, for what it held
    yield
    torch_pjrt.config.roll_layers = before


class Training:
    """A first layer, five that are equal, and AdamW; `step` trains them."""

    def __init__(self, device: str = "pjrt") -> None:
        torch.manual_seed(0)
        layers = [nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.LayerNorm(8)) for _ in range(5)]
        self.model = nn.Sequential(nn.Linear(8, 8), *layers).to(device)
        self.x = torch.linspace(-1, 1, 32).view(4, 8).to(device)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-2)

    def step(self) -> Tensor:
        loss = self.model(self.x).square().sum()
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss.detach()

    def weight(self, layer: int) -> Tensor:
        return self.model.get_parameter(f"{layer + 1}.0.weight")


@pytest.fixture
def trained() -> Training:
    training = Training()
    for _ in range(4):
        training.step()
    return training


def array_of(tensor: Tensor) -> Any:
    value = buffer_of(tensor).value
    assert value is not None
    return value.array


def stacks_made_by(*actions: Callable[[], object]) -> list[int]:
    """How many stacks were put together by each of the actions."""
    made = []
    for action in actions:
        before = counters.stacks_made
        action()
        made.append(counters.stacks_made - before)
    return made


def test_weights_and_state_of_all_layers_are_rows_of_one_stack(trained: Training) -> None:
    weights = [trained.weight(i) for i in range(5)]
    for tensors in (weights, [trained.optimizer.state[w]["exp_avg"] for w in weights]):
        elements = [array_of(tensor) for tensor in tensors]
        assert all(isinstance(element, StackElement) for element in elements)
        assert {id(element.stack) for element in elements} == {id(elements[0].stack)}
        assert [element.index for element in elements] == [0, 1, 2, 3, 4]


def test_a_step_puts_no_stack_together(trained: Training) -> None:
    assert stacks_made_by(trained.step, trained.step) == [0, 0]


def test_a_step_takes_the_memory_of_the_stacks(trained: Training) -> None:
    trained.step()
    old = array_of(trained.weight(0)).stack.array

    trained.step()

    assert old.is_deleted()


def test_memory_is_taken_too_after_dynamo_has_failed(trained: Training) -> None:
    """From then on it looks at each frame, and Python counts references to arguments differently."""

    def refuse(graph: object, examples: object) -> Callable[..., object]:
        raise ValueError("no")

    with pytest.raises(BackendCompilerFailed):
        torch.compile(torch.sin, backend=refuse)(torch.ones(2))
    trained.step()
    old = array_of(trained.weight(0)).stack.array

    trained.step()

    assert old.is_deleted()


@pytest.mark.slow
def test_no_memory_is_held_twice() -> None:
    def held(mode: str) -> int:
        torch_pjrt.config.roll_layers = mode
        training = Training()
        torch_pjrt.sync()
        gc.collect()
        before = pjrt.memory_allocated()
        for _ in range(4):
            training.step()
        return pjrt.memory_allocated() - before

    assert held("on") == held("off")


def test_reading_a_weight_gives_it_and_changes_nothing(trained: Training) -> None:
    elements = array_of(trained.weight(1)).stack

    values = trained.weight(1).detach().cpu()

    assert torch.equal(values, torch.tensor(torch_pjrt.to_jax(trained.weight(1)).tolist()))
    assert array_of(trained.weight(1)).stack is elements
    assert stacks_made_by(trained.step) == [0]


@pytest.mark.slow
def test_a_changed_weight_counts_and_costs_one_copy() -> None:
    """In a process of its own: after some 1,500 other tests one more program was compiled, unexplained."""
    of_its_own = f"{__file__}::of_its_own_a_changed_weight"
    options = ["-q", "-p", "no:cacheprovider", "-o", "python_functions=of_its_own"]
    done = warm.run(["-m", "pytest", of_its_own, *options], os.environ)

    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 passed" in done.stdout


def of_its_own_a_changed_weight(trained: Training, compiled: Count) -> None:
    expected = Training("cpu")
    expected.model.load_state_dict({k: v.cpu() for k, v in trained.model.state_dict().items()})
    expected.optimizer.load_state_dict(copy.deepcopy(trained.optimizer.state_dict()))

    for training in (expected, trained):
        training.weight(2).data = training.weight(2).detach() * 0.5
        training.weight(3).data.zero_()
    trained.step()
    made = stacks_made_by(trained.step, trained.step)

    for _ in range(3):
        expected.step()
    torch.testing.assert_close(
        [p.cpu() for p in trained.model.parameters()], list(expected.model.parameters())
    )
    assert made == [1, 0], "the new weight has another buffer"
    programs = compiled()
    trained.weight(2).data = trained.weight(2).detach() * 0.5
    torch_pjrt.sync()
    assert stacks_made_by(trained.step, trained.step) == [1, 0]
    assert compiled() == programs + 1, "halving the weight; the step is known"


def test_loading_a_state_compiles_nothing(trained: Training, compiled: Count) -> None:
    for _ in range(3):
        trained.step()
    state = {k: v.cpu() for k, v in trained.model.state_dict().items()}
    trained.step()
    programs = compiled()

    trained.model.load_state_dict(state)
    trained.step()

    assert compiled() == programs, "the state is there, and the step is known"


def test_who_holds_the_value_of_an_old_weight_keeps_it(trained: Training) -> None:
    """`copy_` of a whole tensor shares its immutable value: an element of a stack that the next step uses."""
    expected = Training("cpu")
    expected.model.load_state_dict({k: v.cpu() for k, v in trained.model.state_dict().items()})
    expected.optimizer.load_state_dict(copy.deepcopy(trained.optimizer.state_dict()))
    twin, single = Training().model, torch.empty(8, 8, device="pjrt")

    for layer in (2, 1, 4):  # for the second and third no program is made: a copy is taken instead
        twin.load_state_dict(trained.model.state_dict())
        torch_pjrt.sync()
        held = {k: v.detach().clone() for k, v in expected.model.state_dict().items()}
        for training in (trained, expected):
            training.step()
        torch.testing.assert_close({k: v.cpu() for k, v in twin.state_dict().items()}, held)
        single.copy_(trained.weight(layer).detach())
        torch_pjrt.sync()
        one = expected.weight(layer).detach().clone()
        for training in (trained, expected):
            training.step()
        torch.testing.assert_close(single.cpu(), one)
    torch.testing.assert_close(
        [p.cpu() for p in trained.model.parameters()], list(expected.model.parameters())
    )


def test_an_array_of_jax_is_a_copy_of_the_row(trained: Training) -> None:
    array = torch_pjrt.to_jax(trained.weight(4))
    before = array.tolist()

    trained.step()

    assert array.tolist() == before
    assert trained.weight(4).tolist() != before


def test_a_copy_of_the_model_shares_nothing_that_is_taken(trained: Training) -> None:
    twin = copy.deepcopy(trained.model)
    before = [p.detach().cpu() for p in trained.model.parameters()]

    trained.step()
    trained.step()

    for copied, original in zip(twin.parameters(), before, strict=True):
        assert torch.equal(copied.detach().cpu(), original)


def test_evaluation_between_the_steps_takes_the_same_stacks(trained: Training) -> None:
    @torch.no_grad()
    def evaluate() -> float:
        return trained.model(trained.x).sum().item()

    evaluate()

    assert stacks_made_by(evaluate, trained.step, evaluate) == [0, 0, 0]


def test_layers_that_are_not_trained_are_a_stack_of_their_own() -> None:
    training = Training()
    for i in (1, 3):
        training.model[i + 1].requires_grad_(False)
    for _ in range(4):
        training.step()

    assert stacks_made_by(training.step, training.step) == [0, 0]


def test_layers_frozen_in_training_become_a_stack_of_their_own(trained: Training) -> None:
    for i in (1, 3):
        trained.model[i + 1].requires_grad_(False)

    made = stacks_made_by(*[trained.step] * 5)

    assert made[0] > 0
    assert made[3:] == [0, 0]


def test_captured_step_puts_loaded_weights_together_once(trained: Training) -> None:
    forward = torch_pjrt.capture(torch.no_grad()(lambda x: trained.model(x).sum()))
    for _ in range(3):
        forward(trained.x)
    replays = counters.replays
    trained.model.load_state_dict({k: v.cpu() for k, v in trained.model.state_dict().items()})

    made = stacks_made_by(*[lambda: forward(trained.x)] * 3)

    assert counters.replays == replays + 3
    assert made[0] > 0
    assert made[1:] == [0, 0]


def test_report_counts_what_was_put_together_and_taken_apart() -> None:
    counts = torch_pjrt.report().counts

    Training().step()

    after = torch_pjrt.report().counts
    assert after["stacks_made"] > counts["stacks_made"]
    assert after["elements_taken"] >= counts["elements_taken"]
