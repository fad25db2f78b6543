"""A kernel that is written out has no name of its own that is one of its operator's arguments."""

from __future__ import annotations

import dis
from types import FunctionType

import torch

from torch_pjrt.lowering import CORE
from torch_pjrt.tensor.recording.kernel_source import kernel_of

# So that the device has started.
torch.ones(1, device="pjrt")


def test_no_kernel_writes_to_an_argument() -> None:
    wrong, tried = [], 0
    for op in CORE:
        kernel = kernel_of(op)
        if not isinstance(kernel, FunctionType) or kernel.__name__ != "kernel":
            continue
        code = kernel.__code__
        if not code.co_filename.endswith(f"<kernel of {op}>"):
            continue
        tried += 1
        arguments = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
        written = {x.argval for x in dis.get_instructions(code) if x.opname == "STORE_FAST"}
        wrong += [f"{op}: {name}" for name in arguments if name in written]

    assert tried > 300
    assert not wrong


def test_polygamma_takes_its_order() -> None:
    x = torch.tensor([0.5, 1.5, 3.0])

    for order in (0, 1, 2):
        expected = torch.polygamma(order, x)
        torch.testing.assert_close(torch.polygamma(order, x.to("pjrt")).cpu(), expected)


def test_a_number_called_value_is_recorded() -> None:
    x = torch.ones(2, device="pjrt")
    results = [torch.addcmul(x, x, x, value=v).tolist() for v in (2.0, 3.0, 4.0)]
    assert results == [[3, 3], [4, 4], [5, 5]]
