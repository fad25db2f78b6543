"""The table of `python -m torch_pjrt migrate` names what is there, on both of its sides."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys

import pytest

from torch_pjrt.migrate.names import ROWS, row_of

NAMES = re.compile(r"\btorch(?:_pjrt\w*)?(?:\.[A-Za-z_]\w*)+")
NAMED = sorted({name for row in map(row_of, ROWS) for name in NAMES.findall(f"{row}")})

CHECK = """
import importlib, sys
from torch_pjrt.errors import UnsupportedError
for name in sys.argv[1:]:
    module, _, attribute = name.rpartition(".")
    try:
        getattr(importlib.import_module(module), attribute)
    except UnsupportedError:  # says what to use instead
        pass
    except (AttributeError, ImportError) as error:
        print(name, error)
"""


def test_many_are_named() -> None:
    assert len(NAMED) > 25


@pytest.mark.parametrize("name", NAMED)
def test_a_name_to_use_is_there(name: str) -> None:
    package, *attributes = name.split(".")
    found = importlib.import_module(package)
    for attribute in attributes:
        found = getattr(found, attribute)


@pytest.mark.slow
def test_the_names_that_are_replaced_are_those_of_torch_xla() -> None:
    done = subprocess.run(
        [sys.executable, "-c", CHECK, *ROWS], capture_output=True, text=True, check=True
    )

    assert done.stdout == ""
