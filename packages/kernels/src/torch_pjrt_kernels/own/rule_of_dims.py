"""Which dims of a call's arrays are the same: `b (n g) w, b n w -> b (n g)`, by which a call is split."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from math import lcm, prod
from typing import Any

from torch_pjrt.errors import LoweringError

Dim = tuple[str, ...]  # its names, the slowest first
Dims = tuple[Dim, ...]

_BATCH = "batch_of_vmap"
_NOTHING = "nothing"


@dataclass(frozen=True, slots=True)
class SplittingRule:
    """Names for the dims of each array that is given, and of each result.

    A dim of several, `(n g)`, is seen as one dim of each; a name may be a number, which is its size. Arrays
    are split along a name that all results have, and some array, where it is the first of its dims; the
    others are kept whole. `names_split` says along which instead: where a result lacks one, as a gradient
    may, the parts are added up.

    shared   two names, `n` and `g`: each of the first serves several, which may be split, too. Where more
             chips share out the dims `(n g)` than there are of `n`, dims of `n` alone are repeated.
    """

    arrays: tuple[Dims, ...]
    results: tuple[Dims, ...]
    names_split: frozenset[str] | None = None
    shared: tuple[str, str] | None = None

    @classmethod
    def parsed(
        cls,
        text: str,
        n_arrays: int,
        n_results: int,
        split: Sequence[str] | None = None,
        shared: tuple[str, str] | None = None,
    ) -> SplittingRule:
        """Read from `i j, j -> i j`. Raises `LoweringError` where it has not one part for each array."""
        left, arrow, right = text.partition("->")
        arrays, results = (tuple(map(_dims, side.split(","))) for side in (left, right))
        names = [name for dims in (*arrays, *results) for dim in dims for name in dim]
        fits = (len(arrays), len(results)) == (n_arrays, n_results)
        if not arrow or not fits or not all(n.isidentifier() or n.isdigit() for n in names):
            raise LoweringError(
                "The sharding rule of a kernel does not fit its arrays.",
                saw=repr(text),
                expected=f"names of dims for {n_arrays} arrays -> for {n_results} results, "
                "as in `i j, j -> i j`",
            )
        return cls(arrays, results, None if split is None else frozenset(split), shared)

    def split_names(self) -> frozenset[str]:
        """The names along which arrays may be split."""
        if self.names_split is not None:
            return self.names_split
        given = {dim[0] for dims in self.arrays for dim in dims}
        return frozenset(given.intersection(*({dim[0] for dim in dims} for dims in self.results)))

    def of_gradient(self) -> SplittingRule:
        """The rule of the backward: of the results' gradients and the arrays, the arrays' gradients."""
        return SplittingRule((*self.results, *self.arrays), self.arrays, self.split_names())

    def batched(self, dims: Sequence[int]) -> SplittingRule:
        """The rule with a batch at these dims of the arrays, -1 where there is none, and first in results."""
        batch = (_BATCH,)
        arrays = [
            d if at < 0 else (*d[:at], batch, *d[at:])
            for d, at in zip(self.arrays, dims, strict=True)
        ]
        names = None if self.names_split is None else self.names_split | {_BATCH}
        return SplittingRule(tuple(arrays), tuple((batch, *d) for d in self.results), names)

    def of_these(self, present: Sequence[bool]) -> SplittingRule:
        """The rule of a call that lacks some arrays."""
        given = [d for d, p in zip(self.arrays, present, strict=True) if p]
        return SplittingRule(tuple(given), self.results, self.names_split)

    def of_shapes(
        self, arrays: Sequence[tuple[int, ...]], results: Sequence[tuple[int, ...]]
    ) -> SizedRule:
        """The rule of a call, with the sizes of its names. `LoweringError` for shapes of other dims."""
        of_results = self.results
        if self.names_split is not None:  # the gradient of an array of integers has no elements
            empty = ((_NOTHING,),)
            of_results = tuple(
                empty if shape == (0,) else dims
                for dims, shape in zip(self.results, results, strict=True)
            )
        rule = SplittingRule(self.arrays, of_results, self.split_names(), self.shared)
        pairs = list(zip((*self.arrays, *of_results), (*arrays, *results), strict=True))
        for dims, shape in pairs:
            if len(dims) != len(shape):
                raise _other_dims(dims, shape)
        of_dims = [
            (dims, shape, dim, n)
            for dims, shape in pairs
            for dim, n in zip(dims, shape, strict=True)
        ]
        sizes = {name: int(name) for *_, dim, _ in of_dims for name in dim if name.isdigit()}
        for *_, dim, n in sorted(of_dims, key=lambda x: len(x[2])):
            unknown = [name for name in dim if name not in sizes]
            if len(unknown) == 1:
                known = prod(sizes.get(name, 1) for name in dim)
                sizes[unknown[0]] = n // max(known, 1)
        for dims, shape, dim, n in of_dims:
            if prod(sizes.get(name, 0) for name in dim) != n:
                raise _other_dims(dims, shape)
        return SizedRule(rule, sizes)


@dataclass(frozen=True, slots=True)
class SizedRule:
    """A rule, and the size of each of its names."""

    rule: SplittingRule
    sizes: dict[str, int]

    def of_shardy(self) -> str:
        """The text of Shardy's attribute. What may not be split it is told to keep whole."""
        arrays, results = (
            [[self._of_several(dim) for dim in dims] for dims in side]
            for side in (self.rule.arrays, self.rule.results)
        )
        # Letters in the order in which the rule names them: Shardy verifies that.
        names = dict.fromkeys(n for dims in (*arrays, *results) for dim in dims for n in dim)
        letters = {name: _letter(i) for i, name in enumerate(names)}

        def side(arrays: Sequence[Sequence[Dim]]) -> str:
            written = (
                ", ".join("".join(letters[n] for n in dim) for dim in dims) for dims in arrays
            )
            return ", ".join(f"[{dims}]" for dims in written)

        sizes = ", ".join(f"{letter}={self.sizes[name]}" for name, letter in letters.items())
        split = self.rule.split_names().union(self.rule.shared or ())
        whole = [letter for n, letter in letters.items() if n not in split]
        kept = f" need_replication={{{', '.join(whole)}}}" if whole else ""
        return (
            f"#sdy.op_sharding_rule<({side(arrays)})->({side(results)}) {{{sizes}}}{kept}, custom>"
        )

    def _of_several(self, dim: Dim) -> Dim:
        """The names that Shardy takes: among several none is of size 1."""
        return tuple(name for name in dim if self.sizes[name] != 1) or dim[:1]

    def repeated(
        self, specs: Sequence[Sequence[Sequence[str]]], axes: dict[str, int]
    ) -> tuple[int, SizedRule]:
        """How often what is shared is repeated, for arrays that lie like this, and the rule of that."""
        if self.rule.shared is None:
            return 1, self
        name, sharing = self.rule.shared
        n, g = self.sizes[name], self.sizes[sharing]
        for dims, spec in zip((*self.rule.arrays, *self.rule.results), specs, strict=True):
            for dim, of_dim in zip(dims, spec, strict=True):
                if dim != (name, sharing):
                    continue
                parts = 1
                for axis in of_dim:
                    if n * g % (parts * axes[axis]):
                        break
                    parts *= axes[axis]
                times = lcm(n, parts) // n
                if times > 1:
                    sizes = {**self.sizes, name: n * times, sharing: g // times}
                    return times, SizedRule(self.rule, sizes)
        return 1, self

    def axes_of_names(
        self, specs: Sequence[Sequence[Sequence[str]]], axes: dict[str, int]
    ) -> dict[str, tuple[str, ...]]:
        """Along which axes of a mesh arrays are split by each name; an axis serves one name.

        specs   of each array and then of each result the axes of each dim. axes: the sizes of the mesh's.
        """
        found: dict[str, tuple[str, ...]] = {}
        for dims, spec in zip((*self.rule.arrays, *self.rule.results), specs, strict=True):
            for dim, of_dim in zip(dims, spec, strict=True):
                name, taken = dim[0], {a for of in found.values() for a in of}
                if name in found or name not in self.rule.split_names():
                    continue
                chosen: list[str] = []
                for axis in of_dim:
                    n = prod(axes[a] for a in chosen) * axes[axis]
                    if axis in taken or self.sizes[name] % n:
                        break
                    chosen.append(axis)
                if chosen:
                    found[name] = tuple(chosen)
        return found


def _dims(text: str) -> Dims:
    """`b (n g)` as [("b",), ("n", "g")]."""
    parts = re.findall(r"\([^()]*\)|[^\s()]+|[()]", text)
    return tuple(tuple(part.strip("()").split()) or ("",) for part in parts)


def _letter(i: int) -> str:
    last = ord("z") - ord("i")
    return chr(ord("i") + i) if i <= last else f"z_{i - last}"


def _other_dims(dims: Dims, shape: Any) -> LoweringError:
    return LoweringError(
        "The sharding rule of a kernel has other dims than its array.",
        saw=str(list(shape)),
        expected=" ".join(d[0] if len(d) == 1 else f"({' '.join(d)})" for d in dims),
    )
