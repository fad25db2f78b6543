"""A step gives the memory of old values to new ones; what somebody still holds is never lost."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import jax
import pytest
import torch
from torch import nn

import torch_pjrt
from fixture_types import Count, Run
from torch_pjrt.tensor.storage.view import value_of

pytestmark = pytest.mark.usefixtures("no_garbage")


def donated() -> int:
    return torch_pjrt.report().as_dict()["donated"]


def array_of(x: torch.Tensor) -> Any:
    torch_pjrt.sync()
    return value_of(x).array


def address_of(x: torch.Tensor) -> int:
    """Of its memory on the device, which nothing is kept alive by."""
    return array_of(x).unsafe_buffer_pointer()


def bytes_on_the_device() -> int:
    gc.collect()
    torch.pjrt.synchronize()  # type: ignore[attr-defined]
    return sum(a.nbytes for a in jax.live_arrays() if not a.is_deleted())


def test_in_place_write_takes_over_the_memory() -> None:
    x = torch.ones(1000, device="pjrt")
    torch_pjrt.sync()
    address, before = address_of(x), donated()

    x.add_(1)

    assert address_of(x) == address
    assert donated() == before + 1
    assert x.sum().item() == 2000


@pytest.mark.slow
def test_an_operator_that_has_imported_dynamo_holds_no_memory(python: Run) -> None:
    script = """
import gc, sys
gc.disable()
import torch, torch_pjrt
from torch_pjrt.device import without_dynamo
without_dynamo._left_alone = lambda: []  # as with a PyTorch that marks its functions otherwise
x = torch.ones(1000, device="pjrt")
torch_pjrt.sync()
assert "torch._dynamo" not in sys.modules
x.add_(1)
assert "torch._dynamo" in sys.modules
torch_pjrt.sync()
print(torch_pjrt.report().as_dict()["donated"])
"""
    assert python(script, fresh=True).stdout.split() == ["1"]


def test_optimizer_step_donates_parameters_and_state() -> None:
    model = nn.Linear(8, 8).to("pjrt")
    optimizer = torch.optim.AdamW(model.parameters())
    x = torch.ones(2, 8, device="pjrt")
    addresses, n_donated = [], []
    for _ in range(4):
        before = donated()
        model(x).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        moments = [
            of[name] for of in optimizer.state.values() for name in ("exp_avg", "exp_avg_sq")
        ]
        addresses.append([address_of(t) for t in [*model.parameters(), *moments]])
        n_donated.append(donated() - before)

    # Weight and bias, with two moments each; PyTorch counts steps on the CPU or here, as it likes.
    assert n_donated[-1] >= 6
    assert addresses[-1] == addresses[-2]


def test_array_that_somebody_holds_is_not_lost() -> None:
    x = torch.ones(10, device="pjrt")
    held = array_of(x)

    x.add_(1)
    torch_pjrt.sync()

    assert not held.is_deleted()
    assert held.sum() == 10
    assert x.sum().item() == 20


def test_copy_taken_before_the_write_keeps_its_value() -> None:
    x = torch.ones(10, device="pjrt")
    copy = x.clone()
    torch_pjrt.sync()

    x.add_(1)
    torch_pjrt.sync()

    assert copy.sum().item() == 10
    assert x.sum().item() == 20


def test_two_tensors_on_one_array_can_both_be_written() -> None:
    x = torch.ones(10, device="pjrt")
    y = torch.empty(10, device="pjrt").copy_(x)
    torch_pjrt.sync()

    x.add_(1)
    y.mul_(5)
    torch_pjrt.sync()

    assert (x.sum().item(), y.sum().item()) == (20, 50)


def test_host_copy_survives_the_donation_of_its_source() -> None:
    x = torch.ones(10, device="pjrt")
    host = x.cpu()
    numpy = x.cpu().numpy()

    for _ in range(3):
        x.add_(1)
        torch_pjrt.sync()

    assert host.sum() == numpy.sum() == 10


def test_program_that_donates_also_runs_when_its_input_is_held() -> None:
    results, held = [], []
    for i in range(4):
        x = torch.full((10,), float(i), device="pjrt")
        torch_pjrt.sync()
        if i % 2:
            held.append(value_of(x).array)
        x.add_(1)
        torch_pjrt.sync()
        results.append(x.sum().item())

    assert results == [10, 20, 30, 40]
    assert [a.sum() for a in held] == [10, 30]


def test_a_step_whose_inputs_are_held_now_and_then_is_no_other_program(compiled: Count) -> None:
    weights = [torch.full((10,), float(i)).to("pjrt") for i in range(5)]
    averages = [torch.empty_like(w) for w in weights]

    def step() -> None:
        for w in weights:
            w.mul_(2).add_(1)
        torch_pjrt.sync()

    step()
    step()
    for a, w in zip(averages, weights, strict=True):
        a.copy_(w)  # which shares the array
    for _ in range(3):
        step()

    assert compiled() == 1
    assert [a.tolist() for a in averages] == [[4.0 * i + 3] * 10 for i in range(5)]
    assert [w.tolist() for w in weights] == [[32.0 * i + 31] * 10 for i in range(5)]


def test_saved_tensor_of_autograd_is_not_donated() -> None:
    weight = torch.ones(3, device="pjrt", requires_grad=True)
    x = torch.full((3,), 2.0, device="pjrt")
    y = (weight * x).sum()
    torch_pjrt.sync()

    with torch.no_grad():
        weight.data.mul_(10)
    torch_pjrt.sync()
    y.backward()

    assert weight.grad.tolist() == [2, 2, 2]


@pytest.mark.parametrize("pending", [False, True])
def test_dropped_tensors_free_their_memory(pending: bool) -> None:
    x = torch.arange(250_000.0, device="pjrt")
    torch_pjrt.sync()
    before = bytes_on_the_device()

    results = [x + i for i in range(4)]
    if not pending:
        torch_pjrt.sync()
        assert bytes_on_the_device() == before + 4_000_000
    del results

    assert bytes_on_the_device() == before


@pytest.mark.slow
def test_memory_does_not_grow_from_step_to_step() -> None:
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 4)).to("pjrt")
    optimizer = torch.optim.AdamW(model.parameters())
    held = []

    for _ in range(8):
        model(torch.randn(16, 64).to("pjrt")).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        held.append(bytes_on_the_device())

    assert held[3] == held[-1]


def test_dead_tensors_leave_without_the_garbage_collector() -> None:
    gc.collect()
    gc.disable()
    try:
        x = torch.ones(1000, device="pjrt", requires_grad=True)
        torch_pjrt.sync()
        y = (x * 2).exp()
        value = weakref.ref(y.untyped_storage())
        y.sum().backward()
        torch_pjrt.sync()
        n_before = len([a for a in jax.live_arrays() if a.shape == (1000,)])
        del y
        n_after = len([a for a in jax.live_arrays() if a.shape == (1000,)])
    finally:
        gc.enable()

    assert n_after < n_before
    assert value is not None


def test_what_was_held_in_the_first_steps_is_donated_when_nobody_holds_it() -> None:
    def step(held: int) -> int:
        """Update five tensors of which so many are held; how many gave their memory."""
        holds = [torch_pjrt.to_jax(x) for x in xs[:held]]
        for x in xs:
            x.add_(1)
        before = donated()
        torch_pjrt.sync()
        del holds
        return donated() - before

    xs = [torch.zeros(3, device="pjrt") for _ in range(5)]
    torch_pjrt.sync()

    assert [step(held) for held in (4, 2, 0, 0)] == [1, 3, 5, 5]
