"""Whatever lies in the folder of the cache costs a compilation: nothing of it is loaded, hangs or raises."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import socket
import stat
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from torch_pjrt.cli_cache import _line
from torch_pjrt.compile.store import Store

pytestmark = pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="files have no modes here")

A, B = (hashlib.sha256(name.encode()).hexdigest() for name in "ab")
BOUND = 1 << 20
IS_ROOT = hasattr(os, "geteuid") and os.geteuid() == 0
Made = Callable[[Path], object]


def content(name: str, body: bytes, **said: object) -> bytes:
    """A file that is right but for what is `said`."""
    about = {"digest": name, "bytes": len(body), "sha256": hashlib.sha256(body).hexdigest()}
    return json.dumps({**about, **said}).encode() + b"\n" + body


def written(text: bytes) -> Made:
    return lambda path: path.write_bytes(text)


def listening(path: Path) -> None:
    home = os.getcwd()
    os.chdir(path.parent)  # a socket's address is short
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(path.name)
    os.chdir(home)


def with_mode(mode: int) -> Made:
    def make(path: Path) -> None:
        path.write_bytes(content(A, b"program"))
        path.chmod(mode)

    return make


def of_another(path: Path) -> None:
    path.write_bytes(content(A, b"program"))
    os.chown(path, 12345, 12345)


def sparse(path: Path, size: int, **said: object) -> None:
    path.write_bytes(content(A, b"", **said))
    os.truncate(path, path.stat().st_size + size)


#    what lies there               made under the program's name
UNDER_A_NAME: dict[str, Made] = {
    "a named pipe": os.mkfifo,
    "a socket": listening,
    "a folder": Path.mkdir,
    "a folder with a file": lambda path: (path.mkdir(), (path / "file").write_bytes(b"x")),
    "a link to a device": lambda path: path.symlink_to("/dev/zero"),
    "a link to a terminal": lambda path: path.symlink_to("/dev/tty"),
    "a link to nothing": lambda path: path.symlink_to("nothing"),
    "a link to itself": lambda path: path.symlink_to(path.name),
    "a link to a program": lambda path: path.symlink_to(f"{B}.program"),
    "another program": lambda path: path.write_bytes((path.parent / f"{B}.program").read_bytes()),
    "a program that others can write": with_mode(0o602),
    "a program that the group can write": with_mode(0o620),
    "nothing in it": written(b""),
    "zeros": written(bytes(10_000)),
    "no head": written(b"\n" * 100),
    "a head of 1 MB": written(b" " * BOUND + content(A, b"program")),
    "a line of 1 MB": written(b"x" * BOUND),
    "60,000 brackets": written(b"[" * 60_000),
    "3,000 brackets": written(b"[" * 3000 + b"]" * 3000 + b"\n"),
    "3,000 objects": written(b'{"a":' * 800 + b"1" + b"}" * 800 + b"\n"),
    "a list": written(b"[1, 2]\nprogram"),
    "a number of 4,000 digits": written(content(A, b"program", bytes=10**4000)),
    "no number": written(content(A, b"program", bytes="7")),
    "no text": written(content(A, b"program", sha256=7)),
    "a list for its digest": written(content(A, b"program", digest=[A])),
    "NaN": written(content(A, b"program", bytes=float("nan"))),
    "no UTF-8": written(b'{"digest": "\xff"}\nprogram'),
    "a head alone": written(content(A, b"program")[: -len(b"program")]),
    "one byte less": written(content(A, b"program")[:-1]),
    "one byte more": written(content(A, b"program") + b"x"),
    "another byte": written(content(A, b"program")[:-1] + b"M"),
    "1 TB of nothing": lambda path: sparse(path, 1 << 40),
    "1 TB of nothing, as it says": lambda path: sparse(path, 1 << 40, bytes=1 << 40),
}
if IS_ROOT:
    UNDER_A_NAME |= {
        "a program of another user": of_another,
        "a device": lambda path: os.mknod(path, stat.S_IFCHR | 0o600, os.makedev(1, 5)),
    }
MAY_STAY = ("a folder", "a folder with a file")


@pytest.fixture(autouse=True)
def in_time() -> Iterator[None]:
    """What hangs is ended."""

    def end(*_: object) -> None:
        raise TimeoutError

    old = signal.signal(signal.SIGALRM, end)
    signal.alarm(60)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, old)


@pytest.mark.parametrize("what", UNDER_A_NAME)
def test_what_lies_under_a_programs_name_is_not_loaded(tmp_path: Path, what: str):
    store = Store(tmp_path, BOUND)
    assert store.save(B, b"another")
    UNDER_A_NAME[what](tmp_path / f"{A}.program")

    assert store.load(A) is None
    assert store.load(B) == b"another"
    for entry in store.entries():
        assert _line(entry)
    with warnings.catch_warnings():
        warnings.simplefilter("error" if what not in MAY_STAY else "ignore")
        saved = Store(tmp_path, BOUND).save(A, b"anew")
    assert saved is (what not in MAY_STAY)
    assert store.load(A) == (b"anew" if saved else None)
    store.clear()
    assert [p.name for p in tmp_path.iterdir()] == ([] if saved else [f"{A}.program"])


@pytest.mark.parametrize("what", UNDER_A_NAME)
def test_clearing_removes_what_lies_under_a_programs_name(tmp_path: Path, what: str):
    store = Store(tmp_path, BOUND)
    store.save(B, b"another")
    # The oldest goes first, and what is left may be empty.
    os.utime(tmp_path / f"{B}.program", (0, 0))
    UNDER_A_NAME[what](tmp_path / f"{A}.program")

    store.clear()

    assert [p.name for p in tmp_path.iterdir()] == ([f"{A}.program"] * (what in MAY_STAY))


def a_folder(mode: int) -> Made:
    def make(path: Path) -> None:
        Store(path, BOUND).save(A, b"program")
        path.chmod(mode)

    return make


def folder_of_another(path: Path) -> None:
    Store(path, BOUND).save(A, b"program")
    os.chown(path, 12345, 12345)


#    what the folder is            made under its name
FOLDERS: dict[str, Made] = {
    "open to the group": a_folder(0o770),
    "open to all": a_folder(0o777),
    "open to all, who remove only their own": a_folder(0o1777),
    "writable, not readable by others": a_folder(0o702),
    "a file": written(b""),
    "a named pipe": os.mkfifo,
    "a link to nothing": lambda path: path.symlink_to(path / "nothing" / "at" / "all"),
    "a link to itself": lambda path: path.symlink_to(path.name),
    "a link to an open folder": lambda path: (
        a_folder(0o777)(path.parent / "open"),
        path.symlink_to("open"),
    ),
}
if IS_ROOT:
    FOLDERS["another user's"] = folder_of_another


@pytest.mark.parametrize("what", FOLDERS)
def test_a_folder_that_others_may_have_filled_costs_one_warning(tmp_path: Path, what: str):
    FOLDERS[what](tmp_path / "folder")
    store = Store(tmp_path / "folder", BOUND)

    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        found = [store.load(A), store.save(B, b"x"), store.save(B, b"x"), store.load(B)]

    assert found == [None, False, False, None]
    assert len(said) == 1
    assert "compiled programs in" in str(said[0].message)
    list(store.entries())
    store.clear()


@pytest.mark.parametrize("mode", [0o700, 0o500, 0o755, 0o1700, 0o2755])
def test_a_folder_that_only_its_user_can_write_to_is_used(tmp_path: Path, mode: int):
    a_folder(mode)(tmp_path / "folder")
    assert Store(tmp_path / "folder", BOUND).load(A) == b"program"


def test_a_link_to_a_folder_of_ones_own_is_used(tmp_path: Path):
    a_folder(0o700)(tmp_path / "there")
    (tmp_path / "folder").symlink_to("there")
    assert Store(tmp_path / "folder", BOUND).load(A) == b"program"
