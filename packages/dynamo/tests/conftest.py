"""What the tests share: counting programs, a fresh compiler for each test, PyTorch on CPU as the oracle.

They ask what is traced, recorded and compiled into how many programs: XLA compiles these quickly.
"""

from __future__ import annotations

import gc
import inspect
from collections.abc import Callable, Iterator
from typing import Any
from unittest.mock import patch

import pytest
import torch

import torch_pjrt
from quickly import compiled_quickly
from torch_pjrt.extend import counters, forget_programs
from torch_pjrt_dynamo import backend, gradients

__all__ = [
    "Programs",
    "agrees",
    "compiled_quickly",
    "fresh_compiler",
    "its_own_compile",
    "programs",
    "ways",
]


@pytest.fixture(autouse=True)
def fresh_compiler() -> Iterator[None]:
    """Dynamo forgets what it compiled, and its settings are as they were."""
    with torch._dynamo.config.patch(recompile_limit=64):
        yield
    torch._dynamo.reset()


@pytest.fixture(autouse=True)
def its_own_compile(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lightning, once imported, wraps `torch.compile` for the whole process, and Dynamo cannot trace that."""
    monkeypatch.setattr(torch, "compile", inspect.unwrap(torch.compile))


class Programs:
    """How many programs were compiled, and how many ran, since the test began or `forget` was called."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        torch.zeros((), device="pjrt")
        gc.collect()
        torch_pjrt.sync()
        self._compiled, self._run = counters.programs_compiled, counters.programs_run

    @property
    def compiled(self) -> int:
        return counters.programs_compiled - self._compiled

    @property
    def run(self) -> int:
        return counters.programs_run - self._run


@pytest.fixture
def programs() -> Programs:
    torch.zeros((), device="pjrt")
    forget_programs()
    return Programs()


@pytest.fixture
def agrees() -> Callable[..., None]:
    """Checks that a compiled function does on `pjrt` what it does on CPU: results, strides, writes, aliases.

    `make` makes the arguments, for a device: what it gives are the tensors that may be written to.
    """

    def check(function: Callable[..., Any], make: Callable[[str], tuple[Any, ...]]) -> None:
        compiled = torch.compile(function, backend="pjrt")
        for _ in range(2):
            given = make("pjrt")
            for device_of_results, saw in (
                ("pjrt", (compiled(*given), given)),
                ("cpu", (compiled(*(host := make("cpu"))), host)),
            ):
                fresh = make("cpu")
                wanted = function(*fresh)
                _same(saw, (wanted, fresh), device_of_results)
                _write_to_results(saw[0])
                _write_to_results(wanted)
                _same(saw, (wanted, fresh), device_of_results)

    return check


def _leaves(x: Any) -> list[Any]:
    if isinstance(x, (list, tuple)):
        return [leaf for part in x for leaf in _leaves(part)]
    if isinstance(x, dict):
        return _leaves(list(x.values()))
    return [x]


def _same(saw: Any, wanted: Any, device: str) -> None:
    for a, b in zip(_leaves(saw), _leaves(wanted), strict=True):
        if not isinstance(b, torch.Tensor):
            assert a == b
            continue
        assert a.device.type == device
        assert a.stride() == b.stride()
        assert a.requires_grad == b.requires_grad
        torch.testing.assert_close(a.detach().cpu(), b.detach())


def _write_to_results(results: Any) -> None:
    with torch.no_grad():
        for n, result in enumerate(_leaves(results)):
            if isinstance(result, torch.Tensor) and not _overlaps(result):
                result.mul_(n + 2)


def _overlaps(x: torch.Tensor) -> bool:
    return 0 in x.stride() and x.numel() > 1


@pytest.fixture
def ways() -> Iterator[list[str]]:
    """How each graph that is compiled in the test was traced.

    As Dynamo has it ("direct"), also "with gradients", or by "AOTAutograd".
    """
    found: list[str] = []
    as_traced = backend.as_traced

    def noting(*args: Any) -> Any:
        compiled = as_traced(*args)
        has_gradients = isinstance(compiled, gradients._WithAttributes)
        way = "with gradients" if has_gradients else "direct"
        found.append("AOTAutograd" if compiled is None else way)
        return compiled

    torch._dynamo.reset()
    with patch.object(backend, "as_traced", noting):
        yield found
