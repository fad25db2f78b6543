"""`XlaFullyShardedDataParallel`: PyTorch's `FullyShardedDataParallel` with torch_xla's arguments."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecision, ShardingStrategy

from torch_pjrt.errors import UnsupportedError
from torch_xla import chips, process_groups
from torch_xla.distributed.fsdp.children import wrap_children

# Arguments of older releases of torch_xla, for what XLA decides by itself.
_WITHOUT_MEANING = (
    "mark_step_on_finalization",
    "use_all_gather_via_all_reduce",
    "opt_flatten_overlap",
    "all_gather_bucket_size_mb",
    "gradient_predivide_factor",
)


class XlaFullyShardedDataParallel(FullyShardedDataParallel):
    """Parameters, gradients and optimizer state in parts, one on each rank.

    reshard_after_forward   give up gathered parameters behind the forward, and gather them again.
    compute_dtype, buffer_dtype    dtypes of parameters and inputs, and of buffers, in the forward.
    fp32_reduce_scatter     sum gradients in float32.
    auto_wrap_policy        which modules within are wrapped, too: a policy of `fsdp.wrap`.
    auto_wrapper_callable   called with each of them and the arguments of this one, and gives the wrapped one;
                            None: this class.

    A run of one process needs no group of its own: one is made. Arguments of torch_xla's about buckets,
    barriers and layouts are accepted and mean nothing here. Raises `UnsupportedError` for the others, and
    for `sharding_groups` and its kin.
    """

    def __init__(
        self,
        module: nn.Module,
        reshard_after_forward: bool = True,
        flatten_parameters: bool = True,
        execute_sharding_on_init: bool = True,
        optimization_barrier_in_forward: bool = True,
        optimization_barrier_in_backward: bool = True,
        sync_on_finalization: bool = False,
        disable_reshard_on_root: bool = True,
        compute_dtype: torch.dtype | None = None,
        buffer_dtype: torch.dtype | None = None,
        fp32_reduce_scatter: bool = False,
        sharding_groups: Any = None,
        sharding_rank: int | None = None,
        sharding_world_size: int | None = None,
        shard_param_on_dim_0: bool = False,
        pin_layout_in_collective_ops: bool = True,
        reduce_scatter_bucket_size_mb: int | None = 0,
        coalesce_all_gather_ops: bool = False,
        auto_wrap_policy: Callable[..., Any] | None = None,
        auto_wrapper_callable: Callable[..., Any] | None = None,
        param_init_fn: Callable[..., Any] | None = None,
        **others: Any,
    ) -> None:
        others |= {
            "sharding_groups": sharding_groups,
            "sharding_rank": sharding_rank,
            "sharding_world_size": sharding_world_size,
        }
        said = {name for name, value in others.items() if value is not None}
        if unknown := sorted(said.difference(_WITHOUT_MEANING)):
            raise UnsupportedError(
                "An argument of `XlaFullyShardedDataParallel` has no meaning on torch-pjrt.",
                saw=", ".join(unknown),
                hint="PyTorch's `torch.distributed.fsdp` takes process groups and meshes",
            )
        process_groups.start_group()
        if auto_wrap_policy is not None:
            wrap_children(
                module,
                auto_wrap_policy,
                auto_wrapper_callable or type(self),
                reshard_after_forward=reshard_after_forward,
                compute_dtype=compute_dtype,
                buffer_dtype=buffer_dtype,
                fp32_reduce_scatter=fp32_reduce_scatter,
                param_init_fn=param_init_fn,
            )
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
            mixed_precision=mixed,
            param_init_fn=param_init_fn,
            device_id=chips.device(),
            use_orig_params=False,
        )

    @property
    def module(self) -> Any:
        """The model. It has itself as `module`, for in torch_xla a wrapper of flat parameters is between."""
        return _Between(super().module)

    def get_shard_metadata(self) -> dict[str, Any]:
        """What is saved beside a rank's `state_dict()`, for `consolidate_sharded_model_checkpoints`.

        Here a state dict has whole parameters, on each rank, so there is nothing to be said of parts.
        """
        return {
            "shard_info": {},
            "flatten_info": {},
            "buffer_info": {},
            "world_size": dist.get_world_size(self.process_group),
            "rank": dist.get_rank(self.process_group),
        }


class _Between:
    """A module in all but its identity; and the module is its attribute `module`."""

    def __init__(self, module: nn.Module) -> None:
        object.__setattr__(self, "module", module)

    @property
    def __class__(self) -> type:  # type: ignore[override]  # what `isinstance` asks
        return type(self.module)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.module, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self.module, name, value)

    def __call__(self, *args: Any, **options: Any) -> Any:
        return self.module(*args, **options)

    def __len__(self) -> int:
        return len(self.module)

    def __getitem__(self, key: Any) -> Any:
        return self.module[key]

    def __bool__(self) -> bool:
        return True
