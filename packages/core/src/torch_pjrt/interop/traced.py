"""A JAX function traced for one pattern of arguments, and recorded as one node.

A function is traced once for each pattern; from then on its jaxpr stands for it, and so do those of its
derivatives. They live as long as the function does, or a tape on which they are recorded: the node's
operator knows them weakly.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any

import jax
import torch
from jax.extend.core import ClosedJaxpr, jaxpr_as_fun

from torch_pjrt import dtypes
from torch_pjrt.errors import LoweringError
from torch_pjrt.graph.signature import FunctionOp, Slot, intern
from torch_pjrt.graph.tape import current, state
from torch_pjrt.graph.tensor_spec import TensorSpec, contiguous_spec
from torch_pjrt.interop.arrays import torch_dtype
from torch_pjrt.run.sync import cut
from torch_pjrt.settings import settings
from torch_pjrt.tensor.recording.record import record
from torch_pjrt.tensor.storage.buffer import wrap
from torch_pjrt.tensor.storage.view import value_of

Arrays = Sequence[jax.Array]


class Traced:
    """One jaxpr with its signature: flat arrays in, flat arrays out.

    name         of the function, for texts and errors.
    ins, outs    the specs of inputs and results.
    """

    def __init__(self, name: str, jaxpr: ClosedJaxpr, ins: tuple[TensorSpec, ...]) -> None:
        self.name = name
        self.jaxpr = jaxpr
        self.ins = ins
        self.outs = tuple([contiguous_spec(a.shape, torch_dtype(a.dtype)) for a in jaxpr.out_avals])
        self.signature = intern(
            FunctionOp(f"jax.{name}", _computing(weakref.ref(self), name)),
            tuple(map(Slot, range(len(ins)))),
            {},
            ins,
            self.outs,
            returns="list",
        )
        self._derived: dict[Any, Traced] = {}

    def __call__(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Record one call; new tensors of its results."""
        if state.tape.size > settings.tape_limit:
            cut(state.tape)
        values = record(self.signature, [value_of(t) for t in tensors], [])
        current().kept.append(self)
        return [wrap(v, spec) for v, spec in zip(values, self.outs, strict=True)]

    def derivative(self, wanted: tuple[int, ...], given: tuple[int, ...]) -> Traced:
        """Gradients of the inputs `wanted` from the inputs and the gradients of the results `given`."""
        key = (wanted, given)
        known = self._derived.get(key)
        if known is None:
            known = self._derived[key] = self._differentiated(wanted, given)
        return known

    def batched(self, dims: tuple[int | None, ...], specs: tuple[TensorSpec, ...]) -> Traced:
        """The same for inputs with a batch at these dims (None: without one); results have it first."""
        key = (dims, specs)
        known = self._derived.get(key)
        if known is None:
            function = jax.vmap(jaxpr_as_fun(self.jaxpr), in_axes=dims)
            known = self._derived[key] = trace(f"{self.name}.vmap", function, specs)
        return known

    def _differentiated(self, wanted: tuple[int, ...], given: tuple[int, ...]) -> Traced:
        function = jaxpr_as_fun(self.jaxpr)

        def backward(*arrays: jax.Array) -> Arrays:
            inputs, gradients = arrays[: len(self.ins)], arrays[len(self.ins) :]

            def of_wanted(*changed: jax.Array) -> Arrays:
                filled = list(inputs)
                for i, x in zip(wanted, changed, strict=True):
                    filled[i] = x
                results = function(*filled)
                return [results[i] for i in given]

            _, pull = jax.vjp(of_wanted, *[inputs[i] for i in wanted])
            return [_turned(x) for x in pull([_turned(g) for g in gradients])]

        specs = (*self.ins, *[self.outs[i] for i in given])
        return trace(f"{self.name}.vjp", backward, specs)


def trace(name: str, function: Callable[..., Arrays], specs: tuple[TensorSpec, ...]) -> Traced:
    """Trace a function of flat arrays, with the 64-bit types that these need or the user has switched on."""
    shapes = [jax.ShapeDtypeStruct(tuple(f.shape), dtypes.to_jax(f.dtype)) for f in specs]
    wide = dtypes.are_wide() and any(f.dtype in _WIDE for f in specs)
    with jax.enable_x64(wide or jax.config.jax_enable_x64):  # type: ignore[attr-defined]
        return Traced(name, jax.make_jaxpr(function)(*shapes), specs)


_WIDE = frozenset((torch.int64, torch.uint64, torch.float64, torch.complex128))


def _turned(gradient: jax.Array) -> jax.Array:
    """PyTorch's gradient of something complex is the conjugate of JAX's."""
    return gradient.conj() if jax.numpy.iscomplexobj(gradient) else gradient


def _computing(traced: weakref.ref[Traced], name: str) -> Callable[..., Arrays]:
    def compute(*inputs: jax.Array) -> Arrays:
        alive = traced()
        if alive is None:
            raise LoweringError(
                f"The JAX function `{name}` was recorded, but it is gone.",
                hint="keep the object that `jax_function` gave for as long as its results are wanted",
            )
        return jaxpr_as_fun(alive.jaxpr)(*inputs)

    return compute
