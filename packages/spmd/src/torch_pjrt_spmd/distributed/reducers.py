"""What DDP asks for beside collectives: a stream of the device by its number, and pinned memory of the host,
where parameters may be unused.

It copies the map of used parameters to the device by way of pinned memory, which PyTorch has from backends
in C++ alone. The first reducer that may do so has the CPU's `empty_strided` give ordinary memory for it.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
import torch.distributed as dist
from torch._prims_common import compute_required_storage_length
from torch.nn.parallel import _functions
from torch.utils._python_dispatch import TorchDispatchMode

from torch_pjrt.extend import call_pinned, current, run_pending
from torch_pjrt.plugin import aten

_PyTorchs: Any = dist.Reducer  # pyright: ignore[reportPrivateImportUsage]
# Where in a reducer's arguments it says that parameters may be unused.
_MAY_BE_UNUSED = 6


class Reducer(_PyTorchs):
    """PyTorch's, and does what it does.

    In its second step DDP makes new buckets. They are made by a program of their own here: with the rest of
    the step they would make it another one than all steps to come.
    """

    def __init__(self, params: Sequence[torch.Tensor], *rest: Any, **more: Any) -> None:
        self._on_pjrt = any(p.device.type == "pjrt" for p in params)
        unused = more.get("find_unused_parameters", rest[_MAY_BE_UNUSED - 1 :][:1] == (True,))
        if self._on_pjrt and unused:
            _without_pinned_memory()
        super().__init__(params, *rest, **more)

    def _rebuild_buckets(self) -> bool:
        if not self._on_pjrt:
            return super()._rebuild_buckets()
        with _Made() as made:
            are_new = super()._rebuild_buckets()
        if made.tensors:
            for bucket in made.tensors:
                bucket.zero_()
            run_pending(current(), "DDP's new buckets")
        return are_new

    def _set_static_graph(self) -> None:
        if self._on_pjrt:
            _without_pinned_memory()
        super()._set_static_graph()


class _Made(TorchDispatchMode):
    """Keeps the tensors that C++ makes on the device without content."""

    def __init__(self) -> None:
        super().__init__()
        self.tensors: list[torch.Tensor] = []

    def __torch_dispatch__(self, op: Any, _: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = op(*args, **(kwargs or {}))
        if op in _EMPTY and made.device.type == "pjrt" and made.is_floating_point():
            self.tensors.append(made)
        return made


_EMPTY = (aten.empty.memory_format, aten.empty_strided.default)


def install() -> None:
    """Have DDP make its reducers of this kind, and take `device_ids=[LOCAL_RANK]`."""
    dist.Reducer = Reducer  # pyright: ignore[reportPrivateImportUsage]
    number = os.environ.get("LOCAL_RANK", "0")
    if number.isdigit():
        _have_streams_up_to(int(number))


def _have_streams_up_to(number: int) -> None:
    """PyTorch keeps a stream for each device of a process, by its index; a process here has one device."""
    known: Any = _functions._streams or []
    missing = [torch.Stream(device="pjrt:0") for _ in range(number + 1 - len(known))]
    _functions._streams = [*known, *missing]


@cache
def _without_pinned_memory() -> torch.library.Library:
    library = torch.library.Library("aten", "IMPL")
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", r"(?s).*Overriding a previously registered kernel")
        library.impl("empty_strided", _empty_strided, "CPU")
    return library


def _empty_strided(
    size: Sequence[int],
    stride: Sequence[int],
    *,
    dtype: torch.dtype | None = None,
    layout: Any = None,
    device: Any = None,
    pin_memory: bool | None = None,
) -> torch.Tensor:
    made = torch.empty(0, dtype=dtype, device="cpu")
    length = compute_required_storage_length(tuple(size), tuple(stride), 0)
    storage = torch.UntypedStorage(length * made.element_size())
    made.set_(storage, 0, tuple(size), tuple(stride))
    if pin_memory:
        call_pinned(made)  # the reducer insists that it got what it asked for
    return made
