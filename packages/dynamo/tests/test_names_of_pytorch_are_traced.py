"""Functions of PyTorch that this project has put its own around are traced as PyTorch's: one graph, on any
device. What Dynamo refuses without this project is no row.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.exc import Unsupported
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

LAYER = nn.Sequential(nn.Linear(4, 4), nn.Tanh())


class Moving(nn.Module):
    """Its layer goes to a dtype in each forward, as routers of Transformers do."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        self.layer = self.layer.to(torch.float32)
        return self.layer(x)


class Around(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = Moving()

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x) + 1


MOVING, AROUND = Moving(), Around()


def a_module_to_a_dtype(x: Tensor) -> Tensor:
    return LAYER.to(torch.float32)(x)


def a_module_to_its_device(x: Tensor) -> Tensor:
    return LAYER.to(x.device)(x)


def a_module_as_floats(x: Tensor) -> Tensor:
    return LAYER.float()(x)


def a_layer_that_moves(x: Tensor) -> Tensor:
    return MOVING.to(x.device)(x)


def a_layer_of_a_layer_that_moves(x: Tensor) -> Tensor:
    return AROUND.to(x.device)(x)


def autocast(x: Tensor) -> Tensor:
    with torch.autocast(x.device.type, dtype=torch.bfloat16):
        return LAYER.to(x.device)(x)


def a_checkpoint(x: Tensor) -> Tensor:
    layer = LAYER.to(x.device)
    found = checkpoint(lambda y: layer(y).sin(), x, use_reentrant=False)
    assert isinstance(found, Tensor)
    return found


def a_loss_by_chunks(x: Tensor) -> Tensor:
    target = torch.zeros(3, dtype=torch.int64, device=x.device)
    return F.linear_cross_entropy(x, torch.ones(5, 4, device=x.device), target)


def the_accelerator_at_hand(x: Tensor) -> Tensor:
    return x + 1 if torch.accelerator.is_available() else x


def a_state_dict(x: Tensor) -> Tensor:
    return x + len(LAYER.state_dict())


def clipped_gradients(x: Tensor) -> Tensor:
    return x + nn.utils.clip_grad_norm_(LAYER.parameters(), 1.0)


def a_functional_call(x: Tensor) -> Tensor:
    layer = LAYER.to(x.device)
    found = torch.func.functional_call(layer, dict(layer.named_parameters()), (x,))
    assert isinstance(found, Tensor)
    return found


FUNCTIONS = [
    *(a_module_to_a_dtype, a_module_to_its_device, a_module_as_floats, a_layer_that_moves),
    *(a_layer_of_a_layer_that_moves, autocast, a_checkpoint, a_loss_by_chunks),
    *(the_accelerator_at_hand, a_state_dict, clipped_gradients, a_functional_call),
]


@pytest.mark.parametrize("backend", ["eager", "pjrt"])
@pytest.mark.parametrize("device", ["cpu", "pjrt"])
@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda f: f.__name__)
def test_it_is_one_graph(function: Callable[[Tensor], Tensor], device: str, backend: str) -> None:
    torch._dynamo.reset()
    x = torch.arange(12.0).reshape(3, 4).to(device) / 7
    for module in (LAYER, MOVING, AROUND):
        module.to(device)

    try:
        found = torch.compile(function, backend=backend, fullgraph=True)(x)
    except Unsupported as error:
        if "setattr() is not supported on type OrderedDict" in str(error):
            pytest.skip("PyTorch 2.15 traces no `state_dict()`, without this package either")
        raise

    torch.testing.assert_close(found, function(x), rtol=1e-2, atol=1e-2)


def test_this_project_has_put_its_own_around_modules() -> None:
    torch.ones(1, device="pjrt")

    assert getattr(nn.Module._apply, "knows_pjrt", False)
