"""`accelerate launch --num_processes N` starts N processes where `pjrt` is at hand.

Accelerate looks for several GPUs of its list, and without them starts one process, whatever N is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch_pjrt_ecosystem.at_hand import is_at_hand
from torch_pjrt_ecosystem.replacing import wrap

_OTHERS = ("cpu", "use_cpu", "tpu", "use_deepspeed", "use_fsdp", "use_megatron_lm")


def install(launch: Any) -> None:
    """`launch` is `accelerate.commands.launch`."""
    wrap(launch, "_validate_launch_command", _validate)


def _validate(original: Callable[[Any], Any], args: Any) -> Any:
    checked = original(args)
    given = checked[0]
    if (given.num_processes or 1) > 1 and not any(getattr(given, o, False) for o in _OTHERS):
        given.multi_gpu = given.multi_gpu or is_at_hand()
    return checked
