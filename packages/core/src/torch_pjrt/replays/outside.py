"""What a step sees of the world without being given it: a snapshot, to be compared with a later one.

Looked at are the function's closure, defaults, bound object and the globals that it names; of modules
their mode, plain attributes and which tensors their parameters and buffers are; of optimizers the numbers of
their parameter groups; of other objects the plain values among their attributes. What lies deeper is
not seen; `capture` compares the whole step with its recording from time to time for that.
"""

from __future__ import annotations

import dis
import functools
import itertools
from collections.abc import Callable, Collection, Iterator
from operator import is_
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import torch
from torch import nn

_OF_GLOBALS = ("_GLOBAL", "_NAME")  # so end the names of instructions that read or write globals
_PLAIN = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device)

Snapshot = dict[str, Any]


def snapshot_of(function: Any) -> Snapshot:
    """By name, what the function would find now."""
    return _Walk(function).found


# What PyTorch does depends on these, whatever the arguments are.
_MODES: dict[str, Any] = {
    "torch.is_grad_enabled()": torch.is_grad_enabled,
    "torch.is_inference_mode_enabled()": torch.is_inference_mode_enabled,
    "torch.get_default_dtype()": torch.get_default_dtype,
    "torch.get_float32_matmul_precision()": torch.get_float32_matmul_precision,
    "torch.are_deterministic_algorithms_enabled()": torch.are_deterministic_algorithms_enabled,
    "torch.is_autocast_enabled('pjrt')": lambda: torch.is_autocast_enabled("pjrt"),
    "torch.get_autocast_dtype('pjrt')": lambda: torch.get_autocast_dtype("pjrt"),
}


def differences(before: Snapshot, after: Snapshot) -> list[str]:
    """In words, what is another than before."""
    return [
        f"`{name}` was {before.get(name, 'not there')}, is {after.get(name, 'not there')}"
        for name in {**before, **after}
        if not _same(before.get(name, _NOTHING), after.get(name, _NOTHING))
    ]


_NOTHING = object()


def _same(x: Any, y: Any) -> bool:
    return x is y or (x.__class__ is y.__class__ and (x == y or (x != x and y != y)))


def _reached(function: Any) -> Iterator[tuple[str, Any]]:
    """The objects that a function reaches by name."""
    if isinstance(function, functools.partial):
        yield from ((f"argument {i}", x) for i, x in enumerate(function.args))
        yield from function.keywords.items()
        yield from _reached(function.func)
    elif isinstance(function, MethodType):
        yield "self", function.__self__
        yield from _reached(function.__func__)
    elif isinstance(function, FunctionType):
        cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
        for name, cell in cells:
            try:
                yield name, cell.cell_contents
            except ValueError:  # nothing in it yet
                continue
        yield from (function.__kwdefaults__ or {}).items()
        for i, x in enumerate(function.__defaults__ or ()):
            yield f"default {i}", x
        for name in _names(function.__code__):
            if name in function.__globals__:
                yield name, function.__globals__[name]
    else:
        yield type(function).__name__, function


@functools.lru_cache(maxsize=1024)
def _names(code: CodeType) -> tuple[str, ...]:
    """Names of globals that it uses; `co_names` has the names of attributes among them."""
    names = [x.argval for x in dis.get_instructions(code) if x.opname.endswith(_OF_GLOBALS)]
    nested = [_names(x) for x in code.co_consts if isinstance(x, CodeType)]
    return tuple(dict.fromkeys([*names, *itertools.chain(*nested)]))


class _Walk:
    """One walk over what a function sees.

    found  what it would find, by name.
    held   what it came by as a whole: how to list it, and what it held.
    """

    def __init__(self, function: Any) -> None:
        self.found: Snapshot = dict(zip(_MODES, _modes(), strict=True))
        self.held: list[tuple[Callable[[], Collection[Any]], tuple[Any, ...]]] = []
        self._seen: set[int] = set()
        self._hold(lambda: [x for _, x in _reached(function)])
        for name, x in _reached(function):
            self._add(name, x, deeper=True)

    def _hold(self, read: Callable[[], Collection[Any]]) -> None:
        self.held.append((read, tuple(read())))

    def _add(self, name: str, x: Any, *, deeper: bool) -> None:
        if isinstance(x, _PLAIN):
            self.found[name] = x
            return
        if isinstance(x, torch.Tensor):
            self.found[name] = _Tensor(x)
            return
        if id(x) in self._seen or isinstance(x, (ModuleType, type)):
            return
        if not deeper and not isinstance(x, (nn.Module, torch.optim.Optimizer)):
            return  # it may yet be met where it is looked into
        self._seen.add(id(x))
        if isinstance(x, nn.Module):
            self._add_module(name, x)
        elif isinstance(x, torch.optim.Optimizer):
            for i, group in enumerate(x.param_groups):
                self._hold(group.values)
                for key, value in group.items():
                    if key != "params":
                        self._add(f"{name}.param_groups[{i}]['{key}']", value, deeper=False)
        else:
            self._add_all(name, x)

    def _add_all(self, name: str, x: Any) -> None:
        """What is in a container, a function or another object; no deeper than that."""
        if isinstance(x, (list, tuple)):
            self._hold(lambda: x)
            items = [(f"{name}[{i}]", item) for i, item in enumerate(x)]
        elif isinstance(x, dict):
            self._hold(x.values)
            items = [(f"{name}[{key!r}]", item) for key, item in x.items()]
        elif isinstance(x, (FunctionType, MethodType)):
            self._hold(lambda: [y for _, y in _reached(x)])
            items = [(f"{name}: {inner}", item) for inner, item in _reached(x)]
        elif hasattr(x, "__dict__"):
            self._hold(vars(x).values)
            items = [(f"{name}.{key}", item) for key, item in vars(x).items()]
        else:
            return
        for inner, item in items:
            self._add(inner, item, deeper=False)

    def _add_module(self, name: str, root: nn.Module) -> None:
        for path, module in root.named_modules():
            prefix = f"{name}.{path}" if path else name
            for held in (vars(module), module._parameters, module._buffers, module._modules):
                self._hold(held.values)
            for key, item in vars(module).items():
                if isinstance(item, _PLAIN):
                    self.found[f"{prefix}.{key}"] = item
            for tensors in (module._parameters, module._buffers):
                for key, tensor in tensors.items():
                    if tensor is not None:
                        self.found[f"{prefix}.{key}"] = _Tensor(tensor)


class Unchanged:
    """A quick look whether a snapshot would be the same: every object is the one that was there.

    Where one is not, it may still be equal: then the snapshots have to be compared.
    """

    def __init__(self, function: Any) -> None:
        self._modes = _modes()
        self._held = _Walk(function).held

    def holds(self) -> bool:
        """Whether nothing was replaced."""
        if self._modes != _modes():
            return False
        for read, held in self._held:
            now = read()
            if len(now) != len(held) or not all(map(is_, now, held)):
                return False
        return True


def _modes() -> tuple[Any, ...]:
    return tuple([read() for read in _MODES.values()])


class _Tensor:
    """Which tensor it is, and what it looks like; not what is in it."""

    __slots__ = ("key",)

    def __init__(self, x: torch.Tensor) -> None:
        self.key = (id(x), tuple(x.shape), x.dtype, x.device, x.requires_grad)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Tensor) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)

    def __repr__(self) -> str:
        identity, shape, dtype, device, _ = self.key
        return f"the tensor {identity:#x} ({str(dtype).removeprefix('torch.')}{list(shape)} on {device})"
