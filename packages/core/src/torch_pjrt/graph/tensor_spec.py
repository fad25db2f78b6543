"""What a tensor looks like from outside: shape, dtype and strides, interned.

Two tensors that look alike share one `TensorSpec` object, so a spec compares and hashes by identity: the
key under which a kernel finds its signature is a short tuple of specs.
"""

from __future__ import annotations

import torch

from torch_pjrt.caches import Interned

Strides = tuple[int, ...]


class TensorSpec:
    """Shape, dtype and strides (in elements). Made by `spec_of` only, one object for each combination.

    contiguous  row-major, whatever the strides of dims of size 1; so is what has no elements.
    dense       in some order of the dims it fills its storage without gap or overlap.
    plain       its strides are those that `create_empty_tensor` gives to this shape.

        >>> spec = spec_of((2, 3), torch.float32, (1, 2))
        >>> spec.contiguous, spec.dense
        (False, True)
    """

    __slots__ = (
        *("__weakref__", "contiguous", "dense", "dtype", "is_complex"),
        *("numel", "plain", "shape", "strides"),
    )

    def __init__(self, shape: tuple[int, ...], dtype: torch.dtype, strides: Strides) -> None:
        self.shape = shape
        self.dtype = dtype
        self.strides = strides
        self.is_complex = dtype.is_complex
        self.numel = _product(shape)
        self.contiguous = self.numel == 0 or _same_layout(shape, strides, contiguous_strides(shape))
        self.dense = self.contiguous or _is_dense(shape, strides)
        self.plain = strides == tuple(_product(shape[dim + 1 :]) for dim in range(len(shape)))

    def __repr__(self) -> str:
        layout = "" if self.contiguous else f" strides {list(self.strides)}"
        return f"{str(self.dtype).removeprefix('torch.')}{list(self.shape)}{layout}"

    def meta(self) -> torch.Tensor:
        """A new tensor on PyTorch's meta device that looks like this."""
        return torch.empty_strided(self.shape, self.strides, dtype=self.dtype, device="meta")


_interned: Interned[tuple[tuple[int, ...], torch.dtype, Strides], TensorSpec] = Interned(
    "specs of tensors", most=65_536
)


def spec_of(shape: tuple[int, ...], dtype: torch.dtype, strides: Strides) -> TensorSpec:
    """The one spec of this shape, dtype and strides.

    >>> spec_of((2, 3), torch.float32, (3, 1)) is contiguous_spec((2, 3), torch.float32)
    True
    """
    key = (shape, dtype, strides)
    spec = _interned.get(key)
    if spec is None:
        key = (tuple(shape), dtype, tuple(strides))
        spec = _interned.still_held(key)
        if spec is None:
            spec = _interned.one(key, TensorSpec(*key))  # another thread may have been faster
    return spec


def contiguous_spec(shape: tuple[int, ...], dtype: torch.dtype) -> TensorSpec:
    """The spec of a contiguous tensor of this shape.

    >>> contiguous_spec((2, 3), torch.float32).strides
    (3, 1)
    """
    return spec_of(tuple(shape), dtype, contiguous_strides(shape))


def contiguous_strides(shape: tuple[int, ...]) -> Strides:
    """Row-major strides in elements, as PyTorch gives them (a size of 0 counts as 1)."""
    strides = [1] * len(shape)
    for dim in range(len(shape) - 2, -1, -1):
        strides[dim] = strides[dim + 1] * max(shape[dim + 1], 1)
    return tuple(strides)


def storage_order(spec: TensorSpec) -> tuple[int, ...]:
    """The dims of a dense spec from the slowest to the fastest in memory."""
    return tuple(
        sorted(range(len(spec.shape)), key=lambda d: (-spec.strides[d], spec.shape[d] == 1))
    )


def storage_extent(shape: tuple[int, ...], strides: Strides, offset: int = 0) -> int:
    """How many elements a storage needs so that all of such a tensor lies inside it."""
    if 0 in shape:
        return 0
    return offset + 1 + sum((n - 1) * s for n, s in zip(shape, strides, strict=True))


def _product(shape: tuple[int, ...]) -> int:
    total = 1
    for size in shape:
        total *= size
    return total


def _same_layout(shape: tuple[int, ...], a: Strides, b: Strides) -> bool:
    return all(n == 1 or x == y for n, x, y in zip(shape, a, b, strict=True))


def _is_dense(shape: tuple[int, ...], strides: Strides) -> bool:
    """Whether some order of the dims makes the tensor fill its storage without gap or overlap."""
    expected = 1
    for stride, size in sorted((s, n) for n, s in zip(shape, strides, strict=True) if n != 1):
        if stride != expected:
            return False
        expected *= size
    return True


def stack_of(spec: TensorSpec, n: int) -> TensorSpec:
    """The spec of `n` values that look like `spec`, stacked."""
    return contiguous_spec((n, *spec.shape), spec.dtype)
