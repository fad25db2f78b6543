"""The dtypes a `pjrt` tensor may have, and what each is called in JAX and NumPy.

64-bit types are real: arrays of them are made and compiled under JAX's scoped x64 switch, and the
process's own JAX configuration is left alone. Two dtypes share an array's: complex32 is held as complex64.
"""

from __future__ import annotations

import jax.numpy as jnp
import ml_dtypes
import numpy as np
import torch

_JAX: dict[torch.dtype, np.dtype] = {
    torch.bool: np.dtype(np.bool_),
    torch.uint8: np.dtype(np.uint8),
    torch.uint16: np.dtype(np.uint16),
    torch.uint32: np.dtype(np.uint32),
    torch.uint64: np.dtype(np.uint64),
    torch.int8: np.dtype(np.int8),
    torch.int16: np.dtype(np.int16),
    torch.int32: np.dtype(np.int32),
    torch.int64: np.dtype(np.int64),
    torch.float16: np.dtype(np.float16),
    torch.bfloat16: np.dtype(ml_dtypes.bfloat16),
    torch.float32: np.dtype(np.float32),
    torch.float64: np.dtype(np.float64),
    torch.complex32: np.dtype(np.complex64),  # see lowering/complex32.py
    torch.complex64: np.dtype(np.complex64),
    torch.complex128: np.dtype(np.complex128),
    torch.float8_e4m3fn: np.dtype(ml_dtypes.float8_e4m3fn),
    torch.float8_e5m2: np.dtype(ml_dtypes.float8_e5m2),
}
_TORCH: dict[np.dtype, torch.dtype] = {
    jax_: torch_ for torch_, jax_ in _JAX.items() if torch_ is not torch.complex32
}

# Dtypes that NumPy knows only through ml_dtypes travel between PyTorch and NumPy as raw integers.
CARRIED_AS: dict[torch.dtype, torch.dtype] = {
    torch.bfloat16: torch.uint16,
    torch.float8_e4m3fn: torch.uint8,
    torch.float8_e5m2: torch.uint8,
}


def is_supported(dtype: torch.dtype) -> bool:
    """Whether a `pjrt` tensor may have this dtype."""
    return dtype in _JAX


def to_jax(dtype: torch.dtype) -> np.dtype:
    """The NumPy/JAX dtype of a PyTorch dtype; `TypeError` for one that no array can have."""
    try:
        return _JAX[dtype]
    except KeyError:
        raise TypeError(f"{dtype} has no XLA equivalent, so a pjrt tensor cannot have it") from None


def to_torch(dtype: np.dtype | type) -> torch.dtype:
    """The PyTorch dtype of a NumPy/JAX dtype; `TypeError` for one that no tensor can have."""
    try:
        return _TORCH[jnp.dtype(dtype)]
    except KeyError:
        raise TypeError(f"{dtype} has no PyTorch equivalent") from None
