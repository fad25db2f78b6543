"""Checkpoints of tensors on a mesh, by torch_xla's names."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from typing import Any

import torch
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner, DefaultSavePlanner

import torch_pjrt_fsdp
from torch_xla.absent import modules_of

__all__ = ["CheckpointManager", "SPMDLoadPlanner", "SPMDSavePlanner", "prime_optimizer"]

__getattr__ = modules_of(__name__)


class SPMDSavePlanner(DefaultSavePlanner):
    """PyTorch's planner, which knows tensors on a mesh."""


class SPMDLoadPlanner(DefaultLoadPlanner):
    """PyTorch's planner, which knows tensors on a mesh."""


class CheckpointManager:
    """The checkpoints of a run, in a folder: `torch_pjrt_fsdp.CheckpointManager` by torch_xla's names.

    save_interval   every how many steps `save` saves. max_to_keep: how many stay; 0: all.
    chkpt_on_preemption     SIGTERM makes the next `save` save, whatever the step, and `reached_preemption`
                            true. All processes make a manager, and call `save` at each step.
    """

    def __init__(
        self,
        path: str,
        save_interval: int,
        max_to_keep: int = 0,
        max_pending_async: int = 1,
        num_of_threads: int = 1,
        process_group: Any = None,
        chkpt_on_preemption: bool = True,
    ) -> None:
        import signal

        self._manager = torch_pjrt_fsdp.CheckpointManager(
            path,
            keep=max_to_keep or None,
            every=save_interval,
            preemption=signal.SIGTERM if chkpt_on_preemption else None,
        )
        self.save_interval = save_interval
        self._reached = False
        if save_interval > 1:
            self._manager.save(1, {})  # saves nothing, and listens to the signal from now on

    def should_save(self, step: int) -> bool:
        """Whether `save` would save at this step."""
        return step % self.save_interval == 0 or self.reached_preemption(step)

    def save(self, step: int, state_dict: Mapping[str, Any], force: bool = False) -> bool:
        """Save at this step if it is time, or `force`; whether it did. Returns when it has been written."""
        did = self.save_async(step, state_dict, force)
        self.join()
        return did

    def save_async(self, step: int, state_dict: Mapping[str, Any], force: bool = False) -> bool:
        """The same; the checkpoint is written beside the next steps."""
        try:
            return self._manager.save(step, state_dict, force=force)
        except SystemExit:  # it has saved; torch_xla leaves it to the loop to end
            self._reached = True
            return True

    def restore(self, step: int, state_dict: MutableMapping[str, Any]) -> None:
        """Write the checkpoint of the step into `state_dict`, each tensor as it lies there."""
        self._manager.restore(state_dict, step)

    def all_steps(self) -> list[int]:
        """The steps of which there is a checkpoint."""
        return list(self._manager.steps())

    def join(self) -> None:
        """Wait until all has been written."""
        self._manager.wait()

    def reached_preemption(self, step: int) -> bool:
        """Whether SIGTERM has come."""
        return self._reached or self._manager.preempted


def prime_optimizer(optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
    """Have an optimizer make its state, which loading needs, by a step with gradients of zero and no rate."""
    from torch.distributed.checkpoint.state_dict import _init_optim_state

    _init_optim_state(optimizer)
    return optimizer
