"""torch-pjrt: PyTorch on any device that has a PJRT plugin, through XLA.

Importing this package is not needed: `import torch` makes the device `pjrt` known. What it offers beside
the device is here, loaded on first use:

    sync()            run what is pending
    report()          what was compiled, run, moved, how long it took, and why
    explain()         the same of one run of a function, with what XLA estimates that it costs
    config            the settings: `max_programs`, `tape_limit`, `log`, ...
    profile()         a trace of a block, for XProf, TensorBoard and Perfetto
    profile_step()    which operators a step's time on the device goes to
    to_stablehlo()    the program that would compute some tensors, as text
    compile_for()     a function compiled for hardware that is not here; targets() lists it
    compile_options() options of XLA for a block
    source_lines()    lines of your program in what XLA compiles, for a block
    capture()         a step that is launched without running its Python
    DeviceLoader      a loader's batches, brought to the device in the background
    eager()           each operator runs at once, for a block
    check_nans()      an error that names the operator which made a NaN, for a block
    to_jax()          a tensor's array; from_jax() makes a tensor of one
    jax_function()    a JAX function as an operator

    >>> torch_pjrt.__version__
    '0...'
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch_pjrt.autoload import autoload, failure
from torch_pjrt.lazy import attribute

if TYPE_CHECKING:
    from torch_pjrt.aot.compile_for import compile_for
    from torch_pjrt.aot.targets import targets
    from torch_pjrt.data.loader import DeviceLoader
    from torch_pjrt.diagnostics.explain import explain
    from torch_pjrt.diagnostics.nan_check import check_nans
    from torch_pjrt.diagnostics.report import report
    from torch_pjrt.diagnostics.request import source_lines
    from torch_pjrt.diagnostics.stablehlo import to_stablehlo
    from torch_pjrt.diagnostics.step_profile import profile_step
    from torch_pjrt.diagnostics.trace import profile
    from torch_pjrt.interop.arrays import from_jax, to_jax
    from torch_pjrt.interop.function import jax_function
    from torch_pjrt.replays.step import capture
    from torch_pjrt.run.eager import eager
    from torch_pjrt.run.options import compile_options
    from torch_pjrt.run.request import sync
    from torch_pjrt.settings import config

__version__ = "0.1.0"
__all__ = [
    "DeviceLoader",
    "__version__",
    "autoload",
    "capture",
    "check_nans",
    "compile_for",
    "compile_options",
    "config",
    "eager",
    "explain",
    "from_jax",
    "jax_function",
    "profile",
    "profile_step",
    "report",
    "source_lines",
    "sync",
    "targets",
    "to_jax",
    "to_stablehlo",
]

_LAZY = {
    "DeviceLoader": "torch_pjrt.data.loader",
    "capture": "torch_pjrt.replays.step",
    "check_nans": "torch_pjrt.diagnostics.nan_check",
    "compile_for": "torch_pjrt.aot.compile_for",
    "compile_options": "torch_pjrt.run.options",
    "eager": "torch_pjrt.run.eager",
    "from_jax": "torch_pjrt.interop.arrays",
    "jax_function": "torch_pjrt.interop.function",
    "config": "torch_pjrt.settings",
    "explain": "torch_pjrt.diagnostics.explain",
    "profile": "torch_pjrt.diagnostics.trace",
    "profile_step": "torch_pjrt.diagnostics.step_profile",
    "report": "torch_pjrt.diagnostics.report",
    "source_lines": "torch_pjrt.diagnostics.request",
    "sync": "torch_pjrt.run.request",
    "targets": "torch_pjrt.aot.targets",
    "to_jax": "torch_pjrt.interop.arrays",
    "to_stablehlo": "torch_pjrt.diagnostics.stablehlo",
}


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        import torch  # noqa: F401  registers the device first, in the order that PyTorch expects

        autoload()  # where PyTorch was told not to load backends by itself
        error = failure()
        try:
            if error is not None:
                raise error
        finally:
            del error  # its traceback holds this frame
        return attribute(_LAZY[name], name)
    raise AttributeError(f"module 'torch_pjrt' has no attribute {name!r}")
