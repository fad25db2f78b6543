"""For packages that record operators, compile programs and launch them: `torch-pjrt-dynamo` is made of these.

What describes programs (`Graph`, `Signature`, `TensorSpec`, ...) is in `torch_pjrt.plugin`. What is here is
loaded on first use. A name that is called for each operator is core's own function, without anything
around it.

Operators of a package's own, and what it says of values:

    lowers              a rule for an operator, on every device, at any time
    without_x64         a rule, or a part of one, under JAX's usual 32 bits
    annotate            a value that is told something, for passes, the program's key and XLA
    define_annotation   a kind of annotation, with its rule
    annotation_of       what a node says of its value, for passes; an Annotation
    computed_again      whether backward of a compiled graph computes an annotation's value again, and how
    add_program_hooks   functions around compilations and launches: ProgramHooks, called with a Program
    add_optimizer_hook  a function that is called before each step of an optimizer
    outline             a graph as texts, equal in other processes for equal nodes
    traced              a graph as a part of what JAX traces now, in a rule

Recording. A `Tape` holds what a thread has recorded since its last sync; a `Value` is one array, there
or pending:

    state, current      `state.tape` is this thread's tape; current() one that is open
    Tape, onto          a nested tape records a graph; `onto(tape)` is the block in which it does
    BorrowingTape       one that may use what is pending on the tape outside
    Value, Uploaded     arrays; Uploaded ones came from the host and know their range
    number_on           a value's number on a tape
    graph_of            the graph that a tape has recorded
    recorded            what a function would compute, recorded without computing anything: a RecordedStep
    intern              the one Signature of a pattern of calls
    FunctionOp          an operator that one JAX function is
    record              append a node; append is the same written out, for many inputs
    record_call         append a call of an operator, with any arguments, as its kernel does
    run_on_cpu          run it by PyTorch's CPU kernel instead
    cut                 sync if the tape is longer than `torch_pjrt.config.tape_limit`
    number_key          equal for Python numbers of nodes that are the same whenever the program runs
    with_precision, precision_in_force, PRECISIONS    of products of float32
    note_lines          have the lines of nodes noted, from now on
    Line                where the user's program called a node

Tensors of the device:

    is_pjrt             whether something is one
    buffer_of, Buffer   what stands behind its storage: a value, and how that lies there
    value_of, content   the value of a tensor, of a buffer
    spec_and_offset     its TensorSpec, and its offset
    wrap, wrap_sized    a new tensor of a value; create_empty_tensor is the bare one
    store               write a value into a tensor
    upload, put         a CPU tensor as a value, a NumPy array as an array of the device
    upload_parts, download_parts    what lies on several chips, to them and from them part by part
    PartsHere, ArrivingParts        the same by the parts of this process, in any order
    PartsLater          the parts as they are now, copied on the device, for another thread to read
    host_array          a value read; array_of: its array on the device
    donate              let what is recorded take the memory of tensors

Arrays on several chips:

    set_partitioner     who says where arrays go and how results lie: a Partitioner, told of Outputs
    placed              an array with another sharding; `upload` takes one, too
    target_chips        the chips of hardware that is not here, for `compile_for`
    each_collective     what chips exchange, from XLA's text of a program

Operators that other processes take part in, collectives say:

    JointOp             such an operator: its function runs under `shard_map`, each process on its own arrays
    Joint, JointAnswer  the processes, to be put on the tape (`tape.joint`), and how they agree
    run_pending         run what is pending on a tape, of whichever thread

Errors that only values decide:

    deferred_checks, Refusal    have a program's result looked at, and what to raise
    deferred_checks_of          the deferred checks of a nested tape

Reports:

    add_report_tables   what `report()`, `explain()` and `compile_for()` print of programs: a Table each

The process:

    start               start the device and register its kernels
    chosen_device_name  the device that would be started, by name: "CPU", "TPU"
    client              the device at work
    program_chips       how many chips the program is for whose rules run; lowering_now: that program, of
                        which a rule may ask how its operands lie: a ProgramLowering
    choose_run          which run of several processes it is to start as a part of: a `Processes` of
                        `torch_pjrt.plugin`; joined_run: the one that it has joined
    jax_dtype           what a dtype of PyTorch's is to JAX
    x64                 a block in which JAX has the 64-bit types that the device has; handlers of signals
                        (Ctrl-C) are called once it has ended
    forget_programs     empty the cache of programs, in tests and benchmarks
    counters, because   what is counted for `report()`; the cause of syncs in a block
    StandIn             another function in the place of one of PyTorch's, on one thread, for a while
    call_pinned         have `is_pinned()` say so of a CPU tensor: there is no pinned memory
    after_import        what to do once a module of PyTorch's is imported, without importing it
    keep_dynamo_out     packages in which Dynamo is to trace nothing
    keep_dynamo_out_of_calls    a function, and which of its calls Dynamo is to leave alone
    pass_over_lines     a file whose calls belong to the lines of its callers
    lazy_attribute      for a module's `__getattr__`: what another one holds, imported now
    padding             tensors with padding: a module, unstable

    >>> PRECISIONS[precision_in_force()]  # as JAX calls it
    'highest'
    >>> create_empty_tensor((2, 3), torch.float32).shape  # without content, so it cannot be read
    torch.Size([2, 3])
    >>> refusal: Refusal = lambda index, size: IndexError(f"{index} is not below {size}")
    >>> refusal(5, 3)
    IndexError('5 is not below 3')
    >>> padding.wide(torch.float16)
    torch.float32
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch_pjrt.lazy import attribute as lazy_attribute

if TYPE_CHECKING:
    from torch_pjrt.aot.compiled import each_collective
    from torch_pjrt.aot.recording import RecordedStep, recorded
    from torch_pjrt.aot.targets import target_chips
    from torch_pjrt.client.client import client
    from torch_pjrt.client.lowering_now import ProgramLowering, lowering_now, program_chips
    from torch_pjrt.client.partition import Output, Partitioner, set_partitioner
    from torch_pjrt.client.placing import placed
    from torch_pjrt.client.uploading import put
    from torch_pjrt.compile.fingerprint import outline
    from torch_pjrt.compile.hooks import ProgramHooks, add_program_hooks
    from torch_pjrt.compile.joint import Answer as JointAnswer
    from torch_pjrt.compile.joint import Joint
    from torch_pjrt.compile.precision import PRECISIONS, with_precision
    from torch_pjrt.compile.precision import in_force as precision_in_force
    from torch_pjrt.compile.programs import Program, forget_programs
    from torch_pjrt.compile.within import traced
    from torch_pjrt.device.availability import chosen_device_name
    from torch_pjrt.device.imports import after_import
    from torch_pjrt.device.optimizer_state import add_optimizer_hook
    from torch_pjrt.device.tracers import keep_out as keep_dynamo_out
    from torch_pjrt.device.tracers import keep_out_of_calls as keep_dynamo_out_of_calls
    from torch_pjrt.diagnostics.sections import add_report_tables
    from torch_pjrt.dtypes import to_jax as jax_dtype
    from torch_pjrt.dtypes import x64
    from torch_pjrt.extend import padding
    from torch_pjrt.graph.append import append
    from torch_pjrt.graph.graph import graph_of
    from torch_pjrt.graph.line import Line
    from torch_pjrt.graph.signature import FunctionOp, JointOp, intern
    from torch_pjrt.graph.tape import (
        BorrowingTape,
        Tape,
        Uploaded,
        Value,
        current,
        number_on,
        onto,
        state,
    )
    from torch_pjrt.lowering.narrow import without_x64
    from torch_pjrt.lowering.value_annotations import (
        Annotation,
        annotate,
        annotation_of,
        computed_again,
        define_annotation,
    )
    from torch_pjrt.observe.causes import because
    from torch_pjrt.observe.counters import counters
    from torch_pjrt.observe.lines import note_for as note_lines
    from torch_pjrt.observe.lines import pass_over_lines
    from torch_pjrt.observe.tables import Table
    from torch_pjrt.passes.merge_equal import number_key
    from torch_pjrt.plugin.processes import choose_run
    from torch_pjrt.plugin.processes import joined as joined_run
    from torch_pjrt.run.deferred_checks import Refusal, deferred_checks
    from torch_pjrt.run.sync import cut, run_pending
    from torch_pjrt.stand_ins import StandIn
    from torch_pjrt.tensor.checks.bounds import deferred_checks_of
    from torch_pjrt.tensor.recording.fallback import run_on_cpu
    from torch_pjrt.tensor.recording.record import call as record_call
    from torch_pjrt.tensor.recording.record import record
    from torch_pjrt.tensor.registration.own_operators import lowers
    from torch_pjrt.tensor.registration.registry import call_pinned
    from torch_pjrt.tensor.registration.registry import register_all as start
    from torch_pjrt.tensor.storage.buffer import (
        Buffer,
        buffer_of,
        create_empty_tensor,
        is_pjrt,
        spec_and_offset,
        wrap,
        wrap_sized,
    )
    from torch_pjrt.tensor.storage.donation import donate
    from torch_pjrt.tensor.storage.parts_later import PartsLater
    from torch_pjrt.tensor.storage.transfer import (
        ArrivingParts,
        PartsHere,
        array_of,
        download_parts,
        host_array,
        upload,
        upload_parts,
    )
    from torch_pjrt.tensor.storage.view import content, store, value_of

__all__ = [
    "PRECISIONS",
    "Annotation",
    "ArrivingParts",
    "BorrowingTape",
    "Buffer",
    "FunctionOp",
    "Joint",
    "JointAnswer",
    "JointOp",
    "Line",
    "Output",
    "Partitioner",
    "PartsHere",
    "PartsLater",
    "Program",
    "ProgramHooks",
    "ProgramLowering",
    "RecordedStep",
    "Refusal",
    "StandIn",
    "Table",
    "Tape",
    "Uploaded",
    "Value",
    "add_optimizer_hook",
    "add_program_hooks",
    "add_report_tables",
    "after_import",
    "annotate",
    "annotation_of",
    "append",
    "array_of",
    "because",
    "buffer_of",
    "call_pinned",
    "choose_run",
    "chosen_device_name",
    "client",
    "computed_again",
    "content",
    "counters",
    "create_empty_tensor",
    "current",
    "cut",
    "deferred_checks",
    "deferred_checks_of",
    "define_annotation",
    "donate",
    "download_parts",
    "each_collective",
    "forget_programs",
    "graph_of",
    "host_array",
    "intern",
    "is_pjrt",
    "jax_dtype",
    "joined_run",
    "keep_dynamo_out",
    "keep_dynamo_out_of_calls",
    "lazy_attribute",
    "lowering_now",
    "lowers",
    "note_lines",
    "number_key",
    "number_on",
    "onto",
    "outline",
    "padding",
    "pass_over_lines",
    "placed",
    "precision_in_force",
    "program_chips",
    "put",
    "record",
    "record_call",
    "recorded",
    "run_on_cpu",
    "run_pending",
    "set_partitioner",
    "spec_and_offset",
    "start",
    "state",
    "store",
    "target_chips",
    "traced",
    "upload",
    "upload_parts",
    "value_of",
    "with_precision",
    "without_x64",
    "wrap",
    "wrap_sized",
    "x64",
]

#   names, by where they are     `name=other` is called `other` there
_WHERE = {
    "dtypes": "jax_dtype=to_jax x64",
    "lowering.value_annotations": "Annotation annotate annotation_of computed_again define_annotation",
    "aot.recording": "RecordedStep recorded",
    "compile.fingerprint": "outline",
    "compile.joint": "Joint JointAnswer=Answer",
    "compile.precision": "PRECISIONS with_precision precision_in_force=in_force",
    "compile.programs": "Program forget_programs",
    "compile.within": "traced",
    "diagnostics.sections": "add_report_tables",
    "device.availability": "chosen_device_name",
    "device.imports": "after_import",
    "device.optimizer_state": "add_optimizer_hook",
    "device.tracers": "keep_dynamo_out=keep_out keep_dynamo_out_of_calls=keep_out_of_calls",
    "graph.append": "append",
    "graph.graph": "graph_of",
    "graph.line": "Line",
    "graph.signature": "FunctionOp JointOp intern",
    "graph.tape": "BorrowingTape Tape Uploaded Value current number_on onto state",
    "lowering.narrow": "without_x64",
    "observe.causes": "because",
    "observe.lines": "note_lines=note_for pass_over_lines",
    "observe.counters": "counters",
    "observe.tables": "Table",
    "compile.hooks": "ProgramHooks add_program_hooks",
    "passes.merge_equal": "number_key",
    "client.client": "client",
    "client.lowering_now": "ProgramLowering lowering_now program_chips",
    "client.partition": "Output Partitioner set_partitioner",
    "client.placing": "placed",
    "aot.compiled": "each_collective",
    "aot.targets": "target_chips",
    "plugin.processes": "choose_run joined_run=joined",
    "run.sync": "cut run_pending",
    "run.deferred_checks": "Refusal deferred_checks",
    "stand_ins": "StandIn",
    "tensor.checks.bounds": "deferred_checks_of",
    "tensor.storage.buffer": "Buffer buffer_of create_empty_tensor is_pjrt spec_and_offset wrap wrap_sized",
    "tensor.recording.fallback": "run_on_cpu",
    "tensor.storage.donation": "donate",
    "tensor.registration.own_operators": "lowers",
    "tensor.recording.record": "record record_call=call",
    "tensor.registration.registry": "call_pinned start=register_all",
    "tensor.storage.parts_later": "PartsLater",
    "tensor.storage.transfer": "ArrivingParts PartsHere array_of download_parts host_array put upload "
    "upload_parts",
    "tensor.storage.view": "content store value_of",
}
_LAZY = {
    name: (f"torch_pjrt.{module}", there or name)
    for module, names in _WHERE.items()
    for name, _, there in (word.partition("=") for word in names.split())
}


def __getattr__(name: str) -> Any:
    if name == "padding":
        from importlib import import_module

        return import_module("torch_pjrt.extend.padding")
    if name in _LAZY:
        import torch  # noqa: F401  registers the device first, in the order that PyTorch expects

        globals()[name] = found = lazy_attribute(*_LAZY[name])
        return found
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
