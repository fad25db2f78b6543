"""Fully sharded data parallel, checkpoints, and data, for models that are larger than one chip.

Models in parts, by annotations (`torch_pjrt_spmd`): one process drives all chips.

    fully_shard         parameters, gradients and optimizer state in parts over a mesh; FSDPModule: what a
                        module that was given to it is; register_fsdp_forward_method: other methods of it
    HostOffload         which of these lie in the host's memory
    FullyShardedDataParallel    the same as a module around a model, with PyTorch's older names
    summon_full_params  a block of code in which each chip has all of a module's parameters
    size_based_auto_wrap_policy     which modules are blocks, by their size; lambda_auto_wrap_policy, by a
                        function; transformer_auto_wrap_policy, by their classes

Data that goes on exactly where it stopped, with other workers and processes, too:

    GlobalBatchSampler  batches of indices of all processes, shuffled by seed and epoch, from any position on;
                        Budget: batches of varying size; Permutation: the order, in a few hundred bytes
    GlobalStream        batches of a source that is read from its beginning; RayRows: one of Ray's
    ResumableLoader     a DataLoader of these, with a state
    DataShard           which rows of each batch a process loads
    SeededSamples       a dataset whose random numbers depend on seed, epoch and sample alone
    DataError           what data cannot be; WorkerDied: a DataLoader's worker has ended

Checkpoints that survive, of what lies on any mesh:

    CheckpointManager   a run's checkpoints: saved beside the steps, the last ones kept, found again
    save_checkpoint     one checkpoint, of any state; load_checkpoint: onto any mesh, verified
    export_safetensors  one as files that Hugging Face's libraries load
    save_orbax          checkpoints of orbax; load_orbax
    RandomState         what PyTorch, the device, NumPy and Python draw next
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch_pjrt_fsdp.annotated.module import FSDPModule
    from torch_pjrt_fsdp.annotated.offloading import HostOffload
    from torch_pjrt_fsdp.annotated.policies import (
        lambda_auto_wrap_policy,
        size_based_auto_wrap_policy,
        transformer_auto_wrap_policy,
    )
    from torch_pjrt_fsdp.annotated.sharding import fully_shard, register_fsdp_forward_method
    from torch_pjrt_fsdp.annotated.summoning import summon_full_params
    from torch_pjrt_fsdp.annotated.wrapper import FullyShardedDataParallel
    from torch_pjrt_fsdp.checkpoint.exporting import export_safetensors
    from torch_pjrt_fsdp.checkpoint.loading import load_checkpoint
    from torch_pjrt_fsdp.checkpoint.manager import CheckpointManager
    from torch_pjrt_fsdp.checkpoint.orbax_files import load_orbax, save_orbax
    from torch_pjrt_fsdp.checkpoint.random_state import RandomState
    from torch_pjrt_fsdp.checkpoint.saving import save_checkpoint
    from torch_pjrt_fsdp.data.budget import Budget
    from torch_pjrt_fsdp.data.errors import DataError, WorkerDied
    from torch_pjrt_fsdp.data.loader import ResumableLoader
    from torch_pjrt_fsdp.data.permutation import Permutation
    from torch_pjrt_fsdp.data.sampler import GlobalBatchSampler
    from torch_pjrt_fsdp.data.seeds import SeededSamples
    from torch_pjrt_fsdp.data.shard import DataShard
    from torch_pjrt_fsdp.data.sources import RayRows
    from torch_pjrt_fsdp.data.streams import GlobalStream

__version__ = "0.1.0"
__all__ = [
    "Budget",
    "CheckpointManager",
    "DataError",
    "DataShard",
    "FSDPModule",
    "FullyShardedDataParallel",
    "GlobalBatchSampler",
    "GlobalStream",
    "HostOffload",
    "Permutation",
    "RandomState",
    "RayRows",
    "ResumableLoader",
    "SeededSamples",
    "WorkerDied",
    "export_safetensors",
    "fully_shard",
    "lambda_auto_wrap_policy",
    "load_checkpoint",
    "load_orbax",
    "register_fsdp_forward_method",
    "save_checkpoint",
    "save_orbax",
    "size_based_auto_wrap_policy",
    "summon_full_params",
    "transformer_auto_wrap_policy",
]

# Names by the modules that they are in, which are loaded on first use.
_WHERE: dict[str, str] = {
    "annotated.offloading": "HostOffload",
    "annotated.policies": "lambda_auto_wrap_policy size_based_auto_wrap_policy transformer_auto_wrap_policy",
    "annotated.module": "FSDPModule",
    "annotated.sharding": "fully_shard register_fsdp_forward_method",
    "annotated.summoning": "summon_full_params",
    "annotated.wrapper": "FullyShardedDataParallel",
    "data.budget": "Budget",
    "data.errors": "DataError WorkerDied",
    "data.loader": "ResumableLoader",
    "data.permutation": "Permutation",
    "data.sampler": "GlobalBatchSampler",
    "data.seeds": "SeededSamples",
    "data.shard": "DataShard",
    "data.sources": "RayRows",
    "data.streams": "GlobalStream",
    "checkpoint.exporting": "export_safetensors",
    "checkpoint.loading": "load_checkpoint",
    "checkpoint.manager": "CheckpointManager",
    "checkpoint.orbax_files": "load_orbax save_orbax",
    "checkpoint.random_state": "RandomState",
    "checkpoint.saving": "save_checkpoint",
}
_LAZY = {name: module for module, names in _WHERE.items() for name in names.split()}


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        from torch_pjrt.extend import lazy_attribute

        globals()[name] = found = lazy_attribute(f"{__name__}.{_LAZY[name]}", name)
        return found
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
