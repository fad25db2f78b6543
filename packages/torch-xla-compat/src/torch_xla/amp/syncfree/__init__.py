"""Optimizers that read nothing on the host when a scaler leaves out a step: here all of PyTorch's are
such."""

from torch.optim import SGD, Adam, AdamW

__all__ = ["SGD", "Adam", "AdamW"]
