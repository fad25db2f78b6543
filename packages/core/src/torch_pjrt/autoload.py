"""What `import torch` runs: make the device type `pjrt` known, and nothing more.

PyTorch loads this through its entry-point group `torch.backends`, in every process that imports it, in
DataLoader workers too; an exception here would make `import torch` itself fail. So this imports no JAX,
starts no device, may be called any number of times, and remembers an error instead of raising it: the
first use of the device raises it then.
"""

from __future__ import annotations

import sys

_error: Exception | None = None
_done = False


def autoload() -> None:
    """The entry point. Never raises."""
    global _error, _done
    if _done:
        return
    if "torch" not in sys.modules or not hasattr(sys.modules["torch"], "_register_device_module"):
        return  # PyTorch is still half imported; it calls again at the end
    _done = True
    try:
        from torch_pjrt.device import registration

        registration.register()
    except Exception as error:
        _error = error


def failure() -> Exception | None:
    """Why the device could not be registered, or None."""
    return _error
