"""The backend `pjrt` of `torch.compile`, by name."""

from __future__ import annotations

from typing import Any

_NAME = "PJRT"


def install(dataclasses: Any) -> None:
    """`dataclasses` is `accelerate.utils.dataclasses`. An enum asks `_missing_` for what it lacks."""
    backends = dataclasses.DynamoBackend
    original = backends._missing_
    made: dict[str, Any] = {}

    def missing(kind: Any, value: object) -> Any:
        if value != _NAME:
            return original(value)
        if _NAME not in made:
            member = str.__new__(kind, _NAME)
            member._name_ = member._value_ = _NAME
            made[_NAME] = member
        return made[_NAME]

    backends._missing_ = classmethod(missing)
