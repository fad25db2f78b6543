"""The same work on the CPU and on the device: recorded case after case, read once, compared.

Compilations are what such tests cost. So the device's results of many cases stay pending until the first
of them is read, and one program computes all.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch.nn.utils.rnn import PackedSequence
from torch.utils._pytree import tree_leaves

DEVICE = "pjrt"


@dataclass(frozen=True)
class Tolerance:
    """How far results may be apart, and why that is more than PyTorch's own tolerance."""

    rtol: float
    atol: float
    why: str


@dataclass(frozen=True)
class Outcome:
    """What one side did: named results, which may be pending, or the error that it raised."""

    results: dict[str, Any]
    error: Exception | None = None


@dataclass(frozen=True)
class Case:
    """One piece of work, done on both sides. `tolerance` None stands for PyTorch's own."""

    name: str
    cpu: Outcome
    device: Outcome
    tolerance: Tolerance | None = None
    strides: bool = True


def outcome(work: Callable[[], dict[str, Any]]) -> Outcome:
    """What `work` gives, without reading it."""
    try:
        return Outcome(work())
    except Exception as error:
        return Outcome({}, error.with_traceback(None))


def on_both(
    name: str,
    work: Callable[[str], dict[str, Any]],
    tolerance: Tolerance | None = None,
    *,
    strides: bool = True,
) -> Case:
    """What `work` gives for the name of each device, the CPU first."""
    cpu, device = (outcome(partial(work, side)) for side in ("cpu", DEVICE))
    return Case(name, cpu, device, tolerance, strides)


def moved(x: Any, device: str, memo: dict[int, torch.Tensor] | None = None) -> Any:
    """`x` with every tensor in it copied to `device`; leaves stay leaves, and equal ones stay equal."""
    memo = {} if memo is None else memo
    if isinstance(x, torch.Tensor):
        if id(x) not in memo:
            copy = x.detach().clone() if device == "cpu" else x.detach().to(device)
            memo[id(x)] = copy.requires_grad_(x.requires_grad)
        return memo[id(x)]
    if isinstance(x, PackedSequence):
        return PackedSequence(
            moved(x.data, device, memo),
            x.batch_sizes,
            moved(x.sorted_indices, device, memo),
            moved(x.unsorted_indices, device, memo),
        )
    if isinstance(x, (list, tuple)):
        return type(x)(moved(i, device, memo) for i in x)
    if isinstance(x, dict):
        return {k: moved(v, device, memo) for k, v in x.items()}
    return x


def tensors_in(x: Any) -> list[torch.Tensor]:
    """Every tensor in `x`, in order."""
    return [t for t in tree_leaves(x) if isinstance(t, torch.Tensor)]


def saved(x: torch.Tensor) -> torch.Tensor:
    """What is loaded from a file that holds `x`."""
    file = io.BytesIO()
    torch.save(x, file)
    file.seek(0)
    return torch.load(file)


def differences(cases: Iterable[Case]) -> list[str]:
    """A line for each case that is not the same on both sides; empty when all are."""
    return [f"{c.name}: {line}" for c in cases if (line := difference(c)) is not None]


def difference(case: Case) -> str | None:
    """In what the device differs from the CPU, or None."""
    ours, theirs = case.device, case.cpu
    if ours.error is not None or theirs.error is not None:
        return _difference_of_errors(ours.error, theirs.error)
    if ours.results.keys() != theirs.results.keys():
        return f"results {list(ours.results)}, on CPU {list(theirs.results)}"
    for name, expected in theirs.results.items():
        try:
            _assert_same(ours.results[name], expected, case)
        except (AssertionError, RuntimeError) as error:
            return f"{name}: {type(error).__name__}: {' '.join(str(error).split())}"
    return None


def _difference_of_errors(ours: Exception | None, theirs: Exception | None) -> str | None:
    if type(ours) is type(theirs) and _neutral(ours) == _neutral(theirs):
        return None
    return f"raised {ours!r}, on CPU {theirs!r}"


def _neutral(error: Exception | None) -> str:
    """The error's text without the device's name, which is part of a tensor's type."""
    text = re.sub(r"torch\.(\w+)Tensor \[", r"\1Type [", str(error))
    return re.sub(rf"(CPU|{DEVICE})(\w+)Type", r"\2Type", text)


def assert_same(ours: Any, theirs: Any, *, exactly: bool = False, placed: bool = False) -> None:
    """A tensor of the device is the CPU's in layout, dtype, shape and content; what is no tensor is equal.

    exactly  to the last bit, and not within PyTorch's tolerance.
    placed   in strides and offset, too.
    """
    if not isinstance(theirs, torch.Tensor):
        assert ours == theirs
        return
    assert ours.device.type == DEVICE
    assert (ours.layout, ours.dtype, ours.shape) == (theirs.layout, theirs.dtype, theirs.shape)
    if placed:
        assert (ours.stride(), ours.storage_offset()) == (theirs.stride(), theirs.storage_offset())
    tolerance = Tolerance(0, 0, "exact") if exactly else None
    if theirs.layout is torch.sparse_coo:
        assert ours._nnz() == theirs._nnz()
        assert ours.is_coalesced() == theirs.is_coalesced()
        _assert_close(ours._indices().cpu(), theirs._indices(), tolerance)
        _assert_close(ours._values().cpu(), theirs._values(), tolerance)
    else:
        _assert_close(ours.cpu(), theirs, tolerance)


def _assert_same(actual: Any, expected: Any, case: Case) -> None:
    ours, theirs = tree_leaves(actual), tree_leaves(expected)
    assert len(ours) == len(theirs), f"{len(ours)} results, on CPU {len(theirs)}"
    for a, e in zip(ours, theirs, strict=True):
        if isinstance(e, torch.Tensor):
            if case.strides and e.numel():
                assert a.stride() == e.stride(), f"strides {a.stride()}, on CPU {e.stride()}"
            _assert_close(a.detach().cpu(), e.detach(), case.tolerance)
        elif isinstance(e, float):
            _assert_close(a, e, case.tolerance)
        else:
            assert a == e, f"{a!r}, on CPU {e!r}"


def _assert_close(actual: Any, expected: Any, tolerance: Tolerance | None) -> None:
    torch.testing.assert_close(
        actual,
        expected,
        rtol=tolerance and tolerance.rtol,
        atol=tolerance and tolerance.atol,
        equal_nan=True,
    )


def farther(case: Case, exact: Outcome) -> str | None:
    """Where the device is farther from `exact` than the CPU is by more than rounding, or None.

    For low precision, in which two right results differ where terms cancel. The greatest error of each result
    may be four times the CPU's, and two of the dtype's steps at the greatest value,
    which for gradients is that of all of them: an error passes from one layer to the next.
    """
    if case.cpu.error is not None or case.device.error is not None:
        return difference(case)
    for name, expected in exact.results.items():
        largest = max(
            (t.abs().max().item() for t in tensors_in(expected) if _counts(t)), default=0.0
        )
        columns = (case.device.results[name], case.cpu.results[name], expected)
        for ours, theirs, true in zip(*map(tensors_in, columns), strict=True):
            if (ours.shape, ours.dtype) != (theirs.shape, theirs.dtype):
                return f"{case.name}: {name}: {ours.shape} {ours.dtype}, on CPU {theirs.shape} {theirs.dtype}"
            if not _counts(true):
                continue
            step = torch.finfo(ours.dtype).eps * largest + 1e-6
            error, allowed = _error(ours, true), 4 * _error(theirs, true) + 2 * step
            if error > allowed:
                return f"{case.name}: {name}: off by {error}, at most {allowed} is allowed"
    return None


def _counts(t: torch.Tensor) -> bool:
    return t.numel() > 0 and t.is_floating_point()


def _error(x: torch.Tensor, exact: torch.Tensor) -> float:
    return (x.detach().cpu().double() - exact.double()).abs().max().item()
