"""`summon_full_params`: a block of code in which a module's parameters are whole, on chips or on the CPU."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from torch_pjrt.errors import UnsupportedError
from torch_pjrt.extend import is_pjrt
from torch_pjrt_fsdp.annotated.blocks import Block, Owned, block_of, blocks_in
from torch_pjrt_fsdp.annotated.gathering import Lying
from torch_pjrt_fsdp.annotated.offloading import NOTHING, HostOffload
from torch_pjrt_spmd import mark_sharding
from torch_pjrt_spmd.memory_kinds import HOST


@contextmanager
def summon_full_params(
    module: nn.Module,
    recurse: bool = True,
    writeback: bool = True,
    rank0_only: bool = False,
    offload_to_cpu: bool = False,
    with_grads: bool = False,
) -> Iterator[None]:
    """A block of code in which each chip has all of a module's parameters.

    recurse     also those of blocks within it.
    writeback   what the code writes to parameters stays; else they are as before afterwards.
    with_grads  gradients, too.

    offload_to_cpu    in the block the module's parameters are others, on the CPU. rank0_only: nothing, as one
                process has all chips.

    To read or to write parameters needs no such block: they are whole tensors, wherever their parts lie.
    Raises `UnsupportedError` in a forward.
    """
    blocks = list(blocks_in(module)) if recurse else [b for b in [block_of(module)] if b]
    if any(block.is_active for block in blocks):
        raise UnsupportedError("Parameters are summoned outside of forwards.")
    parameters: dict[int, tuple[torch.Tensor, Lying]] = {
        id(p): (p, owned.lying)
        for block in blocks
        for owned in block.owned
        if (p := owned.now()) is not None and owned.lying is not None and is_pjrt(p)
    }
    if offload_to_cpu:
        with _on_the_cpu(blocks, writeback, with_grads):
            yield
        return
    before = {key: p.detach().clone() for key, (p, _) in parameters.items() if not writeback}
    for p, lying in parameters.values():
        _lay(p, lying, lying.axes.without(lying.spec), NOTHING, with_grads)
    try:
        yield
    finally:
        with torch.no_grad():
            for key, (p, lying) in parameters.items():
                if not writeback:
                    p.copy_(before[key])
                _lay(p, lying, lying.spec, lying.offload, with_grads)


@contextmanager
def _on_the_cpu(blocks: list[Block], writeback: bool, with_grads: bool) -> Iterator[None]:
    """A block of code in which the CPU's copies are in the place of parameters."""
    copies: dict[int, nn.Parameter] = {}
    was: list[tuple[Owned, Any]] = []
    for owned in (owned for block in blocks for owned in block.owned):
        p = owned.now()
        if p is None or not is_pjrt(p):
            continue
        if id(p) not in copies:
            copies[id(p)] = copy = nn.Parameter(p.detach().cpu(), requires_grad=p.requires_grad)
            if with_grads and p.grad is not None:
                copy.grad = p.grad.cpu()
        was.append((owned, p))
    for owned, p in was:
        owned.module._parameters[owned.name] = copies[id(p)]
    try:
        yield
    finally:
        for owned, p in was:
            owned.module._parameters[owned.name] = p
            copy = copies.pop(id(p), None)  # tied ones have one
            if copy is not None and writeback:
                with torch.no_grad():
                    p.copy_(copy)
                    if with_grads and p.grad is not None and copy.grad is not None:
                        p.grad.copy_(copy.grad)


def _lay(p: torch.Tensor, lying: Lying, spec: Any, offload: HostOffload, with_grads: bool) -> None:
    kind = HOST if offload.parameters else None
    mark_sharding(p, lying.axes.mesh, spec, memory_kind=kind)
    if with_grads and p.grad is not None:
        kind = HOST if offload.gradients else None
        mark_sharding(p.grad, lying.axes.mesh, spec, memory_kind=kind)
