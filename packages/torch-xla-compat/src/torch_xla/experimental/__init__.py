"""`torch_xla.experimental`: operators that run at once, and modules for loops, kernels, checkpoints."""

from torch_xla.absent import modules_of
from torch_xla.experimental.eager import eager_mode, eager_mode_context, is_eager_mode

__all__ = ["eager_mode", "eager_mode_context", "is_eager_mode"]

__getattr__ = modules_of(__name__)
