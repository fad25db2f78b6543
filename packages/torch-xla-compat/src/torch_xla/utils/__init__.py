"""`torch_xla.utils`: checkpoints, files, data."""

from torch_xla.absent import modules_of

__getattr__ = modules_of(__name__)
