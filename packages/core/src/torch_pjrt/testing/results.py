"""The results of a long run: a file of JSON lines, which a run that goes on reads and takes over."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TextIO, TypeVar

R = TypeVar("R")


def read_results(path: Path, made: Callable[[dict[str, Any]], R]) -> list[R]:
    """What `made` makes of each whole line; one that is cut off does not count. [] without a file."""
    results = []
    for line in path.read_text().splitlines() if path.exists() else ():
        try:
            results.append(made(json.loads(line)))
        except (ValueError, TypeError, KeyError):
            continue
    return results


def begin_results(path: Path, known: Iterable[dict[str, Any]]) -> TextIO:
    """The file with `known` in it and nothing else, open for more.

    So that what follows does not go on in a line that was cut off. The file is there as a whole, as it was or
    as it is to be, whenever the run ends.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name(f"{path.name}.new")
    with new.open("w") as file:
        file.writelines(json.dumps(result) + "\n" for result in known)
    os.replace(new, path)
    return path.open("a")


def write_result(file: TextIO, result: dict[str, Any]) -> None:
    """One more, in the file at once."""
    file.write(json.dumps(result) + "\n")
    file.flush()
