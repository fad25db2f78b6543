"""`torch_pjrt.jax_function`: a JAX function as a differentiable PyTorch operator of the program."""

from __future__ import annotations

from collections.abc import Callable
from functools import update_wrapper
from typing import Any
from weakref import WeakKeyDictionary

import jax
import torch

from torch_pjrt.graph.signature import hashable
from torch_pjrt.graph.tensor_spec import contiguous_spec
from torch_pjrt.interop.traced import Traced, trace
from torch_pjrt.session import session
from torch_pjrt.tensor.registration.registry import register_all
from torch_pjrt.tensor.storage.buffer import is_pjrt
from torch_pjrt.tensor.storage.mixed_devices import mismatch

# What is known of each function: (arguments' structure, static values, specs) -> traced, results' structure.
_known: WeakKeyDictionary[Any, dict[Any, tuple[Traced, Any]]] = session.own(
    "functions of JAX that were traced", WeakKeyDictionary()
)

_TENSOR = object()


class JaxFunction:
    """A JAX function that takes and gives tensors; made by `jax_function`."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        self.name = getattr(function, "__name__", type(function).__name__)
        update_wrapper(self, function, updated=())

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call it: recorded as one node of the program."""
        leaves, structure = jax.tree.flatten((args, kwargs), is_leaf=_is_tensor)
        tensors = [leaf for leaf in leaves if _is_tensor(leaf)]
        if not tensors:
            raise TypeError(
                f"`{self.name}` was called without a tensor; call the JAX function itself"
            )
        on_host = not any(map(is_pjrt, tensors))
        if on_host and all(t.device.type == "cpu" for t in tensors):
            moved = [leaf.to("pjrt") if _is_tensor(leaf) else leaf for leaf in leaves]
            results = self._call(moved, structure)
            return jax.tree.map(lambda t: t.cpu(), results, is_leaf=_is_tensor)
        devices = {str(t.device) for t in tensors if not is_pjrt(t)}
        if devices:
            raise mismatch(torch.device(min(devices)))
        return self._call(leaves, structure)

    def __repr__(self) -> str:
        return f"jax_function({self.name})"

    def _call(self, leaves: list[Any], structure: Any) -> Any:
        tensors = [leaf for leaf in leaves if _is_tensor(leaf)]
        statics = [_TENSOR if _is_tensor(leaf) else leaf for leaf in leaves]
        traced, results = self._traced(tensors, statics, structure)
        differentiable = torch.is_grad_enabled() and any(t.requires_grad for t in tensors)
        if differentiable or torch._C._functorch.peek_interpreter_stack() is not None:  # pyright: ignore[reportAttributeAccessIssue]
            flat = _Differentiable.apply(traced, *tensors)
        else:
            flat = traced(tensors)
        return jax.tree.unflatten(results, list(flat))

    def _traced(
        self, tensors: list[torch.Tensor], statics: list[Any], structure: Any
    ) -> tuple[Traced, Any]:
        specs = tuple([contiguous_spec(t.shape, t.dtype) for t in tensors])
        try:
            key = (structure, tuple([(type(s), hashable(s)) for s in statics]), specs)
            known = _known.setdefault(self.function, {})
            if key in known:
                return known[key]
        except TypeError as error:
            raise TypeError(
                f"`{self.name}` was called with something that is neither a tensor nor hashable: {error}"
            ) from None
        shapes: list[Any] = []

        def flat(*arrays: jax.Array) -> list[jax.Array]:
            remaining = iter(arrays)
            filled = [next(remaining) if s is _TENSOR else s for s in statics]
            args, kwargs = jax.tree.unflatten(structure, filled)
            results, results_structure = jax.tree.flatten(self.function(*args, **kwargs))
            shapes.append(results_structure)
            return [jax.numpy.asarray(r) for r in results]

        known[key] = found = (trace(self.name, flat, specs), shapes[-1])
        return found


def jax_function(function: Callable[..., Any]) -> JaxFunction:
    """`function`, which computes with JAX arrays, as an operator on tensors.

        >>> rotate = torch_pjrt.jax_function(lambda x, angle: x * jnp.cos(angle))
        >>> x = torch.ones(2, device="pjrt")
        >>> rotate(x, torch.zeros_like(x))  # tensors in, tensors out
        tensor([1., 1.], device='pjrt:0')

    Arguments and results may be pytrees of tensors: tuples, lists, dicts, None, what is registered with
    JAX. Anything else in the arguments must be hashable and is static: a new value of it traces and compiles
    anew, so what changes from step to step should be a tensor. The call is recorded like any other operator
    and becomes part of the same program. Gradients are JAX's (`custom_vjp` included), of any order;
    `torch.func` and `torch.vmap` go through. The function must be pure: it is traced once for each pattern
    of shapes, dtypes and static values. Tensors on the CPU are brought to the device, and the results back.

    Raises `TypeError` for what is no function; a call does so without a tensor, and for a static argument
    that is not hashable. Functions are told apart by identity: make it once, and not in each step. 64-bit
    types are on while it is traced if an argument has one, or where the process has switched them on.
    """
    register_all()
    if isinstance(function, JaxFunction):
        return function
    if not callable(function):
        raise TypeError(f"jax_function takes a function, saw {type(function).__name__}")
    return JaxFunction(function)


class _Differentiable(torch.autograd.Function):
    """One call of something traced, whose backward is one call of its derivative."""

    @staticmethod
    def forward(traced: Traced, *tensors: torch.Tensor) -> Any:  # type: ignore[override]
        return tuple(traced(tensors))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[torch.Tensor, ...]) -> None:
        ctx.traced, *tensors = inputs
        ctx.save_for_backward(*tensors)
        ctx.mark_non_differentiable(*[t for t in output if not _has_gradient(t)])
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor | None) -> Any:
        tensors = ctx.saved_tensors
        wanted = [
            i
            for i, needed in enumerate(ctx.needs_input_grad[1:])
            if needed and _has_gradient(tensors[i])
        ]
        given = [i for i, g in enumerate(gradients) if g is not None]
        results: list[Any] = [None] * (1 + len(tensors))
        if wanted and given:
            derivative = ctx.traced.derivative(tuple(wanted), tuple(given))
            inputs = (*tensors, *[gradients[i] for i in given])
            for i, gradient in zip(wanted, _Differentiable.apply(derivative, *inputs), strict=True):
                results[1 + i] = gradient
        return tuple(results)

    @staticmethod
    def vmap(info: Any, in_dims: Any, traced: Traced, *tensors: torch.Tensor) -> Any:  # type: ignore[override]
        specs = tuple([contiguous_spec(t.shape, t.dtype) for t in tensors])
        batched = traced.batched(tuple(in_dims[1:]), specs)
        results = _Differentiable.apply(batched, *tensors)
        return results, tuple([0] * len(results))


def _is_tensor(x: Any) -> bool:
    return isinstance(x, torch.Tensor)


def _has_gradient(tensor: torch.Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()
