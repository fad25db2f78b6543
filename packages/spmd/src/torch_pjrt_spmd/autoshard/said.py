"""What is said of a plan before it is made: specs by name, in a call, in a file or by marks.

All of it is checked against the step: that there is such a tensor or result, that the spec fits it, that
tensors at one place of layers that repeat are said to lie alike. What is not said is free.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any, TypeVar

from torch_pjrt_spmd.autoshard.operators import Operators
from torch_pjrt_spmd.autoshard.recording import Recorded
from torch_pjrt_spmd.autoshard.repeats import Tied
from torch_pjrt_spmd.autoshard.saved import Saved, read_saved
from torch_pjrt_spmd.autoshard.specs import Layout, layout_of, spec_of
from torch_pjrt_spmd.autoshard.strategies import Strategy
from torch_pjrt_spmd.autoshard.views import Views
from torch_pjrt_spmd.roles import OTHER, STATE
from torch_pjrt_spmd.spec import Entry, ShardingError, axes_of, checked

Spec = tuple[Entry, ...]
Specs = Mapping[str, Sequence[Any]]
Way = TypeVar("Way")
Result = tuple[str, int, int, Spec]  # of a module: its name, the value, which of its maker's it is


@dataclass(frozen=True, slots=True)
class Said:
    """Specs by name, checked, without axes of one chip.

    inputs        of parameters, buffers, optimizer state and arguments that the step reads.
    activations   of modules' results. unread: of parameters and buffers that the step does not read.
    again         the modules that are computed again in backward; None: nothing is said of that.
    """

    inputs: Mapping[str, Spec] = field(default_factory=dict)
    activations: Mapping[str, Spec] = field(default_factory=dict)
    unread: Mapping[str, Spec] = field(default_factory=dict)
    again: tuple[str, ...] | None = None

    @property
    def names(self) -> frozenset[str]:
        return frozenset((*self.inputs, *self.activations, *self.unread))


@dataclass(frozen=True, slots=True)
class _Axes:
    """What `checked` asks of a mesh, of sizes alone."""

    sizes: Mapping[str, int]

    @property
    def axis_names(self) -> tuple[str, ...]:
        return tuple(self.sizes)

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.sizes.values())

    def axis_size(self, name: str) -> int:
        return self.sizes[name]


def said_of(
    plan: str | Path | Specs | None, marked: Specs, recorded: Recorded, sizes: Mapping[str, int]
) -> Said:
    """What a call says, by `plan=` and by what was marked before. `plan=` wins.

    Raises `ShardingError` for a name that the step has not, and for a spec that does not fit.
    """
    if plan is None or isinstance(plan, Mapping):
        saved = Saved(plan or {})
    else:
        saved = read_saved(plan, sizes)
    shapes = _shapes(recorded)
    results = {
        name: tuple(recorded.graph.specs()[v].shape) for name, v in recorded.activations.items()
    }
    placements = {name: saved.placements[name] for name in saved.placements}
    activations = dict(saved.activations)
    for name in [n for n in placements if n not in shapes and n in results]:
        activations[name] = placements.pop(name)
    found: dict[str, Spec] = {}
    for name, spec in {**marked, **placements}.items():
        if name in shapes:
            found[name] = _checked(name, shapes[name], spec, sizes)
        elif not _is_state_of_another_step(name, recorded):
            raise _unknown(name, (*shapes, *results))
    for name in activations:
        if name not in results:
            raise _unknown(name, results)
    read = {x.name for x in recorded.inputs}
    return Said(
        {name: spec for name, spec in found.items() if name in read},
        {name: _checked(name, results[name], spec, sizes) for name, spec in activations.items()},
        {name: spec for name, spec in found.items() if name not in read},
        saved.rematerialized,
    )


def check_axes(across: Sequence[str], sizes: Mapping[str, int]) -> None:
    """Raises `ShardingError` for axes over slices that the mesh has not."""
    unknown = [name for name in across if name not in sizes]
    if unknown:
        raise ShardingError(
            f"The mesh has no axis {unknown[0]!r} that could go over slices.",
            saw=f"across={tuple(across)!r}, the mesh {dict(sizes)}",
            expected=f"some of {tuple(sizes)}",
        )


def _shapes(recorded: Recorded) -> dict[str, tuple[int, ...]]:
    """Of all that can be said to lie somehow."""
    found = {name: tuple(t.shape) for name, t in recorded.parameters.items()}
    for x, spec in zip(recorded.inputs, recorded.graph.inputs, strict=True):
        if x.role != OTHER:
            found[x.name] = tuple(spec.shape)
    return found


def _is_state_of_another_step(name: str, recorded: Recorded) -> bool:
    """Whether a name is that of optimizer state where this step has no optimizer: a plan for training."""
    of = name.rpartition("/")[0]
    return of in recorded.parameters and all(x.role != STATE or x.of != of for x in recorded.inputs)


def _unknown(name: str, names: Any) -> ShardingError:
    near = get_close_matches(name, [*names], 3)
    return ShardingError(
        f"The step has nothing that is called `{name}`, so it cannot lie as it is said to.",
        saw=f"a spec for {name!r}",
        expected=f"names such as {', '.join(map(repr, near or [*names][:4]))}",
        hint="`print(auto_shard(..., apply=False))` shows the names",
    )


def _checked(name: str, shape: tuple[int, ...], spec: Any, sizes: Mapping[str, int]) -> Spec:
    axes: Any = _Axes(sizes)
    try:
        return plain(checked(shape, axes, spec), sizes)
    except TypeError as error:
        raise ShardingError(
            f"`{name}` cannot lie as it is said to: that is no spec.",
            saw=f"{spec!r}",
            expected=f"for each dim None, one of {tuple(sizes)}, or a tuple of these",
        ) from error
    except ShardingError as error:
        raise ShardingError(
            f"`{name}` cannot lie as it is said to. {error.happened}",
            saw=error.saw,
            expected=error.expected,
            hint=error.hint,
        ) from error


def plain(spec: Sequence[Any], sizes: Mapping[str, int]) -> Spec:
    """A spec without axes of one chip."""
    axes = [tuple(a for a in axes_of(e) if sizes[a] > 1) for e in spec]
    return tuple(a[0] if len(a) == 1 else a or None for a in axes)


@dataclass(frozen=True, slots=True, eq=False)
class Fixed:
    """Of what could be chosen that which agrees with what is said.

    axes  those of several chips.
    """

    recorded: Recorded
    operators: Operators
    classes: Tied
    axes: Mapping[str, int]
    said: Said
    by_class: defaultdict[tuple[bool, int], list[Result]] = field(
        default_factory=lambda: defaultdict(list)
    )

    def layouts(self, number: int, layouts: Sequence[Layout], views: Views) -> Sequence[Layout]:
        """Of a class of inputs."""
        members = self.classes.inputs[number]
        first = -members[0] - 1
        spec = self._said_of_inputs(members)
        if spec is not None:
            found = self._layout(spec, first)
            if found is None:
                raise ShardingError(
                    f"`{self.recorded.inputs[members[0]].name}` cannot lie as it is said to.",
                    saw=f"a tensor of {list(self.operators.specs[first].shape)}, the spec {spec}",
                    expected="axes of one dim in the order of the mesh, and parts that divide what dims are "
                    f"made of: {list(map(list, self.operators.atoms[first]))}",
                )
            layouts = [found]
        elif self.recorded.inputs[members[0]].role == OTHER:
            layouts = [self._as_it_lies(members[0])]
        results = self._results(views, (True, number))
        return self._agreeing(layouts, lambda layout, _: layout, results, views)

    def strategies(
        self, number: int, strategies: Sequence[Strategy], views: Views
    ) -> Sequence[Strategy]:
        """Of a class of operators."""
        results = self._results(views, (False, number))
        return self._agreeing(strategies, lambda s, k: s.outputs[k], results, views)

    def _said_of_inputs(self, members: Sequence[int]) -> Spec | None:
        names = [self.recorded.inputs[m].name for m in members]
        said = {name: self.said.inputs[name] for name in names if name in self.said.inputs}
        _check_alike(said)
        return next(iter(said.values()), None)

    def _as_it_lies(self, i: int) -> Layout:
        """Of what is neither parameter, buffer, state nor argument: nobody marks it."""
        spec = self.recorded.inputs[i].lies
        known = all(name in self.axes for e in spec for name in axes_of(e))
        found = self._layout(plain(spec, self.axes), -i - 1) if known else None
        return (-1,) * len(self.axes) if found is None else found

    def _layout(self, spec: Spec, value: int) -> Layout | None:
        """None where there is none that means the same: axes of a dim in another order than the mesh's."""
        atoms = self.operators.atoms[value]
        found = layout_of(spec, atoms, list(self.axes), list(self.axes.values()))
        padded = (*spec, *[None] * (len(atoms) - len(spec)))
        return found if found is not None and self._spec(found, value) == padded else None

    def _spec(self, layout: Layout, value: int) -> Spec | None:
        atoms = self.operators.atoms[value]
        return spec_of(layout, atoms, list(self.axes), list(self.axes.values()))

    def _results(self, views: Views, of: tuple[bool, int]) -> Sequence[Result]:
        """Of a class of inputs (True) or operators, what is said of modules' results that it makes."""
        if self.said.activations and not self.by_class:
            ops = self.operators.all
            makers = {v: (i, k) for i, op in enumerate(ops) for k, v in enumerate(op.outputs)}
            for name, spec in self.said.activations.items():
                value = self.recorded.activations[name]
                base = views.base.get(value)
                if base is None:
                    continue
                i, k = makers.get(base, (0, 0))
                of_class = (
                    self.classes.of_input[-base - 1] if base < 0 else self.classes.of_operator[i]
                )
                self.by_class[base < 0, of_class].append((name, value, k, spec))
        return self.by_class.get(of, ())

    def _agreeing(
        self,
        ways: Sequence[Way],
        layout: Callable[[Way, int], Layout],
        results: Sequence[Result],
        views: Views,
    ) -> Sequence[Way]:
        alike: dict[Any, dict[str, Spec]] = {}
        for name, value, k, spec in results:
            at_one_place = alike.setdefault((k, views.ways[value], len(spec)), {})
            at_one_place[name] = spec
            _check_alike(at_one_place)
            specs = [self._spec(views.on_view(layout(w, k), value), value) for w in ways]
            found = [w for w, of_way in zip(ways, specs, strict=True) if of_way == spec]
            if not found:
                can = [str(s) for s in dict.fromkeys(specs) if s is not None]
                raise ShardingError(
                    f"The result of `{name}` cannot lie as it is said to.",
                    saw=f"a tensor of {list(self.operators.specs[value].shape)}, the spec {spec}",
                    expected=f"one of {', '.join(can[:8])}{', ...' if len(can) > 8 else ''}",
                )
            ways = found
        return ways


def _check_alike(said: Mapping[str, Spec]) -> None:
    """Tensors at one place of layers that repeat are decided once."""
    names = iter(said.items())
    first = next(names, None)
    for name, spec in names:
        assert first is not None
        if spec != first[1]:
            raise ShardingError(
                f"`{first[0]}` and `{name}` are said to lie otherwise, but are at one place of layers that "
                "repeat, which is decided once.",
                saw=f"{first[1]} and {spec}",
                hint="say the same of all of them, or of one",
            )
