"""A compiled graph at work: a call finds what was recorded for inputs that look so, and appends one node.

This is the path that every call takes, so it is written out: microseconds for each tensor.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.autograd.graph import increment_version

from torch_pjrt import config
from torch_pjrt.extend import (
    Buffer,
    Value,
    append,
    buffer_of,
    content,
    create_empty_tensor,
    cut,
    deferred_checks,
    spec_and_offset,
    state,
    store,
    upload,
    value_of,
    wrap_sized,
)
from torch_pjrt.plugin import TensorSpec, aten, spec_of
from torch_pjrt_dynamo.operators import CannotRecord
from torch_pjrt_dynamo.parts import in_parts
from torch_pjrt_dynamo.recorded_graph import InputSpec, RecordedGraph, Written
from torch_pjrt_dynamo.recording import record

# They look at the whole storage of a tensor.
_SEES_STORAGE = frozenset(
    (
        aten.as_strided.default,
        aten.as_strided_.default,
        aten.as_strided_copy.default,
        aten.as_strided_scatter.default,
    )
)

_storage_of = torch._C.TensorBase.untyped_storage
_is_negated = torch._C.TensorBase.is_neg


class CompiledGraph:
    """A graph of operators as a function of a list of tensors and numbers, which it empties.

    module   the graph.
    name     what it is called in reports.
    apart    nothing in it is merged with what other graphs of the program compute.
    precision   of its products of float32, by PyTorch's name; None for the one in force when they run.
    """

    above_autograd = (
        False  # whether its calls are a user's, and no operators that AOTAutograd traced
    )

    def __init__(
        self,
        module: torch.fx.GraphModule,
        name: str,
        *,
        apart: bool = False,
        precision: str | None = None,
    ) -> None:
        self.module = module
        self.name = name
        self.apart = apart
        self.precision = precision
        self._boxed_call = (
            True  # AOTAutograd asks for it; its wrappers copy what is in the `__dict__`
        )
        self.recorded: dict[Any, RecordedGraph] = {}
        # Of `recorded` those that are found by the specs of buffers alone.
        self._plain: dict[tuple[TensorSpec, ...], RecordedGraph] = {}
        self._sees_storage = any(n.target in _SEES_STORAGE for n in module.graph.nodes)
        self._parts: Callable[[list[Any]], list[Any]] | None = None

    def __call__(self, args: list[Any]) -> list[Any]:
        if self._parts is not None:
            return self._parts(args)
        tape = state.tape
        if tape.size > config.tape_limit:
            cut(tape)
        try:
            buffers = [storage.buffer for storage in map(_storage_of, args)]  # pyright: ignore[reportAttributeAccessIssue]
        except (AttributeError, TypeError):  # a tensor of the host, or a number
            pass
        else:
            if True not in [b.viewed for b in buffers] and True not in map(_is_negated, args):
                plain = self._plain.get(tuple([b.spec for b in buffers]))
                if plain is not None:
                    return called(plain, args, [b.value for b in buffers], buffers)
        try:
            found, values = self._found(args)
        except CannotRecord as error:
            return self.cut_at(error)(args)
        return called(found, args, values)

    def cut_at(self, error: CannotRecord) -> Callable[[list[Any]], list[Any]]:
        """From now on the graph is done in parts: the node of the error by itself."""
        self._parts = in_parts(self.module, error, self.name, self.part)
        return self._parts

    def part(self, module: torch.fx.GraphModule, name: str) -> CompiledGraph:
        """A part of the graph, compiled."""
        return CompiledGraph(module, name, apart=self.apart, precision=self.precision)

    def _found(self, args: list[Any]) -> tuple[RecordedGraph, list[Any]]:
        """What is recorded for arguments that look like these, and their values."""
        values, known = self._looked_at(args)
        found = self.recorded.get(known)
        return self._record(known) if found is None else found, values

    def _looked_at(self, args: list[Any]) -> tuple[list[Any], tuple[Any, ...]]:
        """Of each argument its value, and what it looks like."""
        values: list[Any] = []
        key: list[Any] = []
        for arg in args:
            try:
                buffer = arg.untyped_storage().buffer
            except AttributeError:
                value, spec = _other(arg)
            else:
                if self._sees_storage:
                    value, spec = _with_storage(arg, buffer)
                elif buffer.viewed or buffer.spec.is_complex or arg.is_neg():
                    value = value_of(arg)
                    spec = spec_of(arg.shape, arg.dtype, arg.stride())
                else:
                    value, spec = buffer.value, buffer.spec
            values.append(value)
            key.append(spec)
        return values, tuple(key)

    def _record(self, key: tuple[Any, ...]) -> RecordedGraph:
        specs = [InputSpec(x) if x.__class__ is TensorSpec else x for x in key]
        specs = [x if isinstance(x, InputSpec) else x[1] for x in specs]
        found = self.recorded[key] = record(
            self.module,
            specs,
            self.name,
            apart=self.apart,
            precision=self.precision,
            above_autograd=self.above_autograd,
        )
        if not self._sees_storage and all(
            x.__class__ is TensorSpec and not x.is_complex for x in key
        ):
            self._plain[key] = found
        return found


def _other(arg: Any) -> tuple[Any, Any]:
    """The value and the spec of what has no buffer: a tensor of the host, which is uploaded, or a number."""
    if not isinstance(arg, torch.Tensor):
        return None, (arg.__class__, arg)
    if arg.device.type == "pjrt":
        buffer = buffer_of(arg)
        return content(buffer), buffer.spec
    value = upload(arg)
    return value, value.spec


def _with_storage(arg: torch.Tensor, buffer: Buffer) -> tuple[Any, Any]:
    if arg.is_conj() or arg.is_neg():
        value = value_of(arg)
        return value, value.spec
    spec, offset = spec_and_offset(arg)
    return content(buffer), (InputSpec, InputSpec(spec, buffer.spec, offset))


def called(
    recorded: RecordedGraph, args: list[Any], values: list[Any], buffers: list[Buffer] | None = None
) -> list[Any]:
    """Append the node, and make what the call returns.

    `buffers` are those of the arguments, where each has one that looks like it.
    """
    results = recorded.template.copy()
    signature = recorded.signature
    if signature is None:
        made: list[Any] = []
    else:
        inputs = values if recorded.uses_all else [values[i] for i in recorded.used]
        inputs = [*inputs, *recorded.constants]
        made = append(signature, inputs, recorded.code, recorded.n_draws)
    if recorded.written:
        _write(recorded.written, args, values, made, buffers)
    for position, i, spec in recorded.fresh:
        if spec.plain:
            tensor = create_empty_tensor(spec.shape, spec.dtype)
            tensor.untyped_storage().buffer = Buffer(made[i], spec)
        else:
            tensor = wrap_sized(made[i], spec)
        results[position] = tensor
    if recorded.given:
        for position, argument in recorded.given:
            results[position] = args[argument]
    if recorded.views:
        for position, argument, shape, strides, offset in recorded.views:
            source = args[argument]
            results[position] = source.as_strided(shape, strides, source.storage_offset() + offset)
    if recorded.bases:
        bases = [wrap_sized(made[i], spec) for i, spec in recorded.bases]
        for position, base in recorded.whole:
            results[position] = bases[base]
        for position, base, shape, strides, offset in recorded.shared:
            results[position] = bases[base].as_strided(shape, strides, offset)
    for position in recorded.detached:
        results[position] = results[position].detach()
    if recorded.refusals:
        deferred_checks(made[-1]).refusals.extend(recorded.refusals)
    args.clear()
    return results


def _write(
    written: list[Written],
    args: list[Any],
    values: list[Any],
    made: list[Value],
    buffers: Mapping[int, Any] | Sequence[Any] | None,
) -> None:
    """Put results into arguments: what `store` does, written out for those that look like their buffer."""
    if buffers is None:
        buffers = {n: getattr(args[n].untyped_storage(), "buffer", None) for n, _, _ in written}
    for argument, i, origin in written:
        new, old, buffer = made[i], values[argument], buffers[argument]
        if buffer is None:  # a tensor of the host
            args[argument].copy_(wrap_sized(new, new.spec))
        elif buffer.viewed or buffer.value is not old:
            store(args[argument], new)
        else:
            if new.origin is None:
                if new.tape.unnumbered:  # pyright: ignore[reportOptionalMemberAccess]
                    new.origin = origin
                elif old.tape is new.tape:
                    new.origin = old.number if old.number < 0 else old.origin
            buffer.value = new
    increment_version([args[argument] for argument, _, _ in written])
