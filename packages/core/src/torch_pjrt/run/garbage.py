"""When Python looks for garbage: behind launches, and not in the middle of a step.

Python looks at young objects once 700 (2,000 in some versions) more were made than have gone, and at all
objects of a process once those that have outlived two looks are a quarter as many as the rest. A step makes
thousands of objects, values, tensors and buffers, that are all alive until its program is launched, and go
then. Looked at in between they count as old; so a model of 48 layers had half a million objects looked at in
every eighth step, for a quarter of a second each.

From the first launch on there may be more young objects, `settings.gc_threshold`. Behind each launch Python
is asked to look all the same, by its own numbers, if there are as many more than behind launches before: that
is what steps leave behind, garbage or not, and what a step needs does not count. Numbers that the user has
chosen are left alone.
"""

from __future__ import annotations

import gc

from torch_pjrt.session import session
from torch_pjrt.settings import settings

_PYTHONS_OWN = (700, 2000)
_NONE_YET = 1 << 62


class _Young:
    """How many young objects there may be.

    own, raised   Python's numbers, and those from the first launch on; the same where they are left alone.
    fewest        there were behind a launch since Python has looked last.
    """

    __slots__ = ("fewest", "own", "raised")

    def __init__(self) -> None:
        self.fewest = -1  # nothing was launched yet
        self.own = self.raised = (0, 0, 0)


_young = session.own("how many young objects there may be", _Young())


def after_launch() -> None:
    """Have Python look, if launches have left enough."""
    n = gc.get_count()[0]
    if n > _young.fewest + _young.own[0]:
        _look()
    elif n < _young.fewest:
        _young.fewest = n


def _look() -> None:
    """Have Python look; at first, raise its number."""
    young = _young
    if young.fewest < 0:
        young.own = young.raised = gc.get_threshold()
        if young.own[0] in _PYTHONS_OWN and settings.gc_threshold > young.own[0]:
            young.raised = (settings.gc_threshold, *young.own[1:])
            gc.set_threshold(*young.raised)
    elif young.raised == young.own:
        pass
    elif gc.get_threshold() == young.raised and gc.isenabled():
        gc.set_threshold(*young.own)
        try:
            _Made()
            _call()
        finally:
            gc.set_threshold(*young.raised)
    young.fewest = _NONE_YET


class _Made:
    """Python looks for garbage when such an object is made, or, since 3.12, at the next call."""

    __slots__ = ("anything",)


def _call() -> None:
    pass
