"""What is done once, before the first graph is compiled."""

from __future__ import annotations

from functools import cache

from torch._dynamo import trace_rules

# Code that runs while a compiled function does, and that Dynamo must not trace into: kernels of ours, which
# are called by PyTorch's C++, and JAX.
_NOT_TRACED = ("torch_pjrt", "torch_pjrt_cpu", "torch_pjrt_dynamo", "jax", "jaxlib")


@cache
def set_up() -> None:
    """Start the device, and keep Dynamo out of what is not the user's program."""
    from torch_pjrt.plugin.host import host
    from torch_pjrt.tensor.registry import register_all

    register_all()
    plugins = {module.__name__.partition(".")[0] for module in host().plugins.values()}
    for package in sorted({*_NOT_TRACED, *plugins}):
        trace_rules.add(package)
