"""Pages in fewer bits: the numbers that they stand for are theirs times a scale."""

from __future__ import annotations

import torch

Tensor = torch.Tensor
Optional = torch.Tensor | None


def check(pages: Tensor, key_heads: int, **scales: Optional) -> None:
    """`ValueError` for scales that have neither one for each key head nor one for each position, too."""
    for name, given in scales.items():
        if given is not None and given.shape not in ((key_heads,), (*pages.shape[:2], key_heads)):
            raise ValueError(
                f"{name} has shape {list(given.shape)}; expected {[key_heads]}, "
                f"or {[*pages.shape[:2], key_heads]}"
            )


def widened(pages: Tensor, scale: Optional, dtype: torch.dtype) -> Tensor:
    """The numbers that pages stand for. `scale` has one for each key head, or for each position, too."""
    wide = pages.to(dtype)
    return wide if scale is None else wide * scale.to(dtype)[..., None]


def narrowed(new: Tensor, scale: Optional, page: Tensor, within: Tensor, like: Tensor) -> Tensor:
    """What is written to these pages and places within them, of the dtype of the pages, `like`."""
    if scale is not None:
        new = new / (scale if scale.dim() == 1 else scale[page, within])[..., None].to(new.dtype)
    if like.dtype == torch.int8:
        new = new.round().clamp(-127, 127)
    return new.to(like.dtype)
