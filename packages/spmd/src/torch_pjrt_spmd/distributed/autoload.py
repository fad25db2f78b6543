"""What `import torch` runs: make the backend `pjrt` of `torch.distributed` known, and nothing more.

PyTorch loads this through its entry-point group `torch.backends`, in every process that imports it. So this
imports no JAX, starts nothing, may be called any number of times, and never raises.
"""

from __future__ import annotations

import contextlib
import sys
import warnings
from typing import Any

BACKEND = "pjrt"


def autoload() -> None:
    """The entry point. Never raises."""
    if "torch" not in sys.modules or not hasattr(sys.modules["torch"], "_register_device_module"):
        return  # PyTorch is still half imported; it calls again at the end
    try:
        import torch.distributed as dist
        from torch.distributed.rendezvous import register_rendezvous_handler

        from torch_pjrt_spmd.distributed import own_device

        if not dist.is_available() or hasattr(dist.Backend, BACKEND.upper()):
            return
        dist.Backend.register_backend(BACKEND, _create, extended_api=True, devices=["pjrt"])
        register_rendezvous_handler(BACKEND, _rendezvous)
        own_device.install()
    except Exception as error:
        with contextlib.suppress(Warning):  # under `python -W error` too, `import torch` must work
            warnings.warn(f"The backend `pjrt` is not there: {error}", stacklevel=2)


def _create(options: Any, backend_options: Any) -> Any:
    from torch_pjrt_spmd.distributed.backend import create

    return create(options, backend_options)


def _rendezvous(url: str, timeout: Any = None, **ignored: Any) -> Any:
    from torch_pjrt_spmd.distributed.joining import rendezvous

    return rendezvous(url, timeout)
