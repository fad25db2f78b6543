"""Time and error of models that PT2E has quantized, against float32, on the device that is there.

    python benchmarks/quant_pt2e.py > benchmarks/results/quant-pt2e.md

Needs torchao. Models are ResNet- and ViT-shaped, of random weights.
"""

from __future__ import annotations

import copy
import logging
import statistics
import time
import warnings
from collections.abc import Callable
from typing import Any

import jax
import torch
from torch import Tensor

from torch_pjrt.plugin import client
from torch_pjrt_quant import PjrtQuantizer, export, lower_pt2e

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


def compiled(model: Any, x: Tensor) -> Callable[[], Any]:
    step = torch.compile(model, backend="pjrt", fullgraph=True)

    def call() -> Any:
        with torch.no_grad():
            return step(x).cpu()

    call()
    return call


def in_turns(calls: dict[str, Callable[[], Any]], rounds: int = 15) -> dict[str, float]:
    """The median of each, in milliseconds: one call of each in turn, so that all see the same load."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            begin = time.perf_counter()
            call()
            times[name].append(time.perf_counter() - begin)
    return {name: 1e3 * statistics.median(t) for name, t in times.items()}


def megabytes(model: torch.nn.Module, x: Tensor) -> float:
    """What the program for the CPU reads and writes, by XLA's analysis."""
    made = export(model, (x,), platforms=["cpu"]).jax()
    with jax.enable_x64(True):
        specs = [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in made.in_avals]
        analysis: Any = jax.jit(made.call).lower(*specs).compile().cost_analysis()
    return analysis["bytes accessed"] / 1e6


def small(model: torch.nn.Module, x: Tensor, dynamic: bool) -> torch.fx.GraphModule:
    from torchao.quantization.pt2e.quantize_pt2e import (  # pyright: ignore[reportMissingImports]
        convert_pt2e,
        prepare_pt2e,
    )

    program: Any = torch.export.export(model, (x,), strict=False).module()
    prepared = prepare_pt2e(program, PjrtQuantizer(dynamic=dynamic))
    with torch.no_grad():
        prepared(x)
    return lower_pt2e(convert_pt2e(prepared))


def main() -> None:
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    torch.zeros(1, device="pjrt")  # starts the device
    print("# Models that PT2E has quantized\n")
    print("Made by `python benchmarks/quant_pt2e.py`; [how](../../docs/quantization.md). Random")
    print(
        f"weights, batch 1, compiled, on {client().device.name}: medians of calls in turns. Error"
    )
    print("relative to float32; megabytes that are read and written by XLA's analysis, for CPU.\n")
    print("| model | products | ms | of float32's | MB | error |\n|---|---|--:|--:|--:|--:|")
    for name, make, shape in MODELS:
        torch.manual_seed(0)
        model, x = make().eval(), torch.randn(shape)
        with torch.no_grad():
            wanted = model(x)
        made = {
            "float32": model,
            "int8, static": small(model, x, dynamic=False),
            "int8, dynamic": small(model, x, dynamic=True),
        }
        bytes_of = {kind: megabytes(m, x) for kind, m in made.items()}
        there = x.to("pjrt")
        calls = {kind: compiled(copy.deepcopy(m).to("pjrt"), there) for kind, m in made.items()}
        took = in_turns(calls)
        for kind, call in calls.items():
            error = (call() - wanted).norm() / wanted.norm()
            ratio = took[kind] / took["float32"]
            row = f"{took[kind]:.1f} | {ratio:.2f} | {bytes_of[kind]:.0f} | {error:.4f}"
            print(f"| {name} | {kind} | {row} |", flush=True)
    print("\nTimes are of two cores that others used at the same time.")


if __name__ == "__main__":
    main()
