"""Kernels written out from schemas, for speed.

`record.call` records any call, but spends its time on asking what kind of argument each one is. For the
common schemas (tensors, numbers and static arguments; one functional result or a tuple of them, or one
written in place) the same steps are written out as Python source. For `add.Tensor` it reads like this:

    def kernel(self, other, *, alpha=1):
        tape = state.tape
        n_values = tape.size
        if n_values > settings.tape_limit: tape = cut(tape); n_values = tape.size
        if other.__class__ in NUMBERS: return with_number(self, other, alpha=alpha)
        try:
            b0 = self.untyped_storage().buffer
            b1 = other.untyped_storage().buffer
        except AttributeError: return call(OP, (self, other), {"alpha": alpha})  # a CPU tensor
        if b0.viewed: v0, f0 = look(self, b0); n_values = tape.size
        else: v0 = b0.value; f0 = b0.spec
        ...
        signature = signatures.get((f0, f1, alpha.__class__))
        ...
        if tape.closed or tape.size != n_values: renew(); return kernel(self, other, alpha=alpha)
        tape.code += code
        ...

The first call of a pattern goes through `record.learn`, so both ways share their signatures.
"""

from __future__ import annotations

import keyword
import os
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from torch_pjrt.caches import Cache
from torch_pjrt.graph.signature import hashable
from torch_pjrt.graph.tape import Value, current, state
from torch_pjrt.overloads import aten
from torch_pjrt.run.sync import cut
from torch_pjrt.settings import settings
from torch_pjrt.tensor.recording import record
from torch_pjrt.tensor.recording.argument_binding import BoundCall
from torch_pjrt.tensor.recording.schema import Argument, Kind, OverloadPlan, plan_of
from torch_pjrt.tensor.storage.buffer import Buffer, create_empty_tensor, wrap
from torch_pjrt.tensor.storage.counts import DATA_DEPENDENT
from torch_pjrt.tensor.storage.view import look, store

_FAST = (Kind.TENSOR, Kind.NUMBER, Kind.STATIC, Kind.DROPPED)
# PyTorch hands these their inputs with a lazy conj bit still set; for others it resolves it first.
_SEES_CONJ = frozenset(
    (
        aten.addmm.default,
        aten.addmv.default,
        aten.baddbmm.default,
        aten.bmm.default,
        aten.dot.default,
        aten.linalg_solve_triangular.default,
        aten.mm.default,
        aten.mv.default,
        aten.vdot.default,
    )
)
# Autograd gives it what forward left out, as `None` in place of a tensor.
_TAKES_NOTHING = frozenset(
    (aten._scaled_dot_product_fused_attention_overrideable_backward.default,)
)
NUMBERS = frozenset((int, float, bool, complex))


def kernel_of(op: Any) -> Callable[..., Any]:
    """A kernel for `op`: written out where its schema allows, else `record.call`."""
    plan = plan_of(op)
    if op in _TAKES_NOTHING:
        first, *others = plan.arguments
        plan = replace(plan, arguments=(first, *[_as_optional(a) for a in others]))
    if not _is_fast(plan):

        def kernel(*args: Any, **kwargs: Any) -> Any:
            return record.call(op, args, kwargs)

        return kernel
    return _compiled(plan)


def _as_optional(argument: Argument) -> Argument:
    return replace(argument, type="Optional[Tensor]") if argument.type == "Tensor" else argument


def _is_fast(plan: OverloadPlan) -> bool:
    op_arguments = [a.name for a in plan.op._schema.arguments]
    return (
        plan.functional is not None
        and (
            (plan.returns == "tensor" and plan.writes in ((None,), ("self",)))
            or (plan.returns == "tuple" and not plan.mutates)
        )
        and op_arguments == [a.name for a in plan.arguments]
        and all(a.kind in _FAST for a in plan.arguments)
        and any(a.kind is Kind.TENSOR for a in plan.arguments)
        and not (plan.mutates and plan.arguments[0].kind is not Kind.TENSOR)
    )


def _compiled(plan: OverloadPlan) -> Callable[..., Any]:
    static = record.static_names(plan.functional)
    variant = _with_number(plan)
    source = source_of(plan, static, has_variant=variant is not None)
    signatures: Cache[Any, Any] = Cache("signatures of kernels", most=4_096)

    def learn(key: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The signature for a key; False where the general way must be taken."""
        if DATA_DEPENDENT in key:
            signatures[key] = False
            return False
        tape, before = state.tape, state.tape.lengths()
        signature = record.learn(BoundCall(plan, args, kwargs, static), args, kwargs)
        # The kernel has read the views already. Read again, this tape would not be that of the next time.
        tape.take_back(before)
        fits = signature is not None and (not plan.mutates or _writes_plainly(signature))
        signatures[key] = signature if fits else False
        return signatures[key]

    scope: dict[str, Any] = {
        "Buffer": Buffer,
        "NUMBERS": NUMBERS,
        "OP": plan.op,
        "Value": Value,
        "call": record.call,
        "cut": cut,
        "default_dtype": torch.get_default_dtype,
        "create": create_empty_tensor,
        "draw": record.draw,
        "hashable": hashable,
        "learn": learn,
        "look": look,
        "renew": current,
        "settings": settings,
        "store": store,
        "signatures": signatures,
        "state": state,
        "with_number": _compiled(variant) if variant is not None else None,
        "wrap": wrap,
        "wrapped": record.wrapped,
        **{f"D{i}": a.default for i, a in enumerate(plan.arguments)},
    }
    # It is ours, for who tells our frames from the user's by their file: Dynamo does.
    file = os.path.join(os.path.dirname(__file__), f"<kernel of {plan.op}>")
    exec(compile(source, file, "exec"), scope)
    return scope["kernel"]


def _with_number(plan: OverloadPlan) -> OverloadPlan | None:
    """The plan of `x * 2`: a Python number in place of the second of two tensors; else None."""
    positions = [i for i, a in enumerate(plan.arguments) if a.kind is Kind.TENSOR]
    if len(positions) != 2 or plan.arguments[positions[1]].optional:
        return None
    arguments = list(plan.arguments)
    arguments[positions[1]] = replace(arguments[positions[1]], kind=Kind.NUMBER)
    return replace(plan, arguments=tuple(arguments))


def _writes_plainly(signature: Any) -> bool:
    """The result of an in-place operator looks as its target does, so that it can take its place."""
    target, out = signature.specs[0], signature.outs[0]
    return target.shape == out.shape and target.dtype == out.dtype


def source_of(plan: OverloadPlan, static: frozenset[str] | None, *, has_variant: bool) -> str:
    """The source of the kernel; `static` names the numbers that are constants (None: all are).

    With `has_variant`, a number in place of the second tensor is left to the kernel `with_number`.
    """
    arguments = plan.arguments
    tensors = [(i, a) for i, a in enumerate(arguments) if a.kind is Kind.TENSOR]
    generic = _generic_call(arguments)
    inputs = frozenset(
        a.name
        for a in arguments
        if a.kind is Kind.NUMBER and static is not None and a.name not in static
    )
    lines = [f"def kernel({_parameters(arguments)}):"]
    add = lines.append
    add("    tape = state.tape")
    add("    n_values = tape.size")
    add("    if n_values > settings.tape_limit: tape = cut(tape); n_values = tape.size")
    required = [a for _, a in tensors if not a.optional]
    if checks := [f"{_word(a)}.__class__ in NUMBERS" for a in required[1:]]:
        other = f"with_number({_forwarded(arguments)})" if has_variant else f"call(OP, {generic})"
        add(f"    if {' or '.join(checks)}: return {other}")
    if any(a.name == "generator" for a in arguments):
        add(f"    if generator is not None: return call(OP, {generic})")
    if any(a.name == "device" for a in arguments):
        add(f"    if device is not None and device.index: return call(OP, {generic})")
    add("    try:")
    for i, a in tensors:
        guard = f" if {_word(a)} is not None else None" if a.optional else ""
        add(f"        b{i} = {_word(a)}.untyped_storage().buffer{guard}")
    add(f"    except AttributeError: return call(OP, {generic})")
    for i, a in tensors:
        if a.optional:
            add(f"    if b{i} is None: f{i} = None")
            add(f"    elif b{i}.viewed: v{i}, f{i} = look({_word(a)}, b{i}); n_values = tape.size")
        else:
            add(f"    if b{i}.viewed: v{i}, f{i} = look({_word(a)}, b{i}); n_values = tape.size")
        add(f"    else: v{i} = b{i}.value; f{i} = b{i}.spec")
    if plan.functional in _SEES_CONJ:
        is_complex = " or ".join(f"f{i}.is_complex" for i, _ in tensors)
        add(f"    if {is_complex}: return call(OP, {generic})")
    others = [i for i, _ in tensors[1:]]
    if plan.mutates and others:
        # An input may overlap with what is written: PyTorch refuses some of that; a pointwise operator
        # may write to the very tensor that it reads.
        shared = " or ".join(f"b{i} is b0" for i in others)
        if torch.Tag.pointwise in plan.op.tags:
            shared = f"b0.viewed and ({shared})"
        add(f"    if {shared}: return call(OP, {generic})")
    keys = [_key(i, a, inputs, lines) for i, a in enumerate(arguments)]
    add(f"    pattern = ({', '.join(keys)}, default_dtype())")
    add("    signature = signatures.get(pattern)")
    add(f"    if signature is None: signature = learn(pattern, {generic})")
    add(f"    if signature is False: return call(OP, {generic})")
    numbers = [f"v{i}.number if v{i}.tape is tape else tape.take(v{i})" for i, _ in tensors]
    if plan.mutates:
        add(f"    n0 = {numbers[0]}")
        numbers[0] = "n0"
    if all(not a.optional for _, a in tensors):
        add(f"    code = (signature, {', '.join(numbers)})")
    else:
        add("    code = (signature,)")
        for (i, a), number in zip(tensors, numbers, strict=True):
            present = f"if f{i} is not None: " if a.optional else ""
            add(f"    {present}code += ({number},)")
    add("    if signature.random: code += draw(tape)")
    is_tuple = plan.returns == "tuple"
    if is_tuple:
        add("    outs = signature.outs")
        add("    made = [Value(spec, n, tape) for n, spec in enumerate(outs, n_values)]")
        add("    n_made = len(made)")
    else:
        add("    spec = signature.outs[0]")
        add("    pending = tape.values")
        add("    made = Value(spec, n_values, tape)")
    numbered = [(i, a) for i, a in enumerate(arguments) if a.name in inputs]
    for i, a in numbered:
        add(f"    t{i} = ({_word(a)},)")
    # It is `made` because some arguments are called `value`. From here to the end of `append` nothing is
    # called or made: an interrupt, a finalizer, another thread come before or after (`graph/tape.py`).
    again = f"renew(); return kernel({_forwarded(arguments)})"
    add(f"    if tape.closed or tape.size != n_values: {again}")
    add("    tape.code += code")
    for i, _ in numbered:
        add(f"    if k{i} is float: tape.floats += t{i}")
        add(f"    elif k{i} is int: tape.ints += t{i}")
    add(f"    tape.size = n_values + {'n_made' if is_tuple else '1'}")
    if is_tuple:
        add("    tape.values += made")
        add("    tape.n_further += n_made - 1")
        add("    return tuple(wrapped(signature, made, wrap))")
    elif plan.mutates:
        add("    if not b0.viewed:")
        add("        made.origin = n0 if n0 < 0 else v0.origin")
        add("        b0.value = made")
        add("        pending.append(made)")
        add("        return self")
        add("    pending.append(made)")
        add("    store(self, made)")
        add("    return self")
    else:
        add("    pending.append(made)")
        add("    if not spec.plain: return wrap(made, spec)")
        add("    created = create(spec.shape, spec.dtype)")
        add("    created.untyped_storage().buffer = Buffer(made, spec)")
        add("    return created")
    return "\n".join(lines)


def _word(a: Argument) -> str:
    """The argument's name as a Python identifier: `uniform` has one called `from`."""
    return f"{a.name}_" if keyword.iskeyword(a.name) else a.name


def _parameters(arguments: tuple[Argument, ...]) -> str:
    parts = []
    starred = False
    for i, a in enumerate(arguments):
        if a.keyword_only and not starred:
            parts.append("*")
            starred = True
        parts.append(f"{_word(a)}=D{i}" if a.has_default else _word(a))
    return ", ".join(parts)


def _forwarded(arguments: tuple[Argument, ...]) -> str:
    return ", ".join(f"{a.name}={_word(a)}" if a.keyword_only else _word(a) for a in arguments)


def _generic_call(arguments: tuple[Argument, ...]) -> str:
    positional = "".join(f"{_word(a)}, " for a in arguments if not a.keyword_only)
    named = ", ".join(f"{a.name!r}: {_word(a)}" for a in arguments if a.keyword_only)
    return f"({positional}), {{{named}}}"


def _key(i: int, a: Argument, inputs: frozenset[str], lines: list[str]) -> str:
    """The expression that stands for an argument in the signature's key."""
    if a.kind is Kind.TENSOR:
        return f"f{i}"
    if a.name in inputs:
        lines.append(f"    k{i} = {_word(a)}.__class__")
        lines.append(f"    if k{i} is not float and k{i} is not int: k{i} = hashable({_word(a)})")
        return f"k{i}"
    if a.name == "generator":
        return "None"
    if a.kind is Kind.NUMBER:
        return f"hashable({_word(a)})"
    if "List[" in a.type:
        return f"tuple({_word(a)}) if {_word(a)}.__class__ is list else {_word(a)}"
    return _word(a)
