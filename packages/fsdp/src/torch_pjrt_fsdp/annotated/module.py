"""`FSDPModule`: what a module that is a block is as well, with PyTorch's methods of that name."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from functools import cache
from typing import Any

import torch
from torch import nn

from torch_pjrt.errors import UnsupportedError
from torch_pjrt_fsdp.annotated.blocks import Block, block_of, blocks_in
from torch_pjrt_spmd import ShardingError
from torch_pjrt_spmd.distributing import parameters_stay_tied


class FSDPModule:
    """What a module that is a block is as well, by a class made of its own: PyTorch's methods of that name.

    One program has all collectives of a step. What these methods say of their order is how early a block's
    parameters may be gathered; XLA does the rest. So methods about when collectives run, and in which memory,
    are accepted and change nothing.
    """

    def set_reshard_after_forward(self, reshard_after_forward: bool, recurse: bool = True) -> None:
        """Whether parameters are gathered again for backward, from the next forward on."""
        module: Any = self
        for block in blocks_in(module) if recurse else filter(None, [block_of(module)]):
            block.resharded = reshard_after_forward

    def clip_grad_norm_(self, max_norm: float, norm_type: float = 2.0) -> torch.Tensor:
        """Scale all gradients of the module so that their norm is at most `max_norm`; the norm before.

        As `torch.nn.utils.clip_grad_norm_`, which does the same: gradients are of the whole tensors.
        """
        module: Any = self
        return nn.utils.clip_grad_norm_(module.parameters(), max_norm, norm_type)

    def no_sync(self) -> Any:
        """A block of code in which gradients are accumulated.

        They are in parts there as elsewhere, so that no chip ever has whole ones: it changes nothing.
        """
        return nullcontext()

    def set_requires_gradient_sync(
        self, requires_gradient_sync: bool, *, recurse: bool = True
    ) -> None:
        """Accepted for scripts that accumulate gradients; changes nothing, as `no_sync`."""

    def set_is_last_backward(self, is_last_backward: bool) -> None:
        """Accepted; changes nothing."""

    def set_requires_all_reduce(self, requires_all_reduce: bool, *, recurse: bool = True) -> None:
        """Accepted for scripts that accumulate gradients; changes nothing, as `no_sync`."""

    def unshard(self, async_op: bool = False) -> Unsharded | None:
        """Changes nothing: parameters are whole tensors to PyTorch, and are gathered where they are used.

        With `async_op` an object with `wait` is returned. `summon_full_params` has chips hold them whole.
        """
        return Unsharded() if async_op else None

    def reshard(self) -> None:
        """Changes nothing, as `unshard`."""

    def reset_iter_state(self) -> None:
        """Changes nothing: after an error in a forward, parameters are in parts already."""

    def set_reshard_after_backward(
        self, reshard_after_backward: bool, *, recurse: bool = True
    ) -> None:
        """Accepted; changes nothing: no program keeps what it has gathered for the next one."""

    def set_unshard_in_backward(self, unshard_in_backward: bool) -> None:
        """Accepted; changes nothing: what backward does not read is not gathered for it."""

    def set_reduce_scatter_unused_params(
        self, reduce_scatter_unused_params: bool, *, recurse: bool = True
    ) -> None:
        """Accepted; changes nothing: all chips run one program, and so use the same parameters."""

    def set_reduce_scatter_max_input_buffers(
        self, max_input_buffers: int, *, recurse: bool = True
    ) -> None:
        """Accepted; changes nothing."""

    def set_separate_reduce_scatter_group(self, *args: Any, **kwargs: Any) -> None:
        """Accepted; changes nothing."""

    def set_post_optim_event(self, event: Any) -> None:
        """Accepted; changes nothing: a program reads what the one before has written."""

    def set_force_sum_reduction_for_comms(self, enable: bool) -> None:
        """Accepted; changes nothing: gradients are those of the loss, however XLA adds them up."""

    def set_allocate_memory_from_process_group_for_comm(self, enable: bool) -> None:
        """Accepted; changes nothing."""

    def set_symm_mem_for_comm(self, *args: Any, **kwargs: Any) -> None:
        """Accepted; changes nothing."""

    def set_gradient_divide_factor(self, factor: float) -> None:
        """Raises `UnsupportedError`: gradients are those of the loss of the whole batch."""
        raise UnsupportedError(
            "Gradients are divided by nothing: the loss is of the whole batch, not of a chip's rows.",
            saw=f"factor={factor}",
            hint="multiply the loss by what gradients are to be multiplied by",
        )

    def set_reduce_scatter_divide_factor(self, factor: float) -> None:
        """Raises, as `set_gradient_divide_factor`, of which it is the older name."""
        self.set_gradient_divide_factor(factor)

    def set_all_reduce_hook(self, hook: Callable[[torch.Tensor], None], **others: Any) -> None:
        """Raises `UnsupportedError`: XLA decides by which collectives gradients are added up."""
        raise _no_collective("an all-reduce", "p.register_post_accumulate_grad_hook(...)")

    def set_custom_all_gather(self, comm: Any) -> None:
        """Raises `UnsupportedError`, as `set_all_reduce_hook`."""
        raise _no_collective("an all-gather", _PYTORCHS_OWN)

    def set_custom_reduce_scatter(self, comm: Any) -> None:
        """Raises `UnsupportedError`, as `set_all_reduce_hook`."""
        raise _no_collective("a reduce-scatter", _PYTORCHS_OWN)

    def set_modules_to_forward_prefetch(self, modules: list[Any]) -> None:
        """Let the parameters of the blocks that follow be gathered when this block's forward begins.

        modules   in the order of their forwards: the next block, the one after it, ...
        """
        for distance, module in enumerate(modules, 1):
            _block_to_prefetch(module).forward_prefetch = distance

    def set_modules_to_backward_prefetch(self, modules: list[Any]) -> None:
        """The same for backward; `modules` in the order of their backwards."""
        for distance, module in enumerate(modules, 1):
            _block_to_prefetch(module).backward_prefetch = distance

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        """What `to`, `to_empty` and their like do: what comes to the device or stays there lies in parts."""
        module: Any = super()._apply(fn, recurse)  # pyright: ignore[reportAttributeAccessIssue]
        block = block_of(module)
        if block is not None:
            with parameters_stay_tied(module):
                block.place("pjrt")
        return module


_PYTORCHS_OWN = (
    "PyTorch's own `fully_shard` over the backend `pjrt` takes one, one process per device"
)


def _no_collective(name: str, hint: str) -> UnsupportedError:
    return UnsupportedError(
        f"XLA makes the collectives: there is no call of {name} to replace.", hint=hint
    )


class Unsharded:
    """What `unshard(async_op=True)` gives: there is nothing to wait for."""

    def wait(self) -> None:
        """Returns at once."""


def _block_to_prefetch(module: Any) -> Block:
    block = block_of(module) if isinstance(module, nn.Module) else None
    if block is None:
        raise ShardingError(
            "What is gathered ahead is a block's parameters.",
            saw=f"{type(module).__name__}, which is none",
            hint="give `fully_shard` the module, or have its `wrap` name it",
        )
    return block


@cache
def class_of(cls: type) -> type:
    if issubclass(cls, FSDPModule):
        return cls
    return type(f"FSDP{cls.__name__}", (FSDPModule, cls), {"__module__": cls.__module__})
