"""How much memory there is. `device_map="auto"` plans with it: without ours, all of it is the CPU's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from torch_pjrt_ecosystem.at_hand import is_at_hand
from torch_pjrt_ecosystem.replacing import wrap

_Sizes = dict[int | str, Any]


def install(modeling: Any) -> None:
    """`modeling` is `accelerate.utils.modeling`."""
    in_bytes = modeling.convert_file_size_to_int

    def get_max_memory(original: Callable[..., _Sizes], max_memory: _Sizes | None = None) -> _Sizes:
        """The device is number 0: `torch.device(0)` is that of the accelerator."""
        if not is_at_hand():
            return original(max_memory)
        if max_memory is None:
            return _found(original(None))
        for name, size in max_memory.items():  # in the caller's dictionary, as Accelerate does it
            max_memory[name] = in_bytes(size) if isinstance(size, str) else size
        others = original({name: size for name, size in max_memory.items() if name != 0})
        return {0: max_memory[0], **others} if 0 in max_memory else others

    wrap(modeling, "get_max_memory", get_max_memory)


def _found(others: _Sizes) -> _Sizes:
    from torch_pjrt.extend import chosen_device_name

    free, _ = torch.accelerator.get_memory_info(0)
    if chosen_device_name() == "cpu":  # its memory is the host's: not to be counted twice
        return {0: free}
    return {0: free, **{name: size for name, size in others.items() if not isinstance(name, int)}}
