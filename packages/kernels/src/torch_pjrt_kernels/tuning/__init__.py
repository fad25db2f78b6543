"""`python -m torch_pjrt_kernels`: `bench.py` times kernels, `tune.py` sizes of blocks, for `table.py`."""
