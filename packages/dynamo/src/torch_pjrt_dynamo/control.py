"""Control flow as XLA's: `torch.cond`, `while_loop`, `scan` and `map` become nodes that hold graphs.

Each body is recorded once, like a graph, and evaluated by JAX's own control flow when the program is made.
Gradients are PyTorch's: AOTAutograd writes backward with the same operators.

Where bodies draw random numbers, the node takes a key: four uniform numbers, which are drawn like any
others. Each iteration folds its number into it, and each draw its position (Threefry: Salmon et al.,
"Parallel Random Numbers: As Easy as 1, 2, 3", 2011). So the generator advances by one draw, however many
iterations there are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax import lax

from torch_pjrt.errors import LoweringError
from torch_pjrt.extend import FunctionOp, Value, intern, record, traced, value_of, wrap
from torch_pjrt.plugin import Draw, Graph, Slot, TensorSpec, aten, contiguous_spec
from torch_pjrt_dynamo.operators import recorded
from torch_pjrt_dynamo.shared_keys import KEY_SIZE, has_draws

Arrays = Sequence[jax.Array]
Key = jax.Array | None
Tensors = Sequence[torch.Tensor]
# From a graph, and the specs of the tensors among its inputs, or numbers.
RecordBody = Callable[[torch.fx.GraphModule, Sequence[Any]], tuple[Graph, list[Value]]]


class Body:
    """A body: its graph, and the constants that it reads after its inputs."""

    def __init__(self, graph: Graph, constants: list[Value]) -> None:
        self.graph = graph
        self.constants = constants

    @property
    def outs(self) -> list[TensorSpec]:
        specs = self.graph.specs()
        return [specs[v] for v in self.graph.outputs]

    @property
    def draws(self) -> bool:
        """Whether it draws random numbers."""
        return any(node.draw is not None for node in self.graph.nodes)

    def __call__(self, key: Key, *arrays: jax.Array) -> tuple[jax.Array, ...]:
        """Evaluate it, while JAX traces; the key is that of this iteration."""
        return traced(self.graph, arrays, partial(_key_of_draw, key))


def cond(
    body: RecordBody,
    predicate: Any,
    true: Any,
    false: Any,
    operands: Tensors = (),
    *,
    key: torch.Tensor | None = None,
) -> Any:
    """One of two bodies. If the predicate is a number, it is the program's: of sizes that vary, say."""
    specs = _looks(operands)
    if not isinstance(predicate, torch.Tensor):
        chosen = true if predicate else false
        if not has_draws(chosen):
            return chosen(*operands)
        one = Body(*body(chosen, specs))
        return _node("cond", one, _keys(key, one), _tensors(operands), one.constants, one.outs)
    yes, no = (Body(*body(module, specs)) for module in (true, false))
    n, n_yes = len(_tensors(operands)), len(yes.constants)

    def compute(key: Key, chosen: jax.Array, *arrays: jax.Array) -> Arrays:
        given, of_yes, of_no = arrays[:n], arrays[n : n + n_yes], arrays[n + n_yes :]
        return lax.cond(
            chosen.reshape(()).astype(bool),
            lambda: yes(key, *given, *of_yes),
            lambda: no(key, *given, *of_no),
        )

    inputs = [predicate, *_tensors(operands)]
    keys = _keys(key, yes, no)
    return _node("cond", compute, keys, inputs, [*yes.constants, *no.constants], yes.outs)


def while_loop(
    body: RecordBody,
    test: Any,
    step: Any,
    carried: Tensors,
    others: Tensors = (),
    *,
    key: torch.Tensor | None = None,
) -> Any:
    """A body, as long as another one says so."""
    specs = [*_specs(carried), *_looks(others)]
    others = _tensors(others)
    until, iteration = (Body(*body(module, specs)) for module in (test, step))
    n, n_others, n_until = len(carried), len(others), len(until.constants)

    def compute(key: Key, *arrays: jax.Array) -> Arrays:
        same, constants = arrays[n : n + n_others], arrays[n + n_others :]

        def goes_on(state: Any) -> jax.Array:
            (of_test, _), now = _two_of_iteration(key, state[0]), state[1]
            return until(of_test, *now, *same, *constants[:n_until])[0].reshape(()).astype(bool)

        def one(state: Any) -> Any:
            (_, of_step), now = _two_of_iteration(key, state[0]), state[1]
            return _next(state[0]), iteration(of_step, *now, *same, *constants[n_until:])

        return lax.while_loop(goes_on, one, (_first(key), tuple(arrays[:n])))[1]

    constants = [*until.constants, *iteration.constants]
    keys = _keys(key, until, iteration)
    return _node("while_loop", compute, keys, [*carried, *others], constants, iteration.outs)


def scan(
    body: RecordBody,
    combine: Any,
    start: Tensors,
    xs: Tensors,
    others: Tensors = (),
    *,
    key: torch.Tensor | None = None,
    backwards: bool = False,
) -> Any:
    """A body for each element along the first dim, which hands something on to the next.

    `backwards` says that it is the gradient of one that draws: the first iteration draws what the last did
    there.
    """
    slices = [contiguous_spec(tuple(x.shape[1:]), x.dtype) for x in xs]
    iteration = Body(*body(combine, [*_specs(start), *slices, *_looks(others)]))
    others = _tensors(others)
    n, n_xs, iterations = len(start), len(xs), xs[0].shape[0]
    way = -1 if backwards else 1

    def compute(key: Key, *arrays: jax.Array) -> Arrays:
        same = arrays[n + n_xs :]

        def one(state: Any, x: Any) -> Any:
            results = iteration(_of_iteration(key, state[0]), *state[1], *x, *same)
            return (_next(state[0], way), results[:n]), results[n:]

        state = _first(key, iterations - 1 if backwards else 0), tuple(arrays[:n])
        (_, carried), ys = lax.scan(one, state, tuple(arrays[n : n + n_xs]), iterations)
        return [*carried, *ys]

    stacked = [contiguous_spec((iterations, *f.shape), f.dtype) for f in iteration.outs[n:]]
    outs = [*iteration.outs[:n], *stacked]
    keys = _keys(key, iteration)
    return _node("scan", compute, keys, [*start, *xs, *others], iteration.constants, outs)


def map_impl(
    body: RecordBody,
    function: Any,
    xs: Tensors,
    others: Tensors = (),
    *,
    key: torch.Tensor | None = None,
) -> Any:
    """A body for each element along the first dim."""
    return scan(body, function, [], xs, others, key=key)


CONTROL: dict[str, Callable[..., Any]] = {
    "cond": cond,
    "while_loop": while_loop,
    "scan": scan,
    "map_impl": map_impl,
}


def _node(
    name: str,
    compute: Callable[..., Arrays],
    keys: Tensors,
    tensors: Tensors,
    constants: Sequence[Value],
    outs: Sequence[TensorSpec],
) -> list[torch.Tensor]:
    """The node's results. `compute` takes a key, or None where there is none, and the arrays."""
    values = [*map(value_of, keys), *map(value_of, tensors), *constants]
    specs = tuple(contiguous_spec(v.spec.shape, v.spec.dtype) for v in values)
    looks = tuple(contiguous_spec(f.shape, f.dtype) for f in outs)
    slots = tuple(map(Slot, range(len(values))))
    computed = partial(_keyed, compute) if keys else partial(compute, None)
    signature = intern(
        FunctionOp(f"torch.{name}", computed), slots, {}, specs, looks, returns="list"
    )
    return [wrap(v, f) for v, f in zip(record(signature, values, []), looks, strict=True)]


def _specs(tensors: Tensors) -> list[TensorSpec]:
    if not all(isinstance(t, torch.Tensor) for t in tensors):
        raise LoweringError("Control flow carries a number that is no tensor.")
    return [contiguous_spec(tuple(t.shape), t.dtype) for t in tensors]


def _looks(operands: Sequence[Any]) -> list[Any]:
    """What operands look like to a body: sizes that vary are numbers among them, and constants here."""
    return [_specs([x])[0] if isinstance(x, torch.Tensor) else x for x in operands]


def _tensors(operands: Sequence[Any]) -> list[torch.Tensor]:
    return [x for x in operands if isinstance(x, torch.Tensor)]


def _keys(given: torch.Tensor | None, *bodies: Body) -> list[torch.Tensor]:
    """The key of control flow with these bodies, if they draw: the given one, else one of its own."""
    if not any(body.draws for body in bodies):
        return []
    kwargs = {"dtype": torch.float32, "device": torch.device("pjrt")}
    own = recorded(aten.rand.default, ([KEY_SIZE],), kwargs) if given is None else given
    return [own]


def _keyed(compute: Callable[..., Arrays], uniform: jax.Array, *arrays: jax.Array) -> Arrays:
    """`compute` with a PRNG key made of numbers in [0, 1): 16 bits of each."""
    bits = (uniform * 2.0**16).astype(np.uint32)
    words = bits[:2] * np.uint32(1 << 16) + bits[2:]
    return compute(jax.random.wrap_key_data(words, impl="threefry2x32"), *arrays)


def _key_of_draw(key: Key, draw: Draw) -> jax.Array:
    assert key is not None
    return jax.random.fold_in(key, jnp.asarray(draw.index).astype(np.uint32))


def _first(key: Key, iteration: int = 0) -> jax.Array | None:
    """What counts iterations; nothing where nobody draws."""
    return None if key is None else jnp.asarray(iteration, np.uint32)


def _next(iteration: jax.Array | None, way: int = 1) -> jax.Array | None:
    return None if iteration is None else (iteration + np.uint32(way % (1 << 32))).astype(np.uint32)


def _of_iteration(key: Key, iteration: jax.Array | None) -> Key:
    return None if key is None or iteration is None else jax.random.fold_in(key, iteration)


def _two_of_iteration(key: Key, iteration: jax.Array | None) -> tuple[Key, Key]:
    """The keys of the two bodies of one iteration."""
    own = _of_iteration(key, iteration)
    return (None, None) if own is None else (jax.random.fold_in(own, 0), jax.random.fold_in(own, 1))
