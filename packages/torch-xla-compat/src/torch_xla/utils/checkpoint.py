"""`checkpoint`: activations that are computed again in backward, by PyTorch's own function."""

from torch.utils.checkpoint import checkpoint

__all__ = ["checkpoint"]
