"""What goes wrong between processes."""

from __future__ import annotations

from torch_pjrt.errors import LaunchRefused


class PeerError(LaunchRefused):
    """Another process of the run is gone, has failed, or has not come within the time limit."""


class PeersDiffer(LaunchRefused):
    """The processes of a run are about to do different things, which cannot be done together."""
