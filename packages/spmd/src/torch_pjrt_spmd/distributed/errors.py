"""What goes wrong between processes."""

from __future__ import annotations

from collections.abc import Sequence

from torch_pjrt.errors import LaunchRefused, TorchPjrtError


class PeerError(LaunchRefused):
    """Another process of the run is gone, has failed, or has not come within the time limit.

    ranks   which ones, by their numbers in the run, the first cause first; empty where it is not known.
    """

    def __init__(
        self,
        happened: str,
        *,
        ranks: Sequence[int] = (),
        saw: str | None = None,
        expected: str | None = None,
        hint: str | None = None,
    ) -> None:
        super().__init__(happened, saw=saw, expected=expected, hint=hint)
        self.ranks = tuple(ranks)


class PeersDiffer(LaunchRefused):
    """The processes of a run are about to do different things, which cannot be done together."""


class CollectiveError(TorchPjrtError, ValueError):
    """A collective is called with tensors that do not go together; nothing has been sent."""
