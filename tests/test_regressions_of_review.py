"""What once gave a wrong value or a wrong error, kept right."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch

import torch_pjrt
from torch_pjrt.compile import build
from torch_pjrt.errors import LostValue, WrongLowering

Run = Callable[..., Any]


def test_equal_with_a_cpu_tensor_raises() -> None:
    with pytest.raises(RuntimeError, match="same device"):
        torch.equal(torch.ones(3, device="pjrt"), torch.ones(3))


def test_complex_numbers_are_told_apart_by_the_sign_of_zero() -> None:
    values = [torch.full((1,), complex(1, zero), device="pjrt").cpu() for zero in (0.0, -0.0)]
    assert [bool(torch.signbit(v.imag)) for v in values] == [False, True]


def test_an_out_of_a_wrong_dtype_is_refused_after_a_right_one_too() -> None:
    x = torch.ones(2, 2, device="pjrt")
    torch.mm(x, x, out=torch.empty(2, 2, device="pjrt"))
    with pytest.raises(RuntimeError, match="Expected out tensor to have dtype float"):
        torch.mm(x, x, out=torch.empty(2, 2, dtype=torch.float64, device="pjrt"))


def test_a_view_of_another_dtype_refuses_lazy_bits_as_on_cpu() -> None:
    x = torch.ones(2, dtype=torch.complex64, device="pjrt")
    with pytest.raises(RuntimeError, match="conjugate view"):
        x.conj().view(torch.float32)
    with pytest.raises(RuntimeError, match="negative bit"):
        torch.ops.aten._neg_view(x.real).view(torch.int32)


def test_view_as_complex_keeps_the_neg_bit() -> None:
    pairs = torch.tensor([[1.0, 2.0]], device="pjrt")
    assert torch.view_as_complex(torch.ops.aten._neg_view(pairs)).tolist() == [-1 - 2j]


def test_a_deep_copy_keeps_two_tensors_on_one_memory() -> None:
    x = torch.zeros(4, device="pjrt") + 1
    alias = x.detach()
    seen_otherwise = x.view(2, 2)  # gives `x`, and not `alias`, a storage of true size
    x, alias, seen_otherwise = copy.deepcopy((x, alias, seen_otherwise))
    seen_otherwise.add_(1)
    assert x.tolist() == alias.tolist() == [2, 2, 2, 2]


@pytest.mark.parametrize("device", ["cpu", "pjrt"])
def test_lists_with_shared_elements_are_done_in_turn(device: str) -> None:
    a, b = torch.tensor(1.0, device=device), torch.tensor(5.0, device=device)
    torch.ops.aten._foreach_add_.List([a, b], [b, a])
    torch.ops.aten._foreach_mul_.Scalar([a, a, b], 2.0)
    assert (a.item(), b.item()) == (24, 22)


@pytest.mark.parametrize("device", ["cpu", "pjrt"])
def test_a_saved_tensor_changed_by_a_list_operator_is_noticed(device: str) -> None:
    w = torch.ones(3, device=device, requires_grad=True)
    loss = (w * w).sum()
    with torch.no_grad():
        torch.ops.aten._foreach_add_.Scalar([w], 1.0)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_a_view_of_another_dtype_may_leave_bytes_at_the_end() -> None:
    shorts = torch.arange(1, 4, dtype=torch.int16, device="pjrt")
    ints = shorts[:2].view(torch.int32)
    assert ints.tolist() == [0x20001]
    ints.add_(0x10000)
    assert (ints * 1).tolist() == [0x30001]
    assert shorts.tolist() == [1, 3, 3]


@pytest.mark.parametrize("device", ["cpu", "pjrt"])
def test_views_of_several_dtypes_write_to_one_memory(device: str) -> None:
    x = torch.arange(4.0).to(device)
    x.view(torch.int32)[0] = 0x3F800000
    x.view(torch.uint8)[4:8] = 0
    x.view(torch.float64).mul_(1)
    x.view(torch.bfloat16)[::2] = 0
    assert x.tolist() == [1, 0, 2, 3]


@pytest.mark.filterwarnings("ignore:.*runs on the CPU")
def test_segment_reduce_is_not_refused_for_made_up_lengths() -> None:
    lengths = torch.tensor([1, 3], device="pjrt")
    data = torch.arange(4.0, device="pjrt")
    assert torch.segment_reduce(data, "sum", lengths=lengths).tolist() == [0, 6]


def test_after_a_program_that_fails_the_rest_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    apply = build.apply

    def failing(node: Any, *rest: Any) -> Any:
        if node.op is torch.ops.aten.erfinv.default:
            raise WrongLowering("as if its rule were broken")
        return apply(node, *rest)

    monkeypatch.setattr(build, "apply", failing)
    kept = torch.zeros(2, device="pjrt")
    torch_pjrt.sync()
    kept.add_(1)
    others = [kept * i for i in range(5)]
    broken = torch.erfinv(kept)
    with pytest.raises(WrongLowering, match="broken"):
        torch_pjrt.sync()
    torch_pjrt.sync()
    assert kept.tolist() == [1, 1]
    assert [x[0].item() for x in others] == [0, 1, 2, 3, 4]
    with pytest.raises(LostValue, match="as if its rule"):
        broken.cpu()
    with pytest.raises(LostValue, match="as if its rule"):
        _ = broken + 1
    kept.add_(1)
    assert kept.tolist() == [2, 2]


def test_an_interrupt_while_recording_leaves_a_tape_that_is_right(python: Run) -> None:
    python(
        """
import random, signal, torch
class Stop(KeyboardInterrupt): pass
def stop(*_): raise Stop
signal.signal(signal.SIGALRM, stop)
for _ in range(100):
    a, w = torch.ones(4, device="pjrt"), torch.ones(2, 2, device="pjrt")
    try:
        signal.setitimer(signal.ITIMER_REAL, random.uniform(2e-4, 2e-3))
        for _ in range(1000):
            b = (a * 3.0).add(a, alpha=2.0)
            w[0].mul_(1.0)
            values, indices = a.max(0)
    except Stop:
        pass
    p = a * 3.0
    assert (p - a).add(p, alpha=5.0).tolist() == [17.0] * 4
    assert w.tolist() == [[1.0, 1.0], [1.0, 1.0]]
"""
    )


def test_a_number_called_value_is_recorded() -> None:
    x = torch.ones(2, device="pjrt")
    results = [torch.addcmul(x, x, x, value=v).tolist() for v in (2.0, 3.0, 4.0)]
    assert results == [[3, 3], [4, 4], [5, 5]]


def test_dropout_in_place_may_leave_its_probability_to_the_default():
    x = torch.ones(1000, device="pjrt")

    torch.nn.functional.dropout(x, inplace=True)

    assert set(x.tolist()) == {0.0, 2.0}


def test_new_empty_strided_keeps_strides_that_leave_gaps():
    x = torch.ones(2, device="pjrt").new_empty_strided((2, 3), (1, 4))

    assert (x.shape, x.stride(), x.dtype) == ((2, 3), (1, 4), torch.float32)
