"""A script that trains a model on both devices and fails if they differ, for processes of their own."""

from __future__ import annotations

_SCRIPT = """
import copy
import torch

torch.manual_seed(0)
on_cpu = torch.nn.Sequential(
    torch.nn.Linear(6, 16), LAYERS, torch.nn.Linear(16, 3)
)
model = copy.deepcopy(on_cpu).to("pjrt")
x, y = torch.randn(8, 6), torch.randint(0, 3, (8,))

def train(model, x, y):
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    losses = []
    for _ in range(4):
        loss = torch.nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach())
    return torch.stack(losses)

expected = train(on_cpu, x, y)
losses = train(model, x.to("pjrt"), y.to("pjrt"))
torch.testing.assert_close(losses.cpu(), expected)
for ours, theirs in zip(model.parameters(), on_cpu.parameters(), strict=True):
    torch.testing.assert_close(ours.detach().cpu(), theirs.detach())
"""


def trained_as_on_cpu(layers: str) -> str:
    """The script; `layers` is the source of those between the first and the last, of width 16.

    What comes after it finds the model on the device as `model`.
    """
    return _SCRIPT.replace("LAYERS", layers)
