"""Launches of programs, for whoever wants to know which ran while it looked."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch_pjrt.compile.hooks import add_program_hooks
from torch_pjrt.compile.programs import Program


@contextmanager
def launches() -> Iterator[list[Program]]:
    """The programs that are launched while the block runs, in order."""
    heard: list[Program] = []
    with add_program_hooks(after_launch=heard.append):
        yield heard
