"""`torch_xla.test`: helpers of training scripts."""

from torch_xla.absent import modules_of

__getattr__ = modules_of(__name__)
