"""Keeping Dynamo out of our code: `torch.compile` traces the user's program, whatever its backend.

A kernel of ours is Python that PyTorch's C++ calls while a compiled function runs, so Dynamo would take it,
and JAX below it, for a program to be compiled. It is told better when it is imported, and not
imported here. What Python generates (the methods of dataclasses) belongs to no file, so it is told of each.
"""

from __future__ import annotations

import gc
import inspect
import sys
from collections.abc import Iterable, Iterator
from types import CodeType, ModuleType
from typing import Any

from torch_pjrt.device.imports import after_import
from torch_pjrt.session import session

_DYNAMO = "torch._dynamo"
_RULES = "torch._dynamo.trace_rules"
_FRAMES = "torch._dynamo.eval_frame"
_DECORATORS = "torch._dynamo.decorators"
_packages = session.own("packages that Dynamo traces nothing in", ["torch_pjrt", "jax", "jaxlib"])
_registered: set[str] = session.own("those of them that Dynamo knows", set())


def install() -> None:
    """Tell Dynamo now, or when it is imported."""
    if _DYNAMO not in sys.modules:
        after_import(_DYNAMO, _let_go_of_frames)
    after_import(_RULES, _register)
    after_import(_FRAMES, _skip_generated_code)
    after_import(_DECORATORS, _allow_annotations)


def _let_go_of_frames(dynamo: ModuleType) -> None:
    """Collect the cycle that `torch.fx.wrap` leaves, for each module, of its frame and all that called it.

    Where an operator's first call imports Dynamo, those hold its tensors, and their memory is not reused.
    """
    gc.collect()


def keep_out(packages: Iterable[str]) -> None:
    """Let Dynamo trace nothing in these packages or modules, nor what those imported by now generate.

    >>> keep_dynamo_out(["my_package"])
    """
    _packages.extend(sorted(set(packages).difference(_packages)))
    if _RULES in sys.modules:  # else it is told with the others
        _register(sys.modules[_RULES])
    if _FRAMES in sys.modules:
        _skip_generated_code(sys.modules[_FRAMES])


def _register(rules: Any) -> None:
    add = getattr(rules, "add", None)
    if add is None:  # another PyTorch
        return
    for package in _packages:
        if package not in _registered:
            _registered.add(package)
            add(package)


def _allow_annotations(decorators: Any) -> None:
    """A call of `annotate` is a node of Dynamo's graphs, in which AOTAutograd sees the operator."""
    allow = getattr(decorators, "allow_in_graph", None)
    if allow is not None:  # else another PyTorch
        from torch_pjrt.lowering.value_annotations import annotate

        allow(annotate)


def _skip_generated_code(frames: Any) -> None:
    """Methods without a source file, of the classes of these packages that are imported by now."""
    skip = getattr(frames, "skip_code", None)
    if skip is None:  # another PyTorch
        return
    for name, module in list(sys.modules.items()):
        if any(name == package or name.startswith(f"{package}.") for package in _packages):
            for code in _generated_code(module):
                skip(code)


def _generated_code(module: ModuleType) -> Iterator[CodeType]:
    for cls in list(vars(module).values()):
        if isinstance(cls, type) and cls.__module__ == module.__name__:
            for member in list(vars(cls).values()):
                code = getattr(
                    inspect.unwrap(member) if callable(member) else None, "__code__", None
                )
                if code is not None and code.co_filename == "<string>":
                    yield code
