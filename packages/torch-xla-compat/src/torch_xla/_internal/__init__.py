"""`torch_xla._internal`: what libraries read of chips."""

from torch_xla.absent import modules_of

__getattr__ = modules_of(__name__)
