"""What the packages beside core promise is this list. `packages/core/tests/test_public_names.py` has core's.

`torch_xla` has its modules' names on the page `from-torch-xla`, which its own tests hold.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

import pytest

PUBLIC = {
    "torch_pjrt_dynamo": "partitions run shapes",
    "torch_pjrt_ecosystem": "PATCHES PadToBuckets Patch Status __version__ is_at_hand statuses",
    "torch_pjrt_fsdp": """
        Budget CheckpointManager DataError DataShard FSDPModule FullyShardedDataParallel
        GlobalBatchSampler GlobalStream HostOffload Permutation RandomState RayRows ResumableLoader
        SeededSamples WorkerDied export_safetensors fully_shard lambda_auto_wrap_policy
        load_checkpoint load_orbax register_fsdp_forward_method save_checkpoint save_orbax
        size_based_auto_wrap_policy summon_full_params transformer_auto_wrap_policy
        """,
    "torch_pjrt_kernels": """
        flash_attention linear_cross_entropy paged_attention pallas_op ragged_paged_attention rotary
        triton_call update_pages update_ragged_pages
        """,
    "torch_pjrt_quant": """
        EntryPoint ExportedModel Float8 Float8Linear Float8TrainingLinear Int4 Int4Linear Int8
        Int8Linear LoadedModule LoraLinear Nf4 Nf4Linear OrderedInt4Linear PjrtQuantizer
        QuantizedLinear ScaledInt4Linear add_lora_ awq_ export float8_training_ from_cache
        from_torchao_ gptq_ load load_gguf_ load_quantized_ lower_pt2e operators packing quantize_
        save_tensorflow shard_linear shard_linears_ to_cache
        """,
    "torch_pjrt_spmd": """
        CheckpointError Chip Collective DeviceLoader LaunchError LocalShard Mesh NoPlan Plan
        ProgramReport ShardingError ShardingWarning SubMesh TensorSharding all_gather all_to_all
        as_mesh auto_shard axis_index axis_size clear_sharding collectives config current_mesh
        distribute_module distribute_tensor full_tensor init_device_mesh launch launch_on_ray
        load_safetensors local_shards make_global_batch mark_sharding mixture_of_experts own_part
        parallelize_module pipeline placements_of pmax pmean pmin ppermute program_reports psum
        redistribute reduce_scatter ring_attention save_safetensors shard_as shard_map sharding_of
        to_local use_mesh visualize_sharding
        """,
    "torch_pjrt_spmd.autoshard.solver": """
        FORBIDDEN Infeasible Problem Solution UnreadableProblem from_json prepare read solve
        """,
    "torch_pjrt_spmd.distributed": """
        Diverged DivergenceCheck PeerError PeersDiffer Straggler check_divergence initialize
        process_count process_index report_failure stragglers
        """,
    "torch_xla": """
        __version__ backends compile device device_count devices launch manual_seed real_devices
        runtime save_as_stablehlo save_torch_model_as_stablehlo step sync xm
        """,
}
# Constants: their module says what they are.
WITHOUT_DOCSTRING = {"FORBIDDEN", "__version__"}


@pytest.mark.parametrize("module", PUBLIC)
def test_public_names_are_these(module: str) -> None:
    assert sorted(import_module(module).__all__) == sorted(PUBLIC[module].split())


@pytest.mark.parametrize("module", PUBLIC)
def test_each_public_name_is_there_and_says_what_it_is(module: str) -> None:
    found = import_module(module)

    assert not [
        name
        for name in found.__all__
        if name not in WITHOUT_DOCSTRING and not _says_what_it_is(getattr(found, name))
    ]


def _says_what_it_is(x: Any) -> bool:
    """By a docstring of its own: not the one that a dataclass gets where it has none."""
    kind = x if isinstance(x, type) else type(x)
    doc = x.__doc__ or kind.__doc__
    return bool(doc) and not doc.startswith(f"{kind.__name__}(")
