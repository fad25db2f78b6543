"""Whether a device does what PyTorch does on CPU: every operator of PyTorch's own sample database.

`python -m torch_pjrt.testing.conformance --help` runs it. An *operator* is an entry of
`torch.testing._internal.common_methods_invocations.op_db`, a *case* one operator with one dtype and
one kind of check (forward, gradient, second derivative, `out=`, in place, errors). A case passes if
all of the entry's samples do. What does not pass is a row of `gaps.py`; a row whose case passes fails
the run.
"""
