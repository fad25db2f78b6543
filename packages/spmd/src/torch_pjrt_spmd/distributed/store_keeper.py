"""Who keeps a run's store: the process with which it ends."""

from __future__ import annotations

import os
from typing import Any

from torch._C._distributed_c10d import TCPStore

from torch_pjrt_spmd.distributed.board import underlying

# A variable: who keeps the run's store, as a launcher other than torchrun tells its processes.
KEEPER = "PJRT_STORE_KEEPER"


def keeper(store: Any) -> str:
    """Who keeps a run's store, in words."""
    if not isinstance(underlying(store), TCPStore):
        return "the store"
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
        return os.environ.get(KEEPER, "torchrun's agent on the first host")
    return "rank 0"
