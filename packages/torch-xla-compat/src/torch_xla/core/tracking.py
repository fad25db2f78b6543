"""How many samples a second a loop takes."""

from __future__ import annotations

import time


class RateTracker:
    """A rate, smoothed: `add(count)` as work is done; `rate()` of the time since it was last asked.

    smooth_factor  how much of the former rate stays, 0 to 1.
    """

    def __init__(self, smooth_factor: float = 0.4) -> None:
        self._smooth_factor = smooth_factor
        self._start = self._asked = time.monotonic()
        self._count = self._since = 0.0
        self._rate: float | None = None

    def add(self, count: float) -> None:
        """`count` more were done."""
        self._count += count
        self._since += count

    def rate(self) -> float:
        """Done in a second, smoothed over the calls."""
        now = time.monotonic()
        new = self._since / max(now - self._asked, 1e-9)
        kept = self._smooth_factor
        self._rate = new if self._rate is None else kept * self._rate + (1 - kept) * new
        self._asked, self._since = now, 0.0
        return self._rate

    def global_rate(self) -> float:
        """Done in a second since the beginning."""
        return self._count / max(time.monotonic() - self._start, 1e-9)
