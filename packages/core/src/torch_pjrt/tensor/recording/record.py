"""Recording a call in general: find or learn its signature, append to the tape, wrap the results.

Learning happens once for each signature. PyTorch's meta functions give the results' shapes and dtypes,
and raise PyTorch's own errors for a call that it refuses. Then the way is chosen: a rule of the lowering
table; else PyTorch's decomposition, recorded on a scratch tape; else the CPU.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch.autograd.graph import increment_version

from torch_pjrt import dtypes
from torch_pjrt.caches import Cache
from torch_pjrt.client.client import client
from torch_pjrt.compile.abstract import results_of_rule
from torch_pjrt.device_index import check_index
from torch_pjrt.errors import UnsupportedError
from torch_pjrt.graph.signature import Signature, Slot, intern
from torch_pjrt.graph.tape import Tape, Value, current, state
from torch_pjrt.graph.tensor_spec import TensorSpec, contiguous_spec, spec_of
from torch_pjrt.overloads import PYTORCHS, aten, prims
from torch_pjrt.run.sync import cut
from torch_pjrt.settings import settings
from torch_pjrt.tensor.recording import cpu_generators, decompose, foreach, whole_lists
from torch_pjrt.tensor.recording.argument_binding import BoundCall, is_tensor, mapped
from torch_pjrt.tensor.recording.cpu_errors import (
    check_accepted,
    check_overlap,
    check_small,
    has_cpu_kernel,
    raise_as_on_cpu,
)
from torch_pjrt.tensor.recording.cpu_generators import has_generator
from torch_pjrt.tensor.recording.fallback import run_on_cpu
from torch_pjrt.tensor.recording.layout import (
    CONTIGUOUS_OUT,
    KEEPS_SHAPE_OF_OUT,
    RESIZES_SILENTLY,
    laid_out,
    meta_as_cpu,
)
from torch_pjrt.tensor.recording.metas import METAS
from torch_pjrt.tensor.recording.schema import OverloadPlan, plan_of
from torch_pjrt.tensor.storage.buffer import is_pjrt, spec_and_offset, wrap, wrap_sized
from torch_pjrt.tensor.storage.counts import DATA_DEPENDENT
from torch_pjrt.tensor.storage.mixed_devices import OfSeveralDevices, mismatch
from torch_pjrt.tensor.storage.overlap import (
    refuse_internal_overlap,
    refuse_partial_overlap,
    share_memory,
)
from torch_pjrt.tensor.storage.unsupported_tensors import refuse_layout
from torch_pjrt.tensor.storage.view import resize_as, store, warn_of_elements

# Call key -> its signature, or None where the call runs on the CPU.
_learned: Cache[Any, Signature | None] = Cache("signatures of calls", most=65_536)

_NO_SIGNATURE: Any = object()


def _without_padding(op: Any, plan: OverloadPlan, args: Any, kwargs: Any) -> Any:
    raise AssertionError(f"nothing that knows of padding is imported: {op}")


# As `call`, where the size of a tensor is one that only values decide: `padding/calls.py` puts it here.
call_padded: Callable[[Any, OverloadPlan, tuple[Any, ...], dict[str, Any]], Any] = _without_padding

# What PyTorch says of a custom operator without a meta function.
_NO_FAKE = "no fake impl registered"

# They may write to tensors whose elements share memory.
_WRITES_ONE_VALUE = frozenset(
    (
        aten.zero_.default,
        aten.fill_.Scalar,
        aten.fill_.Tensor,
    )
)

# Their meta functions give shapes or dtypes that no kernel does, on CPU or elsewhere; the rules are right.
_META_IS_WRONG = frozenset(
    (
        aten.multilabel_margin_loss_forward.default,
        aten.native_batch_norm_backward.default,
        aten.native_group_norm.default,
        aten.native_group_norm_backward.default,
    )
)


def call(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any], *, anew: bool = False) -> Any:
    """Do what `op(*args, **kwargs)` does, for any overload and any mixture of arguments.

    `anew` calls PyTorch's meta function though the signature may be known: it warns.

    >>> x = torch.zeros(2, device="pjrt")
    >>> record_call(torch.ops.aten.add.Tensor, (x, 1), {})
    tensor([1., 1.], device='pjrt:0')
    """
    tape = state.tape
    if tape.size > settings.tape_limit:
        cut(tape)
    plan = plan_of(op)
    if has_generator(args, kwargs):
        return cpu_generators.call(op, args, kwargs)
    if plan.functional is None or plan.returns == "other":
        return run_on_cpu(op, args, kwargs)
    if (device := kwargs.get("device")) is not None and device.index and device.type == "pjrt":
        check_index(device)
    named = kwargs
    if plan.decides_dtype and kwargs.get("dtype") is None:
        named = {**kwargs, "dtype": kwargs["out"].dtype}
    try:
        bound = BoundCall(plan, args, named, static_names(plan.functional))
    except OfSeveralDevices:
        return foreach.each_where_it_is(op, args, kwargs)
    if DATA_DEPENDENT in bound.specs:
        return call_padded(op, plan, args, kwargs)
    if (
        plan.in_turn
        and not whole_lists.are_apart(bound.lists)
        and foreach.depends_on_order(args, kwargs)
    ):
        return foreach.one_by_one(op, args, kwargs, call)
    key = (bound.key, _looks_of_outs(plan, kwargs))
    signature: Any = _NO_SIGNATURE if anew else _learned.get(key, _NO_SIGNATURE)
    if plan.mutates and torch.Tag.pointwise in op.tags:  # before the shapes, as PyTorch does
        targets = _targets(plan, args, kwargs)
        if signature is _NO_SIGNATURE:
            _refuse_internal_overlap(plan, targets, args, kwargs)
        refuse_partial_overlap(targets, bound.given.values())
    elif plan.mutates and not plan.in_turn:
        read = [x for name, x in bound.given.items() if name not in plan.writes]
        if share_memory(_targets(plan, args, kwargs), read):
            check_overlap(op, args, kwargs, key)
    if signature is _NO_SIGNATURE:
        signature = _learned[key] = learn(bound, args, kwargs)
    if signature is None and bound.static is not None and client().capabilities.limited:
        bound = BoundCall(plan, args, named, None)
        signature = _without_rule(bound, args, kwargs)
    if signature is None:
        return run_on_cpu(op, args, kwargs)
    results = record(signature, bound.inputs, bound.numbers)
    if plan.in_turn:  # PyTorch leaves this to the kernels of lists
        increment_version(args[0])
    if plan.returns == "nothing" and whole_lists.store(bound.lists, plan, signature, results):
        return None
    return finish(plan, signature, results, args, kwargs)


def _without_rule(
    bound: BoundCall, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Signature | None:
    """The signature of a call whose rule needs what the device lacks: that of a decomposition, or None."""
    key = ("without its rule", bound.key)
    signature = _learned.get(key, _NO_SIGNATURE)
    if signature is _NO_SIGNATURE:
        signature = _learned[key] = learn(bound, args, kwargs, has_rule=False)
    return signature


def _looks_of_outs(plan: OverloadPlan, kwargs: dict[str, Any]) -> tuple[Any, ...]:
    """What the `out=` arguments look like: PyTorch refuses some for their dtype."""
    for name in plan.outs:
        out = kwargs.get(name)
        if isinstance(out, torch.Tensor) and not is_pjrt(out):
            raise mismatch(out.device)
    return tuple(
        [spec_and_offset(kwargs[name])[0] for name in plan.outs if is_pjrt(kwargs.get(name))]
    )


def static_names(functional: Any) -> frozenset[str] | None:
    """Which numbers must be constants: those that the rule names; all of them where there is no rule."""
    lowering = client().lowerings.get(functional)
    return None if lowering is None else lowering.static


def learn(
    call: BoundCall, args: tuple[Any, ...], kwargs: dict[str, Any], *, has_rule: bool = True
) -> Signature | None:
    """The signature of a call seen for the first time; None if it must run on the CPU.

    On a device of limited capabilities None also says that the rule needs more: then the call is learnt
    again without it (`has_rule`), numbers being constants. Raises what PyTorch raises for such a call.
    """
    plan = call.plan
    if plan.mutates:
        _refuse_internal_overlap(plan, _targets(plan, args, kwargs), args, kwargs)
    lowering = client().lowerings.get(plan.functional) if has_rule else None
    if lowering is None and plan.random:
        return None
    # Its CPU kernel may be any Python, with effects of its own: no oracle.
    is_own = lowering is not None and plan.op.namespace not in PYTORCHS
    try:
        results = _on_meta(plan, call, args, kwargs)
    except NotImplementedError:  # PyTorch has no meta function
        if plan.functional in METAS:
            raise
        if not is_own:
            check_small(plan.op, args, kwargs)
        if lowering is None:
            return None
        results = results_of_rule(plan.functional, lowering, call)
    except Exception as error:
        if is_own and _NO_FAKE not in str(error):
            raise
        if not is_own:
            raise_as_on_cpu(plan.op, args, kwargs, error)
        if plan.functional in METAS:
            raise
        if lowering is None or (has_cpu_kernel(plan.op) and not is_own):
            return None
        # An accelerator's operator, which the CPU lacks.
        results = results_of_rule(plan.functional, lowering, call)
    else:
        if not is_own:
            check_accepted(plan.op, args, kwargs, results)
        if lowering is not None and plan.functional in _META_IS_WRONG:
            results = results_of_rule(plan.functional, lowering, call)
    outs, dropped = _specs(laid_out(plan.functional, call.given, call.specs, results))
    if lowering is not None and client().capabilities.limited:
        from torch_pjrt.compile.limits import objection_to_rule

        if objection_to_rule(plan.functional, lowering, call) is not None:
            return None
    try:
        return intern(
            plan.functional,
            call.args,
            call.kwargs,
            tuple(call.specs),
            outs,
            tuple(n.__class__ for n in call.numbers),
            random=lowering is not None and lowering.draws(call.given),
            returns="list" if plan.returns == "nothing" else plan.returns,
            dropped=dropped,
            expand=None if lowering is not None else decompose.expand,
        )
    except decompose.NoDecomposition:
        return None


def _refuse_internal_overlap(
    plan: OverloadPlan, targets: Sequence[Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    """Raise for a target whose elements share memory: what the CPU kernel raises, where it can be tried."""
    if plan.op in _WRITES_ONE_VALUE:
        return
    try:
        for target in targets:
            if isinstance(target, torch.Tensor):
                refuse_internal_overlap(spec_and_offset(target)[0])
    except RuntimeError:
        if not check_small(plan.op, args, kwargs):
            raise


def record(
    signature: Signature, inputs: Sequence[Value], numbers: Sequence[int | float]
) -> list[Value]:
    """Append one node to the tape; the values it makes, in the order of `signature.outs`.

    `inputs` are by the signature's slots, `numbers` (ints and floats) by its number slots. Values that are
    pending on another thread's tape are computed first.

        >>> x = value_of(torch.zeros(3, device="pjrt"))
        >>> signature = intern(aten.cos.default, (Slot(0),), {}, (x.spec,), (x.spec,))
        >>> [y] = record(signature, [x], [])
        >>> wrap(y, y.spec)
        tensor([1., 1., 1.], device='pjrt:0')
    """
    ints = [n for n in numbers if n.__class__ is int]
    floats = [n for n in numbers if n.__class__ is float]
    while True:
        tape = current()
        take = tape.take  # written out: an optimizer's step has thousands of inputs
        code: list[Any] = [signature]
        code += [v.number if v.tape is tape else take(v) for v in inputs]
        if signature.random:
            code += draw(tape)
        first = tape.size
        values = [Value(spec, first + i, tape) for i, spec in enumerate(signature.outs)]
        n_values = len(values)
        if tape.closed or tape.size != first:
            continue
        # From here on nothing is called, so that an interrupt (Ctrl-C) comes before or after.
        tape.code += code
        tape.ints += ints  # type: ignore[arg-type]
        tape.floats += floats
        tape.size = first + n_values
        tape.values += values
        tape.n_further += n_values - 1
        return values


def draw(tape: Tape) -> tuple[int, int]:
    """The next random draw on the tape."""
    from torch_pjrt.graph.generator import generator

    return generator.draw(tape)


def finish(
    plan: OverloadPlan,
    signature: Signature,
    values: Sequence[Value],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    """Wrap results as new tensors, or write them to the arguments that the schema says."""
    if not plan.mutates:
        tensors = wrapped(signature, values, wrap_sized if plan.is_factory else wrap)
        return tensors[0] if plan.returns == "tensor" else _sequence(plan, tensors)
    targets = _targets(plan, args, kwargs)
    position = 0
    fresh: list[Any] = []
    for result, target in zip(_result_types(plan), targets, strict=True):
        if isinstance(target, (list, tuple)):
            end = position + len(target)
            _write_all(target, values[position:end], signature.outs[position:end], plan.functional)
            position = end
            continue
        if result == "List[Tensor]":
            raise AssertionError(f"{plan.op} returns new lists beside written ones")
        if target is None:
            fresh.append(wrap(values[position], signature.outs[position]))
        else:
            write(target, values[position], signature.outs[position], plan.functional)
        position += 1
    return _returned(plan, targets, fresh)


def _write_all(
    targets: Sequence[torch.Tensor], values: Sequence[Value], specs: Sequence[TensorSpec], op: Any
) -> None:
    """Write to each of a list. An interrupt in its midst comes after all: writing again does no harm."""
    try:
        for target, value, spec in zip(targets, values, specs, strict=True):
            write(target, value, spec, op)
    except BaseException:
        for target, value, spec in zip(targets, values, specs, strict=True):
            write(target, value, spec, op)
        raise


def write(target: torch.Tensor, value: Value, spec: TensorSpec, op: Any) -> None:
    """Write a value that looks like `spec` into a tensor: resized as `out=` is, cast to its dtype.

    `op` is the functional operator that made the value.
    """
    if target.shape != spec.shape:  # an `out=`
        if op in KEEPS_SHAPE_OF_OUT and target.numel() == spec.numel:
            value, spec = _reshaped(value, spec, target.shape)
        else:
            if not plan_of(op).is_factory and op not in RESIZES_SILENTLY:
                warn_of_elements(target, spec.shape)
            resize_as(target, spec.shape, None if op in CONTIGUOUS_OUT else spec.strides)
    if target.dtype != spec.dtype:
        value = cast(value, spec, target.dtype)
    store(target, value)


def cast(value: Value, spec: TensorSpec, dtype: torch.dtype) -> Value:
    """Record a conversion of dtype."""
    out = contiguous_spec(spec.shape, dtype)
    op = prims.convert_element_type.default
    signature = intern(op, (Slot(0), dtype), {}, (spec,), (out,))
    return record(signature, [value], [])[0]


def _reshaped(value: Value, spec: TensorSpec, shape: torch.Size) -> tuple[Value, TensorSpec]:
    """Record another shape for as many elements; what that looks like."""
    out = contiguous_spec(shape, spec.dtype)
    signature = intern(prims.reshape.default, (Slot(0), tuple(shape)), {}, (spec,), (out,))
    return record(signature, [value], [])[0], out


def _on_meta(
    plan: OverloadPlan, call: BoundCall, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Run the call on PyTorch's meta device: its errors, and what the functional form's results look like."""
    with meta_as_cpu(plan.functional):
        return _called_on_meta(plan, call, args, kwargs)


def _called_on_meta(
    plan: OverloadPlan, call: BoundCall, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:

    alike = foreach.Alike(call.given) if plan.on_lists else None

    def to_meta(x: Any, look: Callable[[torch.Tensor], torch.Tensor]) -> Any:
        return mapped(x if alike is None else alike.cut(x), look, is_tensor)

    def alone(t: torch.Tensor) -> torch.Tensor:
        return spec_and_offset(t)[0].meta()

    if plan.mutates:
        same: dict[int, torch.Tensor] = {}

        def shared(t: torch.Tensor) -> torch.Tensor:
            return same.setdefault(id(t), alone(t))

        named = {name: to_meta(x, shared) for name, x in kwargs.items()}
        if plan.functional not in METAS:
            plan.op(*[to_meta(x, shared) for x in args], **_on_meta_device(named))
    given = {a.name: to_meta(call.given[a.name], alone) for a in plan.arguments}
    positional = [given[a.name] for a in plan.arguments if not a.keyword_only]
    named = {a.name: given[a.name] for a in plan.arguments if a.keyword_only}
    function = METAS.get(plan.functional, plan.functional)
    results = function(*positional, **_on_meta_device(named))  # pyright: ignore[reportOptionalCall]
    return results if alike is None else alike.all_of(results)


def _on_meta_device(kwargs: dict[str, Any]) -> dict[str, Any]:
    return {k: torch.device("meta") if k == "device" else v for k, v in kwargs.items()}


def _specs(results: Any) -> tuple[tuple[TensorSpec, ...], tuple[bool | int, ...]]:
    """What the results look like, lists flattened; and which of a tuple's results are None or a number."""
    flat: list[Any] = []
    for r in results if isinstance(results, (list, tuple)) else [results]:
        flat += r if isinstance(r, (list, tuple)) else [r]
    specs = []
    for r in flat:
        if r is None or isinstance(r, int):
            continue
        _refuse_dtype_that_xla_lacks(r.dtype)
        refuse_layout(r.layout)
        spec = spec_of(r.shape, r.dtype, r.stride())
        specs.append(spec if spec.dense else contiguous_spec(r.shape, r.dtype))
    if len(specs) == len(flat):
        return tuple(specs), ()
    return tuple(specs), tuple(r if isinstance(r, int) else r is None for r in flat)


def _refuse_dtype_that_xla_lacks(dtype: torch.dtype) -> None:
    """Raise at the call. Not a `TypeError`: Python's operators would hide its text."""
    try:
        dtypes.to_jax(dtype)
    except TypeError as error:
        raise UnsupportedError(str(error)) from None


def wrapped(
    signature: Signature,
    values: Sequence[Value],
    wrap_one: Callable[[Value, TensorSpec], torch.Tensor],
) -> list[Any]:
    """What a call returns for these values: tensors, and what else its results are: None, a number."""
    tensors: list[Any] = [
        wrap_one(value, spec) for value, spec in zip(values, signature.outs, strict=True)
    ]
    if not signature.dropped:
        return tensors
    remaining = iter(tensors)
    return [_instead_of_tensor(gone, remaining) for gone in signature.dropped]


def _instead_of_tensor(gone: bool | int, remaining: Iterator[Any]) -> Any:
    if gone is False:
        return next(remaining)
    return None if gone is True else gone


def _sequence(plan: OverloadPlan, tensors: list[Any]) -> Any:
    return tensors if plan.returns == "list" else tuple(tensors)


def _result_types(plan: OverloadPlan) -> list[str]:
    return [str(r.type) for r in plan.functional._schema.returns]


def _targets(plan: OverloadPlan, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
    """For each result of the functional form, the argument it is written to; None for a new tensor."""
    given = dict(kwargs)
    names = [a.name for a in plan.op._schema.arguments if not a.kwarg_only]
    given.update(zip(names, args, strict=False))
    return [given.get(name) if name else None for name in plan.writes]


def _returned(plan: OverloadPlan, targets: list[Any], fresh: list[Any]) -> Any:
    """What the mutating form returns: written arguments where its schema says so, else new tensors."""
    returns = plan.op._schema.returns
    if not returns:
        return None
    written = iter([t for t in targets if t is not None])
    new = iter(fresh)
    results = tuple(next(written) if r.alias_info is not None else next(new) for r in returns)
    return results[0] if len(results) == 1 else results
