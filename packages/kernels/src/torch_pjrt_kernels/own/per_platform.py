"""A kernel in a program for several kinds of devices, as exported ones are: for each kind as it runs there.

On TPUs and GPUs it is compiled, where JAX can do so on this machine; elsewhere it is interpreted. While the
program is traced nobody knows what it is for, so a call is one equation, which each platform lowers itself.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import jax
from jax import export
from jax.core import ShapedArray
from jax.extend.core import Primitive
from jax.interpreters import mlir

from torch_pjrt_kernels.own.on_chip import interpreted, with_32_bits

Function = Callable[..., Any]

_COMPILED_ON = ("tpu", "cuda", "rocm")


@dataclass(frozen=True, slots=True, eq=False)
class _Call:
    """A kernel, and how its results are put together."""

    function: Function
    name: str
    structure: Any

    def leaves(self, *arrays: Any) -> list[Any]:
        return jax.tree.leaves(with_32_bits(self.function, *arrays))

    def interpreted(self, *arrays: Any) -> list[Any]:
        with interpreted():
            return self.leaves(*arrays)


def on_each_platform(
    name: str, function: Function, gradient: Function | None, arrays: Sequence[Any]
) -> Any:
    """What the kernel gives of arrays, in a program of which it is not known what it runs on.

    gradient   of the results' gradients and the arrays: for each array one, or None. Programs of derivatives
               have it.
    """
    computed = partial(_bound, name, function)
    if gradient is None:
        return computed(*arrays)
    differentiable = jax.custom_vjp(computed)

    def backward(arrays: Any, grads: Any) -> Any:
        return tuple(_bound(f"{name}_backward", gradient, *jax.tree.leaves(grads), *arrays))

    differentiable.defvjp(lambda *given: (computed(*given), given), backward)
    return differentiable(*arrays)


def _bound(name: str, function: Function, *arrays: Any) -> Any:
    with interpreted():
        shapes = jax.eval_shape(lambda *x: with_32_bits(function, *x), *arrays)
    call = _Call(function, name, jax.tree.structure(shapes))
    found = _primitive().bind(*arrays, call=call)
    return jax.tree.unflatten(call.structure, found)


@cache
def _primitive() -> Primitive:
    kernel = Primitive("torch_pjrt_kernel")
    kernel.multiple_results = True

    @kernel.def_abstract_eval
    def _(*avals: Any, call: _Call) -> Any:
        like = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in avals]
        return [ShapedArray(x.shape, x.dtype) for x in jax.eval_shape(call.interpreted, *like)]

    def lowered(context: Any, *arrays: Any, call: _Call) -> Any:
        return mlir.lower_fun(call.interpreted)(context, *arrays)

    mlir.register_lowering(kernel, lowered)
    for platform in _COMPILED_ON:
        mlir.register_lowering(kernel, _compiled_on(platform), platform=platform)
    return kernel


def _compiled_on(platform: str) -> Any:
    def lowered(context: Any, *arrays: Any, call: _Call) -> Any:
        like = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in context.avals_in]
        try:
            export.export(jax.jit(call.leaves), platforms=[platform])(*like)
        except Exception as error:
            said = str(error).strip().partition("\n")[0]
            warnings.warn(
                f"`{call.name}` is interpreted on {platform} in this program, which is right, and slower: "
                f"{said}",
                stacklevel=2,
            )
            return mlir.lower_fun(call.interpreted)(context, *arrays)
        return mlir.lower_fun(call.leaves)(context, *arrays)

    return lowered
