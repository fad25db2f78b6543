"""`torch_pjrt.compile_for()`: a function compiled ahead of time for hardware that is not here."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import jax
import numpy as np

from torch_pjrt import dtypes
from torch_pjrt.aot.compiled import CompiledFor, collectives_of
from torch_pjrt.aot.layouts import Layout, layout_of
from torch_pjrt.aot.recording import RecordedStep, recorded
from torch_pjrt.aot.targets import described
from torch_pjrt.client import partition
from torch_pjrt.client.client import Client, acting_as, suited
from torch_pjrt.client.lowering_now import chips_of, lowered
from torch_pjrt.client.shardings import stack_of as sharding_of_stack
from torch_pjrt.compile.build import function_of
from torch_pjrt.compile.numbers import NumberPlan
from torch_pjrt.compile.partitioned import aliased, through
from torch_pjrt.diagnostics.cost import cost_of
from torch_pjrt.errors import CompileError, DeviceFull
from torch_pjrt.graph.boundary import Position, with_stacks
from torch_pjrt.graph.graph import Graph, graph_of
from torch_pjrt.graph.tensor_spec import stack_of
from torch_pjrt.observe.dumps import stablehlo_of
from torch_pjrt.observe.tables import readable
from torch_pjrt.passes.runner import run_passes
from torch_pjrt.plugin.host import host
from torch_pjrt.run.sync import one_at_a_time
from torch_pjrt.tensor.registration.registry import register_all


def compile_for(
    target: str, fn: Callable[..., Any], /, *example_inputs: Any, sharded: bool = False
) -> CompiledFor:
    """Compile `fn(*example_inputs)` for `target` without having it, and without computing anything.

    target          `v5e:2x4` (TPUs of a topology), `h100` (one GPU); `torch_pjrt.targets()` lists them.
    fn              a module, or a function: a training step, for example, with the model and the
                    optimizer that it closes over on the device `pjrt`. Its Python runs twice.
    example_inputs  what it takes. Of tensors only shape and dtype matter: they may be on `meta`.
                    Marks of tensors say how the program is spread, where a package offers such
                    (docs/many-chips.md).
    sharded         data parallelism: each tensor of `example_inputs` is spread over all chips of the
                    target by its first dim, parameters are on each. Else the program is for one chip.

    What the target's device lacks, the program does without, as on the device itself: 64-bit types are
    halved, with a warning.

    Tensors and optimizers are as before when it returns. Raises `UnknownDevice` for a target that no plugin
    knows, `DeviceFull` if the program needs more memory than a chip has, `CompileError` if the compiler
    refuses it otherwise, and `LoweringError` if the function needs the value of a tensor.

        compiled = torch_pjrt.compile_for("v5e:2x4", model, torch.empty(8, 128), sharded=True)
        print(compiled)  # flops, bytes and memory of a chip

    A target that nobody knows:

        >>> torch_pjrt.compile_for("v5x", torch.sin, torch.empty(3))
        Traceback (most recent call last):
        torch_pjrt.errors.UnknownDevice: No plugin compiles for `v5x`...
    """
    device, chips = described(target)
    register_all()  # starts the device at work: recording needs its kernels
    with _partitioned_for(target), recorded(fn, example_inputs) as ahead, one_at_a_time():
        capabilities = device.capabilities()
        there = Client(
            device,
            chips[0],
            host().lowerings(device),
            suited(host().passes(device), capabilities),
            os.getpid(),
            capabilities,
            capabilities.donation is not False,
        )
        graph = graph_of(ahead.tape, list(ahead.outputs))
        layout = layout_of(ahead, graph, chips, sharded=sharded)
        wide = capabilities.has_64_bits
        if not wide and dtypes.are_wide():
            warnings.warn(dtypes.notice_of_halves(device.name), stacklevel=2)
        with acting_as(there), dtypes.as_on_a_device(has_64_bits=wide), dtypes.x64():
            lowered = _lowered(there, ahead, graph, layout)
            text = stablehlo_of(lowered)
            compiled = _compiled(there, lowered, target)
    return _described(target, layout.chips, len(graph.nodes), compiled, text, device)


def _lowered(there: Client, ahead: RecordedStep, graph: Graph, layout: Layout) -> Any:
    """The recorded graph's function, lowered for the chips."""
    tape, none = ahead.tape, np.zeros(0, np.int64)
    plan = NumberPlan(tape, none, none)
    pairs = aliased(ahead.reusable, layout.inputs, layout.results) if there.donates else {}
    graph, boundary = with_stacks(
        run_passes(partition.with_own(there.passes, layout.inputs), graph), pairs
    )
    results = through(boundary, layout.results)
    function = function_of(graph, there.lowerings, plan, len(tape.draws), results)

    def argument(position: Position) -> Any:
        if isinstance(position, int):
            return _like(tape.inputs[position].spec, layout.inputs[position])
        spec = tape.inputs[position[0]].spec
        of_each = sharding_of_stack(layout.inputs[position[0]])
        return _like(stack_of(spec, len(position)), of_each)

    arguments = [argument(position) for position in boundary.inputs]
    arguments += [
        jax.ShapeDtypeStruct(a.shape, a.dtype, weak_type=True, sharding=layout.whole)
        for a in plan.arguments(tape)
    ]
    return lowered(
        function,
        arguments,
        chips_of([*layout.inputs, layout.whole]) or (there.chip,),
        there.prepare,
        donate_argnums=boundary.donated,
        keep_unused=True,
        out_shardings=layout.whole if results is None else results,
    )


def _partitioned_for(target: str) -> AbstractContextManager[None]:
    """Within the block whoever spreads arrays knows what is compiled for."""
    partitioner = partition.chosen.partitioner
    return nullcontext() if partitioner is None else partitioner.ahead(target)


def _like(spec: Any, sharding: Any) -> Any:
    return jax.ShapeDtypeStruct(tuple(spec.shape), dtypes.to_jax(spec.dtype), sharding=sharding)


def _compiled(there: Client, lowered: Any, target: str) -> Any:
    try:
        return there.compile_lowered(lowered)
    except CompileError as error:
        if "RESOURCE_EXHAUSTED" in (error.saw or ""):
            raise _full(target, (error.saw or "").partition("\n")[0]) from error
        raise


def _full(target: str, saw: str) -> DeviceFull:
    return DeviceFull(
        f"The program needs more memory than a chip of `{target}` has.",
        saw=saw,
        hint="make the batch smaller, checkpoint activations, or spread it over more chips (`sharded=True`)",
    )


def _described(
    target: str, chips: Sequence[Any], n_operators: int, compiled: Any, text: str, device: Any
) -> CompiledFor:
    memory = compiled.memory_analysis()
    cost = cost_of(compiled)
    fault, written = None, ""
    try:
        written = compiled.as_text()
    except jax.errors.JaxRuntimeError as error:
        fault = str(error).partition("\n")[0]
    found = CompiledFor(
        target,
        chips[0].device_kind,
        len(chips),
        n_operators,
        memory.argument_size_in_bytes,
        memory.output_size_in_bytes,
        memory.alias_size_in_bytes,
        memory.temp_size_in_bytes,
        memory.generated_code_size_in_bytes,
        cost.flops,
        cost.accessed_bytes,
        collectives_of(written),
        compiled,
        text,
        fault,
        getattr(memory, "host_argument_size_in_bytes", 0),
    )
    limit = device.target_memory_bytes(target)
    if limit is not None and found.memory_bytes > limit:
        saw = f"{readable(found.memory_bytes)}, of which {readable(found.temporary_bytes)} between"
        raise _full(target, f"{saw}; the chip has {readable(limit)}")
    return found
