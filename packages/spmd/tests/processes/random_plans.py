"""Random plans of tensor and sequence parallel for blocks of random sizes, on the device and by gloo.

In float64, so that what differs is not the order of sums. Ranks need not divide sequences and words.
"""

from __future__ import annotations

import json
import random
import sys
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)


class Block(nn.Module):
    def __init__(self, width: int, hidden: int, words: int) -> None:
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, hidden)
        self.down = nn.Linear(hidden, width, bias=width % 2 == 0)
        self.last = nn.LayerNorm(width)
        self.head = nn.Linear(width, words, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.words(tokens)
        x = x + self.down(torch.nn.functional.gelu(self.up(self.norm(x))))
        return self.head(self.last(x))


def plan(choose: random.Random) -> dict[str, Any]:
    """Of the whole, or of the sequence in parts between the products."""
    by_sequence = choose.random() < 0.7
    between: Any = Shard(1) if by_sequence else Replicate()
    norm = {"norm": SequenceParallel(), "last": SequenceParallel()} if by_sequence else {}
    words: Any = choose.choice((RowwiseParallel, ColwiseParallel))
    inputs = {"input_layouts": between} if by_sequence else {}
    return {
        "words": words(
            input_layouts=Replicate(), output_layouts=between, use_local_output=not by_sequence
        ),
        **norm,
        "up": ColwiseParallel(**inputs),
        "down": RowwiseParallel(output_layouts=between, use_local_output=not by_sequence),
        "head": ColwiseParallel(**inputs, output_layouts=choose.choice((Replicate(), Shard(-1)))),
    }


def trained(seed: int, device: str) -> list[torch.Tensor]:
    """The last output, gradients and parameters of two steps."""
    choose, n = random.Random(seed), dist.get_world_size()
    batch, length = choose.randint(1, 3), choose.randint(n, 9)
    width, hidden, words = (
        choose.randint(2, 7) * 2,
        choose.randint(1, 3) * n,
        choose.randint(2 * n, 17),
    )
    torch.manual_seed(seed)
    model = Block(width, hidden, words).double().to(device)
    mesh = init_device_mesh(device, (n,))
    parallelize_module(model, mesh, plan(choose))
    optimizer = torch.optim.SGD(model.parameters(), 0.01, foreach=False)
    tokens = torch.randint(words, (2, batch, length))
    said: list[Any] = []
    for step in range(2):
        optimizer.zero_grad()
        y = model(tokens[step].to(device))
        y.square().sum().backward()
        said = [y.detach(), *(p.grad for p in model.parameters())]
        optimizer.step()
    said += [p.detach() for p in model.parameters()]
    whole = [x.full_tensor() if isinstance(x, DTensor) else x for x in said]
    return [x.cpu() for x in whole]


def main() -> None:
    """Plans of the numbers from the first argument on, as many as the second one says."""
    first, n = int(sys.argv[1]), int(sys.argv[2])
    dist.init_process_group("cpu:gloo,pjrt:pjrt")
    failed, refused = [], 0
    for seed in range(first, first + n):
        try:
            expected = trained(seed, "cpu")
        except (RuntimeError, ValueError, NotImplementedError, AssertionError) as error:
            print(seed, type(error).__name__, str(error)[:200])
            refused += 1
            continue
        try:
            seen = trained(seed, "pjrt")
        except Exception as error:
            failed.append(f"{seed}: {type(error).__name__}: {' '.join(str(error).split())[:300]}")
            break
        wrong = [
            i for i, (a, b) in enumerate(zip(seen, expected, strict=True))
            if a.shape != b.shape or not torch.allclose(a, b, rtol=1e-10, atol=1e-10)
        ]  # fmt: skip
        if wrong:
            failed.append(f"{seed}: tensors {wrong} differ")
    print(json.dumps({"plans": n, "refused": refused, "failed": failed}))
    sys.stdout.flush()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
