"""DLPack, by PyTorch's own functions."""

from torch.utils.dlpack import from_dlpack, to_dlpack

__all__ = ["from_dlpack", "to_dlpack"]
