"""The rows of the table, each applied when its library's module is imported."""

from __future__ import annotations

import contextlib
import importlib
import importlib.metadata
import warnings
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from torch_pjrt_ecosystem import settings
from torch_pjrt_ecosystem.table import LIBRARIES, PATCHES, Patch


@dataclass(slots=True)
class Status:
    """What has become of a row.

    applied     modules that were changed.
    failures    module -> why it could not be changed.
    """

    patch: Patch
    is_on: bool = True
    applied: list[str] = field(default_factory=list)
    failures: dict[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        if not self.is_on:
            return "switched off"
        said = [f"failed: {why}" for why in self.failures.values()]
        said += ["applied"] if self.applied else []
        return "; ".join(said) or "its library is not imported"


_statuses: dict[str, Status] = {}


def statuses() -> list[Status]:
    """The status of each row, in the order of the table."""
    return [_statuses.get(patch.name, Status(patch)) for patch in PATCHES]


def wait_for_libraries() -> None:
    """Have each row applied when its module is imported, now where it has been; once in a process.

    Raises `SettingError` for a malformed TORCH_PJRT_ECOSYSTEM, and then nothing is applied.
    """
    if _statuses:
        return
    from torch_pjrt.extend import after_import

    is_on = settings.read([*LIBRARIES, *(patch.name for patch in PATCHES)])
    for patch in PATCHES:
        status = _statuses[patch.name] = Status(patch, is_on(patch.name))
        if status.is_on:
            for module in patch.modules:
                after_import(module, partial(_apply, status))


def _apply(status: Status, module: Any) -> None:
    """Never raises: the library's import must not fail. A patch that fails is a warning, once."""
    where, _, function = status.patch.install.partition(":")
    try:
        getattr(importlib.import_module(f"{__package__}.{where}"), function)(module)
        status.applied.append(module.__name__)
    except Exception as error:
        status.failures[module.__name__] = f"{type(error).__name__}: {error}"
        with contextlib.suppress(Warning):
            warnings.warn(_words(status.patch, error), stacklevel=2)


def _words(patch: Patch, error: Exception) -> str:
    library = LIBRARIES[patch.library]
    return (
        f"torch-pjrt could not change {patch.library}: {patch.changes}. Without it {patch.why}.\n"
        f"  saw: {patch.library} {library.installed() or 'of unknown version'}: {error}\n"
        f"  expected: one of {', '.join(library.tested)}\n"
        f"  hint: {settings.VARIABLE}=-{patch.name} switches this off, and this warning"
    )
