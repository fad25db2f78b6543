"""Making `pjrt` a device type of PyTorch, by its Python backend (`PrivateUse1`)."""

from __future__ import annotations

import torch
from torch.utils import backend_registration

from torch_pjrt.device import (
    accelerator,
    autocast,
    data_parallel,
    default_compiler,
    generators,
    modules,
    new_storages,
    numbers_of_numpy,
    queue,
    script_modules,
    tracers,
)
from torch_pjrt.device.guard import PjrtGuard, PjrtHooks
from torch_pjrt.device.module import PjrtModule
from torch_pjrt.errors import BackendTaken
from torch_pjrt.interop import dlpack
from torch_pjrt.tensor.registration.registry import register_first

NAME = "pjrt"


def register() -> None:
    """Register the device; does nothing the second time.

    Raises `BackendTaken` where another package has PrivateUse1 already.
    """
    if isinstance(getattr(torch, NAME, None), PjrtModule):
        return
    taken = torch._C._get_privateuse1_backend_name()
    if taken not in ("privateuseone", NAME) or hasattr(torch, taken):
        raise BackendTaken(
            "Another package has registered PyTorch's PrivateUse1 backend: there is one in a process.",
            saw=f"the backend `{taken}`",
            hint="uninstall one of the two, or set TORCH_DEVICE_BACKEND_AUTOLOAD=0 and load one by hand",
        )
    backend_registration._setup_privateuseone_for_python_backend(
        rename=NAME,
        backend_module=PjrtModule(f"torch.{NAME}"),
        hook=PjrtHooks(),
        device_guard=PjrtGuard(),
    )
    register_first(_set_up)
    accelerator.install()
    modules.install()
    script_modules.install()
    data_parallel.install()
    autocast.set_default_dtype()
    generators.install()
    queue.install()
    tracers.install()
    default_compiler.install()
    new_storages.install()
    numbers_of_numpy.install()
    dlpack.install()


def _set_up() -> None:
    from torch_pjrt.device.setup import set_up  # which imports JAX

    set_up()
