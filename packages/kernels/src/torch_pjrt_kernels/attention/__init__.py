"""Attention: the weighted means of values, by how well keys match queries.

`reference.py` says what it is; `form.py` what calls differ in; `blockwise.py` and `blockwise_backward.py`
compute it on any device in memory that grows with the length, not with its square, `groups.py` a few heads
at a time; `tpu.py` is JAX's kernel for TPUs. `choice.py` says which of them takes a call, `lowerings.py` has
PyTorch's operators, `operator.py` the package's own.
"""
