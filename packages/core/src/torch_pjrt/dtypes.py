"""The dtypes a `pjrt` tensor may have, and what each is called in JAX and NumPy.

64-bit types are real: arrays of them are made and compiled under JAX's scoped x64 switch, and the
process's own JAX configuration is left alone. Two dtypes share an array's: complex32 is held as complex64.
On a device without 64-bit types arrays have half the bits, and the switch is off; so it is for what a thread
compiles for such a device elsewhere.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import torch

from torch_pjrt.interrupts.quiet import quiet
from torch_pjrt.session import session

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
    torch.float8_e4m3fnuz: np.dtype(ml_dtypes.float8_e4m3fnuz),
    torch.float8_e5m2: np.dtype(ml_dtypes.float8_e5m2),
    torch.float8_e5m2fnuz: np.dtype(ml_dtypes.float8_e5m2fnuz),
    torch.float8_e8m0fnu: np.dtype(ml_dtypes.float8_e8m0fnu),
}
_TORCH: dict[np.dtype, torch.dtype] = {
    jax_: torch_ for torch_, jax_ in _JAX.items() if torch_ is not torch.complex32
}

# Dtypes that NumPy knows only through ml_dtypes travel between PyTorch and NumPy as raw integers.
CARRIED_AS: dict[torch.dtype, torch.dtype] = {
    torch.bfloat16: torch.uint16,
    torch.float8_e4m3fn: torch.uint8,
    torch.float8_e4m3fnuz: torch.uint8,
    torch.float8_e5m2: torch.uint8,
    torch.float8_e5m2fnuz: torch.uint8,
    torch.float8_e8m0fnu: torch.uint8,
}

# What arrays hold in place of these on a device without 64-bit types.
_HALVES: dict[torch.dtype, np.dtype] = {
    torch.int64: np.dtype(np.int32),
    torch.uint64: np.dtype(np.uint32),
    torch.float64: np.dtype(np.float32),
    torch.complex128: np.dtype(np.complex64),
}


class _Elsewhere(threading.local):
    """On this thread: whether the device that is compiled for has 64-bit types; None: the one at work."""

    wide: bool | None = None


class _OfTheDevice:
    """What the device at work can do: whether it has 64-bit types, and which device lacks a dtype."""

    def __init__(self) -> None:
        self.wide = True
        self.lacking: dict[torch.dtype, str] = {}
        self.elsewhere = _Elsewhere()


_device = session.own("dtypes of the device", _OfTheDevice())
_elsewhere = _device.elsewhere


class x64:
    """A context manager: JAX's x64 switch as the device needs it.

    Handlers of signals wait until it ends, and garbage is collected then (`interrupts/quiet.py`). Ctrl-C as
    JAX enters or leaves its switch would leave it set for all that the thread does later.

    >>> with x64():
    ...     jnp.arange(3).dtype
    dtype('int64')
    """

    __slots__ = ("_quiet", "_switches")

    def __enter__(self) -> None:
        self._quiet = quiet()
        self._quiet.__enter__()
        is_wide = are_wide()
        self._switches: list[Any] = [jax.enable_x64(is_wide)]
        # The other way to draw random numbers has uint64s in it, whatever the switch says.
        if not is_wide:
            self._switches.append(jax.threefry_partitionable(False))
        for switch in self._switches:
            switch.__enter__()

    def __exit__(self, *error: Any) -> None:
        for switch in self._switches:
            switch.__exit__(*error)
        self._quiet.__exit__(*error)


@contextmanager
def as_on_a_device(*, has_64_bits: bool) -> Iterator[None]:
    """While the block runs, dtypes on this thread are those of another device: one that is compiled for."""
    if not has_64_bits:
        _expect_halves()
    _elsewhere.wide = has_64_bits
    try:
        yield
    finally:
        _elsewhere.wide = None


def are_wide() -> bool:
    """Whether the device has 64-bit types."""
    wide = _elsewhere.wide
    return _device.wide if wide is None else wide


def notice_of_halves(device: str) -> str:
    """What a person is told of a device without 64-bit types."""
    return (
        f"The device `{device}` has no 64-bit types: int64, float64 and complex128 tensors keep "
        "their dtype, and are held and computed in half the bits (docs/devices.md)."
    )


def fit_to(device: str, *, has_64_bits: bool, lacks: Collection[torch.dtype]) -> None:
    """Called when the device of this process has started: what its arrays can be."""
    _device.wide = has_64_bits
    if not has_64_bits:
        _expect_halves()
    for dtype in lacks:
        _JAX.pop(dtype, None)
        _device.lacking[dtype] = device


def _expect_halves() -> None:
    """Rules name 64-bit dtypes, of which JAX then makes the narrower ones: no warning each time."""
    warnings.filterwarnings(
        "ignore", "Explicitly requested dtype", UserWarning, module=r"torch_pjrt\."
    )


def is_halved(dtype: torch.dtype) -> bool:
    """Whether arrays hold such a tensor in half the bits."""
    return not are_wide() and dtype in _HALVES


def halved(host: np.ndarray, dtype: torch.dtype) -> np.ndarray:
    """A host array of a 64-bit dtype as the device holds it; `OverflowError` for integers that do not fit."""
    half = _HALVES[dtype]
    if half.kind in "iu" and host.size:
        least, most = int(host.min()), int(host.max())
        room = np.iinfo(half)
        if least < room.min or most > room.max:
            wrong = least if least < room.min else most
            raise OverflowError(f"The device holds {dtype} in 32 bits: {wrong} does not fit.")
    return host.astype(half)


def wrapped(n: int, dtype: np.dtype) -> np.ndarray:
    """A Python integer as one of `dtype`: it wraps around, as in C, but not where 32 bits stand for 64."""
    if not are_wide() and not -(1 << 31) <= n < 1 << (32 if dtype.kind == "u" else 31):
        raise OverflowError(f"The device holds integers in 32 bits: {n} does not fit.")
    return np.asarray(n).astype(dtype)


def is_supported(dtype: torch.dtype) -> bool:
    """Whether a `pjrt` tensor may have this dtype."""
    return dtype in _JAX


def to_jax(dtype: torch.dtype) -> np.dtype:
    """The NumPy/JAX dtype of a PyTorch dtype; `TypeError` for one that no array can have.

    >>> to_jax(torch.bfloat16)
    dtype(bfloat16)
    """
    try:
        whole = _JAX[dtype]
    except KeyError:
        if dtype in _device.lacking:
            raise TypeError(f"The device `{_device.lacking[dtype]}` has no {dtype}") from None
        raise TypeError(f"{dtype} has no XLA equivalent, so a pjrt tensor cannot have it") from None
    return whole if are_wide() else _HALVES.get(dtype, whole)


def to_torch(dtype: np.dtype | type) -> torch.dtype:
    """The PyTorch dtype of a NumPy/JAX dtype; `TypeError` for one that no tensor can have.

    >>> to_torch(jnp.dtype("int8"))
    torch.int8
    """
    try:
        return _TORCH[jnp.dtype(dtype)]
    except KeyError:
        raise TypeError(f"{dtype} has no PyTorch equivalent") from None
