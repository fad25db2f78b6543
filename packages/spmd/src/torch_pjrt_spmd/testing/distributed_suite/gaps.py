"""Which of PyTorch's tests of many processes fail, and why. Strict, as core's tables of gaps are.

A row that says `upstream` of a test that passes nowhere names what is wrong with the test, or with PyTorch
on any device: those were tried with gloo on the CPU.
"""

from __future__ import annotations

from torch_pjrt.testing.pytorch_suite.gaps import Gap

GAPS: tuple[Gap, ...] = (
    # torch.distributed
    Gap(
        "distributed::test_sparse_all_reduce_sum distributed::test_sparse_all_reduce_sum_cuda",
        "notyet",
        "all_reduce of sparse tensors, which only gloo has",
    ),
    Gap(
        "distributed::test_barrier_timeout_full_group distributed::test_barrier_timeout_global",
        "never",
        "wants gloo's words for a peer that does not come; ours name the rank, its host and the seconds",
    ),
    Gap(
        "distributed::test_monitored_barrier_allreduce_hang "
        "distributed::test_monitored_barrier_allreduce_hang_wait_all_ranks "
        "distributed::test_monitored_barrier_gloo "
        "distributed::test_monitored_barrier_gloo_rank_0_timeout "
        "distributed::test_monitored_barrier_gloo_subgroup",
        "never",
        "`monitored_barrier` asks PyTorch for gloo by name, in groups of NCCL and gloo",
    ),
    Gap(
        "distributed::test_nccl_high_priority_stream",
        "never",
        "an option of NCCL",
    ),
    # DDP
    Gap(
        "distributed::test_ddp_device",
        "never",
        "wants a tensor that is made without a device to be on the CPU, and the suite has it on the device",
    ),
    Gap(
        "distributed::test_ddp_uneven_inputs",
        "notyet",
        "steps of convolutions of 1000 x 1000 pixels: over five minutes on a CPU; what comes before passes",
    ),
    Gap(
        "distributed::test_SyncBatchNorm_process_group",
        "upstream",
        "takes a model of torchvision without asking whether that is installed",
    ),
    Gap(
        "distributed::test_ddp_hook_parity_allreduce_process_group",
        "upstream",
        "makes a process group of numbers of devices, which are those of ranks only if a host shows all",
    ),
    Gap(
        "distributed::test_ddp_logging_data_cpu distributed::test_ddp_logging_data_gpu",
        "upstream",
        "DDP's own times of forward and backward need a timer that a device registers in C++",
    ),
    Gap(
        "distributed::test_ddp_profiling_torch_profiler",
        "notyet",
        "collectives are no events `pjrt:all_reduce` of `torch.profiler`",
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
    Gap(
        "dtensor::test_random_numbers_do_not_depend_on_the_sharding",
        "notyet",
        "a shard's random numbers are drawn by themselves, and are not a part of those of the whole",
    ),
    # FSDP
    Gap(
        "fsdp::test_parity_of_mixed_precision",
        "notyet",
        "autocast leaves a sum in bfloat16, where CUDA's makes it float32",
    ),
    Gap(
        "fsdp::test_parity_where_it_moves_to_the_device_mode_DEVICE_NEVER",
        "notyet",
        "parameters offloaded to the CPU: `parameter.data = tensor` within backward, the gradient stays",
    ),
)
