"""Many chips, one program: tensors that are spread over a mesh, and XLA's partitioner.

A program is written as for one big device. What is marked says how tensors lie; XLA splits the work and
puts collectives where they are needed.

    Mesh                the chips, in rows and columns, each direction with a name; Mesh.hybrid over slices
    SubMesh             some axes of one: mesh["model"]; init_device_mesh: PyTorch's DeviceMesh
    as_mesh             the Mesh or SubMesh that any kind of mesh is
    use_mesh            what nobody marks lies on this mesh, a copy on each chip; current_mesh()
    mark_sharding       spread a tensor over a mesh; clear_sharding, shard_as
    distribute_tensor   a CPU tensor, each part of it on its chip; DeviceLoader: batches of them
    make_global_batch   batches of which each process has loaded its own rows; own_part: which these are
    distributed         runs of several processes: a package
    redistribute        another tensor that lies otherwise; full_tensor, to_local
    parallelize_module  PyTorch's plans of tensor and sequence parallelism; distribute_module
    load_safetensors    files into tensors on a mesh, each chip its part; save_safetensors; CheckpointError
    shard_map           a function that each chip runs on its own parts of tensors, with collectives by the
                        name of an axis: psum, pmean, pmax, pmin, all_gather, reduce_scatter, all_to_all,
                        ppermute; axis_index, axis_size
    ring_attention      attention over a sequence that chips share; pipeline: layers in stages;
                        mixture_of_experts: experts on chips of their own
    sharding_of         how a tensor lies; a TensorSharding; placements_of: the same in PyTorch's words
    local_shards        what each chip has of it; LocalShards
    visualize_sharding  the same as a picture in the terminal, or in a file
    auto_shard          how to spread a model or a training step, found: a Plan, or NoPlan; Chip, its
                        figures
    collectives         what chips exchange in each program; Collectives
    program_reports     that, bytes on each chip, and what chips do alike; ProgramReports
    launch              a function in several processes of this machine, or of a Ray cluster by
                        launch_on_ray; LaunchError
    config              bandwidths and what to warn of
    ShardingError       a tensor cannot lie on the mesh as the spec says
    ShardingWarning     a program keeps whole, or moves about, what is large
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch_pjrt_spmd.taking_over import is_done_by

if TYPE_CHECKING:
    from torch_pjrt_spmd.any_mesh import as_mesh
    from torch_pjrt_spmd.autoshard.auto import auto_shard
    from torch_pjrt_spmd.autoshard.chips import Chip
    from torch_pjrt_spmd.autoshard.none_fits import NoPlan
    from torch_pjrt_spmd.autoshard.plan import Plan
    from torch_pjrt_spmd.axis_collectives import (
        all_gather,
        all_to_all,
        axis_index,
        axis_size,
        pmax,
        pmean,
        pmin,
        ppermute,
        psum,
        reduce_scatter,
    )
    from torch_pjrt_spmd.device_mesh import init_device_mesh
    from torch_pjrt_spmd.distributing import distribute_module
    from torch_pjrt_spmd.exchanges import Collective, collectives
    from torch_pjrt_spmd.experts import mixture_of_experts
    from torch_pjrt_spmd.in_use import current_mesh, use_mesh
    from torch_pjrt_spmd.launching.local import launch
    from torch_pjrt_spmd.launching.on_ray import launch_on_ray
    from torch_pjrt_spmd.launching.passing import LaunchError
    from torch_pjrt_spmd.loader import DeviceLoader
    from torch_pjrt_spmd.mapping import shard_map
    from torch_pjrt_spmd.marking import clear_sharding, distribute_tensor, mark_sharding, shard_as
    from torch_pjrt_spmd.mesh import Mesh
    from torch_pjrt_spmd.own_batches import make_global_batch, own_part
    from torch_pjrt_spmd.parallelize import parallelize_module
    from torch_pjrt_spmd.pipelining import pipeline
    from torch_pjrt_spmd.placements import placements_of
    from torch_pjrt_spmd.redistributing import full_tensor, redistribute, to_local
    from torch_pjrt_spmd.reporting import ProgramReport, program_reports
    from torch_pjrt_spmd.ring import ring_attention
    from torch_pjrt_spmd.safetensors_files import (
        CheckpointError,
        load_safetensors,
        save_safetensors,
    )
    from torch_pjrt_spmd.settings import config
    from torch_pjrt_spmd.sharding import (
        LocalShard,
        TensorSharding,
        local_shards,
        sharding_of,
        visualize_sharding,
    )
    from torch_pjrt_spmd.spec import ShardingError
    from torch_pjrt_spmd.sub_mesh import SubMesh
    from torch_pjrt_spmd.warn import ShardingWarning

__version__ = "0.1.0"
__all__ = [
    "CheckpointError",
    "Chip",
    "Collective",
    "DeviceLoader",
    "LaunchError",
    "LocalShard",
    "Mesh",
    "NoPlan",
    "Plan",
    "ProgramReport",
    "ShardingError",
    "ShardingWarning",
    "SubMesh",
    "TensorSharding",
    "all_gather",
    "all_to_all",
    "as_mesh",
    "auto_shard",
    "axis_index",
    "axis_size",
    "clear_sharding",
    "collectives",
    "config",
    "current_mesh",
    "distribute_module",
    "distribute_tensor",
    "full_tensor",
    "init_device_mesh",
    "launch",
    "launch_on_ray",
    "load_safetensors",
    "local_shards",
    "make_global_batch",
    "mark_sharding",
    "mixture_of_experts",
    "own_part",
    "parallelize_module",
    "pipeline",
    "placements_of",
    "pmax",
    "pmean",
    "pmin",
    "ppermute",
    "program_reports",
    "psum",
    "redistribute",
    "reduce_scatter",
    "ring_attention",
    "save_safetensors",
    "shard_as",
    "shard_map",
    "sharding_of",
    "to_local",
    "use_mesh",
    "visualize_sharding",
]

# Names by the modules that they are in, which are loaded on first use: PyTorch imports this package as soon
# as itself, for `distributed/autoload.py`.
_WHERE = {
    "any_mesh": "as_mesh",
    "autoshard.auto": "auto_shard",
    "autoshard.chips": "Chip",
    "autoshard.none_fits": "NoPlan",
    "autoshard.plan": "Plan",
    "axis_collectives": "all_gather all_to_all axis_index axis_size pmax pmean pmin ppermute psum "
    "reduce_scatter",
    "device_mesh": "init_device_mesh",
    "distributing": "distribute_module",
    "exchanges": "Collective collectives",
    "experts": "mixture_of_experts",
    "in_use": "current_mesh use_mesh",
    "launching.local": "launch",
    "launching.on_ray": "launch_on_ray",
    "launching.passing": "LaunchError",
    "loader": "DeviceLoader",
    "mapping": "shard_map",
    "marking": "clear_sharding distribute_tensor mark_sharding shard_as",
    "mesh": "Mesh",
    "own_batches": "make_global_batch own_part",
    "parallelize": "parallelize_module",
    "pipelining": "pipeline",
    "placements": "placements_of",
    "redistributing": "full_tensor redistribute to_local",
    "reporting": "ProgramReport program_reports",
    "ring": "ring_attention",
    "safetensors_files": "CheckpointError load_safetensors save_safetensors",
    "settings": "config",
    "sharding": "LocalShard TensorSharding local_shards sharding_of visualize_sharding",
    "spec": "ShardingError",
    "sub_mesh": "SubMesh",
    "warn": "ShardingWarning",
}
_LAZY = {name: module for module, names in _WHERE.items() for name in names.split()}


def _take_over() -> None:
    from torch_pjrt_spmd import partitioner

    partitioner.take_over()


is_done_by(_take_over)


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        from torch_pjrt.extend import lazy_attribute

        globals()[name] = found = lazy_attribute(f"{__name__}.{_LAZY[name]}", name)
        return found
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
