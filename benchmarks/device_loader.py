"""What it costs to bring batches to the device: an upload of 64 MB, and a training loop three ways.

    python benchmarks/device_loader.py

The ways run in turns, so that all see the same weather on a shared machine; medians are shown.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

import torch_pjrt
from torch_pjrt.tensor.storage.transfer import upload

ROUNDS = 7
BATCHES, BATCH, WIDTH = 20, 256, 16384  # 16 MB a batch


def batches() -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Fresh batches, each of which takes the host some work to make."""
    generator = torch.Generator().manual_seed(0)
    for _ in range(BATCHES):
        x = torch.rand(BATCH, WIDTH, generator=generator)
        yield x, torch.randint(10, (BATCH,), generator=generator)


def plain() -> Iterator[Any]:
    for x, y in batches():
        yield x.to("pjrt"), y.to("pjrt")


def in_background() -> Iterator[Any]:
    yield from torch_pjrt.DeviceLoader(batches())


def on_the_device() -> Iterator[Any]:
    """What the loop costs where there is nothing to make nor to bring."""
    batch = next(plain())
    for _ in range(BATCHES):
        yield batch


WAYS: dict[str, Callable[[], Iterator[Any]]] = {
    "x.to('pjrt')": plain,
    "DeviceLoader": in_background,
    "one batch, there already": on_the_device,
}


def upload_ms(copy: bool) -> float:
    x = torch.rand(16 << 20)
    start = time.perf_counter()
    value = upload(x, copy=copy)
    value.array.block_until_ready()  # type: ignore[union-attr]
    return (time.perf_counter() - start) * 1e3


def main() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(WIDTH, 128), nn.ReLU(), nn.Linear(128, 10)).to("pjrt")
    optimizer = torch.optim.SGD(model.parameters(), 0.01)

    def epoch(way: Callable[[], Iterator[Any]]) -> float:
        start = time.perf_counter()
        for x, y in way():
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()
        torch.pjrt.synchronize()  # type: ignore[attr-defined]
        return (time.perf_counter() - start) * 1e3 / BATCHES

    for copy in (True, False):
        median = statistics.median(upload_ms(copy) for _ in range(ROUNDS))
        print(f"upload of 64 MB, {'copied first' if copy else 'without a copy'}: {median:.2f} ms")
    times: dict[str, list[float]] = {name: [] for name in WAYS}
    for turn in range(ROUNDS + 1):
        for name, way in WAYS.items():
            step_ms = epoch(way)
            if turn:  # the first compiles
                times[name].append(step_ms)
    for name, seen in times.items():
        print(f"a step with {name}: {statistics.median(seen):.1f} ms")


if __name__ == "__main__":
    main()
