"""Complex numbers of half precision, which XLA lacks, are what they are on the CPU, to the last bit."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch

import torch_pjrt
from sides import saved

NUMBERS = torch.tensor([1.3 + 2.1j, 3.7 - 1.9j, 1e-6 + 1e-7j])
HALVES = torch.tensor([1.3, 2.7, 1e-3, 4.0]).half()


def numbers(device: str) -> torch.Tensor:
    return NUMBERS.chalf().to(device)


def halves(device: str) -> torch.Tensor:
    return HALVES.to(device, copy=True)


def written(x: torch.Tensor, write: Callable[[torch.Tensor], Any]) -> torch.Tensor:
    write(x)
    return x


def gradient(device: str) -> torch.Tensor | None:
    x = NUMBERS.real.to(device, copy=True).requires_grad_()
    (x.chalf() * (1.5 + 2j)).real.float().sum().backward()
    return x.grad


CASES: dict[str, Callable[[str], Any]] = {
    "moved": numbers,
    "chalf of floats": lambda d: torch.tensor([1.1, 1e6, 1e-7], device=d).chalf(),
    "chalf of complex128": lambda d: torch.tensor([1.1 + 1e-7j]).to(torch.complex128).to(d).chalf(),
    "chalf of integers": lambda d: torch.tensor([3, 70000], device=d).chalf(),
    "complex of halves": lambda d: torch.complex(halves(d), halves(d)),
    "halves times a complex number": lambda d: halves(d) * 1.5j,
    "made": lambda d: torch.full((2,), 1.1j, dtype=torch.complex32, device=d),
    "torch.tensor": lambda d: torch.tensor([1.1j], dtype=torch.complex32, device=d),
    "to complex64": lambda d: numbers(d).to(torch.complex64),
    "to bool": lambda d: numbers(d).bool(),
    "sum": lambda d: numbers(d) + numbers(d),
    "product": lambda d: numbers(d) * numbers(d),
    "product with halves": lambda d: numbers(d) * halves(d)[:3],
    "product with floats": lambda d: numbers(d) * torch.ones(3, device=d),
    "abs": lambda d: numbers(d).abs(),
    "sgn": lambda d: numbers(d).sgn(),
    "neg": lambda d: -numbers(d),
    "conj": lambda d: numbers(d).conj(),
    "conj_physical": lambda d: numbers(d).conj_physical(),
    "imag of conj": lambda d: numbers(d).conj().imag.clone(),
    "==": lambda d: numbers(d) == numbers(d),
    "isnan": lambda d: numbers(d).isnan(),
    "nonzero": lambda d: numbers(d).nonzero(),
    "mask": lambda d: numbers(d)[numbers(d) != 0],
    "index": lambda d: numbers(d)[torch.tensor([2, 0], device=d)],
    "cat": lambda d: torch.cat([numbers(d), numbers(d)]),
    "transposed": lambda d: numbers(d).expand(2, 3).t().contiguous(),
    "tolist": lambda d: numbers(d).tolist(),
    "real": lambda d: numbers(d).real,
    "imag": lambda d: numbers(d).imag,
    "view_as_real": lambda d: torch.view_as_real(numbers(d)),
    "view_as_complex": lambda d: torch.view_as_complex(halves(d).view(2, 2)),
    "view of halves, cloned": lambda d: torch.view_as_complex(halves(d).view(2, 2)).clone(),
    "bytes as halves": lambda d: numbers(d).view(torch.float16),
    "bytes as integers": lambda d: numbers(d).view(torch.int32),
    "bytes of integers": lambda d: numbers(d).view(torch.int32).clone().view(torch.complex32),
    "bytes of complex64": lambda d: torch.tensor([1.5 + 3j], device=d).view(torch.complex32),
    "written through real": lambda d: written(numbers(d), lambda x: x.real.zero_()),
    "written through bytes": lambda d: written(
        numbers(d), lambda x: x.view(torch.int32)[:1].zero_()
    ),
    "halves written through complex": lambda d: written(
        halves(d), lambda x: torch.view_as_complex(x.view(2, 2)).mul_(2 + 1j)
    ),
    "a part written": lambda d: written(numbers(d), lambda x: x[1:].add_(1.5j)),
    "copied to": lambda d: torch.zeros(3, dtype=torch.complex32, device=d).copy_(NUMBERS),
    "copied from": lambda d: torch.zeros(3, dtype=torch.complex64, device=d).copy_(numbers(d)),
    "gradient": gradient,
    "deepcopy": lambda d: copy.deepcopy(numbers(d)),
    "saved and loaded": lambda d: saved(numbers(d)).to(d),
    "printed": lambda d: repr(numbers(d)).replace("device='pjrt:0', ", ""),
}


@pytest.mark.parametrize("name", CASES)
def test_it_is_what_it_is_on_the_cpu(name: str) -> None:
    ours, theirs = CASES[name]("pjrt"), CASES[name]("cpu")

    if isinstance(theirs, torch.Tensor):
        assert ours.device.type == "pjrt"
        torch.testing.assert_close(ours.cpu(), theirs, rtol=0, atol=0)
    else:
        assert ours == theirs


@pytest.mark.parametrize(
    "function", [torch.sin, torch.exp, torch.sum, torch.sqrt, torch.reciprocal]
)
def test_what_the_cpu_refuses_is_refused(function: Callable[[torch.Tensor], torch.Tensor]) -> None:
    with pytest.raises(NotImplementedError, match="ComplexHalf"):
        function(numbers("pjrt"))


@pytest.mark.parametrize("size", [8, 1 << 17])
@pytest.mark.parametrize("function", [torch.fft.fft, torch.fft.irfft])
def test_ffts_are_refused_whatever_the_size_is(
    function: Callable[[torch.Tensor], torch.Tensor], size: int
) -> None:
    x = torch.ones(size, dtype=torch.complex32)
    with pytest.raises(RuntimeError) as theirs:
        function(x)

    with pytest.raises(RuntimeError) as ours:
        function(x.to("pjrt"))
    assert str(ours.value) == str(theirs.value)


def test_its_array_is_complex64() -> None:
    array = torch_pjrt.to_jax(numbers("pjrt"))

    assert array.dtype == "complex64"
    assert array.tolist() == NUMBERS.chalf().to(torch.complex64).tolist()
