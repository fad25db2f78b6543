"""`torch_xla.distributed`: many chips and many processes."""

from torch_xla.absent import modules_of

__getattr__ = modules_of(__name__)
