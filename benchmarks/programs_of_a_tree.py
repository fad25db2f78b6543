"""How many programs a tree compiles for a few scripts: run it on two trees and compare.

    PYTHONPATH=packages/core/src:packages/plugins-cpu/src python benchmarks/programs_of_a_tree.py

Counts depend on no clock. It uses only what the first public commits have, too.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

import torch_pjrt


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to("pjrt")


def training() -> float:
    """Five steps of AdamW."""
    model = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 4)).to("pjrt")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    x, y = drawn(8, 16), torch.arange(8).remainder(4).to("pjrt")
    torch_pjrt.sync()
    loss = torch.zeros(())
    for _ in range(5):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
    return loss.item()


def transformer() -> float:
    """A transformer layer, three times."""
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True, dropout=0.0)
    layer, x = layer.to("pjrt").eval(), drawn(2, 7, 16)
    torch_pjrt.sync()
    with torch.no_grad():
        return [layer(x).square().sum().item() for _ in range(3)][-1]


def selections() -> float:
    """Selections and sorts, of six sizes that values decide."""
    total = 0.0
    for seed in range(6):
        x = drawn(40, seed=seed)
        chosen = x[x > 0]
        total += (chosen * 2 + 1).sum().item() + chosen.sort().values[0].item()
        total += (x > 0.5).nonzero().sum().item()
    return total


def products() -> float:
    """Products, softmax and `cat` of selected rows, of six sizes that values decide."""
    total = 0.0
    for seed in range(6):
        x = drawn(12, 5, seed=seed)
        chosen = x[x[:, 0] > 0]
        total += (chosen @ x.T).softmax(-1).sum().item() + torch.cat([chosen, x]).mean().item()
    return total


SCRIPTS: tuple[Callable[[], float], ...] = (training, transformer, selections, products)


def main() -> None:
    torch_pjrt.config.cache_dir = None
    for script in SCRIPTS:
        torch.manual_seed(0)
        torch_pjrt.sync()
        before = torch_pjrt.report().counts["programs_compiled"]
        result = script()
        n = torch_pjrt.report().counts["programs_compiled"] - before
        print(f"{n:3} programs, result {result:.5g}: {script.__doc__}", flush=True)


if __name__ == "__main__":
    main()
