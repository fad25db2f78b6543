"""`Trainer`'s forward and backward as a captured step, where TORCH_PJRT_CAPTURE_STEPS says so.

What is captured is `training_step` of a stand-in that has what the step reads of the trainer. Steps that
cannot be captured run as they are, with a warning that says why.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

import torch_pjrt
from torch_pjrt_ecosystem import settings
from torch_pjrt_ecosystem.read_attributes import as_read, refresh
from torch_pjrt_ecosystem.replacing import wrap


def install(trainer: Any) -> None:
    """`trainer` is `transformers.trainer`."""
    wrap(trainer.Trainer, "train", _train)


def _train(original: Callable[..., Any], self: Any, *args: Any, **kwargs: Any) -> Any:
    is_own = "training_step" in vars(self)
    if is_own or not settings.captures_steps() or self.args.device.type != "pjrt":
        return original(self, *args, **kwargs)
    self.training_step = CapturedSteps(self)
    try:
        return original(self, *args, **kwargs)
    finally:
        del self.training_step


class CapturedSteps:
    """Stands before `training_step` of a trainer.

    captured   the captured step of the stand-in.
    """

    def __init__(self, trainer: Any) -> None:
        from accelerate import Accelerator  # pyright: ignore[reportMissingImports]
        from accelerate.optimizer import AcceleratedOptimizer  # pyright: ignore[reportMissingImports]
        from accelerate.state import GradientState  # pyright: ignore[reportMissingImports]

        self._trainer = trainer
        self._stand_in = as_read(trainer, (Accelerator, AcceleratedOptimizer, GradientState))
        self._step = type(trainer).training_step
        self._overrides = tuple(_overrides(type(trainer)))
        self.captured = torch_pjrt.capture(_step, required=False)

    def __call__(self, model: Any, inputs: Any, *further: Any, **named: Any) -> torch.Tensor:
        """As `training_step`."""
        model.train()
        inputs = dict(self._trainer._prepare_inputs(inputs))
        refresh(self._stand_in)
        gradients = [g for p in model.parameters() if (g := p.grad) is not None]
        return self.captured(
            gradients, self._overrides, self._step, self._stand_in, model, inputs, *further, **named
        )


def _step(
    gradients: list[torch.Tensor],
    overrides: tuple[Callable[..., Any], ...],
    step: Callable[..., Any],
    *args: Any,
    **named: Any,
) -> Any:
    """The step, of which is seen as an argument to what gradients it adds, and what of it is the user's."""
    return step(*args, **named)


def _overrides(kind: type) -> Iterator[Callable[..., Any]]:
    """Functions of classes that are no library's: the library's calls of these would not be looked into."""
    for part in kind.__mro__:
        if part.__module__.partition(".")[0] not in ("transformers", "builtins"):
            yield from (x for x in vars(part).values() if callable(x))
