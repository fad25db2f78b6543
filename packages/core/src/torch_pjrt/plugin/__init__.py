"""For who writes devices, rules of operators, and passes: all that such a package imports.

The hooks (`plugin/spec.py` has one page of them), and what they return:

    impl            marks a function as one of the hooks
    Device          what a plugin says of its hardware; Capabilities, AutocastRules, Processes are parts of it
    of_environment  the Processes that JAX's variables name
    ForeignCalls    custom calls that programs loaded from disk may have

Rules of operators:

    aten, prims     PyTorch's operators by name, also those that this PyTorch lacks
    LoweringTable   operator -> rule; Lowering is one row. `plugin/rules.py` has what rules are made with
    client          the device at work: the chip that a rule's program is for

Passes:

    Pass, Stage     what a pass is, and when it runs; run_passes runs some, and verifies after each
    Graph, Node     what passes read and rewrite; Number and Draw are parts of nodes
    Signature       what nodes of one pattern share; Slot and NumberSlot stand for tensors and numbers there
    TensorSpec      shape, dtype and strides; spec_of and contiguous_spec give the one object of each
    rewritten       a graph with other nodes in the place of some, which a Builder makes; Ref names a value
    GraphOp         the operator that a compiled function is, before the stage EXPAND; LoopOp a rolled loop

Clients of hardware, for `Device.start` and `Device.compile_only_chips`:

    library_chips, platform_chips, cpu_chips, separate_cpu_chips, compile_only_chips, platforms_of_plugins,
    gpu_options
    each_operation  all that is within an operation of a program's StableHLO, a module say
    client_options  what TORCH_PJRT_CLIENT_OPTIONS says, over a plugin's own; Option, Options are its types

Errors are in `torch_pjrt.errors`, help for tests in `torch_pjrt.testing`.

    >>> @impl
    ... def torch_pjrt_passes(device):
    ...     return []
    >>> options: Options = {"queues": 2, "log": "all"}
    >>> queues: Option = client_options(options)["queues"]
    >>> queues
    2
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch_pjrt.graph.graph import Draw, Graph, Node, Number
from torch_pjrt.graph.loop import LoopOp
from torch_pjrt.graph.signature import GraphOp, NumberSlot, Signature, Slot
from torch_pjrt.graph.tensor_spec import TensorSpec, contiguous_spec, spec_of
from torch_pjrt.lowering.table import Lowering, LoweringTable
from torch_pjrt.options import Option, Options, client_options
from torch_pjrt.overloads import aten, prims
from torch_pjrt.passes.building import Builder, Ref, rewritten
from torch_pjrt.passes.runner import Pass, Stage, run_passes
from torch_pjrt.plugin.autocast import AutocastRules
from torch_pjrt.plugin.capabilities import Capabilities
from torch_pjrt.plugin.device import Device
from torch_pjrt.plugin.foreign_calls import ForeignCalls
from torch_pjrt.plugin.jax_backend import (
    compile_only_chips,
    cpu_chips,
    gpu_options,
    library_chips,
    platform_chips,
    platforms_of_plugins,
    separate_cpu_chips,
)
from torch_pjrt.plugin.operations import each_operation
from torch_pjrt.plugin.processes import Processes, of_environment
from torch_pjrt.plugin.spec import impl

if TYPE_CHECKING:
    from torch_pjrt.client.client import client

__all__ = [
    "AutocastRules",
    "Builder",
    "Capabilities",
    "Device",
    "Draw",
    "ForeignCalls",
    "Graph",
    "GraphOp",
    "LoopOp",
    "Lowering",
    "LoweringTable",
    "Node",
    "Number",
    "NumberSlot",
    "Option",
    "Options",
    "Pass",
    "Processes",
    "Ref",
    "Signature",
    "Slot",
    "Stage",
    "TensorSpec",
    "aten",
    "client",
    "client_options",
    "compile_only_chips",
    "contiguous_spec",
    "cpu_chips",
    "each_operation",
    "gpu_options",
    "impl",
    "library_chips",
    "of_environment",
    "platform_chips",
    "platforms_of_plugins",
    "prims",
    "rewritten",
    "run_passes",
    "separate_cpu_chips",
    "spec_of",
]

# What starts nothing, but takes JAX.
_LAZY = {"client": "torch_pjrt.client.client"}


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        from torch_pjrt.lazy import attribute

        return attribute(_LAZY[name], name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
