"""What the pages on many processes show runs as it stands there."""

from __future__ import annotations

import several


def test_blocks_of_the_pages_run_in_two_processes() -> None:
    ended = several.run("pages.py", 2)

    assert [one.status for one in ended] == [0, 0], [one.err[-3000:] for one in ended]
    assert [one.out.splitlines()[-1] for one in ended] == ["5 2 True"] * 2
