"""Which rows of each batch a process loads."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch_pjrt_fsdp.data.errors import DataError

if TYPE_CHECKING:
    from torch_pjrt_spmd.any_mesh import AnyMesh
    from torch_pjrt_spmd.spec import Spec

# What launchers tell a process: torchrun, Slurm's `srun`, JAX's own variable.
_COUNTS = ("WORLD_SIZE", "JAX_NUM_PROCESSES")


@dataclass(frozen=True)
class DataShard:
    """The part `rank` of `world_size` equal parts of each batch, in the order of its rows.

    Processes that load the same rows have one rank: `world_size` is the number of parts, which may be fewer
    than there are processes.
    """

    rank: int = 0
    world_size: int = 1

    def __post_init__(self) -> None:
        if not 0 <= self.rank < self.world_size:
            raise ValueError(f"rank {self.rank} is not one of {self.world_size}")

    @staticmethod
    def of_processes() -> DataShard:
        """That of this process, where each loads rows of its own.

        The processes are those of `torch.distributed`, or else those of the run that the device has joined
        (`torch_pjrt_spmd.distributed.initialize`). Raises `DataError` where a launcher has started several,
        and none of the two has been set up: each would load everything.
        """
        import torch.distributed as dist

        from torch_pjrt.extend import joined_run

        if dist.is_available() and dist.is_initialized():
            return DataShard(dist.get_rank(), dist.get_world_size())
        if (run := joined_run()) is not None:
            return DataShard(run.index, run.count)
        for name in _COUNTS:
            if os.environ.get(name, "1") not in ("", "1"):
                raise DataError(
                    "Several processes were started, and this one does not know which of them it is.",
                    saw=f"{name}={os.environ[name]}; `torch.distributed` is not initialized",
                    hint="call `torch_pjrt_spmd.distributed.initialize()` or `init_process_group` before, or "
                    "give `shard=DataShard(rank, world_size)`",
                )
        return DataShard()

    @staticmethod
    def of_mesh(mesh: AnyMesh, spec: Spec) -> DataShard:
        """That of this process, which uploads the rows that its chips hold of batches with this spec.

        Where an axis that the spec's first entry does not name runs through several processes, these load
        the same rows.
        """
        from torch_pjrt_spmd import as_mesh, own_part

        part: Any = own_part(as_mesh(mesh).root, spec[0] if len(spec) else None)
        return DataShard(part.first // part.count, part.n // part.count)

    def rows(self, size: int) -> slice:
        """Its rows of a batch; where the parts do not divide it, they differ by one row at most."""
        return slice(size * self.rank // self.world_size, size * (self.rank + 1) // self.world_size)
