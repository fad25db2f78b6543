"""A lowering table: for each operator, the JAX function that computes it.

A rule is called as PyTorch calls the operator, with the *functional* overload's own argument names
and order (`aten.add.Tensor`, never `add_` or `add.out`: those are recorded as the functional
overload followed by a write). What a rule may assume of its arguments:

    Tensor       a `jax.Array` (a tracer) of the tensor's shape and dtype, or None where optional;
                 a list or tuple of them for `Tensor[]`. A Python number written where a tensor is
                 expected (`x * 2`) arrives like a Scalar, below.
    Scalar,      a Python number, or a 0-d *weakly typed* tracer when the number changes from step
    float        to step and so has become an input of the program. `promoted` treats both alike, and so do
                 `operands` and `wide_operands`, which pointwise rules use (`lowering/pointwise/rows.py`).
                 A rule that must look at the value names the argument in `static`.
    dtype        a `torch.dtype` or None; `dtypes.to_jax` translates.
    the rest     as PyTorch passes them: ints, bools, strings, lists of ints.
    later ones   an argument that the operator has in a later PyTorch, and the rule has not, is left out where
                 it has its default.
    left out     `layout`, `device`, `pin_memory`, `memory_format`, `non_blocking`, `generator`: never passed.

It returns an array, or a tuple of arrays in the order of the operator's results, with exactly the
shapes and dtypes that PyTorch gives; anything else is a `WrongLowering`. Rules run under JAX's
scoped x64 switch: int64 and float64 are real.

A rule marked `random` gets a JAX PRNG key (threefry) as its first argument. The key differs for each
call of the operator in the program and for each step.

A rule whose operator has many arguments may take them as one object: `call` names a frozen dataclass with
a field for each, in the operator's order (the key first, if the rule is random).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from functools import partial, wraps
from inspect import unwrap
from typing import Any

from torch_pjrt.errors import DuplicateLowering
from torch_pjrt.lowering.later_arguments import known_arguments
from torch_pjrt.overloads import Absent

Rule = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class Lowering:
    """One operator's rule, and what its caller must know about it.

    rule    the JAX function.
    static  names of Scalar or float arguments that the rule looks at while tracing; a new value of
            one of them is a new program.
    random  the rule takes a PRNG key as its first argument. A name: that is None where the static argument
            of this name is 0, and nothing is drawn then.

        >>> lowering = Lowering(jnp.sin)
        >>> lowering.called(aten.sin.default, [jnp.zeros(2)], {})
        Array([0., 0.], dtype=float32)
    """

    rule: Rule
    static: frozenset[str] = frozenset()
    random: bool | str = False

    def called(self, op: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """What the rule gives; the key is among `args`. What `op` has got in a later PyTorch may be left out.

        Raises `LoweringError` where an argument that the rule does not know is not what it is by default.
        """
        try:
            return self.rule(*args, **kwargs)
        except TypeError:
            known = known_arguments(op, self, args, kwargs)
            if known is None:
                raise
        return self.rule(*known[0], **known[1])

    def draws(self, given: Mapping[str, Any]) -> bool:
        """Whether a call with these arguments, by name, draws random numbers."""
        return bool(given[self.random]) if isinstance(self.random, str) else self.random

    @property
    def where(self) -> str:
        """`file:line` of the rule, for error messages."""
        code = getattr(unwrap(self.rule), "__code__", None)
        if code is None:
            return repr(self.rule)
        return f"{code.co_filename.rsplit('/', 1)[-1]}:{code.co_firstlineno}"


class LoweringTable(Mapping[Any, Lowering]):
    """Operator overload -> its lowering. A second rule for an operator is a `DuplicateLowering`.

    A row for an operator that this PyTorch lacks is `left_out`. Rules of `lowers_over` stand `over` those
    that other tables have; they count once the table is laid over another (`overlaid`).

        >>> table = LoweringTable("mine")
        >>> @table.lowers(aten.relu.default)
        ... def relu(x):
        ...     return jnp.maximum(x, 0)
        >>> table[aten.relu.default].rule(jnp.array([-1.0, 2.0]))
        Array([0., 2.], dtype=float32)
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.left_out: dict[Absent, Lowering] = {}
        self.over: dict[Any, Lowering] = {}
        self._rows: dict[Any, Lowering] = {}

    def add(
        self, op: Any, rule: Rule, *, static: Iterable[str] = (), random: bool | str = False
    ) -> None:
        """Add one row. `op` is an overload, such as `aten.exp.default` of `torch_pjrt.plugin`'s `aten`."""
        self._put(op, Lowering(rule, frozenset(static), random))

    def lowers(
        self,
        *ops: Any,
        static: Iterable[str] = (),
        random: bool | str = False,
        call: type | None = None,
    ) -> Callable[[Rule], Rule]:
        """Decorator form of `add`, for one or more overloads that one function computes.

        With `call`, that function takes one object of this type, made of the operator's arguments.
        """

        def register(rule: Rule) -> Rule:
            added = rule if call is None else taking(call, rule)
            for op in ops:
                self.add(op, added, static=static, random=random)
            return rule

        return register

    def lowers_over(
        self, *ops: Any, static: Iterable[str] = (), call: type | None = None
    ) -> Callable[[Rule], Rule]:
        """Decorator: a rule that stands over the one that an operator has, whoever's that is.

        Its first argument is the rule beneath, which takes the same arguments, for calls that this one
        does not take. It draws random numbers as the rule beneath does, and knows the numbers that either
        names in `static`. One rule can stand over an operator's: a second is a `DuplicateLowering`.

            @table.lowers_over(aten.mm.default)
            def mm(beneath, self, mat2):
                return beneath(self, mat2) if min(self.shape) < 512 else my_kernel(self, mat2)
        """

        def register(rule: Rule) -> Rule:
            added = rule if call is None else _taking_over(call, rule)
            for op in ops:
                if not isinstance(op, Absent):
                    self._put(op, Lowering(added, frozenset(static)), self.over)
            return rule

        return register

    def rule_of(self, op: Any) -> Rule:
        """The rule of `op`, for another operator that it serves as well: this PyTorch may lack `op`."""
        return (self.left_out if isinstance(op, Absent) else self._rows)[op].rule

    def overlaid(self, other: LoweringTable) -> LoweringTable:
        """This table with `other`'s rows in place of its own where both have one, or over them."""
        result = LoweringTable(f"{self.name} under {other.name}")
        result._rows = {**self._rows, **other._rows}
        for op, lowering in other.over.items():
            if op in result._rows:
                result._rows[op] = _standing_over(lowering, result._rows[op])
        result.left_out = {**self.left_out, **other.left_out}
        return result

    @classmethod
    def merged(cls, name: str, tables: Iterable[LoweringTable]) -> LoweringTable:
        """One table of all rows; two rows for one operator are a `DuplicateLowering`."""
        result = cls(name)
        for table in tables:
            for op, lowering in (*table._rows.items(), *table.left_out.items()):
                result._put(op, lowering)
            for op, lowering in table.over.items():
                result._put(op, lowering, result.over)
        return result

    def _put(self, op: Any, lowering: Lowering, rows: dict[Any, Lowering] | None = None) -> None:
        if rows is None:
            rows = self.left_out if isinstance(op, Absent) else self._rows
        if (first := rows.get(op)) is not None:
            raise DuplicateLowering(
                f"`{op}` has two lowerings in the table `{self.name}`.",
                saw=f"{first.where} and {lowering.where}",
                hint="keep one; a device that needs its own rule returns it from `torch_pjrt_lowerings`",
            )
        rows[op] = lowering

    def __getitem__(self, op: Any) -> Lowering:
        return self._rows[op]

    def __iter__(self) -> Iterator[Any]:
        return iter(self._rows)

    def __len__(self) -> int:
        return len(self._rows)

    def __repr__(self) -> str:
        return f"LoweringTable({self.name!r}, {len(self)} operators)"


def taking(call: type, rule: Rule) -> Rule:
    """`rule`, which takes one `call`, as a rule that takes the operator's arguments."""

    @wraps(rule)
    def spread(*args: Any, **kwargs: Any) -> Any:
        return rule(call(*args, **kwargs))

    spread.call = call  # type: ignore[attr-defined]
    return spread


def _standing_over(lowering: Lowering, beneath: Lowering) -> Lowering:
    """One row for both. `where` is that of the rule above."""
    rule = wraps(lowering.rule)(partial(lowering.rule, beneath.rule))
    return Lowering(rule, lowering.static | beneath.static, beneath.random)


def _taking_over(call: type, rule: Rule) -> Rule:
    """As `taking`, for a rule that stands over another, which it calls with one `call`, too."""

    @wraps(rule)
    def spread(beneath: Rule, *args: Any, **kwargs: Any) -> Any:
        if getattr(beneath, "call", None) is call:
            return rule(unwrap(beneath), call(*args, **kwargs))
        return rule(lambda changed: _called(beneath, changed), call(*args, **kwargs))

    return spread


def _called(rule: Rule, call: Any) -> Any:
    """A rule that takes the operator's arguments, given one `call`, without what PyTorch does not have."""
    args, kwargs = [], {}
    for field in fields(call):
        given = getattr(call, field.name)
        if not field.kw_only:
            args.append(given)
        elif field.default is MISSING or given != field.default:
            kwargs[field.name] = given
    return rule(*args, **kwargs)
