"""The commands of `python -m torch_pjrt_spmd.autoshard`: one module each, its name in `COMMANDS`.

What a module has is in `torch_pjrt_spmd/dispatching.py`. Exit code 2 if the command cannot be read.
"""

from collections.abc import Sequence

from torch_pjrt_spmd.dispatching import dispatch

COMMANDS = ("solve",)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; the exit code."""
    return dispatch(
        __name__, COMMANDS, "How the tensors of a program are spread over chips.", arguments
    )
