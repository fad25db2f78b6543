"""What TRL's trainers log of each batch stays on the device until it is logged.

Each `.item()` in TRL's own code, within `compute_loss`, gives the tensor without dims instead; `log` makes
numbers of all, with one read for floats and one for integers. A line of TRL's such as

    (entropy_sum / num_valid).item() if num_valid > 0 else 0.0

goes on as if the answer were yes, and the device chooses between the two. So does `a / n if n > 0 else 0.0`.
In a line with `x[mask.bool()].sum()`, what the mask leaves out are zeros, and nobody counts the rest.
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

_GUARDED = re.compile(r"(\.item\(\)|= \w+ / \w+) if \w+ > 0 else 0\.0\)?$")
_SUMMED = re.compile(r"= \w+\[\w+\.bool\(\)\]\.sum\(\)$")


def install(module: ModuleType) -> None:
    """`module` is one of `trl.trainer`, and has a trainer of its name."""
    words = module.__name__.rpartition(".")[2].removesuffix("_trainer")
    name = {"sft": "SFT", "dpo": "DPO", "reward": "Reward"}[words]
    trainer = getattr(module, f"{name}Trainer")
    wrap(trainer, "compute_loss", _compute_loss)
    wrap(trainer, "log", _log)


def _compute_loss(original: Callable[..., Any], self: Any, *args: Any, **kwargs: Any) -> Any:
    total = getattr(self, "_total_train_tokens", None)
    device = getattr(getattr(self, "accelerator", None), "device", None)
    if isinstance(total, int) and device is not None and device.type == "pjrt":
        # A tensor from the first step on, and behind each `log`, so that all steps are one program.
        self._total_train_tokens = torch.tensor(total, device="cpu").to(device)
    with _items_stay():
        return original(self, *args, **kwargs)


@contextlib.contextmanager
def _items_stay() -> Iterator[None]:
    tensors: Any = torch.Tensor
    if "item" in vars(tensors):  # within another of these
        yield
        return
    answers = _Answers().methods()
    for name, answer in answers.items():
        setattr(tensors, name, answer)
    try:
        yield
    finally:
        for name in answers:
            delattr(tensors, name)


class _Answers:
    """What tensors say within `compute_loss` where TRL asks for a number.

    _guard  the condition, and the line, that was said to hold: it is asked before the number is.
    """

    def __init__(self) -> None:
        self._guard: tuple[torch.Tensor, CodeType, int] | None = None

    def methods(self) -> dict[str, Callable[..., Any]]:
        """In the place of those of `Tensor`, by their names."""

        def item(tensor: torch.Tensor) -> Any:
            frame = sys._getframe(1)
            if not _is_asked_by_trl(tensor, frame):
                return torch._C.TensorBase.item(tensor)
            return self._where_it_holds(tensor.detach(), frame)

        def divided(tensor: torch.Tensor, other: Any) -> Any:
            return self._where_it_holds(
                torch._C.TensorBase.__truediv__(tensor, other), sys._getframe(1), begun=True
            )

        def truth(tensor: torch.Tensor) -> bool:
            frame = sys._getframe(1)
            if _is_asked_by_trl(tensor, frame) and _GUARDED.search(_line(frame)):
                self._guard = tensor, frame.f_code, frame.f_lineno
                return True
            return torch._C.TensorBase.__bool__(tensor)

        def masked(tensor: torch.Tensor, index: Any) -> Any:
            frame = sys._getframe(1)
            if _is_mask_of(index, tensor) and _is_trl(frame) and _SUMMED.search(_line(frame)):
                return torch.where(index, tensor, 0)
            return torch._C.TensorBase.__getitem__(tensor, index)

        names = ("item", "__truediv__", "__bool__", "__getitem__")
        return dict(zip(names, (item, divided, truth, masked), strict=True))

    def _where_it_holds(
        self, tensor: torch.Tensor, frame: FrameType, begun: bool = False
    ) -> torch.Tensor:
        """The tensor, or 0 where what this line has asked does not hold.

        begun  the line may go on: only one without a call of `item` ends here.
        """
        guard = self._guard
        if guard is None or guard[1:] != (frame.f_code, frame.f_lineno):
            return tensor
        if begun and ".item()" in _line(frame):
            return tensor
        self._guard = None
        return torch.where(guard[0], tensor, 0.0)


def _is_mask_of(index: Any, tensor: torch.Tensor) -> bool:
    """Whether this is a mask of all of its numbers, on the device."""
    if not (isinstance(index, torch.Tensor) and index.dtype == torch.bool):
        return False
    return tensor.device.type == "pjrt" and index.shape == tensor.shape


def _is_asked_by_trl(tensor: torch.Tensor, frame: FrameType) -> bool:
    return tensor.device.type == "pjrt" and not tensor.ndim and _is_trl(frame)


def _is_trl(frame: FrameType) -> bool:
    return frame.f_globals.get("__name__", "").startswith("trl.")


def _line(frame: FrameType) -> str:
    return linecache.getline(frame.f_code.co_filename, frame.f_lineno).strip()


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
