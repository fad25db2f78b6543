"""A view and its base are one memory: what is written to either is seen in both, as on CPU."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import torch

import sides

Tensor = torch.Tensor
Action = Callable[[Tensor], object]


def both(shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    """The same content on CPU and on the device."""
    on_cpu = torch.arange(1, 1 + torch.Size(shape).numel()).to(dtype).reshape(shape)
    return on_cpu, on_cpu.to("pjrt")


assert_same = partial(sides.assert_same, exactly=True, placed=True)


# What is done to a 4x4 tensor: each writes through some view.
WRITES: list[tuple[str, Action]] = [
    ("diagonal", lambda t: t.diagonal().fill_(2)),
    ("steps in two dims", lambda t: t[::2, 1::2].add_(1)),
    ("row of the transpose", lambda t: t.t()[0].mul_(3)),
    ("flat slice over rows", lambda t: t.view(-1)[5:9].copy_(torch.arange(4.0))),
    ("column", lambda t: t[:, 2].sub_(t[:, 1])),
    ("view of a view of a view", lambda t: t[1:].t()[1:, ::2].zero_()),
    ("as_strided with an offset", lambda t: t.as_strided((2, 2), (5, 3), 2).neg_()),
    ("own transpose's clone", lambda t: t.copy_(t.t().clone())),
    ("detached", lambda t: t.detach()[1].fill_(9)),
    ("data", lambda t: t.data[0].fill_(9)),
    ("unbind", lambda t: t.unbind(1)[3].add_(1)),
    ("split", lambda t: [part.mul_(i) for i, part in enumerate(t.split(3, 1))]),
    ("real of a complex view", lambda t: torch.view_as_complex(t.view(4, 2, 2)).real.zero_()),
    ("bytes of the first element", lambda t: t.view(torch.uint8)[0, :4].zero_()),
    ("item by index", lambda t: t.__setitem__((2, 3), 7)),
    ("rows by a list", lambda t: t.__setitem__([0, 2], 7.0)),
    ("rows by a mask", lambda t: t.__setitem__(t[:, 0] > 5, -1.0)),
    ("where a mask is true", lambda t: t.__setitem__(t > 5, 0.0)),
    ("a block by a block", lambda t: t[:2, :2].copy_(t[2:, 2:])),
    (
        "accumulated rows",
        lambda t: t.index_add_(0, torch.tensor([1, 1]).to(t.device), t[:2].clone()),
    ),
    ("foreach over rows", lambda t: torch._foreach_add_(list(t.unbind()), 1.0)),
    ("out= into a view", lambda t: torch.add(t[0], t[1], out=t[2])),
    ("in place after a reshape", lambda t: t.reshape(2, 8)[1].mul_(2)),
]


@pytest.mark.parametrize("write", [pytest.param(w, id=name) for name, w in WRITES])
@pytest.mark.filterwarnings("ignore:.*runs on the CPU:UserWarning")
def test_write_through_a_view_changes_its_base_as_on_cpu(write: Action) -> None:
    on_cpu, ours = both((4, 4))
    row_on_cpu, row = on_cpu[2], ours[2]

    write(on_cpu)
    write(ours)

    assert_same(ours, on_cpu)
    assert_same(row, row_on_cpu)


def test_all_writes_in_one_program_change_the_base_as_on_cpu() -> None:
    on_cpu, ours = both((4, 4))

    for name, write in WRITES:
        if "mask" not in name:  # a mask is read, which ends the program
            write(on_cpu)
            write(ours)

    assert_same(ours, on_cpu)


def test_write_to_the_base_is_seen_in_views_taken_before() -> None:
    on_cpu, ours = both((3, 4))
    views = [(t.t(), t[1:, ::2], t.view(-1)[3:], t.expand(2, 3, 4)) for t in (on_cpu, ours)]

    on_cpu.add_(1).mul_(2)
    ours.add_(1).mul_(2)

    for theirs, view in zip(*views, strict=True):
        assert_same(view, theirs)


def test_operator_result_shares_no_memory_with_its_input() -> None:
    x = torch.ones(3, device="pjrt")
    y, z = x.clone(), x + 0

    x.zero_()

    assert y.tolist() == z.tolist() == [1, 1, 1]
    assert len({t.untyped_storage().data_ptr() for t in (x, y, z)}) == 3


def test_copy_of_a_whole_tensor_does_not_tie_the_two() -> None:
    x, y = torch.ones(3, device="pjrt"), torch.zeros(3, device="pjrt")

    y.copy_(x)
    x.add_(1)

    assert y.tolist() == [1, 1, 1]
    assert x.tolist() == [2, 2, 2]


def test_write_counts_a_version_in_the_tensor_and_its_views() -> None:
    x = torch.zeros(3, device="pjrt")
    view = x[1:]

    view.add_(1)

    assert (x._version, view._version) == (1, 1)


def test_backward_through_a_tensor_changed_in_place_is_refused() -> None:
    x = torch.ones(3, device="pjrt", requires_grad=True)
    y = x.exp()
    y.add_(1)

    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_gradient_flows_through_views_and_writes_as_on_cpu() -> None:
    gradients = []
    for device in ("cpu", "pjrt"):
        x = torch.arange(6.0, device=device).reshape(2, 3).requires_grad_()
        y = x * 1
        y.t()[1].mul_(3)
        y[0, 1:] = x[1, :2] * 5
        (y.view(-1)[::2] ** 2).sum().backward()
        gradients.append(x.grad)

    torch.testing.assert_close(gradients[1].cpu(), gradients[0])


def test_set_data_moves_a_tensor_to_other_memory() -> None:
    x, y = torch.zeros(3, device="pjrt"), torch.ones(3, device="pjrt")
    old = x.detach()

    x.data = y
    x.add_(1)

    assert y.tolist() == [2, 2, 2]
    assert old.tolist() == [0, 0, 0]


def test_resize_keeps_what_was_there() -> None:
    x = torch.arange(4.0, device="pjrt")

    x.resize_(2, 3)

    assert x.shape == (2, 3)
    assert x.flatten()[:4].tolist() == [0, 1, 2, 3]


def test_resized_out_gets_the_result_and_its_shape() -> None:
    out = torch.empty(0, device="pjrt")

    torch.add(torch.ones(2, 2, device="pjrt"), 1, out=out)

    assert out.tolist() == [[2, 2], [2, 2]]


@pytest.mark.parametrize(
    "make",
    [
        lambda d: torch.arange(12.0).view(3, 4).t().to(d),
        lambda d: torch.arange(12.0).view(3, 4)[:, ::2].to(d, copy=True),
        lambda d: torch.arange(24.0).view(1, 2, 3, 4).to(d, memory_format=torch.channels_last),
        lambda d: torch.empty_strided((2, 3), (1, 2), device=d).zero_(),
        lambda d: torch.arange(12.0).view(3, 4).to(d).t().clone(),
        lambda d: torch.arange(12.0).view(3, 4).to(d).t().contiguous(),
        lambda d: torch.arange(12.0).view(3, 4).to(d).t() * 2,
        lambda d: torch.arange(12.0).view(3, 4).to(d).t().to(torch.float64),
        lambda d: torch.empty_like(torch.zeros(3, 4, device=d).t()).zero_(),
        lambda d: torch.zeros(2, 0, 3, device=d) + 1,
    ],
)
def test_new_tensor_lies_in_memory_as_on_cpu(make: Callable[[str], Tensor]) -> None:
    assert_same(make("pjrt"), make("cpu"))


def test_dtype_views_read_the_same_bits() -> None:
    x = torch.tensor([1.5, -2.0, 0.0], device="pjrt")

    assert x.view(torch.int32).tolist() == x.cpu().view(torch.int32).tolist()
    assert x.view(torch.int16).tolist() == x.cpu().view(torch.int16).tolist()
    assert torch.equal(x.view(torch.int32).view(torch.float32).cpu(), x.cpu())


def test_parts_of_a_complex_tensor_are_views() -> None:
    z = torch.zeros(3, dtype=torch.complex64, device="pjrt")

    torch.view_as_real(z)[:, 1] = 2
    z.real[0] = 5

    assert z.tolist() == [5 + 2j, 2j, 2j]
    assert z.conj().tolist() == [5 - 2j, -2j, -2j]
    assert z.conj().imag.tolist() == [-2, -2, -2]


def test_copying_a_view_to_the_same_view_changes_nothing_and_is_not_refused() -> None:
    base = torch.ones(3, device="pjrt")
    one, other = base.expand(2, 3), base.expand(2, 3)

    one.copy_(other)

    assert base.tolist() == [1, 1, 1]


def test_parts_of_no_complex_number_can_be_read() -> None:
    z = torch.ones(3, dtype=torch.complex64, device="pjrt")
    empty = z[z == 0]

    assert empty.imag.tolist() == torch.view_as_real(empty).tolist() == []


def test_a_view_of_another_dtype_refuses_lazy_bits_as_on_cpu() -> None:
    x = torch.ones(2, dtype=torch.complex64, device="pjrt")
    with pytest.raises(RuntimeError, match="conjugate view"):
        x.conj().view(torch.float32)
    with pytest.raises(RuntimeError, match="negative bit"):
        torch.ops.aten._neg_view(x.real).view(torch.int32)


def test_view_as_complex_keeps_the_neg_bit() -> None:
    pairs = torch.tensor([[1.0, 2.0]], device="pjrt")
    assert torch.view_as_complex(torch.ops.aten._neg_view(pairs)).tolist() == [-1 - 2j]


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
