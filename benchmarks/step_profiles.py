"""Where the device's time goes in a training step of each model: operators, and XLA's operations by operator.

python benchmarks/step_profiles.py               # all models of training_steps/, the ten most expensive
python benchmarks/step_profiles.py gpt resnet --rows 20
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent / "training_steps"))

import torch

import torch_pjrt
from models import WORKLOADS, Workload


def training(workload: Workload) -> Any:
    """A step of it on the device, of a batch that is there."""
    torch.manual_seed(0)
    model = workload.build().to("pjrt").train()
    optimizer = workload.optimizer(model.parameters())
    inputs, targets = next(workload.batches())
    if not inputs.is_floating_point():
        inputs = inputs.long()
    inputs, targets = inputs.to("pjrt"), targets.long().to("pjrt")

    def step() -> torch.Tensor:
        optimizer.zero_grad()
        loss = workload.loss(model(inputs), targets)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("workloads", nargs="*", metavar="MODEL", help=", ".join(WORKLOADS))
    parser.add_argument("--rows", type=int, default=10)
    arguments = parser.parse_args()
    if unknown := set(arguments.workloads) - set(WORKLOADS):
        parser.error(f"no such model: {', '.join(unknown)}; there are {', '.join(WORKLOADS)}")
    for name in arguments.workloads or WORKLOADS:
        print(f"\n## {WORKLOADS[name].title}\n")
        print(torch_pjrt.profile_step(training(WORKLOADS[name]), shown=arguments.rows))


if __name__ == "__main__":
    main()
