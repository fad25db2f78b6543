"""Whether a limited device can run the program of a rule. For others nothing here runs."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from torch_pjrt import dtypes
from torch_pjrt.client.client import client
from torch_pjrt.compile.abstract import Asked
from torch_pjrt.graph.signature import NumberSlot, Slot, filled
from torch_pjrt.lowering.table import Lowering
from torch_pjrt.plugin.limits import objection


def objection_to_rule(op: Any, lowering: Lowering, call: Asked) -> str | None:
    """What a rule's program for this call has that the device at work cannot do; None if it can run."""
    try:
        with dtypes.x64():
            module = _lowered(op, lowering, call).compiler_ir("stablehlo")
    except (NotImplementedError, ValueError) as error:  # JAX has no such primitive for the platform
        return str(error).partition("\n")[0]
    return objection(module, client().capabilities)


def _lowered(op: Any, lowering: Lowering, call: Asked) -> Any:
    shapes = [jax.ShapeDtypeStruct(tuple(f.shape), dtypes.to_jax(f.dtype)) for f in call.specs]
    wide = dtypes.are_wide()
    kinds = {int: np.int64 if wide else np.int32, float: np.float64 if wide else np.float32}
    numbers = [
        jax.ShapeDtypeStruct((), np.dtype(kinds[n.__class__]), weak_type=True) for n in call.numbers
    ]

    def run(words: Any, numbers: Any, *inputs: jax.Array) -> Any:
        def tensor(slot: Slot) -> jax.Array:
            return inputs[slot.index]

        def number(slot: NumberSlot) -> Any:
            return numbers[slot.index]

        args = filled(call.args, tensor, number)
        kwargs = filled(call.kwargs, tensor, number)
        key = [jax.random.wrap_key_data(words, impl="threefry2x32")] if lowering.random else []
        results = lowering.called(op, [*key, *args], kwargs)
        return [r for r in jax.tree.leaves(results) if isinstance(r, jax.Array)]

    words = jax.ShapeDtypeStruct((2,), np.dtype(np.uint32))
    return client().lower(run, (words, numbers, *shapes), ())
