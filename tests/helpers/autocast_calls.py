"""Calls of PyTorch's own samples within autocast, and the dtypes that they give."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import torch
from torch.testing._internal.autocast_test_lists import AutocastCPUTestLists
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils._pytree import tree_leaves, tree_map

Call = tuple[str, Callable[..., Any], tuple[Any, ...], dict[str, Any]]

# Operators whose result has another dtype here, or that no device of this kind has.
LEFT_OUT = {
    "linalg.pinv": "one operator here; on CPU autocast reaches the products inside",
    "linalg.pinv.hermitian": "one operator here; on CPU autocast reaches the products inside",
    "as_strided.partial_views": "its samples are views with an offset, which copies are not",
    "_softmax_backward_data": "its samples name another dtype than that of these inputs",
    "tensor_split": "its indices must be on the CPU",
}


def calls_of_op_db(dtype: torch.dtype, part: int, parts: int) -> Iterator[Call]:
    """A sample of each operator of PyTorch's `op_db`, floats as `dtype`: one of so many parts of them."""
    for op in op_db[part % parts :: parts]:
        if torch.float32 not in op.dtypes or op.full_name in LEFT_OUT or "jiterator" in op.name:
            continue
        # Not `op.sample_inputs`, which walks the stack to find a unittest: most of the time, under pytest.
        samples = op.sample_inputs_func(op, "cpu", torch.float32, False)
        for sample in islice(samples, 1):
            given = ((sample.input, *sample.args), sample.kwargs)
            args, kwargs = tree_map(lambda x: _with_dtype(x, dtype), given)
            yield op.full_name, op.op, args, kwargs


def calls_of_lists() -> Iterator[Call]:
    """The calls by which PyTorch tests its own lists."""
    lists = vars(AutocastCPUTestLists(torch.device("cpu")))
    for where in ("torch_16", "torch_fp32", "nn_16", "nn_fp32", "torch_need_autocast_promote"):
        module: Any = vars(torch._C)["_nn"] if where.startswith("nn") else torch
        for name, args, *rest in lists[where]:
            kwargs = rest[-1] if rest and isinstance(rest[-1], dict) else {}
            yield name, getattr(module, name), args, kwargs


def dtypes_of(call: Call, device: str, lower: torch.dtype) -> list[torch.dtype] | str:
    """The dtypes of what the call gives within autocast; the name of its error if it raises."""
    _, function, args, kwargs = call
    args, kwargs = tree_map(lambda x: _on(x, device), (args, kwargs))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            with torch.no_grad(), torch.autocast(device, dtype=lower):
                results = function(*args, **kwargs)
        except Exception as error:
            return type(error).__name__
    return [x.dtype for x in tree_leaves(results) if isinstance(x, torch.Tensor)]


def _with_dtype(x: Any, dtype: torch.dtype) -> Any:
    return x.to(dtype) if isinstance(x, torch.Tensor) and x.is_floating_point() else x


def _on(x: Any, device: str) -> Any:
    if isinstance(x, torch.device) or (x == "cpu" and isinstance(x, str)):
        return torch.device(device)
    return x.detach().to(device) if isinstance(x, torch.Tensor) else x
