"""What a user turns on for a block: `torch_pjrt.source_lines()`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch_pjrt.observe import lines


@contextmanager
def source_lines() -> Iterator[None]:
    """Programs compiled within the block say in XLA's metadata (and in dumps) where each operator was called.

    The same as `TORCH_PJRT_SOURCE_LINES=1`, which holds for the whole process. A program that was compiled
    before is reused as it is.

        >>> with torch_pjrt.source_lines():
        ...     (torch.ones(2, device="pjrt") + 1).tolist()
        [2.0, 2.0]
    """
    with lines.noted("source_lines()", in_programs=True):
        yield
