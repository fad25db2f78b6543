"""Files of tests in a process that has eight virtual chips.

How many chips there are is decided when XLA's client starts, so it cannot be done in the process of the
other tests.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import pytest

import warm
from torch_pjrt.options import COMPILE

EIGHT_CHIPS = "--xla_force_host_platform_device_count=8"
HAS_EIGHT_CHIPS = EIGHT_CHIPS in os.environ.get("XLA_FLAGS", "")


def run_on_eight_chips(
    folder: Path, process: int, n_processes: int, pytestconfig: pytest.Config
) -> None:
    """Every `n_processes`-th file of tests in `folder`, from number `process` on; fails where one does."""
    files = sorted(path.name for path in folder.glob("test_*.py"))
    assert len(files) >= n_processes, f"{len(files)} files of tests in {folder}"
    flags = f"{os.environ.get('XLA_FLAGS', '')} {EIGHT_CHIPS}"
    part = pytestconfig.getoption("--part", None)
    # By the folder, not the files: slow tests of a file that is named do not take turns.
    options = ["-q", "-p", "no:cacheprovider", str(folder)]
    others = set(files) - set(files[process::n_processes])
    options += [f"--ignore={folder / other}" for other in sorted(others)]
    options += ["--part", part] if part else []
    own = {**os.environ, "XLA_FLAGS": flags, "PJRT_DEVICE": "CPU"}
    own.pop(COMPILE, None)  # that of this test; those in the folder see to it themselves
    done = warm.run(["-m", "pytest", *options], own, timeout=900)
    assert done.returncode == 0, done.stdout[-20_000:] + done.stderr[-2_000:]


@pytest.fixture(autouse=True)
def no_mesh_is_left() -> Iterator[None]:
    """A test that uses a mesh leaves none to the next."""
    yield
    from torch_pjrt_spmd import use_mesh

    use_mesh(None)


@pytest.fixture
def uploads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The bytes of each array that JAX is given to put on chips."""
    sizes: list[int] = []
    original = jax.device_put

    def put(x: Any, *args: Any, **kwargs: Any) -> Any:
        sizes.append(x.nbytes)
        return original(x, *args, **kwargs)

    monkeypatch.setattr(jax, "device_put", put)
    return sizes
