"""`torch.Generator`: for a `pjrt` device, which cannot have one, it says what to do instead.

PyTorch makes generators in C++, where a backend written in Python has nothing to say. So the name
`torch.Generator` stands for a class that makes PyTorch's own generators, and refuses that one device.
"""

from __future__ import annotations

from typing import Any

import torch

from torch_pjrt.errors import UnsupportedError

_original: Any = torch._C.Generator


class _Refusing(type(_original)):
    """Calls, `isinstance` and `issubclass` mean PyTorch's class; a subclass of the user's is its own."""

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:  # pyright: ignore[reportSelfClsParameterName]
        if cls is not Generator:
            return super().__call__(*args, **kwargs)
        if _is_pjrt(kwargs.get("device", args[0] if args else None)):
            raise UnsupportedError(
                "A `pjrt` device has no `torch.Generator` of its own.",
                hint="give its random operators a CPU generator, `torch.Generator()`: they draw what the CPU "
                "draws with it; or seed the device, by `torch.manual_seed` or `torch.pjrt.manual_seed`, and "
                "keep its state by `torch.pjrt.get_rng_state` and `set_rng_state`",
            )
        return _original(*args, **kwargs)

    def __instancecheck__(cls, x: Any) -> bool:  # pyright: ignore[reportSelfClsParameterName]
        return isinstance(x, _original) if cls is Generator else super().__instancecheck__(x)

    def __subclasscheck__(cls, c: type) -> bool:  # pyright: ignore[reportSelfClsParameterName]
        return issubclass(c, _original) if cls is Generator else super().__subclasscheck__(c)


class Generator(_original, metaclass=_Refusing):
    __doc__ = _original.__doc__
    __module__ = "torch"


def install() -> None:
    """Let `torch.Generator` stand for that class; does nothing the second time."""
    torch.Generator = Generator  # type: ignore[misc]


def _is_pjrt(device: Any) -> bool:
    try:
        return device is not None and torch.device(device).type == "pjrt"
    except (RuntimeError, TypeError):
        return False  # PyTorch says what is wrong with it
