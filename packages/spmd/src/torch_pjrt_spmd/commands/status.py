"""`python -m torch_pjrt_spmd status`: what each process of a run does now.

    status                        the run that has processes on this host
    status --store node0:29500    any run, by its store: MASTER_ADDR:MASTER_PORT of its processes
    status --json                 a line of JSON for each rank
    status --watch 2              again and again, every 2 seconds

Read from what the processes post by themselves each second (`distributed/board.py`): none is waited for or
disturbed. Exit code 0 if all ranks run, 1 if one is gone, silent or has failed, 2 if there is no run.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from datetime import timedelta
from typing import Any

from torch._C._distributed_c10d import TCPStore

from torch_pjrt.errors import TorchPjrtError
from torch_pjrt_spmd.distributed import findings
from torch_pjrt_spmd.distributed.board import COLLECTIVE, ENDED, FAILED, WAITING, Board, Post
from torch_pjrt_spmd.distributed.local_runs import local_stores
from torch_pjrt_spmd.distributed.stragglers import slow

WORDS = "show what each process of a run does now"
# A post is a second old at most; hosts' clocks may differ by some more.
_SILENT_SECONDS = 5.0


class NoRun(TorchPjrtError, RuntimeError):
    """There is no run whose state could be shown."""


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add what the command takes."""
    parser.add_argument("--store", metavar="HOST:PORT", help="the run's store")
    parser.add_argument("--json", action="store_true", help="a line of JSON for each rank")
    parser.add_argument("--watch", type=float, metavar="SECONDS", help="again, so often")


def run(options: argparse.Namespace) -> int:
    """Print the state of a run; the exit code."""
    board, address = _board(options.store)
    while True:
        posts, missing = _posts(board)
        if options.json:
            for post in posts:
                print(json.dumps({**asdict(post), "verdict": _verdict(board, post)}))
        else:
            _print_table(board, posts, missing, address)
        bad = missing or any(_verdict(board, post) not in ("", ENDED) for post in posts)
        if options.watch is None:
            return int(bool(bad))
        time.sleep(options.watch)


def _board(store: str | None) -> tuple[Board, str]:
    addresses = [store] if store else local_stores()
    if not addresses and "MASTER_ADDR" in os.environ:
        addresses = [f"{os.environ['MASTER_ADDR']}:{os.environ.get('MASTER_PORT', '29500')}"]
    if len(addresses) != 1:
        raise NoRun(
            "No run has processes on this host." if not addresses else "There are several runs.",
            saw=", ".join(addresses) or None,
            hint="--store HOST:PORT names one: MASTER_ADDR and MASTER_PORT of its processes",
        )
    host, _, port = addresses[0].rpartition(":")
    try:
        socket.create_connection(
            (host, int(port)), 3
        ).close()  # where nobody is, PyTorch tries for long
        client = TCPStore(
            host, int(port), None, False, timedelta(seconds=5), wait_for_workers=False
        )
        board = Board.open(client)
    except (OSError, RuntimeError, ValueError) as error:
        raise NoRun(
            f"The store of the run, at {addresses[0]}, does not answer: the run has ended, "
            "or the process that keeps it is gone (rank 0, or torchrun's agent).",
            saw=str(error).partition("\n")[0],
        ) from error
    if board is None:
        raise NoRun(
            f"The store at {addresses[0]} has no status board.",
            hint='a run has one once each process has called `init_process_group("pjrt")`',
        )
    return board, addresses[0]


def _posts(board: Board) -> tuple[list[Post], list[int]]:
    """What the ranks have posted, and which of them have not."""
    board.look(range(board.size))
    posts = [board.seen[rank].post for rank in sorted(board.seen)]
    return posts, [rank for rank in range(board.size) if rank not in board.seen]


def _verdict(board: Board, post: Post) -> str:
    """`ended`, `failed`, `gone` or `silent`; "" for a process that lives."""
    if post.phase in (ENDED, FAILED):
        return post.phase
    if findings.lost(board.seen, [post.rank], float("inf")):
        return "gone"
    return "silent" if time.time() - post.time > _SILENT_SECONDS else ""


def _print_table(board: Board, posts: Sequence[Post], missing: Sequence[int], address: str) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title=f"{board.size} ranks, store {address}")
    for name in ("rank", "host:process", "state", "step", "s a step", "own s", "memory", "where"):
        table.add_column(name, justify="right" if name in ("rank", "step") else "left")
    slower = {one.rank for one in slow(posts)}
    for post in posts:
        table.add_row(*_row(board, post, post.rank in slower))
    for rank in missing:
        table.add_row(str(rank), "", "[red]not there yet", *[""] * 5)
    console = Console(width=None if sys.stdout.isatty() else 160, highlight=False)
    console.print(table)
    for post in posts:
        if post.error:
            console.print(f"last error of rank {post.rank}: {post.error}", markup=False)
    for one in slow(posts):
        console.print(f"slow: {one}", markup=False)


def _row(board: Board, post: Post, is_slow: bool) -> list[str]:
    from rich.markup import escape

    verdict = _verdict(board, post)
    state = f"[red]{verdict}" if verdict not in ("", ENDED) else verdict or _state(post)
    if verdict in ("gone", "silent"):
        state += f", for {time.time() - post.time:.0f} s"
    doing = post.doing if post.phase in (WAITING, COLLECTIVE) else ""
    own = "" if post.own_s is None else f"{post.own_s:.3f}"
    return [
        str(post.rank),
        escape(f"{post.host}:{post.pid}"),
        state,
        str(post.step) if post.step else f"{post.launches} launches",
        "" if post.step_s is None else f"{post.step_s:.3f}",
        f"[yellow]{own} slow" if is_slow else own,
        _memory(post),
        escape(" ".join(filter(None, (doing, f"at {post.line}" if post.line else "")))),
    ]


def _state(post: Post) -> str:
    if post.phase not in (WAITING, COLLECTIVE):
        return post.phase
    others = ", ".join(str(rank) for rank in post.ranks if rank != post.rank)
    words = f"waiting for {others}" if post.phase == WAITING else f"in a collective with {others}"
    return f"{words}, {post.since_s:.0f} s"


def _memory(post: Post) -> str:
    host: Any = f"{post.host_bytes / 2**20:.0f} MiB of the host"
    return host if post.device_bytes is None else f"{post.device_bytes / 2**20:.0f} MiB, {host}"
