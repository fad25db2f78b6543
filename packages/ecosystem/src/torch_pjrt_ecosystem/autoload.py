"""What `import torch` runs: have libraries changed when they are imported, and nothing more.

PyTorch loads this through its entry-point group `torch.backends`, in every process that imports it. So this
imports no library and no JAX, starts nothing, may be called any number of times, and never raises.
"""

from __future__ import annotations

import contextlib
import sys
import warnings


def autoload() -> None:
    """The entry point. Never raises."""
    if "torch" not in sys.modules or not hasattr(sys.modules["torch"], "_register_device_module"):
        return  # PyTorch is still half imported; it calls again at the end
    try:
        from torch_pjrt_ecosystem.applying import wait_for_libraries

        wait_for_libraries()
    except Exception as error:
        with contextlib.suppress(Warning):  # under `python -W error` too, `import torch` must work
            warnings.warn(
                f"Libraries are not told of the device `pjrt`, and may train on the CPU: {error}",
                stacklevel=2,
            )
