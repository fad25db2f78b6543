"""Control flow as XLA's: `torch.cond`, `while_loop`, `scan` and `map` become nodes that hold graphs.

Each body is recorded once, like a graph, and evaluated by JAX's own control flow when the program is made.
Gradients are PyTorch's: AOTAutograd writes backward with the same operators.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import torch
from jax import lax

from torch_pjrt.compile.build import evaluate
from torch_pjrt.compile.loops import Scope
from torch_pjrt.compile.precision import in_force
from torch_pjrt.errors import LoweringError
from torch_pjrt.graph.face import Face, contiguous_face
from torch_pjrt.graph.graph import Graph, Number
from torch_pjrt.graph.signature import FunctionOp, Slot, intern
from torch_pjrt.graph.tape import Value
from torch_pjrt.passes.runner import run_passes
from torch_pjrt.run.client import client
from torch_pjrt.tensor.buffer import wrap
from torch_pjrt.tensor.record import record
from torch_pjrt.tensor.view import value_of

Arrays = Sequence[jax.Array]
Tensors = Sequence[torch.Tensor]
Body = Callable[[torch.fx.GraphModule, Sequence[Face]], tuple[Graph, list[Value]]]


class Recorded:
    """A body: its graph, and the constants that it reads after its inputs."""

    def __init__(self, graph: Graph, constants: list[Value]) -> None:
        self.graph = graph
        self.constants = constants

    @property
    def outs(self) -> list[Face]:
        faces = self.graph.faces()
        return [faces[v] for v in self.graph.outputs]

    def __call__(self, *arrays: jax.Array) -> tuple[jax.Array, ...]:
        """Evaluate it, while JAX traces."""
        scope = Scope(client().lowerings, in_force(), _constant, _no_numbers, _no_draw)
        return evaluate(run_passes(client().passes, self.graph), arrays, scope)


def cond(body: Body, predicate: Any, true: Any, false: Any, operands: Tensors = ()) -> Any:
    """One of two bodies."""
    if not isinstance(predicate, torch.Tensor):
        return (true if predicate else false)(*operands)
    faces = _faces(operands)
    yes, no = (Recorded(*body(module, faces)) for module in (true, false))
    n, n_yes = len(operands), len(yes.constants)

    def compute(chosen: jax.Array, *arrays: jax.Array) -> Arrays:
        given, of_yes, of_no = arrays[:n], arrays[n : n + n_yes], arrays[n + n_yes :]
        return lax.cond(
            chosen.reshape(()).astype(bool),
            lambda: yes(*given, *of_yes),
            lambda: no(*given, *of_no),
        )

    inputs = [predicate, *operands]
    return _node("cond", compute, inputs, [*yes.constants, *no.constants], yes.outs)


def while_loop(body: Body, test: Any, step: Any, carried: Tensors, others: Tensors = ()) -> Any:
    """A body, as long as another one says so."""
    faces = _faces([*carried, *others])
    until, turn = (Recorded(*body(module, faces)) for module in (test, step))
    n, n_others, n_until = len(carried), len(others), len(until.constants)

    def compute(*arrays: jax.Array) -> Arrays:
        same, constants = arrays[n : n + n_others], arrays[n + n_others :]
        return lax.while_loop(
            lambda now: until(*now, *same, *constants[:n_until])[0].reshape(()).astype(bool),
            lambda now: turn(*now, *same, *constants[n_until:]),
            tuple(arrays[:n]),
        )

    constants = [*until.constants, *turn.constants]
    return _node("while_loop", compute, [*carried, *others], constants, turn.outs)


def scan(body: Body, combine: Any, start: Tensors, xs: Tensors, others: Tensors = ()) -> Any:
    """A body for each element along the first dim, which hands something on to the next."""
    slices = [contiguous_face(tuple(x.shape[1:]), x.dtype) for x in xs]
    turn = Recorded(*body(combine, [*_faces(start), *slices, *_faces(others)]))
    n, n_xs, turns = len(start), len(xs), xs[0].shape[0]

    def compute(*arrays: jax.Array) -> Arrays:
        same = arrays[n + n_xs :]

        def one(carried: Any, x: Any) -> Any:
            results = turn(*carried, *x, *same)
            return results[:n], results[n:]

        carried, ys = lax.scan(one, tuple(arrays[:n]), tuple(arrays[n : n + n_xs]), turns)
        return [*carried, *ys]

    stacked = [contiguous_face((turns, *f.shape), f.dtype) for f in turn.outs[n:]]
    outs = [*turn.outs[:n], *stacked]
    return _node("scan", compute, [*start, *xs, *others], turn.constants, outs)


def map_impl(body: Body, function: Any, xs: Tensors, others: Tensors = ()) -> Any:
    """A body for each element along the first dim."""
    return scan(body, function, [], xs, others)


CONTROL: dict[str, Callable[..., Any]] = {
    "cond": cond,
    "while_loop": while_loop,
    "scan": scan,
    "map_impl": map_impl,
}


def _node(
    name: str,
    compute: Callable[..., Arrays],
    tensors: Tensors,
    constants: Sequence[Value],
    outs: Sequence[Face],
) -> list[torch.Tensor]:
    values = [*map(value_of, tensors), *constants]
    faces = tuple(contiguous_face(v.face.shape, v.face.dtype) for v in values)
    looks = tuple(contiguous_face(f.shape, f.dtype) for f in outs)
    slots = tuple(map(Slot, range(len(values))))
    signature = intern(
        FunctionOp(f"torch.{name}", compute), slots, {}, faces, looks, returns="list"
    )
    return [wrap(v, f) for v, f in zip(record(signature, values, []), looks, strict=True)]


def _faces(tensors: Tensors) -> list[Face]:
    if not all(isinstance(t, torch.Tensor) for t in tensors):
        raise LoweringError("Control flow carries a number that is no tensor.")
    return [contiguous_face(tuple(t.shape), t.dtype) for t in tensors]


def _constant(number: Number) -> Any:
    return number.value


def _no_numbers(numbers: Sequence[Number]) -> Any:
    raise AssertionError("numbers of a body are constants")


def _no_draw(draw: Any) -> Any:
    raise AssertionError("a body draws nothing")
