"""Results that share memory with arguments, arguments that are written to, and odd strides are as on CPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import torch_pjrt

Tensor = torch.Tensor


def one(device: str) -> tuple[Tensor]:
    return (torch.arange(12.0).reshape(3, 4).to(device),)


def two(device: str) -> tuple[Tensor, Tensor]:
    return torch.arange(12.0).reshape(3, 4).to(device), torch.full((3, 4), 0.5, device=device)


def sliced(device: str) -> tuple[Tensor]:
    return (torch.arange(24.0).reshape(6, 4).to(device)[1::2, :3],)


def transposed(device: str) -> tuple[Tensor]:
    return (torch.arange(12.0).reshape(3, 4).to(device).t(),)


def expanded(device: str) -> tuple[Tensor]:
    return (torch.arange(3.0).to(device)[:, None].expand(3, 4),)


def images(device: str) -> tuple[Tensor]:
    return (
        torch.arange(48.0).reshape(1, 3, 4, 4).to(memory_format=torch.channels_last).to(device),
    )


def base_and_view(device: str) -> tuple[Tensor, Tensor]:
    base = torch.arange(12.0).to(device)
    return base, base[2:6]


def numbers(device: str) -> tuple[Any, ...]:
    return torch.arange(4.0).to(device), 3, 2.5, "name", None, True


def complex_numbers(device: str) -> tuple[Tensor]:
    return (torch.complex(torch.arange(4.0), torch.ones(4)).to(device).conj(),)


def write_and_view(x: Tensor) -> Any:
    x.add_(1)
    return x, x[1:], x.sum()


def write_slice(x: Tensor) -> Tensor:
    x[1] = 7
    return x * 2


def write_through_views(x: Tensor) -> Tensor:
    y = x.view(-1)[2:6]
    y.mul_(3)
    return y + 1


def two_views_of_a_new_one(x: Tensor) -> Any:
    y = x + 1
    return y, y.view(-1), y.t(), y[1:, ::2]


def write_twice(x: Tensor, y: Tensor) -> Any:
    x.add_(y)
    y.copy_(x)
    return x.sum() + y.sum()


def overlapping_writes(base: Tensor, view: Tensor) -> Any:
    base.add_(1)
    view.mul_(2)
    return base.sum(), view + 0


def by_numbers(x: Tensor, i: int, f: float, name: str, nothing: None, flag: bool) -> Any:
    return (x * f + i if flag else x), i + 1, f


CASES: dict[str, tuple[Callable[..., Any], Callable[[str], tuple[Any, ...]]]] = {
    "the argument": (lambda x: x, one),
    "views of the argument": (lambda x: (x[1:], x.t(), x.view(-1), x[:, ::2]), one),
    "the argument twice": (lambda x: (x, x, x + 1), one),
    "a new one and its views": (two_views_of_a_new_one, one),
    "a transposed new one": (lambda x: (x + 1).t(), one),
    "an expanded new one": (lambda x: (x.sum() + 1).expand(2, 3), one),
    "a gap in a new one": (lambda x: (x * 2)[:, ::2], one),
    "detached": (lambda x: (x + 1).detach(), one),
    "written": (write_and_view, one),
    "a slice is written": (write_slice, one),
    "written through views": (write_through_views, one),
    "two are written": (write_twice, two),
    "sliced argument": (lambda x: (x.sum(0), x.contiguous(), x + 1, x[1:], x.reshape(-1)), sliced),
    "sliced argument is written": (write_and_view, sliced),
    "transposed argument": (lambda x: (x + 1, x @ x.t(), x.t().view(-1)), transposed),
    "transposed argument is written": (write_and_view, transposed),
    "expanded argument": (lambda x: (x + 1, x.reshape(-1), x[1:]), expanded),
    "channels last": (lambda x: (x * 2, x.mean((2, 3)), torch.relu(x).contiguous()), images),
    "storage of the argument": (lambda x: torch.as_strided(x, (2, 2), (4, 1), 5) + 1, sliced),
    "a base and its view": (overlapping_writes, base_and_view),
    "conjugated": (lambda x: (x * 2, x.real + 1), complex_numbers),
    "numbers": (by_numbers, numbers),
    "inputs swapped": (lambda x, y: (y, x, x + y), two),
}


@pytest.mark.parametrize("case", CASES)
def test_a_compiled_function_does_to_memory_what_it_does_on_cpu(
    case: str, agrees: Callable[..., None]
) -> None:
    agrees(*CASES[case])


def test_what_is_written_counts_a_version() -> None:
    x = torch.zeros(3, device="pjrt")
    before = x._version

    torch.compile(lambda x: x.add_(1), backend="pjrt")(x)

    assert x._version > before


def test_batch_norm_keeps_its_statistics() -> None:
    torch.manual_seed(0)
    norm = torch.nn.BatchNorm2d(3)
    mine = torch.nn.BatchNorm2d(3).to("pjrt")
    compiled = torch.compile(mine, backend="pjrt")
    x = torch.randn(2, 3, 4, 4)

    for _ in range(3):
        norm(x)
        compiled(x.to("pjrt"))

    assert norm.num_batches_tracked is not None and mine.num_batches_tracked is not None
    assert mine.num_batches_tracked.item() == norm.num_batches_tracked.item() == 3
    torch.testing.assert_close(mine.running_mean.cpu(), norm.running_mean)
    torch.testing.assert_close(mine.running_var.cpu(), norm.running_var)


def test_a_view_at_another_offset_is_the_same_program(programs: Any) -> None:
    data = torch.arange(12.0, device="pjrt").reshape(3, 4)
    compiled = torch.compile(lambda x: x.sum() * 2, backend="pjrt")
    torch_pjrt.sync()
    for i in range(2):  # the offset is a constant, then a number
        float(compiled(data[i]))
    programs.forget()

    assert float(compiled(data[2])) == 2 * (8 + 9 + 10 + 11)
    assert programs.compiled == 0
