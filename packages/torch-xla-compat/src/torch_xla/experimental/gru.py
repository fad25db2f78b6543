"""`GRU`, which torch_xla makes of a scan: PyTorch's own is a loop of the program here."""

from torch.nn import GRU

__all__ = ["GRU"]
