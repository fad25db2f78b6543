"""Kinds of objects that a step may see, and how each is compared."""

from __future__ import annotations

import functools
import sys
import weakref
from array import array
from enum import Enum
from types import BuiltinFunctionType, CodeType, EllipsisType
from typing import Any

import numpy as np
import torch

PLAIN = (
    bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device, torch.memory_format,
    torch.layout, torch.Size, range, slice, EllipsisType, CodeType, np.generic,
)  # fmt: skip

# Arrays and CPU tensors of at most so many bytes are compared by content, containers of at most so many
# items by what is in them. Of larger ones only which they are, and how large, is seen.
MOST_BYTES = 1 << 14
MOST_ITEMS = 1 << 12

_CLOSED = frozenset({"numpy", "jax", "jaxlib", "ml_dtypes"})
_FOLDERS = ("site-packages", "dist-packages")


@functools.lru_cache(maxsize=1024)
def _kind_of(top: str) -> str:
    if top in _CLOSED or top.startswith("torch_pjrt"):
        return "closed"
    if top in sys.stdlib_module_names and top != "__main__":
        return "closed"
    file = getattr(sys.modules.get(top), "__file__", None) or ""
    return "installed" if any(folder in file for folder in _FOLDERS) else "own"


def is_library(module: Any) -> bool:
    """Whether a module of this name is Python's, or of an installed package: code that nobody edits."""
    return isinstance(module, str) and _kind_of(module.partition(".")[0]) != "own"


def is_closed(module: Any) -> bool:
    """Whether objects of its classes are not looked into: Python's, NumPy's, JAX's and ours."""
    return isinstance(module, str) and _kind_of(module.partition(".")[0]) == "closed"


class Leaf:
    """What is compared of an object that is not a plain value: which one it is, and its look.

    It does not keep the object alive where weak references to it can be had.
    """

    __slots__ = ("_object", "look", "words")

    def __init__(self, x: Any, look: Any, words: str) -> None:
        try:
            self._object: Any = weakref.ref(x)
        except TypeError:
            self._object = lambda: x
        self.look = look
        self.words = words

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Leaf) or self.look != other.look:
            return False
        mine = self._object()
        return mine is not None and mine is other._object()

    def __hash__(self) -> int:
        return hash(self.words)

    def __repr__(self) -> str:
        return self.words


def leaf_of_tensor(x: torch.Tensor) -> Leaf:
    """Which tensor it is, what it looks like and whose memory it has; not what is in it."""
    size = (tuple(x.shape), x.dtype, x.device, x.requires_grad, x.is_leaf)
    position = (x.stride(), x.storage_offset()) if x.layout is torch.strided else ()
    memory = id(x.untyped_storage()) if x.layout is torch.strided else 0
    needs = ", needs gradients" if x.requires_grad else ""
    size_in_words = f"{str(x.dtype).removeprefix('torch.')}{list(x.shape)}"
    words = f"the tensor {id(x):#x} ({size_in_words} on {x.device}{needs})"
    if memory and x.device.type == "pjrt":
        words = f"{words[:-1]}, memory {memory:#x})"
    return Leaf(x, (size, position, memory), words)


def leaf_of_array(x: Any) -> Leaf:
    """An array or a CPU tensor: which one it is, and the content of a small one."""
    return Leaf(x, content_of(x), f"the {type(x).__name__} {id(x):#x} {_shortened(x)}")


def content_of(x: Any) -> Any:
    """What is in an array or a CPU tensor, if it is small; else what is known of it."""
    if isinstance(x, torch.Tensor):
        look = (tuple(x.shape), x.dtype, x.requires_grad, x._version)
        if x.layout is not torch.strided or x.nbytes > MOST_BYTES or x.is_quantized:
            return look
        return (
            *look,
            x.detach().resolve_conj().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes(),
        )
    if isinstance(x, (bytearray, array)):
        n_bytes = len(x) * (x.itemsize if isinstance(x, array) else 1)
        return (len(x), bytes(x)) if n_bytes <= MOST_BYTES else len(x)
    look = (x.shape, x.dtype.str)
    return (*look, x.tobytes()) if x.nbytes <= MOST_BYTES and not x.dtype.hasobject else look


def _shortened(x: Any) -> str:
    return f"[{len(x)}]" if isinstance(x, (bytearray, array)) else f"({x.dtype}{list(x.shape)})"


def leaf_of(x: Any) -> Leaf:
    """An object of which only the identity counts."""
    if isinstance(x, Enum):
        return Leaf(x, None, str(x))
    if isinstance(x, (BuiltinFunctionType, type)):
        return Leaf(x, None, f"{x.__module__}.{x.__qualname__}")
    return Leaf(x, None, f"the {type(x).__name__} {id(x):#x}")
