"""What TRL's trainers log of each batch stays on the device until it is logged.

Each `.item()` in TRL's own code, within `compute_loss`, gives the tensor without dims instead; `log` makes
numbers of all, with one read for floats and one for integers. A line of TRL's such as

    (entropy_sum / num_valid).item() if num_valid > 0 else 0.0

goes on as if the answer were yes, and the device chooses between the two.
"""

from __future__ import annotations

import contextlib
import linecache
import re
import sys
from collections.abc import Callable, Iterator
from types import CodeType, FrameType, ModuleType
from typing import Any

import torch

from torch_pjrt_ecosystem.replacing import wrap

_GUARDED = re.compile(r"\.item\(\) if \w+ > 0 else 0\.0\)?$")


def install(module: ModuleType) -> None:
    """`module` is one of `trl.trainer`, and has a trainer of its name."""
    words = module.__name__.rpartition(".")[2].removesuffix("_trainer")
    name = {"sft": "SFT", "dpo": "DPO", "reward": "Reward"}[words]
    trainer = getattr(module, f"{name}Trainer")
    wrap(trainer, "compute_loss", _compute_loss)
    wrap(trainer, "log", _log)


def _compute_loss(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    with _items_stay():
        return original(*args, **kwargs)


@contextlib.contextmanager
def _items_stay() -> Iterator[None]:
    tensors: Any = torch.Tensor
    if "item" in vars(tensors):  # within another of these
        yield
        return
    answers = _Answers()
    tensors.item, tensors.__bool__ = answers.methods()
    try:
        yield
    finally:
        del tensors.item, tensors.__bool__


class _Answers:
    """What tensors say within `compute_loss` where TRL asks for a number.

    _guard  the condition, and the line, that was said to hold: it is asked before the number is.
    """

    def __init__(self) -> None:
        self._guard: tuple[torch.Tensor, CodeType, int] | None = None

    def methods(self) -> tuple[Callable[[torch.Tensor], Any], Callable[[torch.Tensor], bool]]:
        """In the place of `Tensor.item` and `Tensor.__bool__`."""

        def item(tensor: torch.Tensor) -> Any:
            frame = sys._getframe(1)
            if not _is_asked_by_trl(tensor, frame):
                return torch._C.TensorBase.item(tensor)
            guard, self._guard = self._guard, None
            if guard is not None and guard[1:] == (frame.f_code, frame.f_lineno):
                return torch.where(guard[0], tensor.detach(), 0.0)
            return tensor.detach()

        def truth(tensor: torch.Tensor) -> bool:
            frame = sys._getframe(1)
            if _is_asked_by_trl(tensor, frame) and _is_guarded(frame):
                self._guard = tensor, frame.f_code, frame.f_lineno
                return True
            return torch._C.TensorBase.__bool__(tensor)

        return item, truth


def _is_asked_by_trl(tensor: torch.Tensor, frame: FrameType) -> bool:
    is_number = tensor.device.type == "pjrt" and not tensor.ndim
    return is_number and frame.f_globals.get("__name__", "").startswith("trl.")


def _is_guarded(frame: FrameType) -> bool:
    line = linecache.getline(frame.f_code.co_filename, frame.f_lineno)
    return _GUARDED.search(line.strip()) is not None


def _log(original: Callable[..., None], self: Any, *args: Any, **kwargs: Any) -> None:
    numbers = _Numbers()
    for metrics in self._metrics.values():
        for name, values in metrics.items():
            metrics[name] = [numbers.later(value) for value in values]
    total = numbers.later(getattr(self, "_total_train_tokens", 0))
    numbers.read()
    for metrics in self._metrics.values():
        for name, values in metrics.items():
            metrics[name] = [numbers.of(value) for value in values]
    if hasattr(self, "_total_train_tokens"):
        self._total_train_tokens = numbers.of(total)
    original(self, *args, **kwargs)


class _Numbers:
    """Tensors that become numbers together. `later` gives a place, or what is no tensor as it is."""

    def __init__(self) -> None:
        self._waiting: dict[bool, list[torch.Tensor]] = {True: [], False: []}
        self._found: dict[bool, list[Any]] = {}

    def later(self, value: Any) -> Any:
        """A place, for `of`."""
        if not isinstance(value, torch.Tensor):
            return value
        is_float = value.is_floating_point()
        self._waiting[is_float].append(value.detach())
        return _Place(is_float, len(self._waiting[is_float]) - 1)

    def read(self) -> None:
        """All of them, with a read for each kind."""
        for is_float, tensors in self._waiting.items():
            dtype = torch.float32 if is_float else torch.int64
            if tensors:
                self._found[is_float] = torch.stack([t.to(dtype) for t in tensors]).tolist()

    def of(self, value: Any) -> Any:
        """The number at a place."""
        return self._found[value.is_float][value.index] if isinstance(value, _Place) else value


class _Place:
    """Where a number will be."""

    def __init__(self, is_float: bool, index: int) -> None:
        self.is_float, self.index = is_float, index
