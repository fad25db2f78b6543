"""`TrainingArguments(bf16=True)`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch_pjrt_ecosystem.at_hand import is_at_hand
from torch_pjrt_ecosystem.replacing import wrap


def install(import_utils: Any) -> None:
    """`import_utils` is `transformers.utils.import_utils`."""
    wrap(import_utils, "is_torch_bf16_gpu_available", _is_available)


def _is_available(original: Callable[[], bool]) -> bool:
    return is_at_hand() or original()
