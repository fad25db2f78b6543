"""What came of a test."""

from __future__ import annotations

import enum
import re
from dataclasses import asdict, dataclass
from typing import Any


class Outcome(enum.StrEnum):
    """PASSED includes failures that PyTorch expects. SKIPPED ones do not apply: PyTorch says so."""

    PASSED = "passed"
    FAILED = "failed"
    CRASHED = "crashed"
    HUNG = "hung"
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True)
class Result:
    """One test: `test` is `file::Class.name`, `why` the error or reason in a line."""

    test: str
    outcome: Outcome
    why: str = ""
    seconds: float = 0.0

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def of_dict(cls, fields: dict[str, Any]) -> Result:
        return cls(**{**fields, "outcome": Outcome(fields["outcome"])})

    @property
    def failed(self) -> bool:
        return self.outcome in (Outcome.FAILED, Outcome.CRASHED, Outcome.HUNG)


def file_of(test: str) -> str:
    """The file of a test, without its folder and ending."""
    return test.partition("::")[0]


_ADDRESS = re.compile(r"0x[0-9a-f]+")


def in_a_line(text: str, most: int = 300) -> str:
    """The first line that says something, without addresses."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return _ADDRESS.sub("0x", lines[0])[:most] if lines else ""
