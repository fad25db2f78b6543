"""What is done once, before the first graph is compiled."""

from __future__ import annotations

from functools import cache
from typing import Any

from torch._dynamo.variables import optimizer as tracing
from torch._dynamo.variables.optimizer import OptimizerVariable

from torch_pjrt.extend import is_pjrt, keep_dynamo_out, start


@cache
def set_up() -> None:
    """Start the device, and keep Dynamo out of what is not the user's program."""
    start()
    keep_dynamo_out(["torch_pjrt_dynamo"])
    _keep_steps_on_the_device()


def leave_inductor_out() -> None:
    """Let Dynamo trace optimizers without Inductor, whose import takes a second. Call before it traces.

    It asks there of each gradient whether a CUDA graph has a place for it, and has imported those by then.
    """
    original = getattr(tracing, "_is_static_for_cudagraphs", None)
    if original is None or getattr(original, "asks_cuda_only", False):  # another PyTorch, or done
        return

    def is_static(x: Any) -> bool:
        return original(x) if x.is_cuda else True

    is_static.asks_cuda_only = True  # type: ignore[attr-defined]
    tracing._is_static_for_cudagraphs = is_static


def _keep_steps_on_the_device() -> None:
    """Let compiled optimizers count their steps on the device, as Dynamo does for CUDA by name.

    On the host the count would be brought to the device and back in each step, for each parameter.
    """
    original = getattr(OptimizerVariable, "_set_capturable", None)
    if original is None:  # another PyTorch: compiled optimizers are right, and slower
        return

    def set_capturable(self: Any, tx: Any) -> None:
        optimizer = self.value
        for group in optimizer.param_groups:
            is_new = all(is_pjrt(p) and p not in optimizer.state for p in group["params"])
            if is_new and "capturable" in group:
                group["capturable"] = True
        original(self, tx)

    OptimizerVariable._set_capturable = set_capturable
