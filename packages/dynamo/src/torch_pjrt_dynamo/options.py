"""The options of `torch.compile(backend="pjrt", options={...})`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from torch_pjrt.errors import SettingError
from torch_pjrt.extend import PRECISIONS
from torch_pjrt_dynamo.bucket_sizes import Buckets, buckets_of


@dataclass(frozen=True, slots=True)
class Options:
    """What a user chooses for a compiled function.

    memory_budget  from 0 to 1: how much of what forward computes is kept for backward; the rest is computed
                   again. None: what is kept without a compiler. `torch_pjrt_dynamo.partitions()` says what.
    precision      of products of float32 in the function and its backward, by the names that
                   `torch.set_float32_matmul_precision` takes; None for the one in force when they run.
    buckets        sizes up to which sizes that vary are padded, True (the default) for powers of two, False
                   for one program for each size. `torch_pjrt_dynamo.shapes()` says what became of them.
    donate         names of arguments whose memory a call may take, though the caller holds the tensors.
    """

    memory_budget: float | None = None
    precision: str | None = None
    buckets: Buckets | None = None
    donate: tuple[str, ...] = ()


NAMES = tuple(f.name for f in fields(Options))


def options_of(given: Mapping[str, Any]) -> Options:
    """The options that were given, checked; `SettingError` for what is none."""
    unknown = set(given) - set(NAMES)
    if unknown:
        raise SettingError(
            "The backend `pjrt` of `torch.compile` does not know an option.",
            saw=", ".join(sorted(unknown)),
            expected=", ".join(NAMES),
            hint="`torch_pjrt.compile_options(...)` gives XLA's options for a block",
        )
    budget = given.get("memory_budget")
    if budget is not None:
        if isinstance(budget, bool) or not isinstance(budget, (int, float)) or not 0 <= budget <= 1:
            raise _refused("memory_budget", budget, "a number from 0 to 1")
        budget = float(budget)
    precision = given.get("precision")
    if precision is not None and precision not in PRECISIONS:
        raise _refused("precision", precision, ", ".join(PRECISIONS))
    donate = given.get("donate", ())
    if not isinstance(donate, (list, tuple)) or not all(isinstance(n, str) for n in donate):
        raise _refused("donate", donate, "a list of names of arguments")
    buckets = buckets_of(given.get("buckets", True))
    return Options(budget, precision, buckets, tuple(donate))


def _refused(name: str, saw: Any, expected: str) -> SettingError:
    return SettingError(f"`{name}` cannot be that.", saw=repr(saw), expected=expected)
