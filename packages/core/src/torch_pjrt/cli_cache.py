"""The command `cache`: the compiled programs that are kept on disk for later processes.

python -m torch_pjrt cache                  where they are, how many, how large; the last used ones
python -m torch_pjrt cache prune --to 100M  remove what was used longest ago
python -m torch_pjrt cache clear            remove all
"""

from __future__ import annotations

import argparse
import re
import time
from typing import Any

from torch_pjrt.compile.store import Entry, Store
from torch_pjrt.observe.tables import readable

_LISTED = 20
_WIDEST = 10
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


def add_to(commands: Any) -> None:
    """Add the command to the parser of `python -m torch_pjrt`."""
    words = "list, prune or clear the compiled programs on disk"
    parser = commands.add_parser("cache", help=words, description=words)
    parser.add_argument("action", nargs="?", choices=("list", "prune", "clear"), default="list")
    parser.add_argument(
        "--to",
        type=_size,
        metavar="SIZE",
        help="prune: the size to leave, as 500M or 1.5G (what TORCH_PJRT_CACHE_BYTES says)",
    )
    parser.add_argument("--all", action="store_true", help=f"list all, not {_LISTED}")
    parser.set_defaults(command=cache)


def cache(options: argparse.Namespace) -> int:
    """Run the command; the exit code: 0."""
    from torch_pjrt.settings import settings  # reads the environment, which may raise

    if settings.cache_dir is None:
        print("TORCH_PJRT_CACHE_DIR is empty: no programs are kept on disk.")
        return 0
    store = Store(settings.cache_dir, settings.cache_bytes)
    if options.action == "list":
        _list(store, len(list(store.entries())) if options.all else _LISTED)
        return 0
    if options.action == "clear":
        n, nbytes = store.clear()
    else:
        n, nbytes = store.prune(store.bound if options.to is None else options.to)
    print(f"{n} programs removed, {readable(nbytes)}, from {store.folder}")
    return 0


def _list(store: Store, most: int) -> None:
    entries = list(store.entries())
    total = sum(e.nbytes for e in entries)
    print(
        f"{len(entries)} programs, {readable(total)} of {readable(store.bound)}, in {store.folder}"
    )
    if entries:
        print(f"{'PROGRAM':<14}{'SIZE':>9}{'OPERATORS':>11}{'COMPILED IN':>13}  DEVICE  LAST USED")
    for entry in entries[:most]:
        print(_line(entry))
    if len(entries) > most:
        print(f"and {len(entries) - most} more; --all lists them")


def _line(entry: Entry) -> str:
    head = {k: str(v)[:_WIDEST] for k, v in entry.head.items()}
    used = time.strftime("%Y-%m-%d %H:%M", time.localtime(entry.used))
    seconds = f"{head.get('seconds', '?')} s"
    return (
        f"{entry.digest[:12]:<14}{readable(entry.nbytes):>9}{head.get('operators', '?'):>11}"
        f"{seconds:>13}  {head.get('device', '?'):<6}  {used}"
    )


def _size(text: str) -> int:
    found = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)([KMG]?)i?B?", text.strip(), re.IGNORECASE)
    if found is None:
        raise argparse.ArgumentTypeError(f"{text!r} is no size: 500M and 1.5G are")
    return int(float(found[1]) * _UNITS[found[2].upper()])
