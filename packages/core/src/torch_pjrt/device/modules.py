"""`module.to("pjrt")` keeps its parameters' identity.

PyTorch replaces the parameters of a module that moves to a backend like this one by new ones, where for
CUDA it only swaps their content: ties between parameters would break, and an optimizer that was made
before would go on with the old ones. Here the new content is swapped into the old parameters.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import UninitializedParameter

from torch_pjrt.device.script_modules import move_parameters


def install() -> None:
    """Wrap `nn.Module._apply`; does nothing the second time."""
    original = nn.Module._apply
    if getattr(original, "knows_pjrt", False):
        return
    running = _Running()

    @wraps(original)
    def _apply(self: nn.Module, fn: Callable[..., Any], recurse: bool = True) -> nn.Module:
        if isinstance(self, torch.jit.RecursiveScriptModule):  # pyright: ignore[reportPrivateImportUsage]
            move_parameters(self, fn)
        before = _parameters(self) if running.depth == 0 else []
        running.depth += 1
        try:
            result = original(self, fn, recurse)
        finally:
            running.depth -= 1
        _keep_identity(before)
        return result

    _apply.knows_pjrt = True  # type: ignore[attr-defined]
    _apply._torchdynamo_inline = original  # type: ignore[attr-defined] # Dynamo traces nothing of ours
    nn.Module._apply = _apply  # type: ignore[method-assign]


class _Running(threading.local):
    """How many calls of `_apply` this thread is in."""

    depth = 0


Position = tuple[nn.Module, str, nn.Parameter]


def _parameters(root: nn.Module) -> list[Position]:
    return [
        (module, name, parameter)
        for module in root.modules()
        for name, parameter in module._parameters.items()
        if parameter is not None
    ]


def _keep_identity(before: list[Position]) -> None:
    """Put the old parameter object back, with the content of the new one that took its place."""
    moved: dict[int, nn.Parameter] = {}
    for module, name, old in before:
        new = module._parameters[name]
        if new is None or new is old:
            continue
        if id(old) not in moved:
            if "pjrt" not in (old.device.type, new.device.type):
                continue
            moved[id(old)] = _swapped(old, new)
        module._parameters[name] = moved[id(old)]


def _swapped(old: nn.Parameter, new: nn.Parameter) -> nn.Parameter:
    if isinstance(
        old, UninitializedParameter
    ):  # of a lazy module, which PyTorch makes an empty one
        new.__class__ = type(old)
    try:
        torch.utils.swap_tensors(old, new)
    except RuntimeError:  # something else refers to its C++ part: a weak reference, a graph
        return new
    return old
