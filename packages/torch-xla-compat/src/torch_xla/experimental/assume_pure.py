"""`assume_pure`: torch_xla traces such a function once. Here `torch.compile` does that."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from torch_xla.absent import absent

__getattr__ = absent(
    __name__,
    {
        "j2t_autograd": "`torch_pjrt.jax_function(f)` is a function of tensors, with its gradient",
        "assume_pure_torch": "`assume_pure`, or `torch_pjrt.capture(f)`",
    },
)


def assume_pure(
    fn: Callable[..., Any], *, add_rng_seed_argument: bool = False
) -> Callable[..., Any]:
    """`fn` compiled by `torch.compile(backend="pjrt")`, so that its Python runs once for each shape.

    add_rng_seed_argument   the result takes an argument `rng_seed`, and seeds the device with it first.
    """
    compiled = torch.compile(fn, backend="pjrt")
    if not add_rng_seed_argument:
        return compiled

    def seeded(*args: Any, rng_seed: int, **options: Any) -> Any:
        torch.get_device_module("pjrt").manual_seed(int(rng_seed))
        return compiled(*args, **options)

    return seeded


class PureModule(nn.Module):
    """A module whose forward is compiled, with the module's parameters."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self._module = module
        self._compiled = assume_pure(module)

    def forward(self, *args: Any, **options: Any) -> Any:
        """`module(*args, **options)`."""
        return self._compiled(*args, **options)
