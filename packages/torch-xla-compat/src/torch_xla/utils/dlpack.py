"""DLPack, by PyTorch's own functions."""

from torch._C import _to_dlpack as to_dlpack
from torch.utils.dlpack import from_dlpack

__all__ = ["from_dlpack", "to_dlpack"]
