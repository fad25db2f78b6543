"""Everything that works on one chip works on a mesh: programs give the same, whatever their inputs lie like."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch


def differences(found: Any, expected: Any, where: str = "") -> Iterator[str]:
    """Where two results differ; floats may by the order of sums."""
    if isinstance(expected, torch.Tensor):
        f, e = found.detach(), expected.detach()
        if f.is_sparse:
            f = f.coalesce().to_dense()
            e = e.coalesce().to_dense()
        try:
            torch.testing.assert_close(f.cpu(), e.cpu(), rtol=2e-5, atol=2e-5, equal_nan=True)
        except AssertionError as error:
            yield f"{where}: {error}"
    elif isinstance(expected, np.ndarray):
        yield from differences(
            torch.from_numpy(np.array(found)), torch.from_numpy(np.array(expected)), where
        )
    elif isinstance(expected, dict):
        assert found.keys() == expected.keys()
        for key in expected:
            yield from differences(found[key], expected[key], f"{where}.{key}")
    elif isinstance(expected, (list, tuple)):
        if len(found) != len(expected):
            yield f"{where}: {len(found)} {len(expected)}"
        for i, (f, e) in enumerate(zip(found, expected)):
            yield from differences(f, e, f"{where}[{i}]")
    elif isinstance(expected, float):
        if not abs(found - expected) <= 2e-5 * max(1, abs(expected)):
            yield f"{where}: {found} {expected}"
    elif found != expected:
        yield f"{where}: {found!r} {expected!r}"
