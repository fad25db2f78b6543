"""Calls that PyTorch composes of several operators, recorded at once, with no tensor between.

`linear` is a view, a transposition, a product and another view. Each is a call from C++ to Python, and makes
a tensor. Here a composition is run once for tensors of one look, on a scratch tape. What that recorded is
its template: later calls append the same nodes, with the numbers that they have on their tape.

`adam_steps.py` has the template of an optimizer's step over lists.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from operator import itemgetter
from typing import Any, Literal

import torch
from torch.autograd import forward_ad

from torch_pjrt.caches import Cache
from torch_pjrt.graph.signature import Signature
from torch_pjrt.graph.tape import Tape, Value, current, number_on, onto
from torch_pjrt.graph.tensor_spec import TensorSpec
from torch_pjrt.run.sync import cut
from torch_pjrt.settings import settings
from torch_pjrt.tensor.storage.buffer import Buffer, wrap
from torch_pjrt.tensor.storage.counts import DATA_DEPENDENT
from torch_pjrt.tensor.storage.view import look, value_of

# Of tensors, those that are None among them, and what else the call depends on: what it gives.
Composition = Callable[..., torch.Tensor | tuple[torch.Tensor | None, ...]]
Results = tuple[torch.Tensor | None, ...]
# Of so many items of code Python would compile a function for milliseconds.
_MANY = 256


_n_modes = torch._C._len_torch_dispatch_stack
_transform = torch._C._functorch.maybe_current_level  # pyright: ignore[reportAttributeAccessIssue]


def is_unwatched() -> bool:
    """Whether no mode or transform wants to see the operators of a composition, one by one.

    >>> is_unwatched()
    True
    """
    return (
        not settings.eager
        and not _n_modes()
        and forward_ad._current_level < 0
        and _transform() is None
    )


class Template:
    """The nodes of one composition.

    code     of the number of its first value and of its inputs: what is added to the tape's code.
    specs    what its nodes make.
    n_further    how many of these are not the first of their node.
    ints, floats    the numbers of its nodes.
    results  which of the values are its results; None where it has none.
    """

    __slots__ = ("code", "floats", "ints", "n_further", "results", "specs")

    def __init__(self, tape: Tape, results: tuple[int | None, ...]) -> None:
        self.code = (_written_out if len(tape.code) < _MANY else _picked)(tape)
        self.specs = tuple(value.spec for value in tape.values)
        self.n_further = tape.n_further
        self.ints, self.floats = tuple(tape.ints), tuple(tape.floats)
        self.results = results


class Composed:
    """What one composition has been recorded as, by what its tensors look like.

    >>> twice = Composed(lambda key, x: x.sin().cos(), "examples")
    >>> twice((torch.zeros(2, device="pjrt"),))
    (tensor([1., 1.], device='pjrt:0'),)
    """

    def __init__(self, compose: Composition, name: str) -> None:
        self.compose = compose
        # False where there is none.
        self.templates: Cache[Any, Template | Literal[False]] = Cache(
            f"templates of {name}", most=4_096
        )

    def __call__(self, tensors: tuple[torch.Tensor | None, ...], key: Hashable = None) -> Results:
        """The composition's results: recorded by the template, or by calling it where it has none."""
        values: list[Value] = []
        specs: list[TensorSpec | None] = []
        for tensor in tensors:
            if tensor is None:
                specs.append(None)
                continue
            buffer: Any = getattr(tensor.untyped_storage(), "buffer", None)
            if buffer.__class__ is not Buffer or tensor.is_neg() or tensor.is_conj():
                return self._called(tensors, key)
            value, spec = buffer.value, buffer.spec
            if buffer.viewed:
                value, spec = look(tensor, buffer)
                if spec is DATA_DEPENDENT:
                    return self._called(tensors, key)
            values.append(value)
            specs.append(value.spec)
        pattern = (*specs, key)
        template = self.templates.get(pattern)
        if template is None:
            template = self.templates[pattern] = self._learned(specs, key)
        if template is False:
            return self._called(tensors, key)
        made = record(template, values)
        return tuple([None if n is None else wrap(made[n], made[n].spec) for n in template.results])

    def _called(self, tensors: tuple[torch.Tensor | None, ...], key: Hashable) -> Results:
        results = self.compose(key, *tensors)
        return results if isinstance(results, tuple) else (results,)

    def _learned(self, specs: list[TensorSpec | None], key: Hashable) -> Template | Literal[False]:
        """What the composition records of tensors that look so; False where no template says it."""
        with onto(Tape(nested=True)) as scratch:
            given = [None if spec is None else Value(spec, 0, None) for spec in specs]
            for value in given:
                if value is not None:
                    scratch.take(value)
            n_given = len(scratch.inputs)
            tensors = tuple(None if value is None else wrap(value, value.spec) for value in given)
            try:
                results = self._called(tensors, key)
                values = [None if r is None else value_of(r) for r in results]
                numbers = [None if v is None else number_on(scratch, v) for v in values]
            except Exception:  # the call itself raises it, with tensors of the user's
                return False
            is_fit = (
                len(scratch.inputs) == n_given
                and not scratch.n_further
                and not scratch.draws
                and not scratch.kept
                and all(n is None or n >= 0 for n in numbers)
                and all(
                    r is None or v is None or r.stride() == v.spec.strides
                    for r, v in zip(results, values, strict=True)
                )
            )
            return Template(scratch, tuple(numbers)) if is_fit else False


def record(
    template: Template, values: list[Value], floats: list[float] | tuple[float, ...] | None = None
) -> list[Value]:
    """Append the template's nodes to this thread's tape; what they make. `floats` stand for its own.

    >>> x = value_of(torch.zeros(2, device="pjrt"))
    >>> with onto(Tape(nested=True)) as scratch:
    ...     spare = Value(x.spec, 0, None)
    ...     y = value_of(wrap(spare, spare.spec).sin().cos())
    >>> [sine, cosine] = record(Template(scratch, (1,)), [x])
    >>> host_array(cosine)
    array([1., 1.], dtype=float32)
    """
    code_of, specs, ints = template.code, template.specs, template.ints
    n_further = template.n_further
    if floats is None:
        floats = template.floats
    while True:
        tape = current()
        if tape.size > settings.tape_limit:
            tape = cut(tape)
        numbers = [v.number if v.tape is tape else tape.take(v) for v in values]
        first = tape.size
        end = first + len(specs)
        code = code_of(first, *numbers)
        made = [Value(spec, n, tape) for n, spec in enumerate(specs, first)]
        if tape.closed or tape.size != first:
            continue
        # From here on nothing is called, so that an interrupt (Ctrl-C) comes before or after.
        tape.code += code
        tape.ints += ints
        tape.floats += floats
        tape.size = end
        tape.values += made
        tape.n_further += n_further
        return made


def _written_out(tape: Tape) -> Callable[..., tuple[Any, ...]]:
    """A function of the number of the first node and of the inputs' numbers that gives the tape's code."""
    scope: dict[str, Any] = {}
    items = []
    for n, item in enumerate(tape.code):
        if isinstance(item, Signature):
            scope[f"s{n}"] = item
            items.append(f"s{n}")
        else:
            items.append(f"x{-item}" if item < 0 else f"n + {item}" if item else "n")
    inputs = "".join(f", x{n}" for n in range(1, len(tape.inputs) + 1))
    exec(f"def code(n{inputs}): return ({', '.join(items)},)", scope)
    return scope["code"]


def _picked(tape: Tape) -> Callable[..., tuple[Any, ...]]:
    """The same for long code: each item is picked out of a row of inputs, values and signatures."""
    signatures = [item for item in tape.code if isinstance(item, Signature)]
    n_inputs, n_values = len(tape.inputs), len(tape.values)
    at = {id(signature): n_inputs + n_values + i for i, signature in enumerate(signatures)}

    def place(item: Any) -> int:
        if isinstance(item, Signature):
            return at[id(item)]
        return -1 - item if item < 0 else n_inputs + item

    pick = itemgetter(*map(place, tape.code))

    def code(first: int, *inputs: int) -> tuple[Any, ...]:
        return pick((*inputs, *range(first, first + n_values), *signatures))

    return code
