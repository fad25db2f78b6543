"""What makes programs is told alike in every process, and differently where its options differ."""

from __future__ import annotations

import enum
import itertools
import json
import math
import os
import random
import re
import subprocess
import sys
import threading
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
import pytest
import torch

from torch_pjrt.compile.portable import NotPortable, package_of, portable_text
from torch_pjrt.passes import CORE_PASSES
from torch_pjrt.plugin.host import host


class Color(enum.Enum):
    RED = 1
    GREEN = 2


class Parts(enum.Flag):
    A = 1
    B = 2


class Pair(NamedTuple):
    a: int
    b: int


@dataclass(frozen=True)
class Block:
    rows: int = 8
    columns: int = 8


@dataclass(frozen=True, slots=True)
class Pass:
    option: Any = None
    name: str = "a-pass"


@dataclass(frozen=True)
class Derived:
    option: Any = None
    hidden: Any = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "beside", self.option)


class Private:
    __slots__ = ("__option",)

    def __init__(self, option: Any) -> None:
        self.__option = option

    def __call__(self) -> Any:
        return self.__option


class Stateless:
    name = "stateless"


class Other:
    name = "other"


@dataclass
class Changing:
    option: Any = None


def square(x: Any) -> Any:
    return x * x


def cube(x: Any) -> Any:
    return x * x * x


def times(n: Any) -> Any:
    def multiply(x: Any, by: Any = 1) -> Any:
        return x * n * by

    return multiply


one, two = (lambda x: x + 1), (lambda x: x + 2)

# Each differs from all others.
PORTABLE: list[Any] = [
    *(None, True, False, 1, 0, 2, "1", "a", "b", b"a", 1.0, 1.5, -0.0, 0.0, math.inf, math.nan, 1j),
    *((), (1,), (1, 2), [1, 2], {1, 2}, frozenset({1, 2}), {"a": 1}, {"a": 2}, {"b": 1}, {}, set()),
    *({"x", "y", "z", "w"}, {"x", "y", "z"}, ((1, 2), 3), (1, (2, 3)), ("a,b",), ("a", "b")),
    *(torch.float32, torch.int8, torch.strided, torch.device("cpu"), np.dtype("int8"), Path("/a")),
    *(Color.RED, Color.GREEN, Parts.A, Parts.B, Parts.A | Parts.B, Pair(1, 2), Pair(2, 1)),
    *(Block(), Block(16), Block(8, 16), (Block(), Block(16)), {"a": Block()}, Stateless(), Other()),
    *(square, cube, math.sqrt, jnp.exp, jnp.sin, Block, Color, Private, np.float32, one, two),
    *(times(2), times(3), times(times(2)), times(Block()), times(Block(16)), times(square)),
    *(
        partial(square, 1),
        partial(square, 2),
        partial(cube, 1),
        partial(square, x=1),
        partial(times(2)),
    ),
    *(torch.ops.aten.add.Tensor, torch.ops.aten.sub.Tensor, torch.ops.aten.add.out, torch, np),
]

NOT_PORTABLE: dict[str, Any] = {
    "a tensor": torch.zeros(3),
    "a parameter": torch.nn.Parameter(torch.zeros(3)),
    "an array": np.zeros(3),
    "an array of JAX": jnp.zeros(3),
    "a lock": threading.Lock(),
    "a generator of numbers": random.Random(0),
    "a count": itertools.count(3),
    "a generator": (i for i in range(3)),
    "a pattern": re.compile("a"),
    "a file": sys.stdout,
    "a module": torch.nn.Linear(2, 2),
    "a bound method": Block().__init__,
    "a dataclass that is not frozen": Changing(1),
    "an object with private slots": Private(3),
    "a dataclass within": Block(Changing(1)),  # type: ignore[arg-type]
    "within a list": [1, [torch.zeros(3)]],
    "within a key": {(1, np.int64): 1, (threading.Lock,): 2, "a": threading.Lock()},
    "within a function": times(torch.zeros(3)),
    "within a partial function": partial(square, torch.zeros(3)),
    "a class of a function": type("Made", (), {})(),
    "a function without a module": eval("lambda x: x", {"__name__": "nowhere"}),
    "a function of names without a module": eval("lambda x: x", {}),
}


def all_texts() -> list[str]:
    return [portable_text(Pass(option), "pass") for option in PORTABLE]


def test_what_differs_is_told_differently():
    texts = all_texts()
    same = [
        (a, b) for a, b in itertools.combinations(range(len(PORTABLE)), 2) if texts[a] == texts[b]
    ]
    assert [(PORTABLE[a], PORTABLE[b]) for a, b in same] == []


def test_another_process_tells_it_alike():
    script = "import json, test_portable as t; print(json.dumps(t.all_texts()))"
    paths = f"{Path(__file__).parent}:{os.environ.get('PYTHONPATH', '')}"
    environment = {**os.environ, "PYTHONHASHSEED": "1", "PYTHONPATH": paths}
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, env=environment, check=True
    )
    texts = [_as_here(text) for text in json.loads(done.stdout)]
    assert [x for x, a, b in zip(PORTABLE, all_texts(), texts, strict=True) if a != b] == []


def _as_here(text: str) -> str:
    return text.replace("test_portable:", f"{__name__}:")


@pytest.mark.parametrize("option", NOT_PORTABLE.values(), ids=NOT_PORTABLE)
def test_what_cannot_be_told_says_which_option(option: Any):
    with pytest.raises(NotPortable, match=r"^pass `a-pass`: its option `option` is "):
        portable_text(Pass(option), "pass `a-pass`")


def test_what_is_set_beside_the_fields_counts():
    assert portable_text(Derived(1), "it") != portable_text(Derived(2), "it")
    assert portable_text(Derived(1, 2), "it") != portable_text(Derived(1, 3), "it")
    a, b = Derived(1), Derived(1)
    object.__setattr__(b, "beside", 2)
    assert portable_text(a, "it") != portable_text(b, "it")


def test_a_reason_reads_well():
    with pytest.raises(NotPortable) as why:
        portable_text(Pass(threading.Lock()), "pass `a-pass`")
    assert (
        str(why.value) == "pass `a-pass`: its option `option` is a lock that is no frozen dataclass"
    )


def test_a_package_within_a_namespace_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    package = tmp_path / "some_namespace" / "package"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "part.py").touch()
    monkeypatch.syspath_prepend(str(tmp_path))
    __import__("some_namespace.package.part")

    assert package_of("some_namespace.package.part") == package
    assert package_of("some_namespace") is None
    assert package_of("test_portable" if "test_portable" in sys.modules else __name__) is not None


def test_all_that_our_packages_have_for_their_devices_is_told():
    for p in CORE_PASSES:
        portable_text(p, p.name)
    for offer in host().all_offers():
        for table, passes in host().offered_for(offer.device).values():
            for op, row in (table or {}).items():
                portable_text(row.rule, str(op))
            for p in passes:
                portable_text(p, p.name)
