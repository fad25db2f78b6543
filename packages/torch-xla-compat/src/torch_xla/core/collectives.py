"""`xm.all_reduce` and its kin, by `torch.distributed` on the backend `pjrt`.

`groups` are lists of ranks, each rank in one of them; None is all ranks. `pin_layout` means nothing here.
A run of
one process gets back what it gave.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist

from torch_pjrt.errors import SettingError
from torch_xla import process_groups

REDUCE_SUM = "sum"
REDUCE_MUL = "mul"
REDUCE_AND = "and"
REDUCE_OR = "or"
REDUCE_MIN = "min"
REDUCE_MAX = "max"

Groups = Sequence[Sequence[int]] | None

_OPS = {
    REDUCE_SUM: dist.ReduceOp.SUM,
    REDUCE_MUL: dist.ReduceOp.PRODUCT,
    REDUCE_AND: dist.ReduceOp.BAND,
    REDUCE_OR: dist.ReduceOp.BOR,
    REDUCE_MIN: dist.ReduceOp.MIN,
    REDUCE_MAX: dist.ReduceOp.MAX,
}


def all_reduce(
    reduce_type: str,
    inputs: torch.Tensor | list[torch.Tensor],
    scale: float = 1.0,
    groups: Groups = None,
    pin_layout: bool = True,
) -> Any:
    """The inputs of all ranks reduced, times `scale`: a new tensor for a tensor; a list is changed in place.

    reduce_type  `REDUCE_SUM`, `REDUCE_MUL`, `REDUCE_AND`, `REDUCE_OR`, `REDUCE_MIN` or `REDUCE_MAX`; else
                 `SettingError`.
    """
    if isinstance(inputs, torch.Tensor):
        return _reduced_(reduce_type, inputs.clone(), scale, groups)
    for tensor in inputs:
        _reduced_(reduce_type, tensor, scale, groups)
    return inputs


def all_gather(
    value: torch.Tensor | list[torch.Tensor],
    dim: int = 0,
    groups: Groups = None,
    output: Any = None,
    pin_layout: bool = True,
) -> Any:
    """The values of all ranks behind each other along `dim`, in the order of ranks; of a list, each.

    `output`, a tensor of the result's shape (or a list of such), is written to and returned.
    """
    if not isinstance(value, torch.Tensor):
        outputs = output or [None] * len(value)
        return [all_gather(v, dim, groups, o) for v, o in zip(value, outputs, strict=True)]
    if process_groups.is_alone():
        return _into(output, value)
    group = process_groups.group_of(groups)
    parts = [torch.empty_like(value) for _ in range(dist.get_world_size(group))]
    dist.all_gather(parts, value.contiguous(), group=group)
    return _into(output, torch.cat(parts, dim))


def reduce_scatter(
    reduce_type: str,
    input: torch.Tensor | list[torch.Tensor],
    scale: float,
    scatter_dim: int,
    shard_count: int,
    groups: Groups = None,
    output: Any = None,
    pin_layout: bool = True,
    channel_id: Any = None,
    use_global_device_ids: Any = None,
) -> Any:
    """The inputs of all ranks reduced, of which each rank gets its part along `scatter_dim`; of a list,
    each. `channel_id` and `use_global_device_ids` mean nothing here."""
    if not isinstance(input, torch.Tensor):
        outputs = output or [None] * len(input)
        return [
            reduce_scatter(reduce_type, one, scale, scatter_dim, shard_count, groups, into)
            for one, into in zip(input, outputs, strict=True)
        ]
    if process_groups.is_alone():
        return _into(output, _scaled(input, scale))
    group = process_groups.group_of(groups)
    parts = [part.contiguous() for part in input.chunk(shard_count, scatter_dim)]
    part = torch.empty_like(parts[0])
    dist.reduce_scatter(part, parts, op=_op(reduce_type), group=group)
    return _into(output, _scaled(part, scale))


def all_to_all(
    value: torch.Tensor,
    split_dimension: int,
    concat_dimension: int,
    split_count: int,
    groups: Groups = None,
    pin_layout: bool = True,
) -> torch.Tensor:
    """Part `i` of `value` along `split_dimension` goes to rank `i`; what comes is joined along
    `concat_dimension`."""
    if process_groups.is_alone():
        return value
    group = process_groups.group_of(groups)
    parts = torch.stack(value.chunk(split_count, split_dimension))
    received = torch.empty_like(parts)
    dist.all_to_all_single(received, parts, group=group)
    return torch.cat(received.unbind(), concat_dimension)


def collective_permute(value: torch.Tensor, pairs: Sequence[Sequence[int]]) -> torch.Tensor:
    """The value of rank `source` on rank `target` for each pair `(source, target)`; zeros where nothing
    comes."""
    if process_groups.is_alone():
        return (
            value.clone() if [0, 0] in [list(pair) for pair in pairs] else torch.zeros_like(value)
        )
    here, size = process_groups.rank(), process_groups.world_size()
    targets = [target for source, target in pairs if source == here]
    sources = [source for source, target in pairs if target == here]
    flat = value.reshape(-1)
    received = torch.empty(len(sources) * flat.numel(), dtype=value.dtype, device=value.device)
    dist.all_to_all_single(
        received,
        flat.repeat(len(targets)),
        [flat.numel() if rank in sources else 0 for rank in range(size)],
        [flat.numel() if rank in targets else 0 for rank in range(size)],
    )
    return received.view_as(value) if sources else torch.zeros_like(value)


def collective_broadcast(
    tensors: Sequence[torch.Tensor],
    root_ordinal: int = 0,
    groups: Groups = None,
    pin_layout: bool = True,
) -> None:
    """The tensors of rank `root_ordinal` on all ranks, in place."""
    if process_groups.is_alone():
        return
    group = process_groups.group_of(groups)
    with torch.no_grad():
        for tensor in tensors:
            dist.broadcast(tensor, root_ordinal, group=group)


def broadcast_master_param(model: torch.nn.Module) -> None:
    """The parameters and buffers of the first process on all ranks, in place."""
    collective_broadcast([*model.parameters(), *model.buffers()])


def send(value: torch.Tensor, channel_id: int) -> torch.Tensor:
    """Send `value` to the rank `channel_id`, by the hosts' memory; `value`."""
    dist.send(value, channel_id)
    return value


def recv(output: torch.Tensor, channel_id: int) -> torch.Tensor:
    """Receive what the rank `channel_id` sends into `output`; `output`."""
    dist.recv(output, channel_id)
    return output


def all_gather_bucketized(
    input_list: list[torch.Tensor],
    dim: int = 0,
    groups: Groups = None,
    output: Any = None,
    pin_layout: bool = False,
    bucket_cap_mb: int = 160,
) -> Any:
    """`all_gather` of a list. Collectives of one step are one program: there are no buckets."""
    return all_gather(input_list, dim, groups, output)


def reduce_scatter_bucketized(
    reduce_type: str,
    input_list: list[torch.Tensor],
    scale: float,
    scatter_dim: int,
    shard_count: int,
    groups: Groups = None,
    output: Any = None,
    pin_layout: bool = False,
    bucket_cap_mb: int = 160,
) -> Any:
    """`reduce_scatter` of a list, without buckets."""
    return reduce_scatter(reduce_type, input_list, scale, scatter_dim, shard_count, groups, output)


def all_reduce_bucketized_gradients(
    gradients: list[torch.Tensor],
    scale: float,
    groups: Groups = None,
    pin_layout: bool = False,
    bucket_cap_mb: int = 0,
) -> None:
    """The sum of the ranks' gradients, times `scale`, in place; without buckets."""
    all_reduce(REDUCE_SUM, gradients, scale, groups)


def _reduced_(reduce_type: str, tensor: torch.Tensor, scale: float, groups: Groups) -> torch.Tensor:
    op = _op(reduce_type)
    with torch.no_grad():
        if not process_groups.is_alone():
            dist.all_reduce(tensor, op, group=process_groups.group_of(groups))
        return tensor if scale == 1.0 else tensor.copy_(_scaled(tensor, scale))


def _scaled(tensor: torch.Tensor, scale: float) -> torch.Tensor:
    """`tensor * scale` in its own dtype: what is behind the point of an integer is cut off."""
    return tensor if scale == 1.0 else (tensor * scale).to(tensor.dtype)


def _op(reduce_type: str) -> Any:
    if reduce_type not in _OPS:
        raise SettingError(
            "There is no such reduction.",
            saw=repr(reduce_type),
            expected=" or ".join(map(repr, _OPS)),
        )
    return _OPS[reduce_type]


def _into(output: torch.Tensor | None, value: torch.Tensor) -> torch.Tensor:
    return value if output is None else output.copy_(value)
