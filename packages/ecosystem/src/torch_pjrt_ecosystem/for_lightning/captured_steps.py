"""Forward and backward of Lightning's `Trainer` as a captured step, where TORCH_PJRT_CAPTURE_STEPS says so.

What is captured is `training_step`, the division of its loss by the number of batches whose gradients are
added up, and the backward. Hooks, logging, clipping and the optimizer are Lightning's own, around it.
Steps that cannot be captured run as they are, with a warning that says why.
"""

from __future__ import annotations

import dis
import importlib
import warnings
from collections.abc import Callable, Iterator, Mapping
from types import FunctionType, ModuleType
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch.utils import _pytree as pytree

import torch_pjrt
from torch_pjrt_ecosystem import settings
from torch_pjrt_ecosystem.for_lightning.seen_of_trainer import apart
from torch_pjrt_ecosystem.replacing import wrap

# Hooks that Lightning runs between a forward and its backward.
_HOOKS_BETWEEN = ("on_before_zero_grad", "on_before_backward")
# Numbers that Lightning gives to a step, as it calls them; the first is another one in each.
_NUMBERS = ("batch_idx", "dataloader_idx")


def install(automatic: ModuleType) -> None:
    """`automatic` is the module of the loop that optimizes by itself."""
    captured_closure = _closures_of(automatic)

    def make_closure(
        original: Callable[..., Any], self: Any, kwargs: Any, optimizer: Any, index: int
    ) -> Any:
        closure = original(self, kwargs, optimizer, index)
        strategy = self.trainer.strategy
        if strategy.root_device.type != "pjrt" or not settings.captures_steps():
            return closure
        steps = _steps.get(self)
        if steps is None or steps.module is not strategy.lightning_module:
            steps = _steps[self] = CapturedSteps(self.trainer, automatic, kwargs)
        return captured_closure(closure, steps, kwargs) if steps.take(kwargs) else closure

    wrap(automatic._AutomaticOptimization, "_make_closure", make_closure)


_steps: WeakKeyDictionary[Any, CapturedSteps] = WeakKeyDictionary()


def _closures_of(automatic: ModuleType) -> Callable[..., Any]:
    class CapturedClosure(automatic.Closure):
        """A closure whose forward and backward are one captured step."""

        def __init__(self, whole: Any, steps: CapturedSteps, kwargs: Mapping[str, Any]) -> None:
            super().__init__(whole._step_fn, whole._backward_fn, whole._zero_grad_fn)
            self._steps, self._kwargs = steps, kwargs

        @torch.enable_grad()  # pyright: ignore[reportUntypedFunctionDecorator]
        def closure(self, *_: Any, **__: Any) -> Any:
            if self._zero_grad_fn is not None:
                self._zero_grad_fn()
            return self._steps.taken(self._kwargs)

    return CapturedClosure


class CapturedSteps:
    """The steps of one module.

    module      whose steps they are.
    objection   why they are not captured, if so.
    captured    the captured step.
    """

    def __init__(self, trainer: Any, automatic: ModuleType, kwargs: Mapping[str, Any]) -> None:
        self.module = trainer.lightning_module
        self.objection: str | None = None
        self.captured = torch_pjrt.capture(_step, required=False)
        self._trainer = trainer
        self._result: type = automatic.ClosureResult
        package = automatic.__name__.partition(".loops")[0]
        if why := next(_objections(trainer, package, kwargs), None):
            self._object(why)

    def take(self, kwargs: Mapping[str, Any]) -> bool:
        """Whether a step of these arguments is captured."""
        tensors = (x for x in pytree.tree_leaves(dict(kwargs)) if isinstance(x, torch.Tensor))
        if self.objection is None and any(x.device.type != "pjrt" for x in tensors):
            self._object("a tensor of the batch is not on the device")
        return self.objection is None

    def taken(self, kwargs: Mapping[str, Any]) -> Any:
        """Take a step; what it gave, as Lightning's closures give it."""
        module, precision = self.module, self._trainer.strategy.precision_plugin
        args = [0 if name in _NUMBERS else x for name, x in kwargs.items()]
        gradients = [g for p in module.parameters() if (g := p.grad) is not None]
        divisor = self._trainer.accumulate_grad_batches
        loss, extra, logged, names = self.captured(
            gradients, module, precision, self._result, divisor, args
        )
        before, module._current_fx_name = module._current_fx_name, "training_step"
        try:
            for some, named in logged:
                module.log(*some, **named)
        finally:
            module._current_fx_name = before
        if names:
            asked = ", ".join(f"`{name}`" for name in names)
            self._object(f"`training_step` asks its trainer for {asked}, which may change")
        if loss is None:
            self._object("`training_step` returned no loss")
            return self._result(None)
        return self._result(precision.post_backward(loss, module), extra)

    def _object(self, why: str) -> None:
        self.objection = why
        warnings.warn(
            f"Steps of `{type(self.module).__name__}` are not captured.\n  saw: {why}\n"
            "  expected: a step that does the same with each batch (docs/ecosystem.md)\n"
            "  instead: they run as they are",
            stacklevel=2,
        )


def _step(
    gradients: list[torch.Tensor],
    module: Any,
    precision: Any,
    result: Any,
    divisor: int,
    args: list[Any],
) -> tuple[Any, ...]:
    """The step. What gradients it adds to is seen as an argument.

    Its loss, what else it gives, what it logs, and the names of what it asks of the trainer.
    """
    with apart(module) as seen:
        with precision.train_step_context():
            output = module.training_step(*args)
        found = result.from_training_step_output(output, divisor)
        if found.closure_loss is not None:
            found.closure_loss.backward()
    given = (found.closure_loss, found.extra, seen.logged, sorted(seen.names))
    return pytree.tree_map_only(torch.Tensor, torch.Tensor.detach, given)


def _objections(trainer: Any, package: str, kwargs: Mapping[str, Any]) -> Iterator[str]:
    """Why steps of this trainer are not captured."""
    strategy, module = trainer.strategy, trainer.lightning_module
    precision = strategy.precision_plugin

    def differs(x: Any, base: str, *names: str) -> bool:
        """Whether one of these methods is not that of Lightning's base class."""
        where, _, name = base.rpartition(".")
        own = getattr(importlib.import_module(f"{package}.{where}"), name)
        mine = (getattr(getattr(x, name), "__func__", None) for name in names)
        return any(
            method is not getattr(own, name) for method, name in zip(mine, names, strict=True)
        )

    if strategy.model is not module or differs(
        strategy,
        "strategies.Strategy",
        "training_step",
        "pre_backward",
        "backward",
        "post_backward",
    ):
        yield f"the strategy `{type(strategy).__name__}` stands between"
    if getattr(precision, "scaler", None) is not None or differs(
        precision, "plugins.precision.Precision", "backward", "post_backward"
    ):
        yield f"the precision `{type(precision).__name__}` does something between"
    for hook in (*_HOOKS_BETWEEN, "backward"):
        if differs(module, "core.module.LightningModule", hook):
            yield f"`{type(module).__name__}` has a `{hook}` of its own"
    for callback in trainer.callbacks:
        for hook in _HOOKS_BETWEEN:
            if differs(callback, "callbacks.Callback", hook):
                yield f"the callback `{type(callback).__name__}` has a `{hook}`"
    if "dataloader_iter" in kwargs:
        yield "`training_step` takes its batches itself, of `dataloader_iter`"
    if names := _numbers_used(module.training_step, list(kwargs)):
        yield f"`training_step` uses {names}: another one in each step"


def _numbers_used(step: Any, given: list[str]) -> str:
    """Which of the numbers that Lightning gives to a step it looks at, in words."""
    if not any(name in _NUMBERS for name in given):
        return ""
    function = getattr(step, "__func__", None)
    if not isinstance(function, FunctionType) or hasattr(function, "__wrapped__"):
        return "the arguments of a wrapper"
    code = function.__code__
    names = code.co_varnames[1 : code.co_argcount]
    if len(names) < len(given):
        return "a variable number of arguments"
    used = {x.argval for x in dis.get_instructions(code)} | set(code.co_cellvars)
    own = (mine for mine, name in zip(names, given, strict=False) if name in _NUMBERS)
    return ", ".join(f"`{name}`" for name in own if name in used)
