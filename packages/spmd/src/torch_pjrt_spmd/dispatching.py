"""A command line of several commands, one module each.

A module has its words, its arguments, and what it does:

    WORDS = "print the manifest of a job for Kubernetes"
    def arguments(parser: argparse.ArgumentParser) -> None: ...
    def run(options: argparse.Namespace) -> int: ...            # the exit code
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from importlib import import_module


def dispatch(
    package: str, commands: Sequence[str], about: str, arguments: Sequence[str] | None
) -> int:
    """Run one of a package's commands; the exit code. Ends the process with 2 where it cannot be read.

    package    whose modules are the commands: `mine.commands`, for `python -m mine`. about: what they do.
    arguments  of the command line; this process's, unless given.
    """
    parser = argparse.ArgumentParser(
        prog=f"python -m {package.rpartition('.')[0]}", description=about
    )
    added = parser.add_subparsers(required=True, metavar="COMMAND")
    for name in commands:
        command = import_module(f"{package}.{name}")
        one = added.add_parser(name, help=command.WORDS, description=command.WORDS)
        command.arguments(one)
        one.set_defaults(command=command.run)
    options = parser.parse_args(arguments)
    return options.command(options)
