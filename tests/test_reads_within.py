"""A tensor that is read while this thread makes or runs the program of that tensor has its right value."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import torch_pjrt
from torch_pjrt.compile import programs
from torch_pjrt.run import sync


@pytest.mark.parametrize("phase", ["passes", "lowering", "compiling", "listening", "letting go"])
def test_read_within_a_sync_is_right(phase: str, monkeypatch: pytest.MonkeyPatch) -> None:
    programs.forget_programs()
    x = torch.arange(7.0, device="pjrt")
    p = torch.ones(7, device="pjrt")
    torch_pjrt.sync()
    p.add_(x)
    y = p * 3
    seen: list[Any] = []

    def read() -> None:
        if not seen:
            seen.append(None)
            seen.append(
                (y.tolist(), p.tolist(), (x.sum() + 1).item(), torch.ones(2).to("pjrt").tolist())
            )

    def before(original: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            read()
            return original(*args, **kwargs)

        return wrapped

    class Finalizer:
        def __del__(self) -> None:
            read()

    if phase == "passes":
        monkeypatch.setattr(programs, "run_passes", before(programs.run_passes))
    elif phase == "lowering":
        monkeypatch.setattr(programs, "function_of", before(programs.function_of))
    elif phase == "compiling":
        monkeypatch.setattr(programs, "with_stacks", before(programs.with_stacks))
    elif phase == "listening":
        monkeypatch.setattr(sync, "listeners", [lambda tape, program: read()])
    else:
        sync.state.tape.kept.append(Finalizer())

    torch_pjrt.sync()

    expected = [1.0 + i for i in range(7)]
    assert seen[1] == ([3 * e for e in expected], expected, 22.0, [1.0, 1.0])
    assert p.tolist() == expected
    p.add_(1)
    assert p.tolist() == [e + 1 for e in expected]
