"""Structures of arguments and results as JSON: what `load.py` reads.

A structure is {"leaf": n}, {"tuple": [...]}, {"list": [...]}, {"dict": {name: ...}}, or {"constant": value}
for what is no tensor.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.utils._pytree import TreeSpec

Tree = dict[str, Any]


def tree_of(spec: TreeSpec, leaf: Callable[[], Tree]) -> Tree:
    """The structure of a pytree; `leaf` gives the leaves, one after the other.

    An object that PyTorch takes apart (a model's output, say) is a dict where it has names, else a list.
    """
    if spec.is_leaf():
        return leaf()
    children = [tree_of(child, leaf) for child in spec.children()]
    names = _names(spec)
    if names is not None and len(names) == len(children):
        return {"dict": dict(zip(names, children, strict=True))}
    if spec.type is tuple or (isinstance(spec.type, type) and issubclass(spec.type, tuple)):
        return {"tuple": children}
    return {"list": children}


def _names(spec: TreeSpec) -> list[str] | None:
    if spec.type in (tuple, list):
        return None
    context = spec.context
    if isinstance(context, (list, tuple)) and all(isinstance(name, str) for name in context):
        return list(context)
    # The context of a registered dataclass, or of an output of transformers: (names, ...) or [names, ...].
    if isinstance(context, (list, tuple)) and context and isinstance(context[0], (list, tuple)):
        names = list(context[0])
        return names if all(isinstance(name, str) for name in names) else None
    return None
