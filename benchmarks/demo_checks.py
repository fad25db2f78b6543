"""The demos on `pjrt`: do they learn what they learn on CPU, and when are programs compiled?

    python benchmarks/demo_checks.py

For each demo, from the same weights and on the same batches as on CPU: the losses of its first
steps, and the programs compiled over its first 200. Then the same over 50 updates with a
learning-rate schedule, dropout, gradients accumulated over two batches and an evaluation every
ten updates.
"""

from __future__ import annotations

import argparse
import itertools
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).parent.parent / "examples"))

import train_digits
import train_gpt

COMPARED_STEPS = 20
COUNTED_STEPS = 200
TOLERANCE = 1e-3  # relative
LAST_COMPILED_GOAL = 3  # the step after which a plain loop compiles nothing more


@dataclass(frozen=True)
class Demo:
    """A demo's parts. `train` is given a model and a device and takes a step for each loss."""

    name: str
    build_model: Callable[..., nn.Module]
    batches: Callable[[], Iterable[Any]]
    loss_of: Callable[[nn.Module, Any, str], Tensor]
    train: Callable[[nn.Module, str], Iterator[Tensor]]


@dataclass(frozen=True)
class Compiled:
    """How many programs a loop compiled, and the last step, counted from 1, that compiled any."""

    programs: int
    last_step: int


def demos() -> list[Demo]:
    text, _ = train_gpt.read_text()
    digits, _ = train_digits.read_digits()

    def gpt(model: nn.Module, device: str) -> Iterator[Tensor]:
        return train_gpt.train(model, train_gpt.make_batches(text), COUNTED_STEPS, device)

    def resnet(model: nn.Module, device: str) -> Iterator[Tensor]:
        batches = train_digits.make_batches(digits)
        epochs = -(-COUNTED_STEPS // len(batches))
        return train_digits.train(model, batches, epochs, device)

    return [
        Demo(
            "GPT",
            train_gpt.build_model,
            lambda: train_gpt.make_batches(text),
            train_gpt.loss_of,
            gpt,
        ),
        Demo(
            "ResNet",
            train_digits.build_model,
            lambda: itertools.chain.from_iterable(
                itertools.repeat(train_digits.make_batches(digits))
            ),
            train_digits.loss_of,
            resnet,
        ),
    ]


def watched(losses: Iterator[Tensor]) -> tuple[list[Tensor], Compiled]:
    """Go through the steps, and note those that compiled a program."""
    count: Callable[[], int] = torch.pjrt.programs_compiled  # type: ignore[attr-defined]
    first = before = count()
    last_step, seen = 0, []
    for step, loss in enumerate(losses, start=1):
        seen.append(loss)
        if count() != before:
            last_step, before = step, count()
    return seen, Compiled(before - first, last_step)


def everything(demo: Demo, device: str, updates: int = 50) -> Iterator[Tensor]:
    """A busier loop: a schedule, dropout, gradients of two batches, now and then an evaluation."""
    model = demo.build_model(dropout=0.1).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, updates)
    batches = iter(demo.batches())
    unseen = next(batches)
    for update in range(1, updates + 1):
        model.train()
        optimizer.zero_grad()
        losses = []
        for batch in itertools.islice(batches, 2):
            loss = demo.loss_of(model, batch, device) / 2
            loss.backward()
            losses.append(loss.detach())
        optimizer.step()
        schedule.step()
        if update % 10 == 0:
            model.eval()
            with torch.no_grad():
                demo.loss_of(model, unseen, device).item()
        yield losses[0] + losses[1]


def largest_difference(ours: list[Tensor], theirs: list[Tensor]) -> float:
    """The largest relative difference between losses."""
    return max(abs(a.item() - b.item()) / abs(b.item()) for a, b in zip(ours, theirs, strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(description="The demos on `pjrt` and on CPU.")
    parser.add_argument("--device", default="pjrt")
    device = parser.parse_args().device

    caption = f"losses: the largest relative difference from CPU's in {COMPARED_STEPS} steps"
    table = Table(title=f"The demos on {device}", caption=caption)
    for heading in ("", "loop", "programs", "last compiled", "losses differ"):
        table.add_column(heading, justify="right" if heading not in ("", "loop") else "left")
    complaints = []
    for demo in demos():
        ours, compiled = watched(
            itertools.islice(demo.train(demo.build_model().to(device), device), COUNTED_STEPS)
        )
        theirs = list(itertools.islice(demo.train(demo.build_model(), "cpu"), COMPARED_STEPS))
        difference = largest_difference(ours[:COMPARED_STEPS], theirs)
        table.add_row(
            demo.name,
            f"{COUNTED_STEPS} steps",
            str(compiled.programs),
            f"step {compiled.last_step}",
            f"{difference:.1e}",
        )
        _, busier = watched(everything(demo, device))
        table.add_row(
            "", "50 updates of all kinds", str(busier.programs), f"update {busier.last_step}", ""
        )
        if difference > TOLERANCE:
            complaints.append(f"{demo.name}: losses differ by {difference:.1e}")
        if compiled.last_step > LAST_COMPILED_GOAL:
            complaints.append(f"{demo.name}: step {compiled.last_step} compiled a program")
    Console().print(table)
    if complaints:
        sys.exit("\n".join(complaints))


if __name__ == "__main__":
    main()
