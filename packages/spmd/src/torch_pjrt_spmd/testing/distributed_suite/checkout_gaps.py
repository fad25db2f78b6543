"""Which tests of a checkout of PyTorch (`--checkout`) fail, and why. Strict, as `gaps.py` is."""

from __future__ import annotations

from torch_pjrt.testing.pytorch_suite.gaps import Gap

CHECKOUT_GAPS: tuple[Gap, ...] = (
    Gap(
        "test_fsdp_optim_state::*.test_load_sharded_optimizer_state_dict_pass_planner_*",
        "upstream",
        "compares two ShardedTensors by `assert_close`, which asks for `is_quantized`, which ShardedTensor "
        "has not; on the CPU too",
    ),
)
