"""The module `torch_xla`, made of torch-pjrt: what scripts and libraries call goes to the device `pjrt`.

    device(), devices(), device_count()     tensors' device: `pjrt:0`. The strings "xla" and "xla:0" mean
    it, too
    sync()                                  run what is pending, then the closures of the step
    compile(), step()                       a function, or a block, that ends with a sync
    launch()                                a function in a process for each chip, or as torchrun has
    started it
    manual_seed()                           the device's random numbers

`runtime`, `core`, `distributed`, `debug`, `amp`, `experimental`, `utils`, `stablehlo` hold the rest. What
means
nothing here raises `UnsupportedError` with what to use instead. The page `from-torch-xla` lists all names.
"""

from __future__ import annotations

import torch  # noqa: F401  registers the device `pjrt`

from torch_xla.version import __version__  # isort: skip
from torch_xla import environment as _environment

_environment.apply()

from torch_xla.modules import install as _install  # noqa: E402

_install()

from torch_xla import backends, runtime  # noqa: E402
from torch_xla.absent import absent as _absent  # noqa: E402
from torch_xla.chips import device, device_count, devices, real_devices  # noqa: E402
from torch_xla.device_strings import understand as _understand  # noqa: E402
from torch_xla.process_groups import register as _register  # noqa: E402
from torch_xla.steps import compile, manual_seed, step, sync  # noqa: E402

from torch_xla.distributed.launching import launch  # noqa: E402  isort: skip
from torch_xla.core import xla_model as xm  # noqa: E402  isort: skip
from torch_xla.operators import _register as _define  # noqa: E402  isort: skip
from torch_xla.stablehlo import save_as_stablehlo, save_torch_model_as_stablehlo  # noqa: E402  isort: skip

_understand()
_register()
_define()

__all__ = [
    "__version__",
    "backends",
    "compile",
    "device",
    "device_count",
    "devices",
    "launch",
    "manual_seed",
    "real_devices",
    "runtime",
    "save_as_stablehlo",
    "save_torch_model_as_stablehlo",
    "step",
    "sync",
    "xm",
]

__getattr__ = _absent(
    __name__,
    {
        "set_custom_compile_options": "`torch_pjrt.compile_options(...)` sets options of XLA for a block"
    },
)
