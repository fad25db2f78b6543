"""Time and error of models that PT2E has quantized, against float32, on the device that is there.

    python benchmarks/quant_pt2e.py > benchmarks/results/quant-pt2e.md

Needs torchao. Models are ResNet- and ViT-shaped, of random weights.
"""

from __future__ import annotations

import logging
import time
import warnings
from typing import Any

import torch
from torch import Tensor

from torch_pjrt.plugin import client
from torch_pjrt_quant import PjrtQuantizer, lower_pt2e

F = torch.nn.functional


class Bottleneck(torch.nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        inner = channels // 4
        self.parts = torch.nn.Sequential(
            torch.nn.Conv2d(channels, inner, 1), torch.nn.BatchNorm2d(inner), torch.nn.ReLU(),
            torch.nn.Conv2d(inner, inner, 3, padding=1), torch.nn.BatchNorm2d(inner), torch.nn.ReLU(),
            torch.nn.Conv2d(inner, channels, 1), torch.nn.BatchNorm2d(channels),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(x + self.parts(x))


class Encoder(torch.nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads, self.before, self.between = (
            heads,
            torch.nn.LayerNorm(width),
            torch.nn.LayerNorm(width),
        )
        self.qkv, self.out = torch.nn.Linear(width, 3 * width), torch.nn.Linear(width, width)
        self.up, self.down = torch.nn.Linear(width, 4 * width), torch.nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(self.before(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        x = x + self.out(mixed)
        return x + self.down(F.gelu(self.up(self.between(x))))


def resnet() -> torch.nn.Module:
    stem = [torch.nn.Conv2d(3, 256, 7, stride=4, padding=3), torch.nn.ReLU()]
    return torch.nn.Sequential(*stem, *[Bottleneck(256) for _ in range(4)])


def vit() -> torch.nn.Module:
    return torch.nn.Sequential(*[Encoder(384, 6) for _ in range(4)])


#   name, what makes it, the shape of its input
MODELS = [
    ("ResNet, 4 blocks of 256 channels", resnet, (1, 3, 224, 224)),
    ("ViT, 4 layers, width 384, 197 tokens", vit, (1, 197, 384)),
]


def milliseconds(model: Any, x: Tensor) -> float:
    step = torch.compile(model, backend="pjrt", fullgraph=True)
    times = []
    with torch.no_grad():
        for _ in range(8):
            begin = time.perf_counter()
            step(x).cpu()
            times.append(time.perf_counter() - begin)
    return 1e3 * min(times)


def main() -> None:
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    from torchao.quantization.pt2e.quantize_pt2e import (  # pyright: ignore[reportMissingImports]
        convert_pt2e,
        prepare_pt2e,
    )

    torch.zeros(1, device="pjrt")  # starts the device
    print("# Models that PT2E has quantized\n")
    print("Made by `python benchmarks/quant_pt2e.py`; [how](../../docs/quantization.md). Random")
    print(f"weights, batch 1, compiled, on {client().device.name}. Error relative to float32.\n")
    print("| model | float32, ms | products | int8, ms | error |\n|---|--:|---|--:|--:|")
    for name, make, shape in MODELS:
        torch.manual_seed(0)
        model, x = make().eval(), torch.randn(shape)
        with torch.no_grad():
            wanted = model(x)
        first = None
        for dynamic in (False, True):
            program: Any = torch.export.export(model, (x,), strict=False).module()
            prepared = prepare_pt2e(program, PjrtQuantizer(dynamic=dynamic))
            with torch.no_grad():
                prepared(x)
            small = lower_pt2e(convert_pt2e(prepared)).to("pjrt")
            first = first or milliseconds(make().eval().to("pjrt"), x.to("pjrt"))
            took = milliseconds(small, x.to("pjrt"))
            with torch.no_grad():
                error = (small(x.to("pjrt")).cpu() - wanted).norm() / wanted.norm()
            kind = "dynamic" if dynamic else "static"
            print(f"| {name} | {first:.1f} | {kind} | {took:.1f} | {error:.4f} |", flush=True)
    print("\nTimes are of two cores that others used at the same time.")


if __name__ == "__main__":
    main()
