"""`nn.DataParallel`, for which PyTorch takes the accelerator: one device, as on a machine with one GPU."""

from __future__ import annotations

import pytest
import torch
from torch import nn


@pytest.mark.parametrize("device", ["cpu", "pjrt"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.complex64])
def test_the_batch_goes_to_the_device_as_a_whole(device: str, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    alone = nn.Linear(3, 2, dtype=dtype)
    model = nn.DataParallel(nn.Linear(3, 2, dtype=dtype))
    model.module.load_state_dict(alone.state_dict())
    leaf = torch.randn(4, 3, dtype=dtype)
    x, given = leaf.clone().requires_grad_(), leaf.to(device).detach().requires_grad_()

    expected, result = alone(x), model(given)
    expected.abs().sum().backward()
    result.abs().sum().backward()

    assert model.device_ids == [0]
    assert result.device.type == "pjrt"
    torch.testing.assert_close(result.cpu(), expected)
    assert given.grad is not None and given.grad.device == given.device
    torch.testing.assert_close(given.grad.cpu(), x.grad)
    torch.testing.assert_close(model.module.weight.grad.cpu(), alone.weight.grad)


def test_structures_and_keywords_are_taken() -> None:
    class Model(nn.Module):
        def forward(
            self, pair: tuple[torch.Tensor, str], *, scale: torch.Tensor
        ) -> dict[str, torch.Tensor]:
            return {pair[1]: pair[0] * scale}

    result = nn.DataParallel(Model())((torch.ones(2), "twice"), scale=torch.full((2,), 2.0))
    assert result["twice"].tolist() == [2.0, 2.0]


def test_data_parallel_of_one_device_is_the_module() -> None:
    model = nn.Linear(3, 2).to("pjrt")
    result = nn.parallel.data_parallel(model, torch.ones(4, 3), [0])
    assert torch.equal(result, model(torch.ones(4, 3).to("pjrt")))
