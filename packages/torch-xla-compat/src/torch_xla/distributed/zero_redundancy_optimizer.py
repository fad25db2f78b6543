"""An optimizer whose state is spread over the ranks: PyTorch's own, under torch_xla's name."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch.distributed.optim import ZeroRedundancyOptimizer as _OfPyTorch

from torch_xla import process_groups
from torch_xla.core.optimizers import reduce_gradients


class ZeroRedundancyOptimizer(_OfPyTorch):
    """PyTorch's `ZeroRedundancyOptimizer`, which needs a process group; `step` averages gradients before.

    grad_clipping, max_norm   clip the norm of all gradients before the step, as torch_xla's does by default.
    """

    def __init__(
        self,
        params: Iterable[Any],
        optimizer_class: type[torch.optim.Optimizer],
        *,
        grad_clipping: bool = True,
        max_norm: float = 1.0,
        **defaults: Any,
    ) -> None:
        for name in (
            "optimizer_dtype",
            "pin_layout",
            "sharding_groups",
            "grad_norm_groups",
            "lazy_init",
        ):
            defaults.pop(name, None)  # of torch_xla's, without meaning here
        process_groups.is_alone()  # makes the group
        super().__init__(params, optimizer_class, **defaults)
        self._max_norm = max_norm if grad_clipping else None

    def step(self, closure: Any = None, **options: Any) -> Any:
        """Gradients averaged over ranks and clipped, then each rank's part of the step."""
        reduce_gradients(self)
        if self._max_norm is not None:
            parameters = [p for group in self.param_groups for p in group["params"]]
            torch.nn.utils.clip_grad_norm_(parameters, self._max_norm)
        return super().step(closure, **options)
