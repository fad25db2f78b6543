"""The command line: `python -m torch_pjrt_spmd COMMAND`. One module here is one command.

A module has its words, its arguments, and what it does:

    WORDS = "print the manifest of a job for Kubernetes"
    def arguments(parser: argparse.ArgumentParser) -> None: ...
    def run(options: argparse.Namespace) -> int: ...            # the exit code

and its name in `COMMANDS`. Exit code 2 if the command cannot be read.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from importlib import import_module

import torch  # noqa: F401 - before the rest: it registers the device, in the order that PyTorch expects

from torch_pjrt.errors import TorchPjrtError

COMMANDS = ("manifest", "status")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; the exit code. An error of ours is printed, without a traceback, and gives 2."""
    options = _parser().parse_args(arguments)
    try:
        return options.command(options)
    except TorchPjrtError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m torch_pjrt_spmd",
        description="Runs of many chips and many processes.",
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for name in COMMANDS:
        command = import_module(f"{__name__}.{name}")
        one = commands.add_parser(name, help=command.WORDS, description=command.WORDS)
        command.arguments(one)
        one.set_defaults(command=command.run)
    return parser
