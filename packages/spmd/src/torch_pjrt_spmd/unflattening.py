"""Products over flattened dims, written as products over the dims themselves.

PyTorch's linear layer makes one dim of batch and sequence. What is spread along the sequence cannot be spread
so in that dim, where the sequence is not the outermost part: XLA gathers it, and chips do the same work.

before  x = reshape(a)        (8, 16, 32) -> (128, 32)      after  y = dot(a, w)   (8, 16, 32), (32, 64)
        y = dot(x, w)         (128, 32), (32, 64)                  z = y + b
        z = reshape(y + b)    (128, 64) -> (8, 16, 64)

        g = dot(x, d)         over the dim of 128                  g = dot(a, e)   over the dims 8 and 16
        for x, d = reshape(a), reshape(e)

Three walks through the program. Forward: where each dim of a value can be cut, since it was made of several
(`cuts`, and by the rows of `op_dims` through operators). Backward: which of these cuts are wanted, because a
reshape cuts there or a sum runs over the dim. Forward: operators with wanted cuts are built anew. What others
read in the old shape is reshaped for them. Each new value is a reshape of the old one, so numbers stay, but
for the order in sums.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

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
from torch_pjrt_spmd.op_dims import KINDS, Dims, Groups, Letters

Operation = Any
Value = Any

_RESHAPE = "stablehlo.reshape"
_SHARDINGS = ("sdy.sharding", "mhlo.sharding")


def unflatten(module: Any, n_chips: int) -> None:
    """Change a program for so many chips; one that flattens nothing stays as it is."""
    operations = list(_each_operation(module.operation))
    if any(map(_flattens, operations)):
        _Unflattening(operations, n_chips).run()


def _each_operation(root: Operation) -> Iterator[Operation]:
    """In order; not what is inside those that have a row, a sum's addition say."""
    for region in root.regions:
        for block in region.blocks:
            for inner in block.operations:
                operation = inner.operation
                yield operation
                if operation.name not in KINDS:
                    yield from _each_operation(operation)


def _flattens(op: Operation) -> bool:
    if op.name != _RESHAPE:
        return False
    taken, made = _shape(op.operands[0]), _shape(op.results[0])
    return any(through_reshape(taken, [NOWHERE] * len(taken), made))


def _shape(value: Value) -> list[int]:
    return list(value.type.shape)


class _Unflattening:
    """One program while it is changed.

    _has      where values can be cut, dim by dim; those that are not in it, nowhere.
    _wanted   where they are to be.
    _built    the new ones, by the old.
    """

    def __init__(self, operations: Sequence[Operation], n_chips: int) -> None:
        self._operations = operations
        self._n_chips = n_chips
        self._has: dict[Value, Sequence[Cuts | None]] = {}
        self._wanted: dict[Value, list[Cuts]] = {}
        self._built: dict[Value, Value] = {}

    def run(self) -> None:
        followed = [(op, dims) for op in self._operations if (dims := self._followed(op))]
        changed = [
            (op, dims, cuts) for op, dims in reversed(followed) if (cuts := self._asked(op, dims))
        ]
        for op, dims, cuts in reversed(changed):
            self._build(op, dims, cuts)
        for op, _, _ in changed:
            self._drop(op)

    # Forward: where values can be cut.

    def _followed(self, op: Operation) -> Dims | None:
        """The operator's letters, if a result can be cut or a sum runs over a dim that can; notes where."""
        if any(name in op.attributes for name in _SHARDINGS):
            return None
        if op.name == _RESHAPE:
            return self._followed_reshape(op)
        kind = KINDS.get(op.name)
        dims = kind and kind.dims(op)
        if dims is None:
            return None
        letters = self._cuts(op, dims)
        made = [self._of(letters_of, letters) for letters_of in dims.results]
        for result, cuts in zip(op.results, made, strict=True):
            if any(c is ANYWHERE or c for c in cuts):
                self._has[result] = cuts
        return dims

    def _followed_reshape(self, op: Operation) -> Dims | None:
        taken, made = _shape(op.operands[0]), _shape(op.results[0])
        if 0 in taken:
            return None
        self._has[op.results[0]] = through_reshape(taken, self._cuts_of(op.operands[0]), made)
        return Dims([], [])

    def _cuts_of(self, value: Value) -> Sequence[Cuts | None]:
        return self._has.get(value) or [NOWHERE] * len(_shape(value))

    def _cuts(self, op: Operation, dims: Dims) -> dict[int, Cuts | None]:
        """Where all operands that have a letter can be cut."""
        found: dict[int, Cuts | None] = {}
        for operand, letters in zip(op.operands, dims.operands, strict=True):
            for letter, cuts in zip(letters, self._cuts_of(operand), strict=True):
                if letter is not None:
                    found[letter] = both(found.get(letter, ANYWHERE), cuts)
        if op.name == "stablehlo.scatter":
            self._keep_what_needs_padding(op, dims, found)
        return found

    def _keep_what_needs_padding(
        self, op: Operation, dims: Dims, found: dict[int, Cuts | None]
    ) -> None:
        """`partitioning_faults` pads each dim of a scatter's indices that chips do not divide."""
        indices = len(op.results)
        for letter, n in zip(dims.operands[indices], _shape(op.operands[indices]), strict=True):
            if letter is not None and any(
                m % self._n_chips for m in sizes(n, found[letter] or NOWHERE)
            ):
                found[letter] = NOWHERE

    @staticmethod
    def _of(letters: Letters, cuts: dict[int, Cuts | None]) -> list[Cuts | None]:
        return [NOWHERE if letter is None else cuts.get(letter, ANYWHERE) for letter in letters]

    # Backward: where they are to be cut.

    def _asked(self, op: Operation, dims: Dims) -> dict[int, Cuts] | None:
        """Which cuts of its letters are wanted, None for none; asks the same of its operands."""
        if op.name == _RESHAPE:
            return self._asked_of_reshape(op)
        has = self._cuts(op, dims)
        kept = {letter for letters in dims.results for letter in letters}
        cuts = {letter: of for letter, of in has.items() if of and letter not in kept}
        for result, letters in zip(op.results, dims.results, strict=True):
            for letter, of in zip(letters, self._wanted.get(result, ()), strict=False):
                if letter is not None and of:
                    cuts[letter] = joined(cuts.get(letter, NOWHERE), of)
        if not cuts:
            return None
        for operand, letters in zip(op.operands, dims.operands, strict=True):
            self._ask(
                operand, [cuts.get(a, NOWHERE) if a is not None else NOWHERE for a in letters]
            )
        return cuts

    def _asked_of_reshape(self, op: Operation) -> dict[int, Cuts] | None:
        [taken], [made] = op.operands, op.results
        wanted = self._wanted.get(made, [NOWHERE] * len(_shape(made)))
        asked = back_through_reshape(_shape(taken), self._cuts_of(taken), _shape(made), wanted)
        if not any(asked) and not any(wanted):
            return None
        self._ask(taken, asked)
        return dict(enumerate(wanted))

    def _ask(self, value: Value, cuts: Sequence[Cuts]) -> None:
        if any(cuts):
            before = self._wanted.get(value, [NOWHERE] * len(cuts))
            self._wanted[value] = [joined(a, b) for a, b in zip(before, cuts, strict=True)]

    # Forward: the new operators.

    def _build(self, op: Operation, dims: Dims, cuts: dict[int, Cuts]) -> None:
        with ir.InsertionPoint(op), op.location:
            if op.name == _RESHAPE:
                [taken], [made] = op.operands, op.results
                shape = _cut(made, range(made.type.rank), cuts)
                self._built[made] = _reshaped(self._built.get(taken, taken), shape)
                return
            pairs = list(zip(op.operands, dims.operands, strict=True))
            operands = [_reshaped(self._built.get(x, x), _cut(x, of, cuts)) for x, of in pairs]
            new = op.clone(ir.InsertionPoint(op)).operation
        results = list(zip(op.results, dims.results, strict=True))
        with ir.InsertionPoint(new), op.location:
            for i, x in enumerate(operands):
                new.operands[i] = x
            for made, (x, of) in zip(new.results, results, strict=True):
                made.set_type(_type(x, _cut(x, of, cuts)))
            groups = [[_groups(of, cuts) for _, of in some] for some in (pairs, results)]
            KINDS[op.name].renumber(new, *groups)
        self._built.update(zip(op.results, new.results, strict=True))

    def _drop(self, op: Operation) -> None:
        """Take out an operator that was built anew, the last first: what still reads it reads the new one."""
        is_read = any(True for result in op.results for _ in result.uses)
        if is_read and (op.name in KINDS and KINDS[op.name].is_free):
            return
        for result in op.results if is_read else ():
            new = self._built[result]
            with ir.InsertionPoint(op), op.location:
                result.replace_all_uses_with(_reshaped(new, _shape(result)))
        op.erase()


def _cut(value: Value, letters: Iterable[int | None], cuts: dict[int, Cuts]) -> list[int]:
    """The shape of what stands for a value whose dims have these letters."""
    pairs = zip(_shape(value), letters, strict=True)
    return [m for n, a in pairs for m in sizes(n, NOWHERE if a is None else cuts.get(a, NOWHERE))]


def _groups(letters: Letters, cuts: dict[int, Cuts]) -> Groups:
    found: list[range] = []
    n = 0
    for letter in letters:
        more = 1 if letter is None else len(cuts.get(letter, NOWHERE)) + 1
        found.append(range(n, n + more))
        n += more
    return found


def _type(value: Value, shape: Sequence[int]) -> Any:
    return ir.RankedTensorType.get(shape, value.type.element_type)


def _reshaped(value: Value, shape: Sequence[int]) -> Value:
    if _shape(value) == list(shape):
        return value
    return stablehlo.ReshapeOp(_type(value, shape), value).result
