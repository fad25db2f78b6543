"""An optimizer whose state is spread over the ranks: PyTorch's own, under torch_xla's name."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch.distributed.optim import ZeroRedundancyOptimizer as _OfPyTorch

from torch_xla import process_groups
from torch_xla.core.optimizers import reduce_gradients

# Of torch_xla's arguments those that are about dtypes and buckets of its own, without meaning here.
_WITHOUT_MEANING = (
    "pin_layout",
    "sharding_groups",
    "grad_norm_groups",
    "lazy_init",
    "bucket_cap_mb_all_gather",
    "bucket_cap_mb_reduce_scatter",
    "use_grad_acc_hook",
    "save_master_weights",
    "higher_cc_precision",
)


class ZeroRedundancyOptimizer(_OfPyTorch):
    """PyTorch's `ZeroRedundancyOptimizer`, which needs a process group; `step` averages gradients before.

    grad_clipping, max_norm   clip the norm of all gradients before the step, as torch_xla's does by default:
                              to 1 where no norm is given.

    What else torch_xla's takes before the optimizer's own arguments (`optimizer_dtype`, buckets, groups) is
    accepted and not used.
    """

    def __init__(
        self,
        params: Iterable[Any],
        optimizer_class: type[torch.optim.Optimizer],
        optimizer_dtype: Any = None,
        grad_clipping: bool = True,
        max_norm: float | None = None,
        **defaults: Any,
    ) -> None:
        for name in _WITHOUT_MEANING:
            defaults.pop(name, None)
        process_groups.is_alone()  # makes the group
        super().__init__(params, optimizer_class, **defaults)
        self._max_norm = None if not grad_clipping else 1.0 if max_norm is None else max_norm

    def step(self, closure: Any = None, **options: Any) -> Any:
        """Gradients averaged over ranks and clipped, then each rank's part of the step."""
        reduce_gradients(self)
        if self._max_norm is not None:
            parameters = [p for group in self.param_groups for p in group["params"]]
            torch.nn.utils.clip_grad_norm_(parameters, self._max_norm)
        return super().step(closure, **options)
