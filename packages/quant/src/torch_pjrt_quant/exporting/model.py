"""What `export` gives: programs of entry points and the tensors that they share, and how they are saved."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import safetensors.torch
import torch
from jax import export as jax_export

from torch_pjrt_quant.exporting import load


@dataclass(slots=True)
class Entry:
    """An entry point, exported.

    described   its part of `signature.json`, without its program.
    exported    the program; gradient is the program of its derivative, where one was asked for.
    constraints    of the symbolic dims, as JAX takes them.
    """

    described: dict[str, Any]
    exported: jax_export.Exported
    gradient: jax_export.Exported | None
    constraints: list[str]


class ExportedModel:
    """Programs of one or more entry points, and the tensors that they share: what `export` gives.

    entries    names of the entry points.
    tensors    name -> tensor on the host: parameters, buffers and constants that are not in the programs.
    state      names of those that the programs write to.
    """

    def __init__(self, entries: dict[str, Entry], tensors: dict[str, torch.Tensor]) -> None:
        self._entries, self.tensors = entries, tensors
        updated = {name for e in entries.values() for name in e.described["updates"]}
        self.state = sorted(updated)

    @property
    def entries(self) -> list[str]:
        return list(self._entries)

    def stablehlo(self, entry: str | None = None) -> str:
        """The StableHLO of an entry point (of the first one) as text."""
        return self.entry(entry).exported.mlir_module()

    def stablehlo_bytecode(self, entry: str | None = None) -> bytes:
        """The same in StableHLO's portable bytecode, which later versions of XLA can read."""
        return self.entry(entry).exported.mlir_module_serialized

    def jax(self, entry: str | None = None) -> jax_export.Exported:
        """The program as JAX's own object: its arguments are the tensors of the entry, then the inputs."""
        return self.entry(entry).exported

    def signature(self) -> dict[str, Any]:
        """What `signature.json` holds: the format is described in docs/export.md."""
        entries = {}
        for name, entry in self._entries.items():
            described = _described(name, entry.exported, entry.constraints)
            if entry.gradient is not None:
                described["gradient"] = _described(
                    f"{name}.gradient", entry.gradient, entry.constraints
                )
            entries[name] = {**entry.described, "program": described}
        return {
            "format": load.FORMAT,
            # What reads version 1 does not know of arguments that are written to.
            "version": 2 if any(e["writes"] for e in entries.values()) else 1,
            "torch": torch.__version__,
            "state": self.state,
            "entries": entries,
        }

    def save(self, folder: str | Path, *, text: bool = False) -> Path:
        """Write the folder that `load.py` in it runs: programs, weights, signature.

        `text=True` writes each program as text, too (`forward.mlir`). A folder that exists must be empty or
        one that was saved before; its files are replaced one by one. Raises `FileExistsError` else.
        """
        folder = Path(folder)
        if folder.exists() and any(folder.iterdir()) and not (folder / "signature.json").exists():
            raise FileExistsError(f"{folder} holds something else than an exported model")
        folder.mkdir(parents=True, exist_ok=True)
        for name, entry in self._entries.items():
            (folder / f"{name}.stablehlo").write_bytes(entry.exported.mlir_module_serialized)
            if entry.gradient is not None:
                program = entry.gradient.mlir_module_serialized
                (folder / f"{name}.gradient.stablehlo").write_bytes(program)
            if text:
                (folder / f"{name}.mlir").write_text(entry.exported.mlir_module())
        whole = {name: t.contiguous().clone() for name, t in self.tensors.items()}
        safetensors.torch.save_file(whole, folder / "weights.safetensors")
        shutil.copyfile(load.__file__, folder / "load.py")
        (folder / "signature.json").write_text(json.dumps(self.signature(), indent=1) + "\n")
        return folder

    def entry(self, name: str | None) -> Entry:
        if name is not None and name not in self._entries:
            raise KeyError(f"no entry point {name!r}; there are {', '.join(self._entries)}")
        return self._entries[name or next(iter(self._entries))]


def _described(name: str, exported: jax_export.Exported, constraints: list[str]) -> dict[str, Any]:
    """What `load.py` needs to know of a program."""
    return {
        "file": f"{name}.stablehlo",
        "name": name,
        "jax": jax.__version__,
        "platforms": list(exported.platforms),
        "calling_convention": exported.calling_convention_version,
        "kept": list(exported.module_kept_var_idx),
        "global_constants": exported.uses_global_constants,
        "constraints": constraints,
        "inputs": [_aval(a) for a in exported.in_avals],
        "results": [_aval(a) for a in exported.out_avals],
    }


def _aval(aval: Any) -> list[Any]:
    dtype = "float0" if aval.dtype == jax.dtypes.float0 else aval.dtype.name
    return [dtype, texts(aval.shape)]


def texts(shape: Sequence[Any]) -> list[Any]:
    """Sizes as numbers, and as text where they vary."""
    return [d if isinstance(d, int) else str(d) for d in shape]
