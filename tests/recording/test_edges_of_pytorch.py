"""Where PyTorch meets the device beside its operators: what it does with the CPU's tensors, it does here."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import nn

DTYPES = (torch.float32, torch.int32, torch.bool, torch.complex64, torch.uint8)


@pytest.fixture
def deterministic() -> Iterator[None]:
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


#   what leaves memory as it is
LEAVES_MEMORY: dict[str, Callable[[torch.dtype, str], torch.Tensor]] = {
    "empty": lambda dtype, d: torch.empty(3, dtype=dtype, device=d),
    "empty_like": lambda dtype, d: torch.empty_like(torch.ones(2, dtype=dtype, device=d)),
    "empty_strided": lambda dtype, d: torch.empty_strided((2, 2), (4, 1), dtype=dtype, device=d),
    "new_empty": lambda dtype, d: torch.ones(2, dtype=dtype, device=d).new_empty(2),
    "resize_": lambda dtype, d: torch.ones(2, dtype=dtype, device=d).resize_(4),
    "resize_ of a view": lambda dtype, d: torch.ones(4, dtype=dtype, device=d)[2:].resize_(3),
    "resize_ to less": lambda dtype, d: torch.ones(4, dtype=dtype, device=d).resize_(3),
}


@pytest.mark.usefixtures("deterministic")
@pytest.mark.parametrize("name", LEAVES_MEMORY)
def test_memory_is_filled_where_pytorch_is_deterministic(name: str) -> None:
    make = LEAVES_MEMORY[name]

    for dtype in DTYPES:
        torch.testing.assert_close(make(dtype, "pjrt").cpu(), make(dtype, "cpu"), equal_nan=True)


def test_number_is_copied_as_exactly_as_the_dtype_holds_it() -> None:
    for number in (1.5, 0.1, 3, True, 2**53 + 1):
        for dtype in (torch.float64, torch.int64, torch.bool):
            there = torch.zeros(2, dtype=dtype, device="pjrt").copy_(number)  # type: ignore[arg-type]
            assert there.tolist() == torch.zeros(2, dtype=dtype).copy_(number).tolist()  # type: ignore[arg-type]


def test_mask_of_uint8_warns_as_on_cpu() -> None:
    said = []
    for device in ("cpu", "pjrt"):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            torch.ones(2, device=device)[torch.tensor([1, 0], dtype=torch.uint8, device=device)]
        said.append(
            [(w.category, str(w.message).partition(" (Triggered")[0], w.filename) for w in caught]
        )

    assert said[0] == said[1]
    assert len(said[0]) == 1


def test_parameter_takes_data_of_the_other_device() -> None:
    module = nn.Linear(2, 1)
    weight = module.weight

    for parameter in module.parameters():
        parameter.data = parameter.to("pjrt")
    module(torch.ones(1, 2, device="pjrt")).sum().backward()

    assert module.weight is weight
    assert isinstance(weight, nn.Parameter)
    assert weight.grad is not None
    assert weight.grad.tolist() == [[1, 1]]


def test_parameter_with_a_gradient_keeps_its_device() -> None:
    parameter = nn.Parameter(torch.ones(2))
    parameter.sum().backward()

    with pytest.raises(NotImplementedError, match="the gradient would be left"):
        parameter.data = torch.ones(2, device="pjrt")

    assert parameter.device.type == "cpu"


def test_graph_of_a_parameter_that_has_moved_raises() -> None:
    parameter = nn.Parameter(torch.ones(2))
    result = (parameter * 2).sum()
    parameter.data = torch.ones(2, device="pjrt")

    with pytest.raises(RuntimeError, match="came after the call"):
        result.backward()


def test_tensors_are_sent_to_another_process(python) -> None:  # type: ignore[no-untyped-def]
    python(
        """
import io, pickle, torch
from multiprocessing.reduction import ForkingPickler

x = torch.nn.Parameter(torch.arange(4.0, device="pjrt")[1:] * 2)
sent = pickle.loads(ForkingPickler.dumps(x))  # within one process: the same as in the other
assert type(sent) is torch.nn.Parameter and sent.device.type == "pjrt"
assert sent.tolist() == [2, 4, 6] and sent.data_ptr() != x.data_ptr()
"""
    )


@pytest.mark.slow
def test_dlpack_imported_by_name_before_the_first_use_knows_the_device(python) -> None:  # type: ignore[no-untyped-def]
    python(
        """
from torch.utils.dlpack import from_dlpack, to_dlpack
import torch

assert from_dlpack(to_dlpack(torch.arange(4.0, device="pjrt"))).tolist() == [0, 1, 2, 3]
""",
        fresh=True,
    )


def test_missing_jaxlib_is_said_with_what_to_do(python) -> None:  # type: ignore[no-untyped-def]
    said = python(
        """
import sys
sys.modules["jaxlib"] = None
import torch

assert not torch.pjrt.is_available()
torch.ones(2, device="pjrt")
""",
        returncode=1,
        fresh=True,
    ).stderr

    assert "NoDevice: JAX cannot be imported" in said
    assert "pip install torch-pjrt" in said


def test_option_that_the_cpu_does_not_know_is_refused(python) -> None:  # type: ignore[no-untyped-def]
    said = python(
        "import torch; torch.ones(2, device='pjrt')",
        returncode=1,
        TORCH_PJRT_CLIENT_OPTIONS="no_such=1",
    ).stderr

    assert "TORCH_PJRT_CLIENT_OPTIONS names no_such" in said
