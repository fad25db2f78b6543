"""What is said where something is to be differentiated that has no derivative."""

from __future__ import annotations

from typing import Any

import torch

from torch_pjrt.errors import UnsupportedError


def no_second_derivative(function: str, instead: str) -> UnsupportedError:
    """The error: the gradient of `function` was to be differentiated. `instead`: what can be."""
    return UnsupportedError(f"The gradient of `{function}` has no derivative.", hint=instead)


def without_derivative(op: str, function: str, instead: str) -> None:
    """Have `op`, the operator `space::name` of a gradient, raise that where it is differentiated."""

    def refused(ctx: Any, *grads: Any) -> Any:
        raise no_second_derivative(function, instead)

    def keep_nothing(ctx: Any, inputs: Any, output: Any) -> None: ...

    torch.library.register_autograd(op, refused, setup_context=keep_nothing)
