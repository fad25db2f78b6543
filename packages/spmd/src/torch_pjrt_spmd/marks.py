"""Which tensors are marked: of each buffer how it is to lie.

A sharding belongs to the buffer, so that views and in-place writes keep it. The gradient of a marked
parameter and the state that an optimizer keeps of it lie as it does. Core asks for these pins when it
compiles a program, and at no other time.

Marks for chips that are not here (`Mesh.for_target`) are kept by target, and asked for while `compile_for`
compiles for it; what has none then is taken to lie as it does here, on as many of the target's chips.
"""

from __future__ import annotations

import weakref
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.weak import WeakTensorKeyDictionary

import torch_pjrt
from torch_pjrt.extend import (
    Buffer,
    Value,
    add_optimizer_hook,
    buffer_of,
    define_annotation,
    is_pjrt,
    placed,
    value_of,
)
from torch_pjrt_spmd import default_mesh
from torch_pjrt_spmd.compiled_for import target as compiled_for
from torch_pjrt_spmd.compiled_for import there
from torch_pjrt_spmd.mesh import Mesh
from torch_pjrt_spmd.spec import ShardingError, partition_spec

if TYPE_CHECKING:
    import jax

    from torch_pjrt.plugin import Pass

    NamedSharding = jax.sharding.NamedSharding

# How a value lies. Their arguments: a mesh (`Mesh.written`), and a spec.
KIND, KIND_FORWARD = "spmd.sharding", "spmd.sharding.forward"
# How it lies along some axes, and along the others as XLA decides: a mesh, these axes, and a spec of them.
ALONG, ALONG_FORWARD = "spmd.along", "spmd.along.forward"
OF_SOME_AXES = (ALONG, ALONG_FORWARD)


@dataclass(frozen=True, slots=True)
class _OnMesh:
    """A pass for programs on some chips."""

    added: Pass
    chips: frozenset[Any]


class _Marks:
    """Of chips of one kind.

    buffers   how each is to lie.
    leaves    those whose gradients lie as they do, once they have some.
    hosts     tensors that are not the device's, which stand for some that are.
    gradients of leaves, where they lie otherwise than these. states: what optimizers keep of them, likewise.
    passes    of models: what marks values of their programs.
    """

    def __init__(self) -> None:
        self.buffers: weakref.WeakKeyDictionary[Buffer, NamedSharding] = weakref.WeakKeyDictionary()
        self.leaves: Any = WeakTensorKeyDictionary()
        self.hosts: Any = WeakTensorKeyDictionary()
        self.gradients: Any = WeakTensorKeyDictionary()
        self.states: Any = WeakTensorKeyDictionary()
        self.passes: weakref.WeakKeyDictionary[Any, _OnMesh] = weakref.WeakKeyDictionary()


_by_target: defaultdict[str | None, _Marks] = defaultdict(_Marks)  # None: of this process's chips
# Those that have begun a step: what they keep of a parameter lies as that does.
_optimizers: weakref.WeakSet[torch.optim.Optimizer] = weakref.WeakSet()


class _Recorded:
    """The chips of the last annotation."""

    chips: set[Any] | None = None


_recorded = _Recorded()


@lru_cache(maxsize=4096)
def sharding(
    shape: tuple[int, ...],
    axis_names: tuple[str, ...],
    devices: tuple[int, ...] | str | None,
    spec: tuple[Any, ...],
) -> NamedSharding:
    """JAX's sharding from the plain arguments of an annotation; the chips of a target are its name."""
    import jax

    if isinstance(devices, str):
        mesh = Mesh(shape, axis_names, target=devices)
    else:
        mesh = Mesh(shape, axis_names, devices)
    return jax.sharding.NamedSharding(mesh.jax_mesh, partition_spec(spec))


def asked(
    shape: tuple[int, ...],
    axis_names: tuple[str, ...],
    devices: tuple[int, ...] | str | None,
    spec: tuple[Any, ...],
) -> NamedSharding:
    """What an annotation asks for, on the chips that are compiled for.

    `ShardingError` for chips of a target that is not compiled for now.
    """
    target = compiled_for()
    if isinstance(devices, str) and devices != target:
        raise ShardingError(
            f"The mesh is one of `{devices}`, which is not here.",
            saw=f"a program for {f'`{target}`' if target else 'chips of this process'}",
            hint=f"torch_pjrt.compile_for({devices!r}, ...) compiles for it, without running anything",
        )
    return sharding(shape, axis_names, target or devices, spec)


def constrained(x: Any, *args: Any) -> Any:
    """The rule of an annotation: the array, laid out like this."""
    import jax

    return jax.lax.with_sharding_constraint(x, asked(*args))


def constrained_along(
    x: Any,
    shape: tuple[int, ...],
    axis_names: tuple[str, ...],
    devices: tuple[int, ...] | str | None,
    along: tuple[str, ...],
    spec: tuple[Any, ...],
) -> Any:
    """The rule of an annotation of some axes: the array, in parts along these.

    A constraint would have to say all axes: with a dim left open, nothing keeps XLA from spreading it
    along an axis that was asked to have copies. What is mapped over axes has parts or copies along them.
    """
    import jax

    how = asked(shape, axis_names, devices, spec)
    mapped = jax.shard_map(
        _itself, mesh=how.mesh, in_specs=how.spec, out_specs=how.spec, axis_names=set(along)
    )
    return mapped(x)


def _itself(x: Any) -> Any:
    return x


# Those of a forward value say nothing of its gradient.
define_annotation(KIND, constrained)
define_annotation(KIND_FORWARD, constrained, gradient=False)
define_annotation(ALONG, constrained_along)
define_annotation(ALONG_FORWARD, constrained_along, gradient=False)


def go_to(how: NamedSharding) -> None:
    """Have what was recorded for other chips run first: a program runs on one set of them."""
    if compiled_for() is not None:
        return
    if _recorded.chips is not None and _recorded.chips != how.device_set:
        torch_pjrt.sync()
    _recorded.chips = how.device_set


def mark(tensor: torch.Tensor, how: NamedSharding, target: str | None = None) -> None:
    """Have the tensor's buffer lie like this from now on, and its gradient if it is a leaf.

    With a target: there, which moves nothing; the tensor may be one of any device then.
    """
    marks = _by_target[target]
    if not is_pjrt(tensor):
        marks.hosts[tensor] = how
        return
    marks.buffers[buffer_of(tensor)] = how
    if tensor.is_leaf:  # it may be asked to have a gradient later
        marks.leaves[tensor] = how


def mark_gradient(tensor: torch.Tensor, how: NamedSharding, target: str | None = None) -> None:
    """Have the gradients of a leaf lie like this, and not as the leaf does."""
    _by_target[target].gradients[tensor] = how


def mark_state(tensor: torch.Tensor, how: NamedSharding, target: str | None = None) -> None:
    """Have what optimizers keep of a leaf lie like this, and not as the leaf does."""
    _by_target[target].states[tensor] = how


def state_of(tensor: torch.Tensor) -> NamedSharding | None:
    """How what an optimizer keeps of a tensor is to lie."""
    found = _by_target[compiled_for()].states.get(tensor) or there(
        _by_target[None].states.get(tensor)
    )
    return found or mark_of(tensor)


def mark_programs(of: Any, added: Pass, mesh: Mesh) -> None:
    """Have a pass run on programs on the chips of a mesh, as long as an object is there; one of each."""
    _by_target[mesh.target].passes[of] = _OnMesh(added, frozenset(mesh.jax_mesh.devices.flat))


def passes_for(inputs: Sequence[Any]) -> Sequence[Pass]:
    """Those for a program whose inputs lie like this."""
    known = _by_target[compiled_for()].passes
    if not known:
        return ()
    chips = next((s.device_set for s in inputs if len(s.device_set) > 1), None)
    if chips is None:
        return ()
    # Several models may ask for one pass.
    return list(dict.fromkeys([p.added for p in list(known.values()) if p.chips == chips]))


def unmark(tensor: torch.Tensor) -> None:
    """Forget what was said of the tensor."""
    for marks in _by_target.values():
        marks.buffers.pop(buffer_of(tensor), None)
        marks.leaves.pop(tensor, None)
        marks.gradients.pop(tensor, None)
        marks.states.pop(tensor, None)


def mark_of(tensor: torch.Tensor) -> NamedSharding | None:
    """How the tensor is to lie, as it was marked."""
    of_target = _by_target[compiled_for()]
    if not is_pjrt(tensor):
        return of_target.hosts.get(tensor)
    buffer = buffer_of(tensor)
    here = _by_target[None]
    found = of_target.buffers.get(buffer) or there(here.buffers.get(buffer))
    # `p.data = ...` gives a parameter another buffer.
    return found or of_target.leaves.get(tensor) or there(here.leaves.get(tensor))


def mark_for(tensor: torch.Tensor, target: str | None) -> NamedSharding | None:
    """How the tensor was marked for a target's chips; None: for those of this process."""
    of_target = _by_target[target]
    if not is_pjrt(tensor):
        return of_target.hosts.get(tensor)
    return of_target.buffers.get(buffer_of(tensor))


def mark_of_buffer(buffer: Buffer) -> NamedSharding | None:
    """How the buffer was marked, or how it lies if that is on several chips."""
    import jax

    if buffer.padded is not None:
        return None
    if compiled_for() is not None and (how := _by_target[compiled_for()].buffers.get(buffer)):
        return how
    array = None if buffer.value is None else buffer.value.array
    found = _by_target[None].buffers.get(buffer) or (None if array is None else array.sharding)
    return there(found) if isinstance(found, jax.sharding.NamedSharding) else None


def how_it_lies(tensor: torch.Tensor) -> NamedSharding | None:
    """How the tensor lies, as far as is known without running what is pending."""
    import jax

    value = value_of(tensor.detach())
    if value.array is None or compiled_for() is not None:
        same = buffer_of(tensor).spec.shape == tuple(tensor.shape)
        return mark_of(tensor) if same else None
    found = value.array.sharding
    return found if isinstance(found, jax.sharding.NamedSharding) else None


def pinned_values() -> Mapping[int, NamedSharding]:
    """Of the values that marked tensors and their gradients hold, by identity, how they are to lie."""
    return {id(value): how for value, how in _pinned()}


def _pinned() -> Iterator[tuple[Any, NamedSharding]]:
    yield from _states()
    for of in dict.fromkeys((None, compiled_for())):  # what is said later holds
        for leaf, how in list(_by_target[of].leaves.items()):
            grad = leaf.grad if leaf.is_leaf else None
            of_grad = _by_target[of].gradients.get(leaf) or how
            yield from _pin(grad, leaf, of_grad if of else there(of_grad))
            yield from _pin(leaf, leaf, how if of else there(how))
        for buffer, how in list(_by_target[of].buffers.items()):
            lies = how if of else there(how)
            if buffer.padded is None and lies is not None:
                yield buffer.value, lies


def _pin(
    tensor: Any, parameter: torch.Tensor, how: NamedSharding | None
) -> Iterator[tuple[Any, NamedSharding]]:
    """Have a tensor that goes with a parameter lie as that does, unless its buffer has other dims.

    Dims of size 1 may be more or fewer: PyTorch makes the gradient of a bias so.
    """
    if how is None or not is_pjrt(tensor) or tensor.shape != parameter.shape:
        return
    buffer = buffer_of(tensor)
    if buffer.padded is not None:
        return
    shape = buffer.spec.shape
    if shape != tensor.shape:
        if [n for n in shape if n != 1] != [n for n in tensor.shape if n != 1]:
            return
        import jax

        entries = iter(
            [e for e, n in zip(_entries(how, tensor.dim()), tensor.shape, strict=True) if n != 1]
        )
        spec = jax.sharding.PartitionSpec(*[None if n == 1 else next(entries) for n in shape])
        how = how.update(spec=spec)
    yield buffer.value, how


def _entries(how: NamedSharding, n_dims: int) -> list[Any]:
    return [*how.spec, *[None] * (n_dims - len(how.spec))]


def follow_optimizers() -> None:
    """Have the state that optimizers make lie as the parameters do, from now on."""
    add_optimizer_hook(_before_step)


def _before_step(optimizer: torch.optim.Optimizer) -> None:
    _optimizers.add(optimizer)
    known = _by_target[None].states
    if not known or compiled_for() is not None:
        return
    for parameter, state in list(optimizer.state.items()):
        how = known.get(parameter)
        for tensor in () if how is None else list(state.values()):
            for value, lies in _pin(tensor, parameter, how):
                # It may have been made before the parameter was marked.
                if value.array is None or value.array.sharding.memory_kind == lies.memory_kind:
                    continue
                array = placed(value.array, lies)
                buffer_of(tensor).value = Value.of_array(value.spec, array)


def optimizers() -> list[torch.optim.Optimizer]:
    """Those that have begun a step since there was a mesh."""
    return list(_optimizers)


def leaves() -> list[torch.Tensor]:
    """Those that are marked for this process's chips and are to have gradients, or are parameters."""
    marked = list(_by_target[None].leaves)
    return [t for t in marked if t.requires_grad or isinstance(t, torch.nn.Parameter)]


def _states() -> Iterator[tuple[Any, NamedSharding]]:
    """What optimizers keep of parameters, and the gradients of these."""
    for optimizer in list(_optimizers):
        for parameter, state in list(optimizer.state.items()):
            how = _of_parameter(parameter) if isinstance(parameter, torch.Tensor) else None
            if how is None:
                continue
            yield from _pin(parameter.grad, parameter, how)
            of_state = state_of(parameter) or how
            for tensor in state.values():
                yield from _pin(tensor, parameter, of_state)


def _of_parameter(parameter: torch.Tensor) -> NamedSharding | None:
    """How a parameter lies: as it was marked, or whole on each chip of the mesh in use."""
    if not is_pjrt(parameter):
        return None
    return mark_of(parameter) or default_mesh.default()
