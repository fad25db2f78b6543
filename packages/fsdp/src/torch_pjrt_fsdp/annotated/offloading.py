"""What of a model in parts lies in the host's memory between programs.

A program brings a block's parameters to the chips where forward, backward and the optimizer read them, and
takes back what it has written: annotations say nothing of it, the marks of tensors do
(`mark_sharding(..., memory_kind="pinned_host")`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from torch_pjrt.errors import SettingError
from torch_pjrt.plugin import Graph, Stage
from torch_pjrt_spmd import Mesh, marks
from torch_pjrt_spmd.memory_kinds import HOST, check_memory


@dataclass(frozen=True)
class HostOffload:
    """What lies in the host's memory: a policy for `fully_shard(offload_policy=...)`.

    parameters, gradients    of what is in parts. optimizer_state: what optimizers keep of these parameters.

    PyTorch's `CPUOffloadPolicy()` and `CPUOffload(True)` are `HostOffload()`.

        fully_shard(model, wrap=Block, offload_policy=HostOffload(parameters=False, gradients=False))
    """

    parameters: bool = True
    gradients: bool = True
    optimizer_state: bool = True

    @property
    def any(self) -> bool:
        """Whether anything lies there."""
        return self.parameters or self.gradients or self.optimizer_state

    @property
    def is_alike(self) -> bool:
        """Whether all lies in one memory, so that where parameters lie says where the rest does."""
        return self.parameters == self.gradients == self.optimizer_state

    def mark(self, p: torch.Tensor, mesh: Mesh, spec: tuple[Any, ...]) -> None:
        """Have a parameter's gradients and state lie as this says; the parameter has been marked."""
        how = marks.sharding(*mesh.written(), spec)
        for mark, is_there in (
            (marks.mark_gradient, self.gradients),
            (marks.mark_state, self.optimizer_state),
        ):
            mark(p, how.with_memory_kind(HOST) if is_there else how, mesh.target)


@dataclass(frozen=True)
class Offloaded:
    """A pass that changes nothing. As a part of a program's key it says where its results lie."""

    policy: HostOffload
    stage: Stage = Stage.CLEAN

    @property
    def name(self) -> str:
        return f"offloaded: {self.policy}"

    def __call__(self, graph: Graph) -> Graph:
        return graph


NOTHING = HostOffload(False, False, False)


def offload_of(policy: Any, mesh: Mesh) -> HostOffload:
    """What a policy says, ours or PyTorch's. `SettingError` for something else.

    `UnsupportedError` where something is to lie in the host's memory and the mesh's chips cannot reach it.
    """
    from torch.distributed.fsdp import CPUOffload, CPUOffloadPolicy, OffloadPolicy

    if isinstance(policy, HostOffload):
        found = policy
    elif policy is None:
        found = NOTHING
    elif isinstance(policy, CPUOffload):
        found = HostOffload() if policy.offload_params else NOTHING
    elif isinstance(policy, OffloadPolicy):
        found = HostOffload() if isinstance(policy, CPUOffloadPolicy) else NOTHING
    else:
        raise SettingError(
            "This is no policy of offloading.",
            saw=repr(policy),
            expected="HostOffload, or torch.distributed.fsdp's CPUOffloadPolicy or CPUOffload",
        )
    if found.any:
        check_memory(mesh, HOST)
    return found
