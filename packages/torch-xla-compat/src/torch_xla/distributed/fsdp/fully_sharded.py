"""`XlaFullyShardedDataParallel`: PyTorch's `FullyShardedDataParallel` with torch_xla's arguments."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecision, ShardingStrategy

from torch_pjrt.errors import UnsupportedError
from torch_xla import chips, process_groups

# What XLA decides by itself, or what is about collectives that are parts of one program.
_WITHOUT_MEANING = frozenset(
    {
        "flatten_parameters",
        "execute_sharding_on_init",
        "optimization_barrier_in_forward",
        "optimization_barrier_in_backward",
        "mark_step_on_finalization",
        "sync_on_finalization",
        "disable_reshard_on_root",
        "use_all_gather_via_all_reduce",
        "pin_layout_in_collective_ops",
        "reduce_scatter_bucket_size_mb",
        "coalesce_all_gather_ops",
        "shard_param_on_dim_0",
        "opt_flatten_overlap",
        "all_gather_bucket_size_mb",
        "gradient_predivide_factor",
    }
)


class XlaFullyShardedDataParallel(FullyShardedDataParallel):
    """Parameters, gradients and optimizer state in parts, one on each rank.

    reshard_after_forward   give up gathered parameters behind the forward, and gather them again.
    compute_dtype, buffer_dtype    dtypes of parameters and inputs, and of buffers, in the forward.
    fp32_reduce_scatter     sum gradients in float32. auto_wrap_policy: a policy of `fsdp.wrap`.

    A run of one process needs no group of its own: one is made. Arguments of torch_xla's about buckets,
    barriers and layouts are accepted and mean nothing here. Raises `UnsupportedError` for the others.
    """

    def __init__(
        self,
        module: nn.Module,
        reshard_after_forward: bool = True,
        *,
        compute_dtype: torch.dtype | None = None,
        buffer_dtype: torch.dtype | None = None,
        fp32_reduce_scatter: bool = False,
        auto_wrap_policy: Callable[..., Any] | None = None,
        auto_wrapper_callable: Callable[..., Any] | None = None,
        param_init_fn: Callable[..., Any] | None = None,
        **others: Any,
    ) -> None:
        said = {name for name, value in others.items() if value is not None}
        if unknown := sorted(said - _WITHOUT_MEANING):
            raise UnsupportedError(
                "An argument of `XlaFullyShardedDataParallel` has no meaning on torch-pjrt.",
                saw=", ".join(unknown),
                hint="PyTorch's `torch.distributed.fsdp` takes process groups and meshes",
            )
        process_groups.start_group()
        reduce = torch.float32 if fp32_reduce_scatter else compute_dtype
        mixed = None
        if compute_dtype or buffer_dtype or fp32_reduce_scatter:
            mixed = MixedPrecision(compute_dtype, reduce, buffer_dtype)
        strategy = (
            ShardingStrategy.FULL_SHARD if reshard_after_forward else ShardingStrategy.SHARD_GRAD_OP
        )
        super().__init__(
            module,
            sharding_strategy=strategy,
            auto_wrap_policy=auto_wrap_policy,
            mixed_precision=mixed,
            param_init_fn=param_init_fn,
            device_id=chips.device(),
            use_orig_params=False,
        )
