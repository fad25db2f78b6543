"""`torch_xla._dynamo`: what scripts set of it."""

from torch_xla.absent import modules_of

__getattr__ = modules_of(__name__)
