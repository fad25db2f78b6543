"""What `import torch` runs: make the device type `pjrt` known, and nothing more.

PyTorch loads this through its entry-point group `torch.backends`, in every process that imports it, in
DataLoader workers too; an exception here would make `import torch` itself fail. So this imports no JAX,
starts no device, may be called any number of times, and turns an error into a warning; `failure` keeps
it, and whatever `torch_pjrt` offers raises it.
"""

from __future__ import annotations

import contextlib
import sys
import warnings

from torch_pjrt.session import session


class _Loading:
    """Whether it was done, and what went wrong."""

    is_done = False
    error: Exception | None = None


_loading = session.own("loading by PyTorch", _Loading())


def autoload() -> None:
    """The entry point. Never raises.

    >>> torch_pjrt.autoload()  # `import torch` has called it before: nothing happens
    """
    if _loading.is_done:
        return
    if "torch" not in sys.modules or not hasattr(sys.modules["torch"], "_register_device_module"):
        return  # PyTorch is still half imported; it calls again at the end
    _loading.is_done = True
    try:
        from torch_pjrt.device import registration

        registration.register()
    except Exception as error:
        _loading.error = error
        with contextlib.suppress(Warning):  # under `python -W error` too, `import torch` must work
            warnings.warn(f"The device `pjrt` is not there: {error}", stacklevel=2)


def failure() -> Exception | None:
    """Why the device could not be registered, or None."""
    return _loading.error
