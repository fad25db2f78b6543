"""PyTorch Geometric: `scatter`, and its first example of a network on a graph."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional
from torch_geometric import nn
from torch_geometric.data import Data
from torch_geometric.utils import scatter as scattered

from small import Costs


def _graph(n: int = 20, edges: int = 60) -> Data:
    generator = torch.Generator().manual_seed(0)
    return Data(
        x=torch.randn(n, 8, generator=generator),
        edge_index=torch.randint(n, (2, edges), generator=generator),
        y=torch.randint(4, (n,), generator=generator),
    )


def scatter(device: str, costs: Costs) -> Any:
    """With gradients."""
    found = []
    for reduce in ("sum", "mean", "min", "max", "mul", "any"):
        source = torch.randn(10, 6, 8, generator=torch.Generator().manual_seed(0)).to(device)
        source.requires_grad_()
        index = torch.tensor([0, 1, 0, 1, 2, 1]).to(device)
        result = scattered(source, index, dim=1, dim_size=4, reduce=reduce)
        result.square().sum().backward()
        found += [result.detach().cpu(), source.grad.cpu()]
    return found


class _Net(torch.nn.Module):
    def __init__(self, layer: Any) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = layer(8, 16), layer(16, 4)

    def forward(self, data: Any) -> torch.Tensor:
        x = functional.relu(self.first(data.x, data.edge_index))
        return functional.log_softmax(self.second(x, data.edge_index), dim=1)


def _trained(layer: Any, device: str, costs: Costs) -> Any:
    model, data = _Net(layer).to(device), _graph().to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=5e-4)
    losses = []
    for _ in range(8):
        costs.mark()
        optimizer.zero_grad()
        loss = functional.nll_loss(model(data), data.y)
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    costs.mark()
    return [loss.item() for loss in losses]


def sage(device: str, costs: Costs) -> Any:
    """The mean of neighbours."""
    return _trained(nn.SAGEConv, device, costs)


def gcn(device: str, costs: Costs) -> Any:
    """It looks for loops in the edges in each forward, and reads how many there are."""
    return _trained(nn.GCNConv, device, costs)


def gat(device: str, costs: Costs) -> Any:
    """With attention; it looks for loops, too."""
    return _trained(nn.GATConv, device, costs)
