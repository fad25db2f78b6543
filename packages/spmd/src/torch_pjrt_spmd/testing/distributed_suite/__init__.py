"""PyTorch's own tests of many processes on a device: `python -m torch_pjrt_spmd.testing.distributed_suite`.

The tests are those that PyTorch's wheel has in `torch.testing._internal.distributed.distributed_test`, made
to mean this device where they mean CUDA or the CPU (`redirect.py`), and those of `files/` on the test bases
of DTensor and FSDP, whose own test files are not in the wheel. Files of FSDP and of distributed checkpoints
run from a checkout (`checkout.py`): `--checkout DIR`.
"""
