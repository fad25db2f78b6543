"""Dynamo is not imported to be told that it has nothing to do.

What results on meta tensors look like, which kernels of ours ask for, PyTorch says in Python for most
pointwise operators. Those functions are marked as ones that Dynamo is to leave alone: the first call of each
imports Dynamo, for a second or more, to make a function that turns it off, and keeps that beside the marked
one. Until somebody imports Dynamo there is nothing to turn off: each of them is kept beside itself.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from types import FunctionType
from typing import Any

from torch_pjrt.device.imports import after_import

_DYNAMO = "torch._dynamo"
_KEPT = "__dynamo_disable"  # PyTorch's name for what is kept beside a function


def install() -> None:
    """Have those functions run without Dynamo, until it is there."""
    if _DYNAMO in sys.modules:
        return
    functions = list(_left_alone())
    for function in functions:
        setattr(function, _KEPT, function)
    after_import(_DYNAMO, lambda dynamo: _forget(functions))


def _left_alone() -> Iterator[Any]:
    """Those that PyTorch has marked, by the code that all of the marking functions share.

    Not those of other modules: who copies the attributes of one that is called by name would copy this one.
    """
    try:
        from torch._compile import _disable_dynamo
        from torch._prims_common import wrappers

        code = _disable_dynamo(_forget).__code__
        place = code.co_freevars.index("fn")
    except (
        ImportError,
        AttributeError,
        ValueError,
    ):  # marked otherwise: Dynamo is imported as ever
        return
    for marking in gc.get_referrers(code):
        if isinstance(marking, FunctionType) and marking.__code__ is code and marking.__closure__:
            function = marking.__closure__[place].cell_contents
            of_references = getattr(function, "__globals__", None) is vars(wrappers)
            if of_references and not hasattr(function, _KEPT):
                yield function


def _forget(functions: list[Any]) -> None:
    """Dynamo is there: it is asked to make the functions that turn it off, as ever."""
    for function in functions:
        if getattr(function, _KEPT, None) is function:
            delattr(function, _KEPT)
