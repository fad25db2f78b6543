"""`torch_xla.core`: tensors, steps, collectives."""

from torch_xla.absent import modules_of

__getattr__ = modules_of(__name__)
