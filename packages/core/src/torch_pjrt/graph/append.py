"""Appending a node of many inputs to the tape, written out: what every call of a compiled graph does.

`tensor/recording/record.py` does the same in general; the protocol of both is in `graph/tape.py`.
"""

from __future__ import annotations

from itertools import repeat
from typing import Any

from torch_pjrt.graph.signature import Signature
from torch_pjrt.graph.tape import Tape, Value, current, state


def append(
    signature: Signature, inputs: list[Value], code: list[Any], n_draws: int = 1
) -> list[Value]:
    """Append one node without Python numbers to this thread's tape; the values that it makes, in order.

    inputs   one value for each of the signature's specs; the list is not kept.
    code     what the node is where it is the first of a tape: `signature, -1, -2, ...`.
    n_draws  how many draws it takes, where the signature is `random`.

    Values that are pending on another thread's tape are computed first.

        >>> x = value_of(torch.zeros(3, device="pjrt"))
        >>> signature = intern(aten.cos.default, (Slot(0),), {}, (x.spec,), (x.spec,))
        >>> [y] = append(signature, [x], [signature, -1])
        >>> host_array(y)
        array([1., 1., 1.], dtype=float32)
    """
    outs = signature.outs
    while True:
        tape = state.tape
        if tape.closed:
            tape = current()
        # Where nothing is pending here, no other thread wants to run this tape.
        is_first = (
            not tape.values and not tape.inputs and not [v for v in inputs if v.array is None]
        )
        if not is_first:
            node = _numbered(tape, signature, inputs)
        else:
            node = code
        if signature.random:
            node = [*node, *_draw(tape, n_draws)]
        first, n_made, next_input = tape.size, len(outs), -len(inputs) - 1
        made = list(map(Value, outs, range(first, first + n_made), repeat(tape)))
        if tape.closed or tape.size != first:  # by another thread or a finalizer, just now
            continue
        # From here on nothing is called, so that an interrupt (Ctrl-C) comes before or after.
        if is_first:
            if tape.size or tape.next_input != -1:
                continue
            tape.inputs += inputs
            tape.next_input = next_input
            tape.unnumbered = True
        tape.code += node
        tape.size = first + n_made
        tape.values += made
        tape.n_further += n_made - 1
        return made


def _draw(tape: Tape, n_draws: int) -> tuple[int, int]:
    from torch_pjrt.graph.generator import generator

    return generator.draw(tape, n_draws)


def _numbered(tape: Tape, signature: Signature, inputs: list[Value]) -> list[Any]:
    """The node's code: what `Tape.take` gives for each input, written out for those that are there."""
    if tape.unnumbered:
        tape.number_first()
    known = tape._numbers
    code: list[Any] = [signature]
    append = code.append
    for value in inputs:
        if value.tape is tape:
            append(value.number)
            continue
        if value.array is None:
            append(tape.take(value))
            continue
        key, one = id(value), (value,)
        # From here on nothing is called or made (`graph/tape.py`).
        if tape.closed:  # by another thread: nothing is to be added to it
            return code
        if key in known:
            n = known[key]
        else:
            n = tape.next_input
            tape.next_input = n - 1
            tape.inputs += one
            known[key] = n
        value.tape = tape
        value.number = n
        append(n)
    return code
