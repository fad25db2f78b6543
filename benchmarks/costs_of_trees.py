"""What recording and replaying cost in two trees, in turns: that a change has made nothing slower.

    python benchmarks/costs_of_trees.py TREE OTHER [--rounds 5]

Each round starts a process for each tree, with the packages of that tree before those that are installed.
An operator's cost is in the unit of eager CPU's `torch.add` in the same process. Steps are those of a narrow
GPT with AdamW, in milliseconds that the process's main thread computed. Medians over the rounds.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

CALLS, STRETCHES = 400, 15
STEPS, WARM = 40, 12
PACKAGES = ("core", "plugins-cpu")


def measured() -> dict[str, float]:
    """What this process's tree costs."""
    import torch

    import torch_pjrt

    torch.set_num_threads(1)

    def stretch(call: Callable[..., Any], tensors: list[torch.Tensor]) -> float:
        torch_pjrt.sync()
        start = time.thread_time()
        for _ in range(CALLS):
            call(*tensors)
        return time.thread_time() - start

    def ones(device: str, n: int) -> list[torch.Tensor]:
        return [torch.ones(4, 4).to(device) for _ in range(n)]

    def least(call: Callable[..., Any], tensors: list[torch.Tensor]) -> float:
        return min(stretch(call, tensors) for _ in range(STRETCHES))

    unit = least(torch.add, ones("cpu", 2))
    norm = lambda x: torch.nn.functional.layer_norm(x, (4,))  # noqa: E731
    operators: dict[str, tuple[Callable[..., Any], int]] = {
        "add": (torch.add, 2),
        "mm": (torch.mm, 2),
        "relu": (torch.relu, 1),
        "t()": (torch.Tensor.t, 1),
        "layer_norm": (norm, 1),
    }
    found = {
        f"`{name}`, in eager CPU's `add`": least(call, ones("pjrt", n)) / unit
        for name, (call, n) in operators.items()
    }
    found["a step as it is, ms"] = _step_ms(captured=False)
    found["a captured step, ms"] = _step_ms(captured=True)
    return found


def _step_ms(*, captured: bool) -> float:
    import torch
    import torch.nn.functional as F

    import torch_pjrt
    from train_gpt import GPT

    torch.manual_seed(0)
    model = GPT(12, 32, 4, 16, 64, dropout=0.0).to("pjrt")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, capturable=captured)
    x, y = (torch.randint(64, (2, 16)).to("pjrt") for _ in range(2))

    def step() -> torch.Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x).flatten(0, -2), y.flatten())
        loss.backward()
        optimizer.step()
        return loss

    run = torch_pjrt.capture(step) if captured else step
    took = []
    for n in range(WARM + STEPS):
        start = time.thread_time()
        loss = run()
        if n >= WARM:
            took.append(time.thread_time() - start)
        loss.item()
    return statistics.median(took) * 1e3


def _of_tree(tree: Path) -> dict[str, float]:
    paths = [*(tree / "packages" / name / "src" for name in PACKAGES), tree / "examples"]
    ran = subprocess.run(
        [sys.executable, Path(__file__).resolve(), "--measure"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, paths))},
        cwd=tree,
        capture_output=True,
        text=True,
        check=False,
    )
    if ran.returncode:
        sys.exit(ran.stderr)
    return json.loads(ran.stdout.splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description="Compare the host's costs in two trees.")
    parser.add_argument("trees", nargs="*", type=Path, metavar="TREE", help="two checkouts")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--measure", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        print(json.dumps(measured()))
        return
    if len(options.trees) != 2:
        parser.error(f"two checkouts are compared, not {len(options.trees)}")
    rounds = [[_of_tree(tree.resolve()) for tree in options.trees] for _ in range(options.rounds)]
    print("| | before | after | after / before |\n|---|--:|--:|--:|")
    for name in rounds[0][0]:
        if name in rounds[0][1]:
            before, after = (statistics.median(r[i][name] for r in rounds) for i in (0, 1))
            print(f"| {name} | {before:.2f} | {after:.2f} | {after / before:.2f} |")


if __name__ == "__main__":
    main()
