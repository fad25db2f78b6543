"""`torch_pjrt.check_nans()`: which operator made a NaN, and at which line.

While it is on, the results of each program are looked at. Where one holds a NaN, what it was made of is
compiled and run once more, as a program that gives two bits for each value in it (does it hold a NaN, does
it hold an infinity), and looked through in program order for the first operator that made a NaN out of inputs
that have none.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from torch_pjrt import dtypes
from torch_pjrt.client.client import client, telling_of_exhaustion
from torch_pjrt.client.stack_elements import alone
from torch_pjrt.client.wait import awaited
from torch_pjrt.compile.numbers import NumberPlan
from torch_pjrt.compile.uncached import lowered_uncached
from torch_pjrt.errors import NonFiniteValue
from torch_pjrt.graph.graph import Graph, Node, graph_of
from torch_pjrt.graph.signature import InternalOp
from torch_pjrt.graph.tape import Tape
from torch_pjrt.graph.tensor_spec import TensorSpec
from torch_pjrt.observe import lines
from torch_pjrt.run import sync
from torch_pjrt.session import session
from torch_pjrt.tensor.storage import counts

_NAN, _INF = 1, 2
_REASON = "check_nans()"


class _Checks:
    """How many blocks check, one within another."""

    depth = 0


_checks = session.own("checks for NaNs", _Checks())


@contextmanager
def check_nans(*, infinities: bool = False) -> Iterator[None]:
    """Raise `NonFiniteValue` where a program within the block gives a NaN that one of its operators made.

    infinities  an infinity that an operator makes of finite inputs is an error too.

    The error names the operator, what its inputs look like, and the line that called it; it is raised where
    the program is run (by reading a value, or by an optimizer's step), all results being there. For an error
    at the line itself, use `torch_pjrt.eager()` as well. A NaN that came with the data, or as a number of the
    call (`torch.full((), nan)`), is no operator's doing. Each program is waited for, and donates nothing.

        >>> with torch_pjrt.check_nans():
        ...     print(torch.zeros(1, device="pjrt") / 0.0)
        Traceback (most recent call last):
        torch_pjrt.errors.NonFiniteValue: ...
    """
    sync.sync("check_nans() begins")
    before = sync.checker
    turn_on(infinities=infinities or before is _CHECKERS[True])
    try:
        yield
        sync.sync("check_nans() ends")
    finally:
        _turn_off(before)


def turn_on(*, infinities: bool) -> None:
    """Check every program from now on."""
    _checks.depth += 1
    sync.checker = _CHECKERS[infinities]
    lines.note_for(_REASON)
    counts.exact = True  # what is past the true elements of a padded tensor may be anything


def _turn_off(before: Any) -> None:
    _checks.depth -= 1
    sync.checker = before
    if not _checks.depth:
        lines.stop_for(_REASON)
        counts.exact = False


@dataclass(frozen=True, slots=True)
class _Flags:
    """What the values of a program hold, by their numbers: bits of `_NAN` and `_INF`."""

    bits: dict[int, int]

    def has(self, value: int, kind: int) -> bool:
        return bool(self.bits.get(value, 0) & kind)

    def maker(self, nodes: Iterable[Node], tape: Tape, kind: int) -> Node | None:
        """The first node that made `kind` out of inputs and numbers which have none of it."""
        for node in nodes:
            if (
                any(self.has(v, kind) for v in node.outputs)
                and not any(self.has(v, kind) for v in node.inputs)
                and not isinstance(node.op, InternalOp)
                and not any(_bits_of(n) & kind for n in _numbers(node, tape))
            ):
                return node
        return None


def _found_in(tape: Tape, live: tuple[int, ...], *, kinds: int) -> Exception | None:
    """The error for what this program has given, or None."""
    results = [v for v in live if _can_be_bad(tape.values[v].spec)]
    if not results:
        return None
    with dtypes.x64(), telling_of_exhaustion("looking for nan"):
        found = _bits_of_arrays([alone(tape.values[v].array) for v in results])
        bits = np.asarray(awaited(found, "running a program")).tolist()
    for kind in (_NAN, _INF):
        bad = [v for v, b in zip(results, bits, strict=True) if b & kind & kinds]
        if not bad:
            continue
        nodes = _made_of(graph_of(tape, bad), bad)
        flags = _flags(tape, nodes)
        maker = flags.maker(nodes, tape, kind)
        if maker is not None:
            return _error(maker, kind, flags, nodes, tape)
    return None


_CHECKERS: dict[bool, Callable[[Tape, tuple[int, ...]], Exception | None]] = {
    False: lambda tape, live: _found_in(tape, live, kinds=_NAN),
    True: lambda tape, live: _found_in(tape, live, kinds=_NAN | _INF),
}


def _flags(tape: Tape, nodes: Sequence[Node]) -> _Flags:
    """Compile and run the program that gives the bits of all that these nodes read and make."""
    watched = sorted(
        {
            v
            for node in nodes
            for values, specs in (
                (node.inputs, node.signature.specs),
                (node.outputs, node.signature.outs),
            )
            for v, spec in zip(values, specs, strict=True)
            if _can_be_bad(spec)
        }
    )
    # All numbers are inputs, so that nothing is computed while compiling.
    every = NumberPlan(tape, np.arange(len(tape.ints)), np.arange(len(tape.floats)))
    lowered = lowered_uncached(
        tape, watched, every, lambda function: lambda *x: _bits_of_arrays(function(*x))
    )
    compiled = client().compile_lowered(lowered)
    arrays = [alone(value.array) for value in tape.inputs]
    with dtypes.x64():
        found = compiled(*arrays, *every.arguments(tape))
        bits = np.asarray(awaited(found, "looking for NaNs"))
    return _Flags(dict(zip(watched, bits.tolist(), strict=True)))


@jax.jit
def _bits_of_arrays(arrays: Sequence[jax.Array]) -> jax.Array:
    return jnp.stack(
        [
            jnp.any(jnp.isnan(x)).astype(np.int8) * np.int8(_NAN)
            + jnp.any(jnp.isinf(x)).astype(np.int8) * np.int8(_INF)
            for x in arrays
        ]
    )


def _can_be_bad(spec: TensorSpec) -> bool:
    return spec.dtype.is_floating_point or spec.dtype.is_complex


def _made_of(graph: Graph, values: Iterable[int]) -> list[Node]:
    """The nodes that these values are made by, in program order."""
    wanted = set(values)
    nodes: list[Node] = []
    for node in reversed(graph.nodes):
        if not wanted.isdisjoint(node.outputs):
            nodes.append(node)
            wanted.update(node.inputs)
    return nodes[::-1]


def _numbers(node: Node, tape: Tape) -> Iterator[int | float | complex]:
    """The Python numbers of the call."""
    for number in node.numbers:
        yield (tape.ints if number.kind is int else tape.floats)[number.index]
    rest: list[Any] = [*node.signature.args, *node.signature.kwargs.values()]
    while rest:
        argument = rest.pop()
        if isinstance(argument, (list, tuple)):
            rest += argument
        elif isinstance(argument, (float, complex)):
            yield argument


def _bits_of(number: float | complex) -> int:
    parts = (number.real, number.imag) if isinstance(number, complex) else (number,)
    nan, inf = any(map(math.isnan, parts)), any(map(math.isinf, parts))
    return _NAN * nan + _INF * inf


def _error(node: Node, kind: int, flags: _Flags, nodes: list[Node], tape: Tape) -> NonFiniteValue:
    what = "NaN" if kind == _NAN else "an infinity"
    saw = _described(node)
    if kind == _NAN and any(flags.has(v, _INF) for v in node.inputs):
        maker = flags.maker(nodes[: nodes.index(node)], tape, _INF)
        source = f", first made by {_described(maker)}" if maker is not None else ""
        saw += f"; its inputs hold an infinity{source}"
    made_of = "finite inputs" if kind == _INF else "inputs that hold none"
    return NonFiniteValue(
        f"`{node.op}` made {what} out of {made_of}.",
        saw=saw,
        hint="the results are there: read them to see where; "
        "torch_pjrt.eager() raises this at the line itself",
    )


def _described(node: Node) -> str:
    specs = ", ".join(map(str, node.signature.specs))
    line = f" at {node.line.described()}" if node.line is not None else ""
    return f"`{node.op}({specs})`{line}"
