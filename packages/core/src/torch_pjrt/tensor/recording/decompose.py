"""PyTorch's own decompositions, recorded on a scratch tape.

The decomposition of an operator is run once for each signature, on `pjrt` tensors whose tape is a nested
one. What it records is the signature's expansion: a graph that the pass `expand` puts in the node's place.
"""

from __future__ import annotations

from typing import Any

import torch
from torch._decomp import decomposition_table

from torch_pjrt.errors import LoweringError
from torch_pjrt.graph.graph import Graph, graph_of
from torch_pjrt.graph.signature import NumberSlot, Signature, filled
from torch_pjrt.graph.tape import Tape, Value, number_on, onto
from torch_pjrt.tensor.storage.buffer import wrap
from torch_pjrt.tensor.storage.view import value_of


class NoDecomposition(LoweringError):
    """The operator has none, or it does what cannot be recorded."""


def expand(signature: Signature) -> Graph:
    """The graph of simpler operators that computes the signature. Raises `NoDecomposition`.

    What a finalizer records or reads meanwhile is no part of it.
    """
    with onto(Tape(nested=True)) as scratch:
        return _expanded(signature, scratch)


def _expanded(signature: Signature, scratch: Tape) -> Graph:
    function = decomposition_table.get(signature.op)
    if function is None and not _is_composite(signature.op):
        raise NoDecomposition(f"`{signature.op}` has neither a lowering nor a decomposition.")
    inputs = [Value(spec, 0, None) for spec in signature.specs]
    try:
        for value in inputs:
            scratch.take(value)
        tensors = [wrap(v, f) for v, f in zip(inputs, signature.specs, strict=True)]
        args = filled(signature.args, lambda slot: tensors[slot.index], _no_number)
        kwargs = filled(signature.kwargs, lambda slot: tensors[slot.index], _no_number)
        with torch.no_grad(), torch._C._AutoDispatchBelowAutograd():
            if function is not None:
                results = function(*args, **kwargs)
            else:
                results = signature.op.decompose(*args, **kwargs)
        flat = [r for r in _flat(results) if r is not None]
        _check(signature, flat)
        outputs = [number_on(scratch, value_of(r)) for r in flat]
        if len(scratch.inputs) != len(inputs):
            raise NoDecomposition(
                f"The decomposition of `{signature.op}` makes constants on the host."
            )
        if scratch.draws:
            raise NoDecomposition(f"The decomposition of `{signature.op}` draws random numbers.")
        return graph_of(scratch, outputs)
    except NoDecomposition:
        raise
    except Exception as error:
        raise NoDecomposition(
            f"The decomposition of `{signature.op}` cannot be recorded.",
            saw=f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}",
        ) from error


def _is_composite(op: Any) -> bool:
    return torch._C._dispatch_has_kernel_for_dispatch_key(op.name(), "CompositeImplicitAutograd")


def _check(signature: Signature, results: list[torch.Tensor]) -> None:
    got = [(tuple(r.shape), r.dtype) for r in results]
    expected = [(tuple(f.shape), f.dtype) for f in signature.outs]
    if got != expected or any(r.device.type != "pjrt" for r in results):
        raise NoDecomposition(
            f"The decomposition of `{signature.op}` gives something else than its meta function.",
            saw=str(got),
            expected=str(expected),
        )


def _no_number(slot: NumberSlot) -> Any:
    raise AssertionError("numbers of an operator without a rule are constants")


def _flat(x: Any) -> list[Any]:
    return [i for part in x for i in _flat(part)] if isinstance(x, (list, tuple)) else [x]
