"""The commands of `python -m torch_pjrt_spmd`: one module each (`dispatching.py`), its name in `COMMANDS`.

Exit code 2 if the command cannot be read.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

import torch  # noqa: F401 - before the rest: it registers the device, in the order that PyTorch expects

from torch_pjrt.errors import TorchPjrtError
from torch_pjrt_spmd.dispatching import dispatch

COMMANDS = ("manifest", "status")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; the exit code. An error of ours is printed, without a traceback, and gives 2."""
    try:
        return dispatch(__name__, COMMANDS, "Runs of many chips and many processes.", arguments)
    except TorchPjrtError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 2
