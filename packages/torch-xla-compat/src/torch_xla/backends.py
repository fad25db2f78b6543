"""How exact products of float32 are."""

from __future__ import annotations

import torch

from torch_pjrt.errors import SettingError

#   torch_xla       PyTorch
PRECISIONS = {"default": "medium", "high": "high", "highest": "highest"}


def set_mat_mul_precision(precision: str) -> None:
    """`"default"`, `"high"` or `"highest"`: `torch.set_float32_matmul_precision`'s medium, high and highest.

    Raises `SettingError` for another word.
    """
    if precision not in PRECISIONS:
        raise SettingError(
            "There is no such precision of products.",
            saw=repr(precision),
            expected=" or ".join(repr(name) for name in PRECISIONS),
        )
    torch.set_float32_matmul_precision(PRECISIONS[precision])


def get_mat_mul_precision() -> str:
    """The one in force, in torch_xla's words."""
    now = torch.get_float32_matmul_precision()
    return next(old for old, new in PRECISIONS.items() if new == now)
