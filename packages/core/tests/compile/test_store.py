"""The cache on disk gives back what was saved or nothing, whatever happens to its files."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import time
import warnings
from pathlib import Path

import pytest

from torch_pjrt.compile import trust
from torch_pjrt.compile.store import Store

A, B, C = (hashlib.sha256(name.encode()).hexdigest() for name in "abc")
LARGE = 1 << 30


def path_of(folder: Path, digest: str) -> Path:
    return folder / f"{digest}.program"


def test_what_is_saved_is_loaded(tmp_path: Path):
    Store(tmp_path / "new", LARGE).save(A, b"program", operators=3)
    store = Store(tmp_path / "new", LARGE)
    assert store.load(A) == b"program"
    assert store.load(B) is None
    [entry] = store.entries()
    assert (entry.digest, entry.head["operators"]) == (A, 3)


@pytest.mark.parametrize("kept", [0, 1, 40, -1])
def test_a_truncated_file_is_not_loaded_and_goes(tmp_path: Path, kept: int):
    store = Store(tmp_path, LARGE)
    store.save(A, b"program" * 100)
    path = path_of(tmp_path, A)
    path.write_bytes(path.read_bytes()[:kept])
    assert store.load(A) is None
    assert not path.exists()
    store.save(A, b"again")
    assert store.load(A) == b"again"


@pytest.mark.parametrize("content", [b"", b"\0" * 100, b"[]\nx", b"{}\nx", b'{"sha256": 1}\nx'])
def test_a_foreign_file_is_not_loaded_and_is_listed(tmp_path: Path, content: bytes):
    path_of(tmp_path, A).write_bytes(content)
    store = Store(tmp_path, LARGE)
    assert [e.digest for e in store.entries()] == [A]
    assert store.load(A) is None


def test_a_changed_byte_is_noticed(tmp_path: Path):
    store = Store(tmp_path, LARGE)
    store.save(A, b"program")
    path = path_of(tmp_path, A)
    path.write_bytes(path.read_bytes()[:-1] + b"M")
    assert store.load(A) is None


@pytest.mark.skipif(not hasattr(os, "getuid"), reason="files have no owner by number here")
def test_a_file_of_another_user_is_not_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    store = Store(tmp_path, LARGE)
    store.save(A, b"program")
    owner = os.geteuid()
    monkeypatch.setattr(trust, "objection_to_folder", lambda folder: None)
    monkeypatch.setattr(os, "geteuid", lambda: owner + 1)
    assert store.load(A) is None
    assert path_of(tmp_path, A).exists()


def test_only_the_user_may_look_into_a_folder_that_it_makes(tmp_path: Path):
    Store(tmp_path / "new", LARGE).save(A, b"program")
    assert (tmp_path / "new").stat().st_mode & 0o077 == 0


def test_what_was_used_longest_ago_goes_first(tmp_path: Path):
    store = Store(tmp_path, LARGE)
    for i, digest in enumerate((A, B, C)):
        store.save(digest, bytes(1000))
        os.utime(path_of(tmp_path, digest), (i, i))
    assert store.load(A) is not None  # used just now
    store.prune(path_of(tmp_path, A).stat().st_size * 2)
    assert [e.digest for e in store.entries()] == [A, C]


def test_the_folder_stays_within_its_bound(tmp_path: Path):
    store = Store(tmp_path, 10_000)
    for i in range(100):
        store.save(hashlib.sha256(bytes([i])).hexdigest(), bytes(800))
    total = sum(p.stat().st_size for p in tmp_path.iterdir())
    assert 5_000 < total <= 11_000
    assert store.load(hashlib.sha256(bytes([99])).hexdigest()) is not None


def test_what_is_being_written_counts_too(tmp_path: Path):
    store = Store(tmp_path, 10_000)
    store.save(A, bytes(3000))
    (tmp_path / "other.partial").write_bytes(bytes(8000))
    store.save(B, bytes(3000))
    assert (store.load(A), store.load(B)) == (None, None)
    os.utime(tmp_path / "other.partial", (1, 1))
    Store(tmp_path, 10_000).prune(10_000)
    assert not list(tmp_path.iterdir())


def test_pruning_removes_what_a_dead_process_left(tmp_path: Path):
    old, new = tmp_path / "a.partial", tmp_path / "b.partial"
    for path in (old, new):
        path.write_bytes(b"x")
    long_ago = time.time() - 1e5
    os.utime(old, (long_ago, long_ago))
    Store(tmp_path, LARGE).prune(LARGE)
    assert not old.exists()
    assert new.exists()


# Files of this process may not grow beyond 1,000 bytes: the system refuses, as a full disk does.
FULL = """
import resource, signal, sys, warnings
from pathlib import Path
from torch_pjrt.compile.store import Store
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
folder = Path(sys.argv[1])
store = Store(folder, 1 << 30)
with warnings.catch_warnings(record=True) as said:
    warnings.simplefilter("always")
    results = [store.save("a" * 64, bytes(10_000)), store.save("b" * 64, bytes(10_000))]
print(results, len(said), [p.name for p in folder.iterdir()], store.load("a" * 64))
"""


@pytest.mark.skipif(sys.platform == "win32", reason="has no limit on the size of files")
def test_a_full_disk_costs_the_cache_and_one_warning(tmp_path: Path):
    done = subprocess.run(
        [sys.executable, "-c", FULL, str(tmp_path)], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[False, False] 1 [] None"


def test_a_folder_that_cannot_be_made_costs_one_warning(tmp_path: Path):
    (tmp_path / "file").write_text("")
    store = Store(tmp_path / "file" / "folder", LARGE)
    with pytest.warns(UserWarning, match="cannot save compiled programs"):
        assert not store.save(A, b"x")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert not store.save(A, b"x")
    assert store.load(A) is None
    assert list(store.entries()) == []
    assert store.clear() == (0, 0)


WRITER = """
import hashlib, sys
from pathlib import Path
from torch_pjrt.compile.store import Store
store = Store(Path(sys.argv[1]), 60_000)
for turn in range(150):
    digest = hashlib.sha256(bytes([turn % 15])).hexdigest()
    found = store.load(digest)
    assert found is None or found == digest.encode() * 50, found
    assert store.save(digest, digest.encode() * 50)
"""


def test_many_processes_write_at_once(tmp_path: Path):
    writers = [subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path)]) for _ in range(4)]
    assert [w.wait() for w in writers] == [0] * 4
    assert not list(tmp_path.glob("*.partial"))
    store = Store(tmp_path, LARGE)
    entries = list(store.entries())
    assert entries
    assert all(store.load(e.digest) == e.digest.encode() * 50 for e in entries)
