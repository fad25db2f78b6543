"""Mixed precision of a block: PyTorch's `MixedPrecisionPolicy` and `MixedPrecision`, read into one form."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_map_only

from torch_pjrt.errors import SettingError, UnsupportedError


@dataclass(frozen=True)
class Precision:
    """Dtypes of a block; None leaves what is there.

    param     parameters are gathered in it. reduce: gradients of products are added up in it.
    output    the block's results. buffers: its buffers, for good.
    inputs    floats that come into the block are cast to `param`.
    ignored   modules of these classes compute as if there were no policy.
    """

    param: torch.dtype | None = None
    reduce: torch.dtype | None = None
    output: torch.dtype | None = None
    buffers: torch.dtype | None = None
    inputs: bool = True
    root_inputs: bool = True
    ignored: tuple[type[nn.Module], ...] = ()

    def cast_inputs(self, args: Any, kwargs: Any, is_root: bool) -> tuple[Any, Any]:
        """What the block is called with, its floats in `param`."""
        if self.param is None or not (self.inputs or (is_root and self.root_inputs)):
            return args, kwargs
        return _cast(args, self.param), _cast(kwargs, self.param)

    def cast_output(self, output: Any) -> Any:
        """What the block gives, its floats in `output`."""
        return output if self.output is None else _cast(output, self.output)


def precision_of(policy: Any) -> Precision:
    """A `Precision`, or PyTorch's policy as one. `SettingError` for something else."""
    from torch.distributed.fsdp import MixedPrecision, MixedPrecisionPolicy

    if policy is None:
        return Precision()
    if isinstance(policy, MixedPrecisionPolicy):
        return Precision(
            policy.param_dtype,
            policy.reduce_dtype,
            policy.output_dtype,
            inputs=policy.cast_forward_inputs,
            root_inputs=policy.cast_forward_inputs,
        )
    if isinstance(policy, MixedPrecision):
        if policy.keep_low_precision_grads:
            raise UnsupportedError(
                "Gradients have the dtype of their parameter.", saw="keep_low_precision_grads=True"
            )
        return Precision(
            policy.param_dtype,
            policy.reduce_dtype,
            None,
            policy.buffer_dtype,
            policy.cast_forward_inputs,
            policy.cast_root_forward_inputs,
            tuple(policy._module_classes_to_ignore),
        )
    raise SettingError(
        "This is no policy of mixed precision.",
        saw=repr(policy),
        expected="torch.distributed.fsdp's MixedPrecisionPolicy or MixedPrecision",
    )


def _cast(tree: Any, dtype: torch.dtype) -> Any:
    def cast(x: torch.Tensor) -> torch.Tensor:
        return x.to(dtype) if x.is_floating_point() else x

    return tree_map_only(torch.Tensor, cast, tree)
