"""FSDP by annotations (`SpmdFullyShardedDataParallel`): `torch_pjrt_fsdp.fully_shard`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

import torch_pjrt_fsdp
from torch_pjrt.errors import SettingError
from torch_xla.distributed import spmd
from torch_xla.distributed.fsdp.children import wrap_children

AXIS = "fsdp"


class SpmdFullyShardedDataParallel(nn.Module):
    """A model whose parameters lie in parts along the mesh's axis `fsdp`, with their gradients and state.

    module          on the device or on the CPU.
    mesh            a `spmd.Mesh` with an axis `fsdp`; None: `spmd.get_global_mesh()`.
    shard_output    called with the result and the mesh, to mark it; None: a result, or the first of a tuple,
                    is spread along its first dim.
    auto_wrap_policy    which modules within are blocks of their own: a policy of `fsdp.wrap`.
    auto_wrapper_callable   called with each of them, `mesh`, `shard_output` and `extra_data_axis`; gives the
                    wrapped one, such as `SpmdFullyShardedDataParallel(checkpoint_module(m), **options)`.
    extra_data_axis an axis along which the batch is spread, too, and parameters have copies.

    Raises `SettingError` without a mesh that has the axis, and as `torch_pjrt_fsdp.fully_shard`.
    """

    def __init__(
        self,
        module: nn.Module,
        *,
        mesh: Any = None,
        shard_output: Callable[[Any, Any], None] | None = None,
        auto_wrap_policy: Any = None,
        auto_wrapper_callable: Any = None,
        extra_data_axis: str | None = None,
    ) -> None:
        super().__init__()
        mesh = mesh or spmd.get_global_mesh()
        if mesh is None or mesh.get_axis_name_idx(AXIS) is None:
            raise SettingError(
                "FSDP needs a mesh with the axis `fsdp`.",
                saw="no mesh" if mesh is None else f"axes {mesh.axis_names}",
                hint="give `mesh=`, or call `spmd.set_global_mesh`",
            )
        if auto_wrapper_callable is not None and auto_wrap_policy is not None:
            wrap_children(
                module,
                auto_wrap_policy,
                auto_wrapper_callable,
                mesh=mesh,
                shard_output=shard_output,
                extra_data_axis=extra_data_axis,
            )
            auto_wrap_policy = None
        self._mesh = mesh
        self._data = (extra_data_axis, AXIS) if extra_data_axis else AXIS
        self._shard_output = shard_output or self._spread
        self._orig_module = torch_pjrt_fsdp.fully_shard(
            module,
            mesh=mesh.pjrt,
            wrap=auto_wrap_policy,
            shard_axes=(AXIS,),
            replicate_axes=(extra_data_axis,) if extra_data_axis else (),
        )

    @property
    def module(self) -> nn.Module:
        """The model."""
        return self._orig_module

    def forward(self, *args: Any, **options: Any) -> Any:
        """The model's result, spread as `shard_output` says."""
        output = self._orig_module(*args, **options)
        self._shard_output(output, self._mesh)
        return output

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(self._orig_module, name)

    def __getitem__(self, key: int) -> Any:
        return self._orig_module[key]  # type: ignore[index]

    def _spread(self, output: Any, mesh: Any) -> None:
        first = output[0] if isinstance(output, tuple) else output
        if isinstance(first, torch.Tensor) and first.dim():
            spmd.mark_sharding(first, mesh, (self._data, *(None,) * (first.dim() - 1)))
