"""Layers that train with products of float8 train on the device as on the CPU, and keep 8 bits of inputs."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor

from torch_pjrt_quant import Float8TrainingLinear, float8_training_
from torch_pjrt_quant.float8_training import E4M3, E5M2, to_float8

pytestmark = pytest.mark.filterwarnings("ignore:no product of float8")


def model() -> torch.nn.Sequential:
    layers = [torch.nn.Linear(32, 48), torch.nn.GELU(), torch.nn.Linear(48, 16, bias=False)]
    return torch.nn.Sequential(*layers)


def losses(trained: torch.nn.Module, device: str, batches: list[Tensor]) -> Tensor:
    trained.to(device)
    optimizer = torch.optim.SGD(trained.parameters(), lr=0.3)
    made = []
    for x in batches:
        loss = (trained(x.to(device)) - 0.5).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        made.append(loss.detach())
    return torch.stack(made).cpu()


def test_losses_are_those_of_the_cpu_and_near_those_of_float32():
    wide, batches = model(), [torch.randn(4, 3, 32) for _ in range(5)]
    here, there = (float8_training_(copy.deepcopy(wide)) for _ in range(2))

    on_cpu = losses(here, "cpu", batches)
    on_device = losses(there, "pjrt", batches)

    torch.testing.assert_close(on_device, on_cpu, rtol=1e-3, atol=1e-4)
    of_float32 = losses(wide, "cpu", batches)
    assert not torch.equal(on_cpu, of_float32)
    torch.testing.assert_close(on_cpu, of_float32, rtol=0.03, atol=0)
    assert on_cpu[-1] < on_cpu[0]


def test_gradients_are_products_of_what_was_rounded():
    layer: Any = torch.nn.Sequential(torch.nn.Linear(32, 16, bias=False))
    float8_training_(layer.to("pjrt"))
    x, gradient = torch.randn(8, 32), torch.randn(8, 16)
    there = x.to("pjrt").requires_grad_()

    layer(there).backward(gradient.to("pjrt"))

    def rounded(t: Tensor, dtype: torch.dtype) -> Tensor:
        numbers, scale = to_float8(t, dtype)
        return numbers.float() * scale

    weight = layer[0].weight.detach().cpu()
    g = rounded(gradient, E5M2)
    assert there.grad is not None and layer[0].weight.grad is not None
    torch.testing.assert_close(there.grad.cpu(), g @ rounded(weight, E4M3), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(
        layer[0].weight.grad.cpu(), g.T @ rounded(x, E4M3), rtol=1e-5, atol=1e-5
    )


def test_what_is_kept_for_the_backward_has_8_bits():
    layer, x = float8_training_(torch.nn.Sequential(torch.nn.Linear(32, 16))), torch.randn(8, 32)
    kept: list[Tensor] = []

    def keep(tensor: Tensor) -> Tensor:
        kept.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda t: t):
        layer(x.requires_grad_())

    assert all(t.element_size() == 1 for t in kept if t.numel() > 1)
    assert {t.dtype for t in kept if t.numel() > 1} == {E4M3}


@pytest.mark.filterwarnings("ignore:.*should not be instantiated")  # Dynamo's own
def test_compiled_it_is_one_graph_with_the_same_results():
    trained = float8_training_(model()).to("pjrt")
    x = torch.randn(4, 32, device="pjrt")

    compiled = torch.compile(trained, backend="pjrt", fullgraph=True)(x)

    torch.testing.assert_close(compiled.cpu(), trained(x).cpu(), rtol=1e-4, atol=1e-4)


def test_it_says_that_the_device_does_not_multiply_float8():
    with pytest.warns(UserWarning, match="no product of float8 on cpu"):
        float8_training_(model().to("pjrt"))


def test_layers_may_be_left_out_and_parameters_stay():
    before = model()
    weight = before[2].weight

    float8_training_(before, lambda name, _: name == "2")

    assert [type(m) for m in before] == [torch.nn.Linear, torch.nn.GELU, Float8TrainingLinear]
    assert before[2].weight is weight and {*before.state_dict()} == {*model().state_dict()}
