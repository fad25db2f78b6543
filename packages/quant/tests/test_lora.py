"""Adapters learn on top of frozen weights of four bits."""

from __future__ import annotations

import pytest
import torch

import torch_pjrt
from torch_pjrt.extend import counters
from torch_pjrt_quant import Nf4, QuantizedLinear, add_lora_, quantize_


def test_adapters_learn_and_nothing_else_changes():
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Tanh(), torch.nn.Linear(64, 64))
    quantize_(model, Nf4(group_size=32)).to("pjrt")
    x, y = torch.randn(32, 64, device="pjrt"), torch.randn(32, 64, device="pjrt")
    before = model(x).cpu()

    add_lora_(model, rank=4)
    first = model(x).cpu()
    frozen = {n: b.cpu().clone() for n, b in model.named_buffers()}
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-2)
    losses = []
    for _ in range(20):
        loss = torch.nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())

    assert torch.equal(first, before)
    assert len(trained) == 4
    assert losses[-1] < 0.8 * losses[0]
    assert all(torch.equal(b.cpu(), frozen[n]) for n, b in model.named_buffers())


def test_without_small_weights_it_is_refused():
    with pytest.raises(ValueError, match="`quantize_` the module first"):
        add_lora_(torch.nn.Sequential(torch.nn.Linear(4, 4)))


@pytest.mark.filterwarnings("ignore")  # PEFT's own
def test_adapters_of_peft_learn_on_layers_that_become_small():
    peft = pytest.importorskip("peft")
    config = peft.LoraConfig(r=4, target_modules=["0", "2"])
    linear = torch.nn.Linear
    model = peft.get_peft_model(
        torch.nn.Sequential(linear(64, 64), torch.nn.Tanh(), linear(64, 64)), config
    )
    quantize_(model, Nf4(group_size=32), lambda name, _: name.endswith("base_layer")).to("pjrt")
    assert sum(isinstance(m, QuantizedLinear) for m in model.modules()) == 2
    x, y = torch.randn(32, 64, device="pjrt"), torch.randn(32, 64, device="pjrt")
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-2)
    torch_pjrt.sync()
    before = counters.fallbacks.total()

    losses = []
    for _ in range(20):
        loss = torch.nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())

    assert len(trained) == 4
    assert losses[-1] < 0.8 * losses[0]
    assert counters.fallbacks.total() == before
    assert len(peft.get_peft_model_state_dict(model)) == 4
