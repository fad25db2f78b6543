"""A rank whose parameter differs in a bit is named by all, at the check after it."""

from __future__ import annotations

import re

import pytest
from several import run


@pytest.mark.slow
def test_a_rank_that_diverges_is_named_by_all_with_the_tensor():
    for ended in run("diverging_run.py", 3, "2"):
        assert ended.status == 1
        assert "TOLD " in ended.out
        assert re.search(
            r"Diverged: Rank 2 has diverged at call 20: `1\.weight` is the first", ended.err
        )
