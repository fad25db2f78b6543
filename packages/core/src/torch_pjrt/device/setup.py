"""What is done once, when the first `pjrt` tensor is made: hooks into PyTorch beside its dispatcher."""

from __future__ import annotations

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from torch_pjrt.client.client import client
from torch_pjrt.device import (
    adam,
    autocast,
    checkpoints,
    data,
    flex_attention,
    gradient_scaling,
    guard,
    loaders,
    matmul_precision,
    optimizer_state,
    printing,
    sending,
    serialization,
    storages,
    tracers,
    without_dynamo,
)
from torch_pjrt.graph.tape import state
from torch_pjrt.observe import lines, value_lines
from torch_pjrt.observe.compilations import note_lines_if_logged
from torch_pjrt.plugin.host import host
from torch_pjrt.run import garbage
from torch_pjrt.run.batches import end_step
from torch_pjrt.run.sync import listeners
from torch_pjrt.settings import settings
from torch_pjrt.tensor.registration.registry import register_for_differentiated


def set_up() -> None:
    """Install them all. Each changes what happens to `pjrt` tensors only."""
    note_lines_if_logged()
    guard.wrap_backward()
    guard.before_differentiated.append(register_for_differentiated)
    printing.install()
    serialization.install()
    storages.install()
    sending.install()
    data.install()
    autocast.install(client().device.autocast_rules())
    gradient_scaling.install()
    loaders.install()
    checkpoints.install()
    flex_attention.install()
    matmul_precision.install()
    without_dynamo.install()
    garbage.begin()
    for module in host().plugins.values():
        # The whole package, unless the plugin says which of its modules: users' models may call the others.
        package = module.__name__.partition(".")[0]
        tracers.keep_out(getattr(module, "DYNAMO_SKIPS", (package,)))
    if settings.trace_memory:
        value_lines.install()
        listeners.append(lambda tape, program: value_lines.launched(tape, program.outputs))
    optimizer_state.install()
    adam.install()
    register_optimizer_step_post_hook(_after_step)
    if settings.source_lines:
        lines.note_for("TORCH_PJRT_SOURCE_LINES", in_programs=True)
    if settings.check_nans != "0":
        from torch_pjrt.diagnostics import nan_check

        nan_check.turn_on(infinities=settings.check_nans == "inf")


def _after_step(optimizer: torch.optim.Optimizer, args: object, kwargs: object) -> None:
    """A training step ends with the optimizer's: one program a step, no `mark_step`."""
    if not torch.compiler.is_compiling():
        state.tape.end_step()
    if not gradient_scaling.is_deciding() and not state.tape.nested:
        end_step(optimizer)
