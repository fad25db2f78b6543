"""Lines in XLA's metadata: under a node's line, JAX writes that line and the module into the program.

An operator of the compiled program then has an `op_name` like
`GPT/blocks.3/attn/aten.mm.default(model.py:12)`, and the user's file and line as its source. (A JAX function
that JAX had traced before, as many of `jax.numpy` are, keeps the source line of its first use; its
`op_name` is right.)
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import cache
from types import FunctionType
from typing import Any

import jax
from jax.extend import source_info_util

from torch_pjrt.graph.graph import Node

_OURS = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_call: Any = lambda function: function()  # noqa: E731  its code object is what is needed


def at_line(node: Node, function: Callable[[], Any]) -> Any:
    """What `function()` gives; the operators that it traces are named for the node and its line."""
    line = node.line
    if line is None:
        return function()
    _hide_our_frames()
    scopes = [line.module, "backward" if line.backward else ""]
    where = f"{os.path.basename(line.file)}:{line.number}"
    # JAX takes the innermost frame that is in no library: this call seems to stand in the user's file.
    code = _call.__code__.replace(
        co_filename=line.file,
        co_firstlineno=line.number,
        co_name=line.function,
        co_qualname=line.function,
    )
    with jax.named_scope("/".join([*filter(None, scopes), f"{node.op}({where})"])):
        return FunctionType(code, {})(function)


@cache
def _hide_our_frames() -> None:
    source_info_util.register_exclusion(_OURS)
