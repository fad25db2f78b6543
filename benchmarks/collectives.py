"""Collectives in the compiled step of a small GPT, for each way to spread it, against those expected by hand.

    python benchmarks/collectives.py                     for eight virtual chips of the CPU
    python benchmarks/collectives.py --target v5e:4x4    for hardware that is not here; takes its compiler

The model is that of the tests of packages/spmd: two blocks, separate projections, AdamW. Prints a table in
Markdown. What is expected is counted from the model: `EXPECTED`.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from math import prod
from pathlib import Path
from typing import Any

TESTS = Path(__file__).resolve().parents[1] / "packages" / "spmd" / "tests" / "eight_chips"
N_LAYERS = 2
FLOAT = 4  # bytes
LOSS = 2 * FLOAT  # its sum, and the number of targets

# By kind and axes: how many run in a step, and the bytes that they give each chip.
Found = Mapping[tuple[str, tuple[str, ...]], tuple[int, int]]


def expected_of_data(sizes: Sizes) -> Found:
    """All gradients and the loss are added up; XLA may join them, so their number is its own."""
    return {("all-reduce", ("data",)): (0, sizes.parameters + LOSS)}


def expected_of_tensor(sizes: Sizes) -> Found:
    """In each block four sums of activations along `model`: forward after attention and MLP, backward before
    them. Along `data` the gradients that a chip has, and the loss.
    """
    n = 4 * N_LAYERS
    return {
        ("all-reduce", ("model",)): (n, n * sizes.activation),
        ("all-reduce", ("data",)): (0, sizes.parameters_of_chip + LOSS),
    }


def expected_of_sequence(sizes: Sizes) -> Found:
    """As tensor parallelism, on activations of which a chip has a part of the sequence. Keys and values of
    each block are gathered along it, and their gradients scattered; gradients are added up along both.
    """
    n = 4 * N_LAYERS
    of_whole = sizes.activation * sizes.axes["sequence"] // sizes.axes["model"]
    return {
        ("all-reduce", ("model",)): (n, n * sizes.activation),
        ("all-gather", ("sequence",)): (2 * N_LAYERS, 2 * N_LAYERS * of_whole),
        ("reduce-scatter", ("sequence",)): (
            2 * N_LAYERS,
            2 * N_LAYERS * of_whole // sizes.axes["sequence"],
        ),
        ("all-reduce", ("data", "sequence")): (0, sizes.parameters_of_chip + LOSS),
    }


def expected_of_fully_sharded(sizes: Sizes) -> Found:
    """Each parameter is gathered once, if it is kept for backward; gradients are scattered when added up."""
    n = sizes.n_parameters
    return {
        ("all-gather", ("data",)): (n, sizes.parameters),
        ("reduce-scatter", ("data",)): (0, sizes.parameters_of_chip),
        ("all-reduce", ("data",)): (0, LOSS),
    }


EXPECTED: dict[str, Callable[[Sizes], Found]] = {
    "data_parallel": expected_of_data,
    "tensor_parallel": expected_of_tensor,
    "sequence_parallel": expected_of_sequence,
    "fully_sharded": expected_of_fully_sharded,
}


class Sizes:
    """Bytes of all parameters, of those of one chip, and of an activation between layers on one chip."""

    def __init__(self, model: Any, mesh: Any, of_chip: int, small_gpt: Any) -> None:
        parameters = list(model.parameters())
        self.axes = dict(zip(mesh.axis_names, mesh.shape, strict=True))
        self.n_parameters = len(parameters)
        self.parameters = sum(p.nbytes for p in parameters)
        self.parameters_of_chip = of_chip
        elements = small_gpt.BATCH * small_gpt.LENGTH * small_gpt.WIDTH
        parts = self.axes["data"] * self.axes.get("sequence", 1)
        self.activation = FLOAT * elements // parts


def compiled(way: str, target: str | None, n_chips: int) -> tuple[Found, Sizes, Any]:
    """The step of a way: what is exchanged, the sizes of the model, and the share of work done alike."""
    import small_gpt
    import torch
    import torch.nn.functional as F

    import torch_pjrt
    from torch_pjrt_spmd import distribute_tensor, program_reports, use_mesh
    from torch_pjrt_spmd.reporting import reports_of

    torch_pjrt.config.cache_dir = None
    small_gpt.Block.spread = None
    torch.manual_seed(0)
    model = small_gpt.Gpt(N_LAYERS).to("pjrt")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    mesh, spec = getattr(small_gpt, way)(model, target, n_chips)

    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten())
        loss.backward()
        optimizer.step()
        return loss.detach()

    batch = torch.zeros(n_chips * 2, small_gpt.LENGTH, dtype=torch.int64)
    small_gpt.BATCH = len(batch)
    x, y = (distribute_tensor(batch, mesh, spec) for _ in range(2))
    with use_mesh(mesh):
        if target is None:
            for _ in range(3):
                step(x, y)
            torch_pjrt.sync()
            report = program_reports()[-1]
        else:
            [report] = reports_of([torch_pjrt.compile_for(target, step, x, y)])
    found: defaultdict[Any, list[int]] = defaultdict(lambda: [0, 0])
    for one in report.collectives:
        counted = found[one.kind, one.axes]
        counted[0] += one.runs
        counted[1] += one.runs * one.n_bytes
    of_chip = sum(_bytes_on_a_chip(p, target) for p in model.parameters())
    return (
        {k: (n, size) for k, (n, size) in found.items()},
        Sizes(model, mesh, of_chip, small_gpt),
        report,
    )


def _bytes_on_a_chip(parameter: Any, target: str | None) -> int:
    from torch_pjrt_spmd import compiled_for, marks

    with compiled_for.compiling_for(target):
        how = marks.mark_of(parameter)
    shape = tuple(parameter.shape)
    return FLOAT * prod(shape if how is None else how.shard_shape(shape))


def rows(way: str, target: str | None, n_chips: int) -> list[Sequence[str]]:
    """Of the table: one for each kind and axes that are expected or found."""
    found, sizes, report = compiled(way, target, n_chips)
    expected = EXPECTED[way](sizes)
    mesh = " x ".join(f"{name} {n}" for name, n in report.mesh.items())
    alike = ", ".join(f"{name} {share:.0%}" for name, share in report.replicated_along.items())
    made: list[Sequence[str]] = []
    for kind, axes in sorted({*expected, *found}):
        n, size = found.get((kind, axes), (0, 0))
        n_expected, expected_size = expected.get((kind, axes), (0, 0))
        made.append(
            (
                *((way.replace("_", " "), mesh, alike) if not made else ("", "", "")),
                f"{kind}, {' and '.join(axes)}",
                f"{n_expected or 'any'}" if expected_size else "none",
                f"{expected_size:,}",
                f"{n}",
                f"{size:,}",
            )
        )
    return made


HEAD = ("way", "mesh", "alike along", "collective", "expected", "bytes", "found", "bytes found")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--target", help="v5e:4x4, for example")
    parser.add_argument("--chips", type=int, default=8, help="how many the meshes have")
    parser.add_argument("--width", type=int, default=32, help="of the model; the tests' is 32")
    given = parser.parse_args()
    flag = f"--xla_force_host_platform_device_count={given.chips}"
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {flag}"
    os.environ["PJRT_DEVICE"] = "CPU"
    sys.path.insert(0, str(TESTS))
    import small_gpt

    small_gpt.WIDTH = given.width
    of = given.target or "the CPU, virtual ones"
    print(f"{given.chips} chips of {of}; {N_LAYERS} layers of width {given.width}\n")
    for line in (HEAD, ["---"] * len(HEAD)):
        print(f"| {' | '.join(line)} |")
    for way in EXPECTED:
        for row in rows(way, given.target, given.chips):
            print(f"| {' | '.join(row)} |", flush=True)


if __name__ == "__main__":
    main()
