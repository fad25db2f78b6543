"""Whether float16 has skipped a step.

Accelerate looks whether the scaler has called `optimizer.step()`. On `pjrt` the scaler always calls it, and
the device decides whether the step counts. Here `step_was_skipped` reads what the device has found, when
it is asked: by a scheduler of Accelerate's and by `Trainer`, once a step.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch_pjrt_ecosystem.replacing import wrap, wrap_property

_FOUND = "_pjrt_found_inf"  # tensors of the last step, until somebody asks


def install(optimizer: Any) -> None:
    """`optimizer` is `accelerate.optimizer`."""
    wrap(optimizer.AcceleratedOptimizer, "step", _step)
    wrap_property(optimizer.AcceleratedOptimizer, "step_was_skipped", _step_was_skipped)


def _step(original: Callable[..., Any], self: Any, closure: Any = None) -> Any:
    scaler = self.scaler
    if scaler is None or getattr(scaler, "_device", None) != "pjrt":
        return original(self, closure)
    states = scaler._per_optimizer_states  # `update` makes another one
    result = original(self, closure)
    if self.gradient_state.sync_gradients:
        found = states.get(id(self.optimizer), {}).get("found_inf_per_device", {})
        setattr(self, _FOUND, list(found.values()))
    return result


def _step_was_skipped(original: Callable[[Any], bool], self: Any) -> bool:
    found = self.__dict__.pop(_FOUND, ())
    if found:
        self._is_overflow = any(bool(x.item()) for x in found)
    return original(self)
