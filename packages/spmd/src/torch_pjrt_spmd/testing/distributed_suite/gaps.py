"""Which of PyTorch's tests of many processes fail, and why. Strict, as core's tables of gaps are.

A row that says `upstream` of a test that passes nowhere names what is wrong with the test, or with PyTorch
on any device: those were tried with gloo on the CPU.
"""

from __future__ import annotations

from torch_pjrt.testing.pytorch_suite.gaps import Gap

GAPS: tuple[Gap, ...] = (
    # torch.distributed
    Gap(
        "distributed::test_monitored_barrier_allreduce_hang "
        "distributed::test_monitored_barrier_allreduce_hang_wait_all_ranks",
        "never",
        "makes a group of NCCL, and wants NCCL's words for a collective that hangs",
    ),
    Gap(
        "distributed::test_nccl_high_priority_stream",
        "never",
        "an option of NCCL",
    ),
    # DDP
    Gap(
        "distributed::test_ddp_logging_data_cpu distributed::test_ddp_logging_data_gpu",
        "upstream",
        "DDP's own times of forward and backward need a timer that a device registers in C++",
    ),
    Gap(
        "distributed::test_ddp_profiling_torch_profiler",
        "upstream",
        "wants an asynchronous event `pjrt:all_reduce`, of Works in C++ alone; there is `c10d::allreduce_`",
    ),
    # DTensor
    Gap(
        "dtensor::test_op_backward_name_mse_loss",
        "upstream",
        "the gradient of a mean that is squared is world_size times too large; with gloo on the CPU too",
    ),
    Gap(
        "dtensor::test_op_backward_name_split",
        "upstream",
        "the gradient of one part of a split mixes DTensors and tensors; with gloo on the CPU too",
    ),
)
