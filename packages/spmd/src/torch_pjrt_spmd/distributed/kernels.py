"""Kernels of PyTorch's `c10d::*` operators for tensors of the device.

All that communicates in PyTorch comes to these operators: `torch.distributed`'s functions, DDP's reducer,
functional collectives, DTensor, FSDP. Each collective is recorded as an operator (`collectives.py`), in the
order of calls, among what was recorded before it and after.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import cache, wraps
from math import prod
from typing import Any

import torch
import torch.distributed as dist

from torch_pjrt.extend import after_import
from torch_pjrt_spmd.distributed import (
    attention_sharding,
    batch_norm,
    collectives,
    limits,
    monitored,
    random_shards,
    reducers,
    sparse_sums,
    splitting,
)
from torch_pjrt_spmd.distributed.errors import PeerError
from torch_pjrt_spmd.distributed.factors import factor_of_callers
from torch_pjrt_spmd.distributed.group import Group, NotOurs, fill, group_of
from torch_pjrt_spmd.distributed.reductions import Kind
from torch_pjrt_spmd.distributed.tensor_checks import (
    check_dtypes,
    check_each,
    check_list,
    check_number,
    check_parts,
    check_shape,
    check_splits,
)
from torch_pjrt_spmd.distributed.work import done, pending

Tensors = Sequence[torch.Tensor]


def _reduction(op: Any) -> tuple[Any, float]:
    """What a kernel is given as a `ReduceOp`: its kind, and the factor of PREMUL_SUM."""
    kind = Kind(op.op())
    if kind == Kind.PREMUL_SUM:
        return kind, factor_of_callers()
    return kind, 1.0


# Reductions.


def _allreduce(tensors: Tensors, pg: Any, op: Any, sparse: Any, *rest: Any) -> Any:
    _reduce_all(group_of(pg), tensors, op, tensors)
    return list(tensors), done(tensors)


def _allreduce_sparse(tensors: Tensors, pg: Any, op: Any, sparse: Any, *rest: Any) -> Any:
    group, (kind, _) = group_of(pg), _reduction(op)
    for x in tensors:
        sparse_sums.sum_in_place(group, x, kind, _gather_uneven)
    return list(tensors), done(tensors)


def _allreduce_coalesced(tensors: Tensors, pg: Any, op: Any, *rest: Any) -> Any:
    _reduce_all(group_of(pg), tensors, op, tensors)
    return done(tensors)


def _reduce(
    tensors: Tensors,
    pg: Any,
    op: Any,
    root: int,
    root_tensor: int,
    *rest: Any,
) -> Any:
    group = group_of(pg)
    _reduce_all(group, tensors, op, tensors if group.rank == root else [None] * len(tensors))
    return done(tensors)


def _reduce_all(
    group: Group, tensors: Tensors, op: Any, outputs: Sequence[torch.Tensor | None]
) -> None:
    kind, factor = _reduction(op)
    if group.size == 1 and kind != Kind.PREMUL_SUM:
        return  # each holds its result, and what is recorded goes on
    group.run(collectives.all_reduce, (kind.name, factor), tensors, outputs)


def _reduce_scatter(
    outputs: Tensors,
    inputs: Sequence[Tensors],
    pg: Any,
    op: Any,
    *rest: Any,
) -> Any:
    group = group_of(pg)
    for output, given in zip(outputs, inputs, strict=True):
        check_list("reduce_scatter", given, output, group.rank, group.size)
        if len({x.shape for x in given}) == 1:
            _scatter_reduced(group, [output], [torch.stack(list(given))], op)
            continue
        most = max(map(torch.numel, given))
        part = _flat(output, most)
        _scatter_reduced(group, [part], [torch.stack([_flat(x, most) for x in given])], op)
        output.copy_(part[: output.numel()].view(output.shape))
    return list(outputs), done(outputs)


def _flat(x: torch.Tensor, n: int) -> torch.Tensor:
    """Its elements, and zeros behind them: n together."""
    flat = x.new_zeros(n)
    flat[: x.numel()] = x.reshape(-1)
    return flat


def _reduce_scatter_base(
    output: torch.Tensor,
    given: torch.Tensor,
    pg: Any,
    op: Any,
    *rest: Any,
) -> Any:
    _scatter_reduced(group_of(pg), [output], [given], op)
    return output, done([output])


def _reduce_scatter_tensor_coalesced(
    outputs: Tensors, inputs: Tensors, pg: Any, op: Any, *rest: Any
) -> Any:
    _scatter_reduced(group_of(pg), outputs, inputs, op)
    return done(outputs)


def _scatter_reduced(group: Group, outputs: Tensors, inputs: Tensors, op: Any) -> None:
    check_parts("reduce_scatter_tensor", inputs, outputs, group.size)
    kind, factor = _reduction(op)
    shapes = tuple([tuple(x.shape) for x in outputs])
    group.run(collectives.reduce_scatter, (kind.name, factor, shapes), inputs, outputs)


# Gathering, and from one rank to the others.


def _allgather(outputs: Sequence[Tensors], inputs: Tensors, pg: Any, *rest: Any) -> Any:
    group = group_of(pg)
    for some, one in zip(outputs, inputs, strict=True):
        check_list("all_gather", some, one, group.rank, group.size)
    if all(x.shape == one.shape for some, one in zip(outputs, inputs, strict=True) for x in some):
        _gather_lists(group, outputs, inputs)
    else:
        for some, one in zip(outputs, inputs, strict=True):
            _gather_uneven(group, some, one)
    return [list(some) for some in outputs], done([x for some in outputs for x in some])


def _allgather_coalesced(outputs: Sequence[Tensors], inputs: Tensors, pg: Any, *rest: Any) -> Any:
    """`outputs` has a list for each rank, other than those of `_allgather`, which has one for each input."""
    group = group_of(pg)
    check_number("all_gather_coalesced", "lists", outputs, group.size)
    of_inputs = [list(some) for some in zip(*outputs, strict=True)]
    for some, one in zip(of_inputs, inputs, strict=True):
        check_each("all_gather_coalesced", some, one)
    _gather_lists(group, of_inputs, inputs)
    return done([x for some in outputs for x in some])


def _gather_uneven(group: Group, outputs: Tensors, one: torch.Tensor) -> None:
    """Of each rank as much as its output has, which each rank knows: all send as much as the most."""
    most = max(map(torch.numel, outputs))
    parts = [one.new_zeros(most) for _ in outputs]
    _gather_lists(group, [parts], [_flat(one, most)])
    for output, part in zip(outputs, parts, strict=True):
        output.copy_(part[: output.numel()].view(output.shape))


def _gather_lists(
    group: Group, outputs: Sequence[Tensors], inputs: Tensors, to: int | None = None
) -> None:
    wanted: list[torch.Tensor | None] = [None] * (group.size * len(inputs))
    if to in (None, group.rank):
        wanted = [x for some in outputs for x in some]
    if to is None:
        group.run(collectives.all_gather, (), inputs, wanted)
    else:
        group.run(collectives.gather, (to,), inputs, wanted)


def _allgather_base(output: torch.Tensor, given: torch.Tensor, pg: Any, *rest: Any) -> Any:
    _gather_bases(group_of(pg), [output], [given])
    return output, done([output])


def _allgather_into_tensor_coalesced(outputs: Tensors, inputs: Tensors, pg: Any, *rest: Any) -> Any:
    _gather_bases(group_of(pg), outputs, inputs)
    return done(outputs)


def _gather_bases(group: Group, outputs: Tensors, inputs: Tensors) -> None:
    check_parts("all_gather_into_tensor", outputs, inputs, group.size)
    shapes = tuple([tuple(x.shape) for x in outputs])
    group.run(collectives.all_gather_into_tensor, (shapes,), inputs, outputs)


def _gather(
    outputs: Sequence[Tensors],
    inputs: Tensors,
    pg: Any,
    root: int,
    *rest: Any,
) -> Any:
    group = group_of(pg)
    if group.rank == root:
        for some, one in zip(outputs, inputs, strict=True):
            check_number("gather", "lists", some, group.size)
            check_each("gather", some, one)
    _gather_lists(group, outputs, inputs, root)
    return done([x for some in outputs for x in some])


def _broadcast(tensors: Tensors, pg: Any, root: int, root_tensor: int, *rest: Any) -> Any:
    group = group_of(pg)
    if group.size > 1:
        group.run(collectives.broadcast, (root,), tensors, tensors)
    return list(tensors), done(tensors)


def _scatter(
    outputs: Tensors,
    inputs: Sequence[Tensors],
    pg: Any,
    root: int,
    *rest: Any,
) -> Any:
    group = group_of(pg)
    for i, output in enumerate(outputs):
        if group.rank == root:
            check_number("scatter", "lists", inputs[i], group.size)
            check_each("scatter", inputs[i], output)
        given = torch.stack(list(inputs[i])) if group.rank == root else _zeros(group.size, output)
        group.run(collectives.scatter, (root,), [given], [output])
    return list(outputs), done(outputs)


def _zeros(n: int, like: torch.Tensor) -> torch.Tensor:
    return torch.zeros((n, *like.shape), dtype=like.dtype, device=like.device)


# From each to each.


def _alltoall_base(
    output: torch.Tensor,
    given: torch.Tensor,
    pg: Any,
    output_splits: Sequence[int],
    input_splits: Sequence[int],
    *rest: Any,
) -> Any:
    group = group_of(pg)
    check_dtypes("all_to_all_single", (output, given))
    check_splits("all_to_all_single", "output", output, output_splits, group.size)
    check_splits("all_to_all_single", "input", given, input_splits, group.size)
    if output_splits or input_splits:
        even = len({*output_splits, *input_splits}) == 1
        if not _on_all(group, even):
            _all_to_all_on_host(group, output, given, output_splits, input_splits)
            return done([output])
    check_shape("all_to_all_single", "The output", output, given.shape)
    group.run(collectives.all_to_all_single, (tuple(output.shape),), [given], [output])
    return done([output])


def _alltoall(outputs: Tensors, inputs: Tensors, pg: Any, *rest: Any) -> Any:
    group = group_of(pg)
    check_number("all_to_all", "outputs", outputs, group.size)
    check_number("all_to_all", "inputs", inputs, group.size)
    check_dtypes("all_to_all", (*outputs, *inputs))
    if _on_all(group, len({x.shape for x in (*outputs, *inputs)}) == 1):
        group.run(collectives.all_to_all, (), [torch.stack(list(inputs))], outputs)
    else:
        _lists_on_host(group, outputs, inputs)
    return list(outputs), done(outputs)


def _on_all(group: Group, here: bool) -> bool:
    """Whether something is so on all ranks."""
    group.flush()
    flag = torch.tensor([int(here)], device="cpu")
    options = dist.AllreduceOptions()
    options.reduceOp = dist.ReduceOp(dist.ReduceOp.MIN)
    group.exchange_on_host(group.host.allreduce([flag], options), "all_to_all")
    return bool(flag.item())


def _all_to_all_on_host(
    group: Group,
    output: torch.Tensor,
    given: torch.Tensor,
    output_splits: Sequence[int],
    input_splits: Sequence[int],
) -> None:
    """Parts of different sizes, by way of the host: a program has one size for all ranks."""
    host, there = (
        given.cpu().contiguous(),
        torch.empty(output.shape, dtype=output.dtype, device="cpu"),
    )
    outs = list(output_splits) or [output.shape[0] // group.size] * group.size
    ins = list(input_splits) or [given.shape[0] // group.size] * group.size
    work = group.host.alltoall_base(there, host, outs, ins, dist.AllToAllOptions())
    group.exchange_on_host(work, "all_to_all_single")
    fill(output, there)


def _lists_on_host(group: Group, outputs: Tensors, inputs: Tensors) -> None:
    sent = [x.cpu().contiguous() for x in inputs]
    got = [torch.empty(x.shape, dtype=x.dtype, device="cpu") for x in outputs]
    flat = torch.empty(sum(map(torch.numel, got)), dtype=got[0].dtype, device="cpu")
    ins, outs = [prod(x.shape) for x in sent], [prod(x.shape) for x in got]
    joined = torch.cat([x.flatten() for x in sent])
    work = group.host.alltoall_base(flat, joined, outs, ins, dist.AllToAllOptions())
    group.exchange_on_host(work, "all_to_all")
    for x, part in zip(outputs, flat.split(outs), strict=True):
        fill(x, part.view(x.shape))


def _barrier(
    tensor: torch.Tensor,
    pg: Any,
    device_ids: Sequence[int],
    *rest: Any,
) -> Any:
    group = group_of(pg)
    group.flush()
    group.peers.agree("barrier")
    return done([])


# From one to one, by way of the host: who sends need not wait for who receives.


def _send(tensors: Tensors, pg: Any, to: int, tag: int) -> Any:
    group = group_of(pg)
    if to == group.rank:
        group.to_itself[tag].append([x.clone() for x in tensors])
        return done(tensors)
    host = [x.cpu().contiguous() for x in tensors]
    work = group.host.send(host, to, tag)
    what = f"a send to rank {group.peers.ranks[to]} with tag {tag}"

    def finish() -> int:
        group.exchange_on_host(work, what)
        return to

    return pending(tensors, finish)


def _recv(tensors: Tensors, pg: Any, source: int, tag: int) -> Any:
    group = group_of(pg)
    if source == group.rank:
        return pending(tensors, lambda: _received_from_itself(group, tensors, tag))
    what = f"a receive from rank {group.peers.ranks[source]} with tag {tag}"
    return _receive(group, tensors, what, lambda host: group.host.recv(host, source, tag))


def _received_from_itself(group: Group, tensors: Tensors, tag: int) -> int:
    sent = group.to_itself[tag]
    if not sent:
        raise PeerError(
            f"Rank {group.rank} receives from itself, and sent itself nothing with tag {tag}."
        )
    for x, given in zip(tensors, sent.popleft(), strict=True):
        x.copy_(given)
    return group.rank


def _recv_any_source(tensors: Tensors, pg: Any, tag: int) -> Any:
    group = group_of(pg)
    what = f"a receive from any rank with tag {tag}"
    return _receive(group, tensors, what, lambda host: group.host.recv_anysource(host, tag))


def _receive(
    group: Group, tensors: Tensors, what: str, begin: Callable[[list[torch.Tensor]], Any]
) -> Any:
    group.flush()
    host = [torch.empty(x.shape, dtype=x.dtype, device="cpu") for x in tensors]
    work = begin(host)

    def finish() -> int:
        group.exchange_on_host(work, what)
        for x, there in zip(tensors, host, strict=True):
            fill(x, there)
        return int(work._source_rank())

    return pending(tensors, finish)


def _monitored_barrier(
    tensor: torch.Tensor, pg: Any, device_ids: Sequence[int], timeout: int, wait_all: bool
) -> Any:
    group = group_of(pg)
    group.flush()
    group.host.monitored_barrier(timedelta(milliseconds=timeout), wait_all)


_KEY = "PrivateUse1"

_KERNELS: dict[str, Callable[..., Any]] = {
    "allreduce_": _allreduce,
    "allreduce_coalesced_": _allreduce_coalesced,
    "reduce_": _reduce,
    "reduce_scatter_": _reduce_scatter,
    "_reduce_scatter_base_": _reduce_scatter_base,
    "reduce_scatter_tensor_coalesced_": _reduce_scatter_tensor_coalesced,
    "allgather_": _allgather,
    "allgather_coalesced_": _allgather_coalesced,
    "_allgather_base_": _allgather_base,
    "allgather_into_tensor_coalesced_": _allgather_into_tensor_coalesced,
    "gather_": _gather,
    "broadcast_": _broadcast,
    "scatter_": _scatter,
    "alltoall_base_": _alltoall_base,
    "alltoall_": _alltoall,
    "barrier": _barrier,
    "send": _send,
    "recv_": _recv,
    "recv_any_source_": _recv_any_source,
}

# For tensors that are sparse, and for one of the CPU that stands for none.
_OTHERS: tuple[tuple[str, Callable[..., Any], str], ...] = (
    ("allreduce_", _allreduce_sparse, "SparsePrivateUse1"),
    ("allreduce_", _allreduce_sparse, "SparseCsrPrivateUse1"),
    ("monitored_barrier_", _monitored_barrier, "CPU"),
)


def _of_our_groups(name: str, kernel: Callable[..., Any], key: str = _KEY) -> Callable[..., Any]:
    """The kernel, for groups of the backend `pjrt`; for others (`fake`, say) what was there before."""
    theirs = torch.library.get_kernel(f"c10d::{name}", key)
    keys = torch._C.DispatchKeySet(torch._C._dispatch_key_parse(key))

    @wraps(kernel)
    def called(*args: Any) -> Any:
        try:
            return kernel(*args)
        except NotOurs:
            return theirs.call_boxed(keys, *args)

    return called


@cache
def register() -> tuple[torch.library.Library, ...]:
    """Give PyTorch the kernels. The libraries live as long as the process."""
    library = torch.library.Library("c10d", "IMPL")
    with warnings.catch_warnings():
        # PyTorch has kernels for this key, for backends that are written in C++.
        warnings.filterwarnings("ignore", r"(?s).*Overriding a previously registered kernel")
        for name, kernel in _KERNELS.items():
            library.impl(name, _of_our_groups(name, kernel), _KEY)
        for name, kernel, key in _OTHERS:
            library.impl(name, _of_our_groups(name, kernel, key), key)
    reducers.install()
    splitting.install()
    limits.install()
    monitored.install()
    after_import("torch.distributed.tensor", attention_sharding.register)
    after_import("torch.distributed.tensor", random_shards.register)
    return library, batch_norm.register(_KEY)
