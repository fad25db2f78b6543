"""The first difference between a program and the nearest known one, in words, with advice."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from torch_pjrt.graph.line import Line
from torch_pjrt.graph.signature import NumberSlot, Signature, Slot
from torch_pjrt.graph.tensor_spec import TensorSpec
from torch_pjrt.observe.recorded import RecordedProgram, common_ends, likeness

#   kind of difference    what to do about it
ADVICE = {
    "shape": "let few shapes come by: pad, or sort into buckets; `drop_last=True` in a DataLoader makes all "
    "batches of one size",
    "dtype": "keep to one dtype",
    "layout": "keep to one memory format; `.contiguous()` before the operator gives one",
    "view": "a Python number in an index is part of the program: index with a tensor, as `index_select` "
    "does, for one program whatever the index",
    "argument": "this argument is part of the program: keep to few values of it",
    "number": "nothing: numbers that change are inputs of the program from now on",
    "operator": "Python decides here which operators run: `torch.where`, or the same operators each time, "
    "keep it at one program",
    "longer": "a loop ran more often, or a sync that there was before is missing: call `torch_pjrt.sync()` "
    "at the end of each round of a loop whose length varies",
    "shorter": "a loop ran less often, or a sync came earlier: move what reads values (`.item()`, `print`) "
    "out of the step, or call `torch_pjrt.sync()` at the end of each round of a loop whose length varies",
    "wiring": "the same operators read other tensors: pass the same ones each time, each in its place",
    "precision": "set `torch.set_float32_matmul_precision` once",
    "rolling": "set `torch_pjrt.config.roll_layers` once",
    "options": "set `torch_pjrt.config.compile_options` once",
    "ranks": "each process group has its own programs: use one group for the same collectives",
    "plan": "apply plans of auto-sharding before the first step",
    "sharding": "mark a tensor once, before the first step, and bring each batch in the same way",
    "seeding": "seed before the loop and not in it",
    "inputs": "the same operators run, but other tensors were written over",
    "held": "a tensor is kept that was not before: `del` it, keep `.detach()` or `.item()` of it, or keep "
    "it each time",
    "released": "a tensor is not kept that was before: keep it each time, or never",
    "donation": "somebody holds the old value of what is written in place, or did before: `del` it, or "
    "hold it each time; there is one program for either",
    "again": "nothing: a program like it failed, or was given back (TORCH_PJRT_MAX_PROGRAM_BYTES)",
}
NEW = (
    "little of it is as in any program before: code that runs for the first time has to be compiled"
)
_NEW_BELOW = 0.5
_OF_OPERATORS = frozenset(("longer", "operator", "shorter"))


@dataclass(frozen=True, slots=True)
class Difference:
    """What tells a program from the nearest known one.

    kind    a name of `ADVICE`.
    what    the difference in words.
    line    the user's line of the operator that it shows at; None where it was not noted.
    advice  what to do about it.
    """

    kind: str
    what: str
    line: Line | None
    advice: str


def difference(new: RecordedProgram, old: RecordedProgram) -> Difference:
    """The first difference, in the order of what causes what."""
    for find in (
        *(_operators, _signatures, _wiring, _specs, _draws),
        *(_precision, _rolling, _options, _ranks, _passes, _shardings, _live, _numbers, _donated),
    ):
        found = find(new, old)
        if found is not None:
            kind, what, index = found
            line = None
            if index is not None:
                line = new.line(index)
                line = old.line(index) if line is None and kind != "operator" else line
            little = kind in _OF_OPERATORS and likeness(new.operators, old.operators) < _NEW_BELOW
            return Difference(kind, what, line, NEW if little else ADVICE[kind])
    return Difference("again", "it is the same as one before", None, ADVICE["again"])


Found = tuple[str, str, int | None]


def _operators(new: RecordedProgram, old: RecordedProgram) -> Found | None:
    first, at_end = common_ends(new.operators, old.operators)
    if first == len(new) == len(old):
        return None
    more = len(new) - len(old)
    if first == len(old):
        return "longer", f"{_plural(more, 'more')} at the end, from {new.op(first)} on", first
    if first == len(new):
        what = f"{_plural(-more, 'fewer')} at the end, where {old.op(first)} was next"
        return "shorter", what, len(new) - 1
    if first + at_end == len(old):
        return (
            "longer",
            f"{_plural(more, 'more')}, from {new.op(first)} (operator {first}) on",
            first,
        )
    if first + at_end == len(new):
        gone = f"{_plural(-more, 'fewer')}, where {old.op(first)} (operator {first}) was"
        return "shorter", gone, first
    return "operator", f"operator {first} is {new.op(first)}; it was {old.op(first)}", first


def _plural(n: int, which: str) -> str:
    return f"{n} {which} operator{'s' if n > 1 else ''}"


def _signatures(new: RecordedProgram, old: RecordedProgram) -> Found | None:
    first, _ = common_ends(new.signatures, old.signatures)
    if first == len(new):
        return None
    kind, what = _between(new.signature(first), old.signature(first))
    return kind, f"{what} (operator {first})", first


def _between(new: Signature, old: Signature) -> tuple[str, str]:
    """The first difference between two signatures of one operator."""
    names = _names(new)
    for position, (a, b) in enumerate(zip(new.specs, old.specs, strict=False)):
        if a is not b:
            name = names.get(position)
            which = f" for `{name}`" if name else ""
            return _kind(a, b), f"`{new.op}` got {a}{which}; it was {b}"
    if len(new.specs) != len(old.specs):
        return "wiring", f"`{new.op}` got {len(new.specs)} tensors; it was {len(old.specs)}"
    if not hasattr(new.op, "_schema"):  # a view of a tensor, or a write through one
        return _between_views(new, old)
    for (name, a), (_, b) in zip(_given(new), _given(old), strict=False):
        if repr(a) != repr(b):
            shaped = new.outs and old.outs and new.outs[0].shape != old.outs[0].shape
            kind = "shape" if shaped else "argument"
            return kind, f"`{new.op}` has `{name}={_shown(a)}`; it was `{_shown(b)}`"
    for a, b in zip(new.outs, old.outs, strict=False):
        if a is not b:
            return _kind(a, b), f"`{new.op}` makes {a}; it was {b}"
    return "argument", f"`{new.op}` has other arguments"


def _between_views(new: Signature, old: Signature) -> tuple[str, str]:
    for a, b in zip(new.args, old.args, strict=False):
        if isinstance(a, TensorSpec) and isinstance(b, TensorSpec) and a is not b:
            return _kind(a, b), f"a view (`{new.op}`) is {a}; it was {b}"
        if isinstance(a, int) and a != b:
            return "view", f"a view (`{new.op}`) starts at element {a} of its storage; it was {b}"
    return "view", f"another view (`{new.op}`)"


def _kind(a: TensorSpec, b: TensorSpec) -> str:
    if a.shape != b.shape:
        return "shape"
    return "dtype" if a.dtype != b.dtype else "layout"


def _names(signature: Signature) -> dict[int, str]:
    """The argument's name for each tensor, by its position among them."""
    return {index: name for given in _given(signature) for index, name in _slots(*given)}


def _slots(name: str, x: Any) -> Iterator[tuple[int, str]]:
    if isinstance(x, Slot):
        yield x.index, name
    elif isinstance(x, (list, tuple)):
        for i, part in enumerate(x):
            yield from _slots(f"{name}[{i}]", part)


def _given(signature: Signature) -> list[tuple[str, Any]]:
    """The arguments with their names."""
    schema = getattr(signature.op, "_schema", None)
    names = [a.name for a in schema.arguments] if schema is not None else []
    names += [str(i) for i in range(len(names), len(signature.args))]
    return [*zip(names, signature.args, strict=False), *signature.kwargs.items()]


def _shown(x: Any) -> str:
    if isinstance(x, NumberSlot):
        return f"a number ({x.kind.__name__})"
    return "a tensor" if isinstance(x, Slot) else str(x)


def _wiring(new: RecordedProgram, old: RecordedProgram) -> Found | None:
    if new.code == old.code:
        return None
    for index in range(len(new)):
        a, b = new.inputs(index), old.inputs(index)
        if a != b:
            position = next(i for i, (x, y) in enumerate(zip(a, b, strict=True)) if x != y)
            read, before = new.named(a[position]), old.named(b[position])
            return (
                "wiring",
                f"{new.op(index)} (operator {index}) reads {read}; it was {before}",
                index,
            )
    return "seeding", "random numbers are drawn after other seeds", None


def _specs(new: RecordedProgram, old: RecordedProgram) -> Found | None:
    if new.specs == old.specs:
        return None
    for position, (a, b) in enumerate(zip(new.specs, old.specs, strict=False)):
        if a is not b:
            return _kind(a, b), f"the program's input {position} is {a}; it was {b}", None
    what = f"there are {len(new.specs)} inputs; there were {len(old.specs)}"
    return "inputs", what, None


def _draws(new: RecordedProgram, old: RecordedProgram) -> Found | None:
    if new.n_draws == old.n_draws:
        return None
    return "seeding", f"{new.n_draws} seeds were set; there were {old.n_draws}", None


def _precision(new: RecordedProgram, old: RecordedProgram) -> Found | None:
    if new.precision == old.precision:
        return None
    what = f"float32 products are of precision `{new.precision}`; they were `{old.precision}`"
    return "precision", what, None


def _options(new: RecordedProgram, old: RecordedProgram) -> Found | None:
    if new.options == old.options:
        return None
    return (
        "options",
        f"`compile_options` are {dict(new.options)}; they were {dict(old.options)}",
        None,
    )


def _ranks(new: RecordedProgram, old: RecordedProgram) -> Found | None:
    if new.joint == old.joint:
        return None
    now, then = (one.joint or "no other process" for one in (new, old))
    return "ranks", f"what takes part in its collectives is {now}; it was {then}", None


def _shardings(new: RecordedProgram, old: RecordedProgram) -> Found | None:
    for number, (now, then) in enumerate(zip(new.shardings, old.shardings, strict=False)):
        if now != then:
            what = f"input {number}, {new.specs[number]}, lies as {_spread(now)}; it lay as {_spread(then)}"
            return "sharding", what, new.reader(-number - 1)
    if len(new.shardings) == len(old.shardings):
        return None
    return "sharding", "tensors may be spread over several chips now; before, all were on one", None


def _spread(sharding: Any) -> str:
    """A sharding for people."""
    if len(sharding.device_set) == 1:
        return "on one chip"
    if (spec := getattr(sharding, "spec", None)) is None:
        return f"`{sharding}`"
    axes = ", ".join(f"{name} {n}" for name, n in sharding.mesh.shape.items())
    return f"`{spec}` on the mesh ({axes})"


def _rolling(new: RecordedProgram, old: RecordedProgram) -> Found | None:
    if new.rolling == old.rolling:
        return None
    return "rolling", f"`roll_layers` is `{new.rolling}`; it was `{old.rolling}`", None


def _passes(new: RecordedProgram, old: RecordedProgram) -> Found | None:
    if new.passes == old.passes:
        return None
    return "plan", "another plan says how its values lie", None


def _live(new: RecordedProgram, old: RecordedProgram) -> Found | None:
    for kind, verb, numbers in (
        ("held", "is still held; it was not", set(new.live) - set(old.live)),
        ("released", "is not held any more; it was", set(old.live) - set(new.live)),
    ):
        if numbers:
            value = min(numbers)
            index = new.maker(value)
            others = f" (and {len(numbers) - 1} others)" if len(numbers) > 1 else ""
            return kind, f"{new.named(value)}{others} {verb}", index
    return None


def _numbers(new: RecordedProgram, old: RecordedProgram) -> Found | None:
    for index, kind, position in new.numbers():
        if (kind, position) in old.changing:
            continue
        a, b = (
            (new.ints[position], old.ints[position])
            if kind is int
            else (new.floats[position], old.floats[position])
        )
        if _bits(a) != _bits(b):
            what = f"{new.op(index)} (operator {index}) has the number {a!r}; it was {b!r}"
            return "number", what, index
    return None


def _bits(number: float) -> Any:
    return struct.pack("d", number) if isinstance(number, float) else number


def _donated(new: RecordedProgram, old: RecordedProgram) -> Found | None:
    if new.donated == old.donated:
        return None
    held = sorted(set(old.donated) - set(new.donated), reverse=True)
    free = sorted(set(new.donated) - set(old.donated), reverse=True)
    number = (held or free or [new.donated[0]])[0]
    others = len(held or free) - 1
    more = f" (and of {others} others)" if others > 0 else ""
    verb = "is held by somebody; it was not" if held else "is held by nobody any more; it was"
    reader = new.reader(number)
    by = f", which {new.op(reader)} reads," if reader is not None else ""
    return "donation", f"the old value of {new.named(number)}{by}{more} {verb}", reader
