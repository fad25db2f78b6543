"""What a compiled program reads from the memory of its chip, by the text of its optimized HLO.

XLA's own count ("bytes accessed") has what stays in a TPU's fast memory in it, and leaves out that a loop
runs more than once. Here it is, for each operation outside of fusions, its operands in HBM (a layout with
`S(1)` is of an array in fast memory), times how often the loops around it run. A fusion that slices an
operand reads the slice.
"""

from __future__ import annotations

import math
import re

BITS = {"pred": 8, "s4": 4, "u4": 4, "bf16": 16, "c64": 64, "c128": 128}
# They compute nothing, or name what another operation has read.
FREE = {
    "parameter",
    "get-tuple-element",
    "tuple",
    "bitcast",
    "constant",
    "copy-done",
    "slice-done",
    "async-done",
}
_LINE = re.compile(r"(?:ROOT )?%([\w.-]+) = (\([^=]*?\)|\S+) ([\w-]+)\((.*)")


def hbm_reads(text: str) -> float:
    """Bytes."""
    computations, entry = _computations(re.sub(r"/\*index=\d+\*/", "", text))
    return _reads(computations, entry)


def _computations(text: str) -> tuple[dict[str, list[str]], str]:
    found: dict[str, list[str]] = {}
    name = entry = ""
    for line in text.splitlines():
        head = re.match(r"(ENTRY )?%([\w.-]+) \(", line)
        if head and line.rstrip().endswith("{"):
            name = head[2]
            entry = name if head[1] else entry
            found[name] = []
        elif line.startswith("}"):
            name = ""
        elif name and " = " in line:
            found[name].append(line.strip())
    return found, entry


def _reads(computations: dict[str, list[str]], name: str) -> float:
    shapes: dict[str, str] = {}
    total = 0.0
    for line in computations[name]:
        if not (parts := _LINE.match(line)):
            continue
        result, shape, op, rest = parts.groups()
        shapes[result] = shape
        if op == "while":
            total += _trips(computations, line) * _reads(computations, _called("body", line))
        elif op == "call":
            total += _reads(computations, _called("to_apply", line))
        elif op == "slice-start":  # a tuple: what is sliced, the slice, a counter
            total += _bytes(re.findall(r"\w+\[[\d,]*\]", shape)[-2])
        elif op in ("dynamic-slice", "slice"):
            total += _bytes(shape)
        elif op not in FREE and op != "dynamic-update-slice":
            for number, operand in enumerate(re.findall(r"%([\w.-]+)", rest.split("), ")[0])):
                known = shapes.get(operand, "")
                if known.startswith("(") or "S(" in known:
                    continue
                sliced = _sliced(computations, line, number) if op == "fusion" else None
                total += _bytes(known) if sliced is None else sliced
    return total


def _called(role: str, line: str) -> str:
    found = re.search(rf"{role}=%([\w.-]+)", line)
    assert found is not None, line
    return found[1]


def _trips(computations: dict[str, list[str]], line: str) -> int:
    if known := re.search(r"known_trip_count\D*(\d+)", line):
        return int(known[1])
    condition = "\n".join(computations[_called("condition", line)])
    return max((int(n) for n in re.findall(r"constant\((\d+)\)", condition)), default=1)


def _sliced(computations: dict[str, list[str]], line: str, number: int) -> float | None:
    """Bytes of the slices that a fusion takes of an operand, where it takes nothing else of it."""
    inner = computations[_called("calls", line)]
    own = next((m[1] for a in inner if f" parameter({number})" in a and (m := _LINE.match(a))), "")
    uses = [
        a for a in inner if re.search(rf"\(.*%{re.escape(own)}\b[,)]", a) and " parameter(" not in a
    ]
    if not uses or not all(" dynamic-slice(" in a for a in uses):
        return None
    return sum(_bytes(m[2]) for a in uses if (m := _LINE.match(a)))


def _bytes(shape: str) -> float:
    found = re.match(r"([a-z]+\d*)\w*\[([\d,]*)\]", shape)
    if not found:
        return 0
    bits = BITS.get(found[1]) or int(re.sub(r"\D", "", found[1]) or 0)
    return bits / 8 * math.prod(int(n) for n in found[2].split(",") if n)
