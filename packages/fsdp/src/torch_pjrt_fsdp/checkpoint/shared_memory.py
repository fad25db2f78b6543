"""Memory that the training process fills and the writing process reads."""

from __future__ import annotations

import mmap
import os

import torch


class SharedMemory:
    """Memory that another process can have, too. It goes with the last of the two.

    file       it as a file, for another process.
    identity   changes when it is another memory.
    """

    def __init__(self) -> None:
        self.file: int | None = None
        self.identity = 0
        self._size = -1
        self._bytes = torch.empty(0, dtype=torch.uint8, device="cpu")
        self._tensors: dict[tuple[int, torch.dtype, tuple[int, ...]], torch.Tensor] = {}

    def resize(self, n_bytes: int) -> None:
        """Have so many bytes, if there were not."""
        if n_bytes <= self._size:
            return
        self.forget()
        self.close()
        self._size = -1  # until all of it is there
        self.identity += 1
        size = max(n_bytes, mmap.PAGESIZE)
        self.file = os.memfd_create("checkpoint")
        os.ftruncate(self.file, size)
        self.mapped = mmap.mmap(self.file, size)
        self._bytes = torch.frombuffer(self.mapped, dtype=torch.uint8)
        self._size = size

    def forget(self) -> None:
        """Other tensors will be asked for."""
        self._tensors.clear()

    def tensor(self, at: int, dtype: torch.dtype, sizes: tuple[int, ...]) -> torch.Tensor:
        """Some of it as a tensor."""
        key = (at, dtype, sizes)
        if key not in self._tensors:
            n = torch.Size(sizes).numel() * dtype.itemsize
            self._tensors[key] = self._bytes[at : at + n].view(dtype).view(sizes)
        return self._tensors[key]

    def close(self) -> None:
        """Let go of the file; what is mapped stays while somebody looks at it."""
        if self.file is not None:
            os.close(self.file)
            self.file = None

    def __del__(self) -> None:
        self.close()
