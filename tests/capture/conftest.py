"""What tests of captured steps share."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from quickly import compiled_quickly

__all__ = ["compiled_quickly", "few_objects"]


@pytest.fixture(scope="module")
def few_objects() -> Iterator[None]:
    """An observed call looks at all objects that can be garbage: not at those that are there already."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()
