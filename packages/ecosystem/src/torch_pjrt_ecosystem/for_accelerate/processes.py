"""Several processes: Accelerate knows no backend for `pjrt`, so each would train a model of its own."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from torch_pjrt.errors import UnsupportedError
from torch_pjrt_ecosystem.at_hand import is_at_hand
from torch_pjrt_ecosystem.replacing import wrap


def install(state: Any) -> None:
    """`state` is `accelerate.state`."""
    wrap(state.PartialState, "_prepare_backend", _prepare_backend)


def _prepare_backend(
    original: Callable[..., Any], self: Any, cpu: bool = False, *args: Any, **kwargs: Any
) -> Any:
    backend, kind = original(self, cpu, *args, **kwargs)
    n_processes = int(os.environ.get("WORLD_SIZE") or 1)
    if backend is None and not cpu and n_processes > 1 and (_is_named() or is_at_hand()):
        raise UnsupportedError(
            "Accelerate would train a model of its own in each process: it has no backend for `pjrt`.",
            saw=f"WORLD_SIZE={n_processes}",
            expected="one process",
            hint="spread the tensors of one process over its chips (docs/many-chips.md), or wrap the model "
            'in DistributedDataParallel with `init_process_group("pjrt")` (docs/many-processes.md)',
        )
    return backend, kind


def _is_named() -> bool:
    return os.environ.get("ACCELERATE_TORCH_DEVICE", "").startswith("pjrt")
