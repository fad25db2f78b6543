"""`pallas_op`: a Pallas kernel, or any function of JAX's, as an operator of PyTorch's."""

from __future__ import annotations

import sysconfig
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import jax
import torch
from torch.utils._pytree import tree_map

from torch_pjrt.errors import LoweringError, PluginError
from torch_pjrt.extend import jax_dtype, lowering_now, lowers
from torch_pjrt.plugin import rules
from torch_pjrt_kernels.own.on_chip import shapes_of, traced_on_the_chip
from torch_pjrt_kernels.own.per_platform import on_each_platform
from torch_pjrt_kernels.own.rule_of_dims import SplittingRule
from torch_pjrt_kernels.own.sharding import split, splits
from torch_pjrt_kernels.own.signature import OpSignature, Parameter, signature_of

Function = Callable[..., Any]

# Names of parameters that operators have beside those of their functions.
GRADIENT, FIRST_GRADIENT, BATCH_DIMS = "grad_of_result_", "grad_of_result_0", "batch_dims_of_vmap"

# Folders of code that is nobody's kernel: Python's, JAX's, this package.
_LIBRARIES = (
    *(sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")),
    str(Path(__file__).parents[1]),
)
# PyTorch forgets operators when their library goes.
_libraries: dict[str, torch.library.Library] = {}


def pallas_op(
    name: str,
    function: Function | None = None,
    *,
    backward: Function | None = None,
    gradient_of: Function | None = None,
    sharding_rule: str | None = None,
    fingerprint: str | None = None,
) -> Any:
    """A function of JAX's, which may call Pallas kernels, as an operator `torch.ops.<space>.<name>`.

    name         `space::name`, one that no operator has.
    function     of arrays and of numbers, bools, text, lists of integers or None: its annotations say which
                 (`x: jax.Array`, `width: int`, `bias: jax.Array | None`; without one, an array). It gives an
                 array, or, annotated so, a tuple of them. Numbers are known to it: a new one is a new
                 program. Left out, this is a decorator.
    backward     the gradients: a function of JAX's that takes the gradient of each result and then what
                 `function` takes, and gives one for each array among these, or None.
    gradient_of  instead of it, a function that computes the same and that JAX can differentiate. Where
                 neither is given, JAX differentiates `function`: not all Pallas kernels can be.
    sharding_rule  names of the dims of each array, and of each result: "b s d, d -> b s d"; "b (n g)" has a
                 dim of two. Over several chips the call is then split along those that all results have, and
                 its gradient summed where it lacks one; the others are whole on each chip. Without it XLA
                 splits what is no kernel; a compiled kernel must then be in `torch_pjrt_spmd.shard_map`.
    fingerprint  a text that changes whenever it computes something else. Without one, its programs are kept
                 on disk only if `function` is a module's own, and no closure.

    What it returns is the operator: called with tensors of the device it is recorded, in compiled functions
    it is one node; `torch.vmap` batches it as JAX does. Tensors of the CPU go through the device and back.
    A Pallas kernel is interpreted on the CPU, and compiled on TPUs and GPUs, also ahead of time. It is traced
    with JAX's usual 32 bits, so arrays of int64 and float64 are refused.

    Raises `LoweringError` for a function that cannot be an operator and, at a call, for one that fails, with
    the line of the kernel that did; `PluginError` for a name that is taken.

        @pallas_op("mine::double")
        def double(x: jax.Array) -> jax.Array:
            def kernel(x_ref, y_ref):
                y_ref[...] = x_ref[...] * 2
            return pl.pallas_call(kernel, out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype))(x)
    """
    if function is None:
        return partial(
            pallas_op, name, backward=backward, gradient_of=gradient_of,
            sharding_rule=sharding_rule, fingerprint=fingerprint,
        )  # fmt: skip
    space, _, short = name.partition("::")
    if not space.isidentifier() or not short.isidentifier():
        raise PluginError(f"`{name}` is no name of an operator.", expected="`space::name`")
    if hasattr(getattr(torch.ops, space), short):
        raise PluginError(f"There is an operator `{name}` already.", hint="choose another name")
    signature = signature_of(function)
    of_gradient = _gradient(signature, function if gradient_of is None else gradient_of, backward)
    rule = None
    if sharding_rule is not None:
        n_arrays = sum(p.is_tensor for p in signature.parameters)
        rule = SplittingRule.parsed(sharding_rule, n_arrays, signature.n_results)
    op = _define(name, signature, function, fingerprint, rule=rule, of_gradient=of_gradient)
    _differentiate(
        name, signature, of_gradient, fingerprint, _source(function, backward, gradient_of), rule
    )
    batched = f"{name}_batched"
    with_dims = _with_dims(signature)
    _define(batched, with_dims, _batched(function, signature), fingerprint, function, rule=rule)
    over = _batched_gradient(of_gradient, signature)
    _differentiate(batched, with_dims, over, fingerprint, function, rule)
    torch.library.register_vmap(name, _vmap(batched, signature), lib=_library(name))
    return op


def _library(name: str) -> torch.library.Library:
    space = name.partition("::")[0]
    if space not in _libraries:
        _libraries[space] = torch.library.Library(space, "FRAGMENT")
    return _libraries[space]


def _define(
    name: str, signature: OpSignature, function: Function, fingerprint: str | None,
    source: Function | None = None, *, rule: SplittingRule | None = None,
    of_gradient: Function | None = None,
) -> Any:  # fmt: skip
    """The operator, its fake kernel, its rule, and what it does with tensors of the CPU."""
    space, _, short = name.partition("::")
    library = _library(name)
    library.define(short + signature.schema())
    packet = getattr(getattr(torch.ops, space), short)
    op = packet.default

    def lowered(*args: Any) -> Any:
        try:
            if rule is not None and splits():
                return _split(function, signature, rule, args)
            if not lowering_now().chips:
                given, of_arrays = _of_arrays(function, signature, args)
                by_hand = _gradient_of_arrays(signature, of_gradient, args)
                return on_each_platform(name, of_arrays, by_hand, given)
            return traced_on_the_chip(function, *args)
        except Exception as error:
            raise _failed(name, error) from error

    def fake(*args: Any) -> Any:
        found = _shapes(name, function, signature, args)
        device = next((x.device for x in args if isinstance(x, torch.Tensor)), None)
        made = [
            torch.empty(x.shape, dtype=rules.to_torch(x.dtype), device=device)
            for x in jax.tree.leaves(found)
        ]
        if len(made) != signature.n_results:
            raise LoweringError(
                f"`{name}` gave another number of arrays than its annotation says.",
                saw=str(len(made)), expected=str(signature.n_results),
            )  # fmt: skip
        return made[0] if signature.single else tuple(made)

    def on_cpu(*args: Any) -> Any:
        there = [x.to("pjrt") if isinstance(x, torch.Tensor) else x for x in args]
        return tree_map(lambda x: x.cpu(), op(*there))

    lowered.__wrapped__ = source or function  # type: ignore[attr-defined]
    lowered.computes_as_wrapped = True  # type: ignore[attr-defined]
    library.impl(short, on_cpu, "CPU")
    torch.library.register_fake(name, _in_order(fake, signature), lib=library)
    static = [p.name for p in signature.parameters if not p.is_tensor]
    lowers(op, static=static, fingerprint=fingerprint)(_in_order(lowered, signature))
    return packet


def _split(
    function: Function, signature: OpSignature, rule: SplittingRule, args: tuple[Any, ...]
) -> Any:
    """The call on parts of its arrays. `rule` is that of the function, also for its gradient, and batched."""
    names = [p.name for p in signature.parameters]
    if BATCH_DIMS in names:
        rule = rule.batched(args[names.index(BATCH_DIMS)])
    if FIRST_GRADIENT in names:
        rule = rule.of_gradient()
    present = [
        x is not None for x, p in zip(args, signature.parameters, strict=True) if p.is_tensor
    ]
    arrays, of_arrays = _of_arrays(function, signature, args)
    return split(partial(traced_on_the_chip, of_arrays), rule.of_these(present), arrays)


def _of_arrays(
    function: Function, signature: OpSignature, args: tuple[Any, ...]
) -> tuple[list[Any], Function]:
    """The arrays among the arguments, and the function of these alone."""
    parameters = enumerate(signature.parameters)
    there = [i for i, p in parameters if p.is_tensor and args[i] is not None]

    def of_arrays(*arrays: Any) -> Any:
        given = list(args)
        for i, array in zip(there, arrays, strict=True):
            given[i] = array
        return function(*given)

    return [args[i] for i in there], of_arrays


def _gradient_of_arrays(
    signature: OpSignature, of_gradient: Function | None, args: tuple[Any, ...]
) -> Function | None:
    """The gradients of a call's arrays, of those of its results and the arrays: None of integers."""
    if of_gradient is None:
        return None
    n, tensors = signature.n_results, [i for i, p in enumerate(signature.parameters) if p.is_tensor]

    def gradients(*given: Any) -> list[Any]:
        grads, filled, rest = given[:n], list(args), iter(given[n:])
        for i in tensors:
            filled[i] = None if args[i] is None else next(rest)
        found = of_gradient(*grads, *filled)
        return [
            x if _is_float(filled[i]) else None
            for i, x in zip(tensors, found, strict=True)
            if filled[i] is not None
        ]

    return gradients


def _in_order(function: Function, signature: OpSignature) -> Function:
    """The function called with all arguments by position: PyTorch leaves out those that are as by default."""
    names = [p.name for p in signature.parameters]
    defaults = {p.name: p.default for p in signature.parameters}

    def called(*args: Any, **kwargs: Any) -> Any:
        given = {**defaults, **dict(zip(names, args, strict=False)), **kwargs}
        return function(*(given[name] for name in names))

    for attribute in ("__wrapped__", "computes_as_wrapped"):
        if hasattr(function, attribute):
            setattr(called, attribute, getattr(function, attribute))
    return called


def _shapes(name: str, function: Function, signature: OpSignature, args: tuple[Any, ...]) -> Any:
    like = [_like(x) if isinstance(x, torch.Tensor) else x for x in args]
    tensors = [i for i, p in enumerate(signature.parameters) if p.is_tensor and like[i] is not None]

    def of_tensors(*arrays: Any) -> Any:
        given = list(like)
        for i, array in zip(tensors, arrays, strict=True):
            given[i] = array
        return function(*given)

    try:
        return shapes_of(of_tensors, *(like[i] for i in tensors))
    except Exception as error:
        raise _failed(name, error) from error


def _like(x: torch.Tensor) -> jax.ShapeDtypeStruct:
    dtype = jax_dtype(x.dtype)
    if dtype.name in ("int64", "uint64", "float64", "complex128"):
        raise LoweringError(
            "Kernels are traced without 64-bit types, and one is given such a tensor.",
            saw=f"{x.dtype}{list(x.shape)}",
            hint="narrow it before the call: x.int(), x.float()",
        )
    return jax.ShapeDtypeStruct(tuple(int(n) for n in x.shape), dtype)


def _failed(name: str, error: Exception) -> Exception:
    """An error that names the line of the kernel: the last one outside of libraries."""
    if isinstance(error, LoweringError):
        return error
    frames = traceback.extract_tb(error.__traceback__)
    own = [f for f in frames if not f.filename.startswith(_LIBRARIES)]
    line = f" at {own[-1].filename}:{own[-1].lineno}" if own else ""
    said = str(error).strip().partition("\n")[0]
    return LoweringError(
        f"The kernel of `{name}` failed{line}.", saw=f"{type(error).__name__}: {said}"
    )


# Gradients.


def _gradient(signature: OpSignature, function: Function, backward: Function | None) -> Function:
    """A function of the results' gradients and the arguments: a gradient for each array, or empty."""
    n = signature.n_results
    tensors = [i for i, p in enumerate(signature.parameters) if p.is_tensor]

    def by_jax(*given: Any) -> tuple[Any, ...]:
        grads, args = given[:n], list(given[n:])
        wanted = [i for i in tensors if args[i] is not None and _is_float(args[i])]

        def of_floats(*arrays: Any) -> Any:
            for i, array in zip(wanted, arrays, strict=True):
                args[i] = array
            return function(*args)

        _, pull = jax.vjp(of_floats, *(args[i] for i in wanted))
        found = dict(zip(wanted, pull(grads[0] if signature.single else tuple(grads)), strict=True))
        return tuple(found.get(i, _nothing()) for i in tensors)

    def by_hand(*given: Any) -> tuple[Any, ...]:
        assert backward is not None
        found = backward(*given)
        found = found if isinstance(found, (tuple, list)) else (found,)
        if len(found) != len(tensors):
            raise LoweringError(
                "The backward of a kernel gave another number of gradients.",
                saw=str(len(found)), expected=f"{len(tensors)}, one for each array",
            )  # fmt: skip
        return tuple(_nothing() if x is None else x for x in found)

    return by_jax if backward is None else by_hand


def _differentiate(
    name: str,
    signature: OpSignature,
    of_gradient: Function,
    fingerprint: str | None,
    source: Function,
    rule: SplittingRule | None,
) -> None:
    """The operator of the backward, and the formula that calls it."""
    n = signature.n_results
    grads = tuple(Parameter(f"{GRADIENT}{i}", "Tensor") for i in range(n))
    rest = tuple(Parameter(p.name, p.kind) for p in signature.parameters)
    tensors = [i for i, p in enumerate(rest) if p.is_tensor]
    single = len(tensors) == 1

    def gradients(*args: Any) -> Any:
        found = of_gradient(*args)
        return found[0] if single else found

    if not tensors:
        return
    of = OpSignature((*grads, *rest), len(tensors), single)
    op = _define(f"{name}_backward", of, gradients, fingerprint, source, rule=rule).default

    def keep(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.save_for_backward(*(x for x in inputs if isinstance(x, torch.Tensor)))
        ctx.given = [None if isinstance(x, torch.Tensor) else x for x in inputs]
        ctx.are_tensors = [isinstance(x, torch.Tensor) for x in inputs]
        of_all = (output,) if isinstance(output, torch.Tensor) else output
        ctx.like = [(x.shape, x.dtype, x.device) for x in of_all]

    def differentiated(ctx: Any, *grads: Any) -> tuple[Any, ...]:
        saved = iter(ctx.saved_tensors)
        args = [
            next(saved) if is_tensor else x
            for is_tensor, x in zip(ctx.are_tensors, ctx.given, strict=True)
        ]
        whole = [
            torch.zeros(shape, dtype=dtype, device=device) if g is None else g
            for g, (shape, dtype, device) in zip(grads, ctx.like, strict=True)
        ]
        found = op(*whole, *args)
        by_index = dict(zip(tensors, [found] if single else found, strict=True))
        return tuple(
            by_index[i] if i in by_index and wanted else None
            for i, wanted in enumerate(ctx.needs_input_grad)
        )

    torch.library.register_autograd(name, differentiated, setup_context=keep, lib=_library(name))


def _is_float(x: Any) -> bool:
    return jax.numpy.issubdtype(x.dtype, jax.numpy.inexact)


def _nothing() -> Any:
    return jax.numpy.zeros((0,), "float32")


def _source(function: Function, *others: Function | None) -> Function:
    """What stands for all of them on disk: the first, if all are of one module."""
    for other in others:
        if other is not None and getattr(other, "__module__", None) != function.__module__:
            return other
    return function


# torch.vmap.


def _with_dims(signature: OpSignature) -> OpSignature:
    """The signature with a first parameter: along which dim of each array the batch is, -1 for none."""
    dims = Parameter(BATCH_DIMS, "int[]")
    rest = tuple(Parameter(p.name, p.kind) for p in signature.parameters)
    return OpSignature((dims, *rest), signature.n_results, signature.single)


def _batched(function: Function, signature: OpSignature) -> Function:
    """The function over a batch, in JAX's way; results have the batch first."""
    tensors = [i for i, p in enumerate(signature.parameters) if p.is_tensor]

    def batched(batch_dims: Any, *args: Any) -> Any:
        there = [i for i in tensors if args[i] is not None]

        def of_one(*arrays: Any) -> Any:
            given = list(args)
            for i, array in zip(there, arrays, strict=True):
                given[i] = array
            return function(*given)

        axes = [
            None if batch_dims[tensors.index(i)] < 0 else batch_dims[tensors.index(i)]
            for i in there
        ]
        return jax.vmap(of_one, in_axes=tuple(axes))(*(args[i] for i in there))

    return batched


def _batched_gradient(of_gradient: Function, signature: OpSignature) -> Function:
    """The gradients over a batch: those of an array without one are summed."""
    n = signature.n_results
    tensors = [i for i, p in enumerate(signature.parameters) if p.is_tensor]

    def gradients(*given: Any) -> tuple[Any, ...]:
        grads, dims, args = given[:n], given[n], given[n + 1 :]
        there = [i for i in tensors if args[i] is not None]

        def of_one(*arrays: Any) -> Any:
            filled = list(args)
            for i, array in zip(there, arrays[n:], strict=True):
                filled[i] = array
            return of_gradient(*arrays[:n], *filled)

        by_tensor = dict(zip(tensors, dims, strict=True))
        axes = (*(0,) * n, *(None if by_tensor[i] < 0 else by_tensor[i] for i in there))
        found = jax.vmap(of_one, in_axes=axes)(*grads, *(args[i] for i in there))
        return tuple(
            _nothing() if x.size == 0 else x.sum(0) if dim < 0 else jax.numpy.moveaxis(x, 0, dim)
            for x, dim in zip(found, dims, strict=True)
        )

    return gradients


def _vmap(batched: str, signature: OpSignature) -> Function:
    space, _, short = batched.partition("::")
    tensors = [i for i, p in enumerate(signature.parameters) if p.is_tensor]

    def over(info: Any, in_dims: Any, *args: Any) -> Any:
        dims = [-1 if in_dims[i] is None else in_dims[i] for i in tensors]
        defaults = [p.default for p in signature.parameters]
        found = getattr(getattr(torch.ops, space), short)(dims, *args, *defaults[len(args) :])
        return found, 0 if signature.single else (0,) * signature.n_results

    return over
