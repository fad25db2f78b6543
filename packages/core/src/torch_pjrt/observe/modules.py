"""Modules: the path of the `torch.nn.Module` that is running, `GPT/blocks.3/attn`. Off unless somebody asks.

While it is on, PyTorch's global forward hooks keep a stack of paths for each thread.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from torch import nn
from torch.nn.modules import module as hooks

from torch_pjrt.session import session


class _Running(threading.local):
    """The modules that run on this thread, outermost first.

    paths   of each.
    names   of each: its name within the outermost.
    known   names by the identity of the outermost's modules.
    ranges  of each: what `range_of` gave, entered.
    """

    def __init__(self) -> None:
        self.paths: list[str] = []
        self.names: list[str] = []
        self.known: dict[int, str] = {}
        self.ranges: list[AbstractContextManager[Any] | None] = []


class _Watched:
    """Who watches, PyTorch's handles of our hooks while somebody does, and what runs on each thread."""

    def __init__(self) -> None:
        self.watchers = 0
        self.handles: list[Any] = []
        self.running = _Running()


_watched = session.own("modules that run", _Watched())
_running = _watched.running

# Given a path, a range in some profiler's timeline; `diagnostics/trace.py` puts one here.
range_of: Callable[[str], AbstractContextManager[Any]] | None = None


def path() -> str:
    """Of the innermost module that is running, from the class of the outermost on; "" outside of any."""
    paths = _running.paths
    return paths[-1] if paths else ""


def watch() -> None:
    """Keep track of modules, until `unwatch` was called as often."""
    _watched.watchers += 1
    if _watched.watchers == 1:
        _watched.handles.append(hooks.register_module_forward_pre_hook(_enter))
        _watched.handles.append(hooks.register_module_forward_hook(_leave, always_call=True))


def unwatch() -> None:
    """The counterpart of `watch`."""
    _watched.watchers -= 1
    if _watched.watchers == 0:
        while _watched.handles:
            _watched.handles.pop().remove()


def _enter(module: nn.Module, args: object) -> None:
    running = _running
    if not running.paths:
        running.known = {id(m): name for name, m in module.named_modules()}
        name, path = "", type(module).__name__
    else:
        name = running.known.get(id(module), "")
        short = name.removeprefix(f"{running.names[-1]}.") if running.names[-1] else name
        path = f"{running.paths[-1]}/{short or type(module).__name__}"
    running.names.append(name)
    running.paths.append(path)
    entered = range_of(path) if range_of is not None else None
    if entered is not None:
        entered.__enter__()
    running.ranges.append(entered)


def _leave(module: nn.Module, args: object, result: object) -> None:
    running = _running
    if not running.paths:  # it began before `watch`
        return
    running.names.pop()
    running.paths.pop()
    entered = running.ranges.pop()
    if entered is not None:
        entered.__exit__(None, None, None)
