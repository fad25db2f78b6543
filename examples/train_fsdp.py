"""Train a small transformer in two processes, each with half of its parameters, by PyTorch's `fully_shard`.

    torchrun --standalone --nproc-per-node 2 train_fsdp.py
    torchrun --standalone --nproc-per-node 2 train_fsdp.py --device cpu    # gloo, to compare

Wants `torch-pjrt-spmd`, which has the backend `pjrt` of `torch.distributed`.
"""

import argparse

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard


def build_model() -> nn.Sequential:
    torch.manual_seed(0)
    layers = [
        nn.TransformerEncoderLayer(64, 4, 128, dropout=0.0, batch_first=True) for _ in range(2)
    ]
    return nn.Sequential(nn.Embedding(32, 64), *layers, nn.Linear(64, 32))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", choices=["pjrt", "cpu"], default="pjrt")
    parser.add_argument("--steps", type=int, default=20)
    options = parser.parse_args()

    dist.init_process_group("pjrt" if options.device == "pjrt" else "gloo")
    rank, n = dist.get_rank(), dist.get_world_size()
    mesh = init_device_mesh(options.device, (n,))
    model = build_model().to(options.device)
    for layer in model:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    held = sum(p.to_local().numel() for p in model.parameters())  # type: ignore[attr-defined]

    words = torch.randint(32, (64, 17), generator=torch.Generator().manual_seed(1)).cumsum(1) % 32
    loss = torch.zeros(())
    for step in range(options.steps):
        batch = words[step % 4 * 16 :][:16].chunk(n)[rank].to(options.device)
        logits = model(batch[:, :-1])
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    mean = loss.detach()
    dist.all_reduce(mean)
    if rank == 0:
        whole = sum(p.numel() for p in model.parameters())
        print(
            f"on {options.device}; holds {held} of {whole} numbers; last loss {mean.item() / n:.4f}"
        )
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
