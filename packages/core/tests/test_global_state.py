"""What a process has once is the session's, or listed here with a reason; no module has a `global` statement.

Most state belongs to the client, to a tape or to a thread: a list that grows is a list to look at.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import torch_pjrt

CORE = Path(torch_pjrt.__file__).parent
CONTAINERS = (ast.Dict, ast.List, ast.Set, ast.DictComp, ast.ListComp, ast.SetComp)
MAKERS = ["set", "dict", "list", "deque", "count", "local"]
# Classes whose objects do not change, or are not ours.
FIXED = (
    *("ContextVar", "HookimplMarker", "HookspecMarker", "Library", "LoweringTable", "Namespace"),
    *("NewType", "ParamSpec", "TypeVar"),
)

# Why it is there once, and not the session's -> what.
NAMES = {
    "the session, and the user's settings": "session.session settings.config settings.settings",
    "hot: recording reaches it by one look-up": "graph.tape.state",
    "counts what is made": "graph.signature._numbers graph.tape._serials",
    "bounded caches, which the session knows (`caches.py`)": """
    compile.fingerprint._signatures compile.joint._digests compile.partitioned._asked
    graph.signature._interned graph.tensor_spec._interned
    tensor.checks.bounds._signatures tensor.kernels.linear._linear tensor.kernels.linear._backward
    tensor.padding.recorded._where tensor.recording.cpu_errors._refused
    tensor.recording.adam_steps._steps tensor.recording.record._learned
    tensor.storage.transfer._of_no_elements tensor.storage.view._reads tensor.storage.view._writes
    """,
    "a lock, or an object without content": "device.guard._preparing interrupts.signals._delivery",
    "has functions of PyTorch's answer otherwise, on one thread": "tensor.recording.layout._hint "
    "tensor.recording.layout._quiet",
    "one entry for each value that is alive": "tensor.padding.data_dependent._positions",
}
# What the session owns, by module: the names that it is held by.
OWNED = """
aot.targets._known autoload._loading
plugin.processes._run plugin.steady_line._silent
client.client._running client.lowering_now._here client.memory._peak client.partition.chosen client.wait._last
compile.fingerprint._grounds compile.foreign_calls._set_up compile.hooks.hooks
compile.likely_inputs._recent compile.programs._programs compile.saved._stores data.loader._loops
device.autocast._cast_parameters device.autocast._libraries device.autocast._set_up_in
device.counting_optimizers._looked_at
device.gradient_scaling._here device.gradient_scaling._known
device.guard._in_flight device.guard.before_differentiated device.imports._arriving
device.imports._asked device.optimizer_state._begun device.optimizer_state._told device.printing._here
device.tracers._calls device.tracers._packages device.tracers._registered
diagnostics.nan_check._checks diagnostics.sections._sections
dtypes._device
graph.generator.generator
interop.function._known
interrupts.quiet._blocks interrupts.signals.handled interrupts.signals.waits
lowering.added._sources lowering.value_annotations.kinds
observe.causes._actions observe.code_positions._positions observe.compilations._all
observe.counters.counters observe.counters.of_thread
observe.lines._is_inside observe.lines._noting observe.lines._passed_over observe.modules._watched
observe.recorded._lines observe.recorded._operators observe.stops._stops observe.value_lines._lines
replays.array_slots.rebindings run.batches._position run.deferred_checks._pending
run.garbage._young run.sync._runs run.sync.listeners
tensor.checks.bounds._last tensor.storage.counts.recent tensor.registration.registry._kernels
tensor.storage.buffer._addresses tensor.storage.buffer.buffers
tensor.storage.transfer.on_read tensor.storage.transfer.on_upload
"""
# Packages whose names are loaded on first use.
LOADS = ("extend.__init__", "lowering.__init__")


def modules() -> Iterator[tuple[str, ast.Module]]:
    for path in sorted(CORE.rglob("*.py")):
        name = ".".join(path.relative_to(CORE).with_suffix("").parts)
        if not name.startswith("testing."):
            yield name, ast.parse(path.read_text())


def changes(value: ast.expr | None) -> bool:
    """Whether this makes a container, or an object of a class (its name says so)."""
    if not isinstance(value, ast.Call):
        return isinstance(value, CONTAINERS)
    made = ast.unparse(value.func).partition("[")[0].split(".")[-1]
    return made in MAKERS or (made.lstrip("_")[:1].isupper() and made not in FIXED)


def is_owned(value: ast.expr | None) -> bool:
    """Whether this is `session.own(...)`."""
    return isinstance(value, ast.Call) and ast.unparse(value.func) == "session.own"


def assigned(wanted: Callable[[ast.expr | None], bool]) -> Iterator[str]:
    """The names at the top of modules that get such a value."""
    for module, tree in modules():
        for node in tree.body:
            if not isinstance(node, (ast.Assign, ast.AnnAssign)) or not wanted(node.value):
                continue
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            for name in (target.id for target in targets if isinstance(target, ast.Name)):
                if not name.strip("_").isupper() and not name.startswith("__"):
                    yield f"{module}.{name}"


def differences(found: Iterable[str], listed: str) -> set[str]:
    return set(found) ^ set(listed.split())


def test_names_whose_objects_change_are_those_listed():
    assert not differences(assigned(changes), " ".join(NAMES.values()))


def test_session_owns_what_is_listed():
    assert not differences(assigned(is_owned), OWNED)


def test_nothing_is_owned_elsewhere_than_at_the_top_of_a_module():
    calls = [
        node
        for _, tree in modules()
        for node in ast.walk(tree)
        if isinstance(node, ast.expr) and is_owned(node)
    ]

    assert len(calls) == len(OWNED.split())


def test_no_module_has_a_global_statement_or_changes_its_own_names():
    found = [
        f"{module}:{node.lineno}"
        for module, tree in modules()
        for node in ast.walk(tree)
        if isinstance(node, ast.Global)
        or (
            module not in LOADS
            and isinstance(node, ast.Call)
            and ast.unparse(node.func) == "globals"
        )
    ]

    assert not found
