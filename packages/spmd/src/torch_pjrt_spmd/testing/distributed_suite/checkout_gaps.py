"""Which tests of a checkout of PyTorch (`--checkout`) fail, and why. Strict, as `gaps.py` is."""

from __future__ import annotations

from torch_pjrt.testing.pytorch_suite.gaps import Gap

CHECKOUT_GAPS: tuple[Gap, ...] = (
    # FSDP2
    Gap(
        "test_fully_shard_mixed_precision::*.test_norm_modules_*",
        "never",
        "batch norm with weights of 16 bits beside float32 statistics: refused as PyTorch's CPU refuses it",
    ),
    Gap(
        "test_fully_shard_mixed_precision::*.test_no_warmup_jvp_reshard_after_forward_false",
        "upstream",
        "makes a generator of the device, which PyTorch has from backends in C++ alone; with one of the CPU "
        "DTensor misses CUDA's kind of state in it",
    ),
    # Checkpoints
    Gap(
        "test_fsdp_optim_state::*.test_load_sharded_optimizer_state_dict_pass_planner_*",
        "upstream",
        "compares two ShardedTensors by `assert_close`, which asks for `is_quantized`, which ShardedTensor "
        "has not; on the CPU too",
    ),
)
