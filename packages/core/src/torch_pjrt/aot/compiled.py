"""A program compiled for hardware that is not here: what it needs of each chip, and says to the others."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Any

from torch_pjrt.diagnostics.sections import tables_of
from torch_pjrt.observe.tables import Shown, Table, readable

# XLA's names, and bits of an element.
_COLLECTIVES = (
    "all-gather|all-reduce|all-to-all|collective-permute|collective-broadcast|reduce-scatter"
)
_MADE = re.compile(rf"= (.+?) ({_COLLECTIVES})(-start)?\((.*)")
_STEP_OF_CHAIN = re.compile(r"channel_id=(\d+),.*chain_id=")
_ARRAY = re.compile(r"\b(pred|[a-z]+\d+[a-z0-9]*)\[([\d,]*)\]")


@dataclass(frozen=True, slots=True, repr=False)
class CompiledFor(Shown):
    """What `compile_for` found. Figures are of one chip, and XLA's estimates; None where it does not say.

    target, chip, n_chips    what it was compiled for: the name that was given, what the chip calls itself.
    argument_bytes  inputs. output_bytes: results. reused_bytes: of results that take the place of inputs.
    temporary_bytes  what it needs between. code_bytes: the program itself.
    flops, accessed_bytes    arithmetic on floats; what its kernels read and write.
    collectives     by XLA's name: how many there are in the program, and the bytes that they make.
    unreadable      why the compiled program cannot be read, or None: a compiler's program may have what
                    JAX's XLA does not know. Then `collectives` is empty, and `text()` raises that error.
    host_bytes      inputs that lie in the host's memory, where a package has some lie there. In
                    `argument_bytes` and `memory_bytes` they are not.
    n_operators     of PyTorch, as recorded.
    """

    target: str
    chip: str
    n_chips: int
    n_operators: int
    argument_bytes: int
    output_bytes: int
    reused_bytes: int
    temporary_bytes: int
    code_bytes: int
    flops: int | None
    accessed_bytes: int | None
    collectives: Mapping[str, tuple[int, int]]
    compiled: Any = field(repr=False)
    stablehlo: str = field(repr=False)
    unreadable: str | None = None
    host_bytes: int = 0

    @property
    def memory_bytes(self) -> int:
        """Of each chip, while the program runs."""
        whole = self.argument_bytes + self.output_bytes - self.reused_bytes
        return whole + self.temporary_bytes + self.code_bytes

    def text(self) -> str:
        """The compiled program, as XLA writes it."""
        return self.compiled.as_text()

    def _tables(self) -> list[Table]:
        rows = [
            ("chip", f"{self.n_chips} x {self.chip}"),
            ("operators", f"{self.n_operators:,}"),
            ("memory of each chip", readable(self.memory_bytes)),
            ("    arguments", readable(self.argument_bytes)),
            ("    results in places of their own", readable(self.output_bytes - self.reused_bytes)),
            ("    between", readable(self.temporary_bytes)),
            ("    program", readable(self.code_bytes)),
            *([("in the host's memory", readable(self.host_bytes))] if self.host_bytes else []),
            ("flops", "unknown" if self.flops is None else f"{self.flops:,}"),
            ("accessed", readable(self.accessed_bytes) if self.accessed_bytes else "unknown"),
        ]
        said = [(name, n, readable(size)) for name, (n, size) in self.collectives.items()]
        return [
            Table(f"Compiled for {self.target}", ("", ""), rows),
            Table("Collectives", ("operation", "times", "bytes"), said),
            *([] if self.unreadable is None else [_of_fault(self.unreadable)]),
            *tables_of([self]),
        ]


def _of_fault(fault: str) -> Table:
    return Table("The compiled program cannot be read", ("",), [(fault,)])


def collectives_of(text: str) -> dict[str, tuple[int, int]]:
    """The operations across chips in XLA's text of a program: how many of each, and their results' bytes."""
    counts: Counter[str] = Counter()
    sizes: Counter[str] = Counter()
    for name, n_bytes, _ in each_collective(text):
        counts[name] += 1
        sizes[name] += n_bytes
    return {name: (counts[name], sizes[name]) for name in sorted(counts)}


def each_collective(text: str) -> Iterator[tuple[str, int, str]]:
    """Each operation across chips in XLA's text of a program: name, bytes of results, rest of its line.

    One that TPUs do in steps, between other work, is written for each step and counts once.

        >>> line = "  %sum = f32[2,4]{1,0} all-reduce(%x), replica_groups={{0,1}}, to_apply=%add"
        >>> list(each_collective(line))
        [('all-reduce', 32, '%x), replica_groups={{0,1}}, to_apply=%add')]
    """
    chains: set[str] = set()
    for made, name, started, rest in _MADE.findall(text):
        if (step := _STEP_OF_CHAIN.search(rest)) is not None:
            if step[1] in chains:
                continue
            chains.add(step[1])
        arrays = [_size(*array) for array in _ARRAY.findall(made)]
        if started and name == "collective-permute":
            arrays = arrays[1:2]  # its input, its result, two numbers of its own
        elif started and name == "all-gather":
            arrays = arrays[len(arrays) // 2 :]  # its inputs, its results
        yield name, sum(arrays), rest


def _size(element: str, shape: str) -> int:
    bits = 8 if element == "pred" else int("".join(re.findall(r"\d+", element)[:1]))
    n = prod(int(d) for d in shape.split(",")) if shape else 1
    return n * bits // 8
