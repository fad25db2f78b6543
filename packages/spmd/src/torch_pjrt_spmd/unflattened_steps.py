"""What `unflattening` does with one operator, in each of its walks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

from jax.extend.mlir import ir
from jax.extend.mlir.dialects import stablehlo

from torch_pjrt_spmd.cuts import (
    ANYWHERE,
    NOWHERE,
    Cuts,
    back_through_reshape,
    both,
    joined,
    sizes,
    through_reshape,
)
from torch_pjrt_spmd.op_dims import Dims, Groups, Kind, Letters

Operation = Any
Value = Any

RESHAPE, LOOP = "stablehlo.reshape", "stablehlo.while"


def shape_of(value: Value) -> list[int]:
    return list(value.type.shape)


class Known:
    """What is known of the values of a program, dim by dim.

    has      where they can be cut; those that are not in it, nowhere.
    wanted   where they are to be.
    built    the new ones, by the old.
    """

    def __init__(self) -> None:
        self.has: dict[Value, list[Cuts | None]] = {}
        self.wanted: dict[Value, list[Cuts]] = {}
        self.built: dict[Value, Value] = {}

    def has_of(self, value: Value) -> list[Cuts | None]:
        return self.has.get(value) or [NOWHERE] * len(shape_of(value))

    def wanted_of(self, value: Value) -> list[Cuts]:
        return self.wanted.get(value) or [NOWHERE] * len(shape_of(value))

    def note(self, value: Value, cuts: list[Cuts | None]) -> None:
        if any(c is ANYWHERE or c for c in cuts):
            self.has[value] = cuts
        else:
            self.has.pop(value, None)

    def ask(self, value: Value, cuts: Sequence[Cuts]) -> None:
        if any(cuts):
            pairs = zip(self.wanted_of(value), cuts, strict=True)
            self.wanted[value] = [joined(a, b) for a, b in pairs]

    def reshaped(self, value: Value, shape: Sequence[int]) -> Value:
        """What stands for a value, in a shape."""
        return _reshaped(self.built.get(value, value), shape)


class Step(Protocol):
    """An operator. `look`, `ask` and `build` are called in the walks of these purposes; then `drop`, of the
    last operator first, takes out what nobody reads any more.
    """

    @property
    def is_changed(self) -> bool:
        """Whether it is to be built anew, after all have been asked."""
        ...

    def look(self, known: Known) -> None: ...
    def ask(self, known: Known) -> None: ...
    def build(self, known: Known) -> None: ...
    def drop(self, known: Known) -> None: ...


class Row:
    """An operator that has a row in `op_dims`."""

    def __init__(self, op: Operation, kind: Kind, dims: Dims, n_chips: int) -> None:
        self._op, self._kind, self._dims, self._n_chips = op, kind, dims, n_chips
        kept = {letter for letters in dims.results for letter in letters}
        of_operands = {letter for letters in dims.operands for letter in letters}
        self._summed = of_operands - kept
        self._has: dict[int, Cuts | None] = {}
        self._cuts: dict[int, Cuts] = {}

    @property
    def is_changed(self) -> bool:
        return bool(self._cuts)

    @property
    def _operands(self) -> list[tuple[Value, Letters]]:
        """Those that it has now: a loop around it may have put others in their places."""
        return list(zip(self._op.operands, self._dims.operands, strict=True))

    @property
    def _results(self) -> list[tuple[Value, Letters]]:
        return list(zip(self._op.results, self._dims.results, strict=True))

    def look(self, known: Known) -> None:
        self._has = {}
        for operand, letters in self._operands:
            for letter, cuts in zip(letters, known.has_of(operand), strict=True):
                if letter is not None:
                    self._has[letter] = both(self._has.get(letter, ANYWHERE), cuts)
        if self._op.name == "stablehlo.scatter":
            self._keep_what_needs_padding()
        for result, letters in self._results:
            known.note(result, [NOWHERE if a is None else self._has.get(a) for a in letters])

    def _keep_what_needs_padding(self) -> None:
        """`partitioning_faults` pads each dim of a scatter's indices that chips do not divide."""
        indices, letters = self._operands[len(self._results)]
        for letter, n in zip(letters, shape_of(indices), strict=True):
            if letter is not None:
                parts = sizes(n, self._has[letter] or NOWHERE)
                if any(m % self._n_chips for m in parts):
                    self._has[letter] = NOWHERE

    def ask(self, known: Known) -> None:
        self._cuts = {a: of for a, of in self._has.items() if of and a in self._summed}
        for result, letters in self._results:
            for letter, of in zip(letters, known.wanted_of(result), strict=True):
                if letter is not None and of:
                    self._cuts[letter] = joined(self._cuts.get(letter, NOWHERE), of)
        if self._cuts:
            for operand, letters in self._operands:
                known.ask(operand, [_of(a, self._cuts) for a in letters])

    def build(self, known: Known) -> None:
        op, cuts = self._op, self._cuts
        with ir.InsertionPoint(op), op.location:
            operands = [known.reshaped(x, _cut(x, of, cuts)) for x, of in self._operands]
            new = op.clone(ir.InsertionPoint(op)).operation
        with ir.InsertionPoint(new), op.location:
            for i, x in enumerate(operands):
                new.operands[i] = x
            for made, (x, of) in zip(new.results, self._results, strict=True):
                made.set_type(_type(x, _cut(x, of, cuts)))
            groups = [
                [_groups(of, cuts) for _, of in some] for some in (self._operands, self._results)
            ]
            new = self._kind.renumber(new, *groups) or new
        known.built.update(zip(op.results, new.results, strict=True))

    def drop(self, known: Known) -> None:
        if _is_read(self._op) and self._kind.is_free:
            return
        _replace(self._op, known)


class Reshape:
    """A reshape: where it cuts, cuts are wanted."""

    def __init__(self, op: Operation) -> None:
        self._op = op
        [self._made] = op.results
        self._cuts: list[Cuts] = []
        self.is_changed = False

    @property
    def _taken(self) -> Value:
        return self._op.operands[0]

    def look(self, known: Known) -> None:
        taken, made = shape_of(self._taken), shape_of(self._made)
        known.note(self._made, through_reshape(taken, known.has_of(self._taken), made))

    def ask(self, known: Known) -> None:
        taken, made = shape_of(self._taken), shape_of(self._made)
        self._cuts = known.wanted_of(self._made)
        asked = back_through_reshape(taken, known.has_of(self._taken), made, self._cuts)
        self.is_changed = any(asked) or any(self._cuts)
        known.ask(self._taken, asked)

    def build(self, known: Known) -> None:
        shape = _cut(self._made, range(len(self._cuts)), dict(enumerate(self._cuts)))
        with ir.InsertionPoint(self._op), self._op.location:
            known.built[self._made] = known.reshaped(self._taken, shape)

    def drop(self, known: Known) -> None:
        _replace(self._op, known)


class Loop:
    """A loop, which takes what its body gives: both have the cuts that each of them can have.

    It is changed in place, since it holds its body.
    """

    def __init__(self, op: Operation) -> None:
        self._op = op
        [condition], [body] = (region.blocks for region in op.regions)
        self.end = list(body.operations)[-1].operation
        self._same = list(zip(condition.arguments, body.arguments, op.results, strict=True))
        self._returned: list[list[Cuts | None]] | None = None  # not known in the first walk
        self.cuts = [[NOWHERE] * len(shape_of(x)) for x in op.operands]
        self._put_between: list[Value] = []

    @property
    def is_changed(self) -> bool:
        return any(any(cuts) for cuts in self.cuts)

    def look(self, known: Known) -> None:
        for i, same in enumerate(self._same):
            has = known.has_of(self._op.operands[i])
            if self._returned is not None:
                has = [both(a, b) for a, b in zip(has, self._returned[i], strict=True)]
            for value in same:
                known.note(value, has)

    def look_at_end(self, known: Known) -> None:
        self._returned = [known.has_of(x) for x in self.end.operands]

    def ask(self, known: Known) -> None:
        for i, same in enumerate(self._same):
            for value in same:
                pairs = zip(self.cuts[i], known.wanted_of(value), strict=True)
                self.cuts[i] = [joined(a, b) for a, b in pairs]
            known.ask(self._op.operands[i], self.cuts[i])

    def shape(self, i: int, value: Value) -> list[int]:
        return _cut(value, range(len(self.cuts[i])), dict(enumerate(self.cuts[i])))

    def build(self, known: Known) -> None:
        inside = [ir.InsertionPoint.at_block_begin(region.blocks[0]) for region in self._op.regions]
        positions = [*inside, ir.InsertionPoint.after(self._op)]
        for i, same in enumerate(self._same):
            if not any(self.cuts[i]):
                continue
            taken = self._op.operands[i]
            shape = self.shape(i, taken)
            with ir.InsertionPoint(self._op), self._op.location:
                self._op.operands[i] = known.reshaped(taken, shape)
            for value, position in zip(same, positions, strict=True):
                before = shape_of(value)
                with position, self._op.location:
                    value.set_type(_type(value, shape))
                    flat = stablehlo.ReshapeOp(_type(value, before), value)
                value.replace_all_uses_except(flat.result, flat.operation)
                known.built[flat.result] = value
                self._put_between.append(flat.operation)

    def drop(self, known: Known) -> None:
        for reshape in self._put_between:
            if not _is_read(reshape):
                reshape.erase()


class LoopEnd:
    """What the body of a loop gives."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop

    @property
    def is_changed(self) -> bool:
        return self._loop.is_changed

    def look(self, known: Known) -> None:
        self._loop.look_at_end(known)

    def ask(self, known: Known) -> None:
        for value, cuts in zip(self._loop.end.operands, self._loop.cuts, strict=True):
            known.ask(value, cuts)

    def build(self, known: Known) -> None:
        end = self._loop.end
        with ir.InsertionPoint(end), end.location:
            for i, value in enumerate(list(end.operands)):
                if any(self._loop.cuts[i]):
                    end.operands[i] = known.reshaped(value, self._loop.shape(i, value))

    def drop(self, known: Known) -> None:
        pass


def _is_read(op: Operation) -> bool:
    return any(True for result in op.results for _ in result.uses)


def _replace(op: Operation, known: Known) -> None:
    """Take out an operator that was built anew; what still reads it reads the new one."""
    for result in op.results:
        if any(True for _ in result.uses):
            with ir.InsertionPoint(op), op.location:
                result.replace_all_uses_with(known.reshaped(result, shape_of(result)))
    op.erase()


def _of(letter: int | None, cuts: Mapping[int, Cuts]) -> Cuts:
    return NOWHERE if letter is None else cuts.get(letter, NOWHERE)


def _cut(value: Value, letters: Iterable[int | None], cuts: Mapping[int, Cuts]) -> list[int]:
    """The shape of what stands for a value whose dims have these letters."""
    pairs = zip(shape_of(value), letters, strict=True)
    return [m for n, letter in pairs for m in sizes(n, _of(letter, cuts))]


def _groups(letters: Letters, cuts: Mapping[int, Cuts]) -> Groups:
    found: list[range] = []
    n = 0
    for letter in letters:
        more = len(_of(letter, cuts)) + 1
        found.append(range(n, n + more))
        n += more
    return found


def _type(value: Value, shape: Sequence[int]) -> Any:
    return ir.RankedTensorType.get(shape, value.type.element_type)


def _reshaped(value: Value, shape: Sequence[int]) -> Value:
    if shape_of(value) == list(shape):
        return value
    return stablehlo.ReshapeOp(_type(value, shape), value).result
