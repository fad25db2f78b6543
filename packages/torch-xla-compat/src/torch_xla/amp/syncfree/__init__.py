"""Optimizers that read nothing on the host when a scaler leaves out a step: here all of PyTorch's are
such."""

from torch.optim import SGD, Adam, AdamW

from torch_xla.absent import modules_of

__all__ = ["SGD", "Adam", "AdamW"]

__getattr__ = modules_of(__name__)
