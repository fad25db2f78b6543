"""What PyTorch refuses is refused at the call, also where tensors are too large to be tried on the CPU first.

Small calls are: here none is, so that the other checks have to find all that PyTorch's samples of errors
have wrong.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils import _pytree as pytree

from torch_pjrt.tensor.recording import cpu_errors

OPERATORS = sorted(
    (op for op in op_db if op.error_inputs_func is not None),
    key=lambda op: (op.name, op.variant_test_name),
)
# Samples that lose on the way to the device what is wrong with them: memory that is shared, or none.
_LOST = ("unsupported operation", "Cannot copy out of meta tensor", "must be within [0, 64]")
# Raised where the values are known, which may be wrong.
_OF_VALUES = "The device has found"
# Python's own words for what PyTorch finds later.
OTHER_KINDS = {"linalg.lstsq": ValueError, "narrow_copy": IndexError}


def on_the_device(x: Any) -> Any:
    if isinstance(x, torch.Tensor):
        return x.to("pjrt")
    return torch.device("pjrt") if isinstance(x, torch.device) and x.type == "cpu" else x


def raised(op: Any, input: Any, args: Any, kwargs: Any) -> Exception | None:
    """What the call raises, or reading what it gives where a value is wrong."""
    try:
        results = pytree.tree_leaves(op(input, *args, **kwargs))
    except Exception as error:
        return error
    try:
        for result in results:
            if isinstance(result, torch.Tensor):
                result.cpu()
    except Exception as error:
        assert _OF_VALUES in str(error), f"raised when it is read: {error!r}"
        return error
    return None


@pytest.mark.slow("rows")
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("op", OPERATORS, ids=lambda op: f"{op.name}.{op.variant_test_name}")
def test_error_of_a_large_call_is_raised(op: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu_errors, "_SMALL", 0)
    for sample in op.error_inputs("cpu"):
        given = sample.sample_input
        wanted = raised(op, given.input, given.args, given.kwargs)
        if wanted is None or any(text in str(wanted) for text in _LOST):
            continue
        try:
            moved = pytree.tree_map(on_the_device, (given.input, given.args, given.kwargs))
        except Exception as error:
            assert any(text in str(error) for text in _LOST), error
            continue

        error = raised(op, *moved)

        assert error is not None, wanted
        is_same = type(error) is type(wanted) or type(error) is OTHER_KINDS.get(op.name)
        assert is_same, (wanted, error)
