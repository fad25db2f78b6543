"""`torch_xla.debug`: metrics and profiler."""

from torch_xla.absent import modules_of

__getattr__ = modules_of(__name__)
