"""Train a small network over eight chips of one process: the batch is spread by hand, weights by a plan.

    XLA_FLAGS=--xla_force_host_platform_device_count=8 python train_spmd.py    # a CPU as eight chips
    python train_spmd.py --device cpu                                          # to compare

Wants `torch-pjrt-spmd`. The program is written for one device; marks say how tensors lie.
"""

import argparse
from typing import Any

import torch
from torch import Tensor, nn


def build_model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 256), nn.GELU(), nn.Linear(256, 8)
    )


def spread(model: Any) -> tuple[object, list[str]]:
    """Mark each weight of two that follow each other by columns, then by rows; and how it lies."""
    from torch_pjrt_spmd import Mesh, mark_sharding, use_mesh

    mesh = Mesh((2, 4), ("data", "model"))
    use_mesh(mesh)
    mark_sharding(model[0].weight, mesh, ("model", None))
    mark_sharding(model[0].bias, mesh, ("model",))
    mark_sharding(model[2].weight, mesh, (None, "model"))
    return mesh, ["0.weight by columns", "2.weight by rows"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", choices=["pjrt", "cpu"], default="pjrt")
    parser.add_argument("--steps", type=int, default=20)
    options = parser.parse_args()

    model = build_model().to(options.device)
    mesh, said = spread(model) if options.device == "pjrt" else (None, ["on one device"])
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    generator = torch.Generator().manual_seed(1)
    loss = torch.zeros(())
    for _ in range(options.steps):
        x = torch.randn(32, 64, generator=generator)
        labels = x[:, :8].argmax(1)
        loss = train(model, optimizer, *(over(mesh, part, options.device) for part in (x, labels)))
    print(f"on {options.device}; {', '.join(said)}; last loss {loss.item():.4f}")


def over(mesh: object, part: Tensor, device: str) -> Tensor:
    """On the device; over the axis `data` of the mesh where there is one."""
    if mesh is None:
        return part.to(device)
    from torch_pjrt_spmd import distribute_tensor

    return distribute_tensor(part, mesh, ("data",))  # type: ignore[arg-type]


def train(model: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor, labels: Tensor) -> Tensor:
    loss = nn.functional.cross_entropy(model(x), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.detach()


if __name__ == "__main__":
    main()
