"""One input of one module on both sides: outputs, gradients of inputs and parameters, and state."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_map_only

from sides import DEVICE, Case, Outcome, Tolerance, moved, outcome, tensors_in


def module_case(
    name: str,
    module: nn.Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    tolerance: Tolerance | None = None,
    *,
    values: bool = True,
) -> Case:
    """`module` as it is and a copy of it on the device, each given the same.

    Without `values`, the numbers are random and only what they are stored as is compared.
    """
    theirs = copy.deepcopy(module)
    ours = copy.deepcopy(module).to(DEVICE)
    return Case(
        name,
        _done("cpu", theirs, args, kwargs, values),
        _done(DEVICE, ours, args, kwargs, values),
        tolerance,
    )


def done_in_float64(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Outcome:
    """What a copy of `module` in float64 gives on CPU for the same numbers."""

    def widened(x: Any) -> Any:
        if not x.is_floating_point():
            return x
        return x.detach().double().requires_grad_(x.requires_grad)

    given, named = tree_map_only(torch.Tensor, widened, (args, kwargs))
    return _done("cpu", copy.deepcopy(module).double(), given, named, values=True)


def _done(
    device: str, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], values: bool
) -> Outcome:
    def work() -> dict[str, Any]:
        memo: dict[int, torch.Tensor] = {}
        given, named = moved(args, device, memo), moved(kwargs, device, memo)
        output = module(*given, **named)
        results: dict[str, Any] = {"output": output}
        differentiable = [t for t in tensors_in(output) if t.requires_grad]
        if differentiable:
            torch.autograd.backward(differentiable, [_cotangent(t) for t in differentiable])
            inputs = [t for t in tensors_in((given, named)) if t.requires_grad]
            results["gradients of inputs"] = [t.grad for t in inputs]
            results["gradients"] = {k: p.grad for k, p in module.named_parameters()}
        results["state"] = dict(module.state_dict())
        return results if values else described(results)

    return outcome(work)


def _cotangent(t: torch.Tensor) -> torch.Tensor:
    """What the backward starts from: of no symmetry, and the same on both sides."""
    values = torch.linspace(0.5, 1.5, t.numel()).to(t.dtype).reshape(t.shape)
    return values.to(t.device)


def described(x: Any) -> Any:
    """`x` with shape and dtype in place of each tensor."""
    return tree_map_only(torch.Tensor, lambda t: (t.shape, t.dtype), x)
