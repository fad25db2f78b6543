"""The command `migrate`: scripts written for torch_xla, rewritten.

python -m torch_pjrt migrate train.py           print what would change, and what is to be done by hand
python -m torch_pjrt migrate --write train.py   change the files
"""

from __future__ import annotations

import argparse
import difflib
import sys
import tokenize
from pathlib import Path
from typing import Any

from torch_pjrt.migrate import Migrated, has_several_processes, migrated


def add_to(commands: Any) -> None:
    """Add the command to the parser of `python -m torch_pjrt`."""
    words = "rewrite scripts that were written for torch_xla, and print the difference"
    parser = commands.add_parser(
        "migrate",
        help=words,
        description=words,
        epilog="exit code: 0 nothing is left of torch_xla; 1 something is to be done by hand; "
        "2 a file cannot be read",
    )
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE", help="Python files")
    parser.add_argument("--write", action="store_true", help="change the files")
    parser.set_defaults(command=migrate)


def migrate(options: argparse.Namespace) -> int:
    """Run the command; the exit code."""
    sources: dict[Path, tuple[str, str]] = {}
    several, code = False, 0
    for path in options.files:
        try:
            sources[path] = _read(path)
            several = has_several_processes(sources[path][0]) or several
        except (OSError, SyntaxError, ValueError) as error:
            sources.pop(path, None)
            print(f"{path} cannot be read: {type(error).__name__}: {error}", file=sys.stderr)
            code = 2
    for path, (source, encoding) in sources.items():
        result = migrated(source, several_processes=several)
        _print(path, source, result)
        if options.write and result.text != source:
            path.write_bytes(result.text.encode(encoding))
        if not code and any(remark.by_hand for remark in result.remarks):
            code = 1
    return code


def _read(path: Path) -> tuple[str, str]:
    """The text of a Python file, line breaks as they are, and its encoding."""
    with path.open("rb") as file:
        encoding, _ = tokenize.detect_encoding(file.readline)
    return path.read_bytes().decode(encoding), encoding


def _print(path: Path, source: str, result: Migrated) -> None:
    before, after = source.splitlines(keepends=True), result.text.splitlines(keepends=True)
    for line in difflib.unified_diff(before, after, f"{path} (torch_xla)", f"{path} (torch-pjrt)"):
        print(line.rstrip("\n"))
    for remark in result.remarks:
        what = "by hand" if remark.by_hand else "note"
        print(f"{path}:{remark.line}: {what}: {remark.name}: {remark.text}")
