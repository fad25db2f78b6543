"""Random operators that are given a generator: there are only the CPU's, so it is the CPU that draws.

The numbers are those that the CPU gives with that generator, and it advances as there.
"""

from __future__ import annotations

from typing import Any

import torch

from torch_pjrt.overloads import aten
from torch_pjrt.tensor.recording.fallback import run_on_cpu
from torch_pjrt.tensor.storage.buffer import is_pjrt
from torch_pjrt.tensor.storage.transfer import download, overwrite

# They write each element of `self` and read none.
_FILL = frozenset(
    overload
    for packet in (
        aten.bernoulli_,
        aten.cauchy_,
        aten.exponential_,
        aten.geometric_,
        aten.log_normal_,
        aten.normal_,
        aten.random_,
        aten.uniform_,
    )
    for overload in (getattr(packet, name) for name in packet.overloads())
)


def has_generator(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether a call is given one; some schemas have it last among the arguments without a name."""
    if kwargs.get("generator") is not None:
        return True
    return bool(args) and isinstance(args[-1], torch._C.Generator)


def call(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """`op` on the CPU, with its generator; the result on the device. What is only filled is not read."""
    if op not in _FILL:
        return run_on_cpu(op, args, kwargs, is_asked_for=True)
    filled, *others = args
    # Of the same strides: they decide the order in which the CPU draws.
    host = torch.empty_strided(filled.shape, filled.stride(), dtype=filled.dtype, device="cpu")
    op(host, *[download(x) if is_pjrt(x) else x for x in others], **kwargs)
    overwrite(filled, host.contiguous())
    return filled
