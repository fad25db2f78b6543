"""A data set whose samples are kept in files."""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import zipfile
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import Dataset

from torch_xla import runtime

__all__ = ["CachedDataset"]
METADATA = "METADATA"


class CachedDataset(Dataset[Any]):
    """The samples of `data_set`, each written to a file when it is first asked for, and read from then on.

    data_set    with a length. None: all samples are in the folder, as `warmup` has left it.
    path        the folder. It may be copied to another machine.
    max_files_per_folder    how many files and folders a folder within has at most.
    compress    PyTorch's newer form of files; else its older one.

    Of a folder with samples the last two are as they were written. Files are read with `weights_only=False`,
    for samples may be any objects: read folders that you trust. Raises `RuntimeError` for a sample that is
    nowhere.
    """

    def __init__(
        self,
        data_set: Any,
        path: str | os.PathLike[str],
        max_files_per_folder: int = 1000,
        compress: bool = True,
    ) -> None:
        self._data_set = data_set
        self._path = Path(path)
        if data_set is None:
            known = json.loads((self._path / METADATA).read_text())
            self._count, self._most = known["count"], known["max_files_per_folder"]
            self._compress = known["compress"]
        else:
            self._count, self._most, self._compress = len(data_set), max_files_per_folder, compress
            if runtime.local_ordinal() == 0:
                self._write_metadata()
        self._depth = len(self._digits(max(self._count - 1, 0)))

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> Any:
        if not 0 <= index < self._count:
            raise IndexError(index)  # a `for` loop ends by it
        path = self._file(index)
        # A file that another process has begun to write, or that was cut off, is no sample.
        with contextlib.suppress(
            OSError, EOFError, RuntimeError, zipfile.BadZipFile, pickle.UnpicklingError
        ):
            return torch.load(path, map_location="cpu", weights_only=False)
        if self._data_set is None:
            raise RuntimeError(
                f"Sample {index} is not in {self._path}, and there is no data set to take it of."
            )
        sample = self._data_set[index]
        path.parent.mkdir(parents=True, exist_ok=True)
        beside = path.with_suffix(f".{os.getpid()}")
        torch.save(sample, beside, _use_new_zipfile_serialization=self._compress)
        beside.replace(path)
        return sample

    def warmup(self) -> None:
        """Write all samples that are not there."""
        for index in range(self._count):
            self[index]

    def _write_metadata(self) -> None:
        self._path.mkdir(parents=True, exist_ok=True)
        known = {
            "count": self._count,
            "compress": self._compress,
            "max_files_per_folder": self._most,
        }
        (self._path / METADATA).write_text(json.dumps(known))

    def _digits(self, index: int) -> list[int]:
        """`index` in the numeral system of that many digits, the last one first."""
        digits = [index % self._most]
        while index := index // self._most:
            digits.append(index % self._most)
        return digits

    def _file(self, index: int) -> Path:
        digits = self._digits(index)
        folders = [0] * (self._depth - len(digits)) + digits[:0:-1]
        return self._path.joinpath(*map(str, folders), f"{index}.pt")
