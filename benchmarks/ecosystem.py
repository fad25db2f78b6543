"""Documented examples of libraries on `pjrt` beside the CPU, as a table in Markdown.

    python benchmarks/ecosystem.py [--only TEXT] [--out FILE]

Models are tiny and random. Each example runs there, then on the CPU. Columns: lines that name the device; how
far the numbers are from the CPU's; programs and reads of a step in steady state; programs compiled in all;
calls of operators that ran on the CPU. What cannot be imported here is listed below the table.
See `packages/ecosystem/tests/helpers/library_examples`.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import os
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
HELPERS = str(ROOT / "packages/ecosystem/tests/helpers")
os.environ.setdefault("USE_TORCH_XLA", "0")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
HEAD = (
    "| library | version | example | lines changed | from the CPU | programs, reads a step | compiled "
    "| fallbacks |"
)
RULE = "|---|---|---|---|--:|--:|--:|--:|"


def numbers(found: Any) -> Iterator[Any]:
    """The tensors in what an example gives, its floats as tensors."""
    import torch

    if isinstance(found, torch.Tensor):
        yield found.double()
    elif isinstance(found, (int, float)):
        yield torch.tensor(float(found), dtype=torch.float64)
    else:
        for each in found.values() if isinstance(found, dict) else found:
            yield from numbers(each)


def distance(found: Any, expected: Any) -> float:
    """The largest difference, relative to the largest expected number of its tensor where that is above 1."""
    pairs = list(zip(numbers(found), numbers(expected), strict=True))
    if any(a.shape != b.shape for a, b in pairs):
        return float("inf")
    return max(
        ((a - b).abs().max() / b.abs().max().clamp(min=1)).item() for a, b in pairs if a.numel()
    )


def row(example: Any) -> str:
    """Its line of the table, or why there is none."""
    from small import Costs
    from torch_pjrt.extend import counters

    named = f"- {example.distribution}, {example.name}"
    if missing := example.missing():
        return f"{named}: not run, {missing}"
    costs, compiled = Costs(), counters.programs_compiled
    try:
        found = example.run("pjrt", costs)
        compiled = counters.programs_compiled - compiled
        fallbacks = costs.fallbacks
        how_far = distance(found, example.run("cpu", Costs()))
    except Exception as error:
        return f"{named}: fails, {type(error).__name__}: {error}".splitlines()[0]
    steps = costs.steps[example.from_step :] if example.cost is not None else []
    seen = sorted({(programs, reads) for reads, programs, _ in steps})
    version = importlib.metadata.version(example.distribution)
    return (
        f"| {example.distribution} | {version} | {example.name} | {example.changed or 'none'} "
        f"| {f'{how_far:.0e}' if how_far else 'equal'} "
        f"| {' or '.join(f'{programs}, {reads}' for programs, reads in seen) or '-'} "
        f"| {compiled} | {fallbacks} |"
    )


def main() -> None:
    """Run them and write the table."""
    sys.path.insert(0, HELPERS)
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="examples with this text in library or name")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    from library_examples import EXAMPLES

    lines = []
    for example in EXAMPLES:
        if options.only in f"{example.distribution} {example.name}":
            lines.append(row(example))
            print(lines[-1], flush=True)
            table = [HEAD, RULE, *(x for x in lines if x.startswith("|"))]
            rest = [x for x in lines if not x.startswith("|")]
            if options.out:
                options.out.write_text("\n".join([*table, *([""] if rest else []), *rest, ""]))


if __name__ == "__main__":
    main()
