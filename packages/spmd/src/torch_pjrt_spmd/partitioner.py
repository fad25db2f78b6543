"""What core asks about where arrays lie: this package's answers.

A result of a program lies, in this order: as it was annotated; as the tensor that it belongs to was marked;
as the input whose place it takes; where a mesh is in use and nothing of the program is spread, whole on each
of its chips; else as XLA decides.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from functools import cache
from typing import TYPE_CHECKING, Any

from torch_pjrt.extend import (
    Buffer,
    Output,
    Value,
    add_program_hooks,
    add_report_tables,
    client,
    joined_run,
    set_partitioner,
    target_chips,
)
from torch_pjrt_spmd import asked, compiled_for, default_mesh, marks, roles
from torch_pjrt_spmd.default_mesh import mesh_of, whole_on
from torch_pjrt_spmd.memory_kinds import HOST

if TYPE_CHECKING:
    import jax
    import torch

    from torch_pjrt.plugin import Graph, Pass

    Sharding = jax.sharding.Sharding


@cache
def take_over() -> None:
    """Have core ask this package, from the first mesh of the process on."""
    from torch_pjrt_spmd import checkpoint_parts, exchanges, loaded_states, reporting, warn

    set_partitioner(_PARTITIONER)
    marks.follow_optimizers()
    loaded_states.install()
    checkpoint_parts.install()
    if joined_run() is not None:
        from torch_pjrt_spmd.distributed.launches import watch_launches

        watch_launches()
    for follow in (exchanges.note_program, roles.note_program, warn.look_at):
        add_program_hooks(after_compile=follow)
    add_report_tables(reporting.tables)


class _Partitioner:
    def default(self) -> Sharding | None:
        return default_mesh.default()

    def common(self, shardings: Sequence[Sharding]) -> Sharding | None:
        spread = next((s for s in shardings if len(s.device_set) > 1), None)
        if spread is None:
            return self.default() if shardings else None
        for other in shardings:
            if len(other.device_set) > 1 and other.device_set != spread.device_set:
                raise _different_chips(spread, other)
        mesh = mesh_of(spread)
        return self.default() if mesh is None else whole_on(mesh)

    def asked_for(self, graph: Graph) -> Sharding | None:
        first = asked.first_asked_in(graph)
        mesh = first and mesh_of(first)
        return None if mesh is None else whole_on(mesh)

    def of_buffer(self, buffer: Buffer) -> Sharding | None:
        return marks.mark_of_buffer(buffer)

    def of_outputs(
        self,
        graph: Graph,
        values: Sequence[Value],
        inputs: Sequence[Sharding],
        outputs: Sequence[Output],
    ) -> Sequence[Sharding | None] | None:
        roles.note(graph, values, outputs)
        annotated = asked.asked_in(graph)
        pinned = marks.pinned_values()
        default = self.default()
        if not inputs and default is None:
            default = self.asked_for(graph)
        if default is None and all(len(s.device_set) == 1 for s in inputs):
            return None
        return [
            _in_memory_of(pinned.get(id(output.value)), annotated.get(number))
            or pinned.get(id(output.value))
            or output.replaces
            or (None if inputs else default)
            for number, output in zip(graph.outputs, outputs, strict=True)
        ]

    def ahead(self, target: str) -> AbstractContextManager[None]:
        return compiled_for.compiling_for(target)

    def of_tensor(self, tensor: torch.Tensor) -> Sharding | None:
        return marks.mark_of(tensor)

    def pinned(self) -> Mapping[int, Sharding]:
        return marks.pinned_values()

    def moved(self, array: jax.Array, target: Sharding) -> jax.Array:
        import jax

        from torch_pjrt_spmd.distributed.launches import agree_on  # which knows of the run

        agree_on(array.sharding.device_set | target.device_set, f"move {array.aval} to {target}")
        return jax.jit(_as_it_is, out_shardings=target)(array)

    def came(self, where: Sharding, shape: Sequence[int], index: Any, part: Any) -> None:
        from torch_pjrt_spmd.distributed import same_content  # which knows of the run

        same_content.came(where, shape, index, part)

    def passes(self, inputs: Sequence[Sharding]) -> Sequence[Pass]:
        return marks.passes_for(inputs)

    def prepare(self, module: Any) -> None:
        from torch_pjrt_spmd.lost_nans import keep_nans  # imports JAX
        from torch_pjrt_spmd.partitioning_faults import avoid
        from torch_pjrt_spmd.unflattening import unflatten

        attributes = module.operation.attributes
        name = "mhlo.num_partitions"
        n_chips = attributes[name].value if name in attributes else 1
        if n_chips > 1:
            unflatten(module, n_chips)
            avoid(module, n_chips)  # after that: it looks at the dims of scatters
            keep_nans(module, _platform())

    def written(self, sharding: Sharding) -> str | None:
        import jax

        mesh = mesh_of(sharding)
        if mesh is None:
            return None
        assert isinstance(sharding, jax.sharding.NamedSharding)
        chips = [chip.id for chip in mesh.devices.flat]
        return (
            f"{mesh.axis_names} {mesh.devices.shape} {chips} {sharding.spec} {sharding.memory_kind}"
        )


def _platform() -> str:
    """Of the chips that are compiled for."""
    target = compiled_for.target()
    return (client().chip if target is None else target_chips(target)[0]).platform


def _in_memory_of(
    pinned: jax.sharding.NamedSharding | None, annotated: jax.sharding.NamedSharding | None
) -> jax.sharding.NamedSharding | None:
    """As was annotated, but in the memory that the tensor it belongs to was marked with."""
    if annotated is None or pinned is None or pinned.memory_kind != HOST:
        return annotated
    return annotated.with_memory_kind(pinned.memory_kind)


def _as_it_is(array: Any) -> Any:
    return array


_PARTITIONER = _Partitioner()


def _different_chips(a: Any, b: Any) -> Exception:
    from torch_pjrt_spmd.spec import ShardingError

    return ShardingError(
        "An operator's tensors are on different chips.",
        saw=" and ".join(str(sorted(chip.id for chip in s.device_set)) for s in (a, b)),
        hint="mark_sharding(tensor, mesh, spec) moves a tensor to the mesh of the others",
    )
