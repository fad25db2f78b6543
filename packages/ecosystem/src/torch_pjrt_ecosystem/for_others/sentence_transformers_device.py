"""Sentence Transformers: `pjrt` where that is at hand and no device is named."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType

from torch_pjrt_ecosystem.at_hand import is_at_hand
from torch_pjrt_ecosystem.replacing import wrap


def install(environment: ModuleType) -> None:
    """`environment` is `sentence_transformers.util.environment`."""
    wrap(environment, "get_device_name", _name)


def _name(original: Callable[[], str]) -> str:
    found = original()
    return "pjrt" if found == "cpu" and is_at_hand() else found
