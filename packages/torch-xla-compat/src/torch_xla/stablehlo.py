"""`torch_xla.stablehlo`: exported programs as StableHLO, by `torch-pjrt-quant`, which must be installed."""

from __future__ import annotations

import os
from typing import Any

import torch

from torch_pjrt.errors import UnsupportedError


class StableHLOExportOptions:
    """What torch_xla's export may be told, which has no meaning here: sizes that vary are said to
    `torch.export`."""

    def __init__(self, **options: Any) -> None:
        vars(self).update(options)


class StableHLOGraphModule:
    """A program of tensors: call it, look at it, save it."""

    def __init__(self, exported: Any, folder: str | None = None) -> None:
        self._exported = exported
        self._folder = folder

    def __call__(self, *args: Any) -> Any:
        """What the program gives of CPU or device tensors."""
        return self._module()(*args)

    def get_stablehlo_text(self, method_name: str | None = None) -> str:
        """The program as text."""
        return self._exported.stablehlo()

    def get_stablehlo_bytecode(self, method_name: str | None = None) -> bytes:
        """The program as StableHLO's portable bytecode."""
        return self._exported.stablehlo_bytecode()

    def save(self, directory_path: str | os.PathLike[str], options: Any = None) -> None:
        """Write it, with its weights, as `torch_pjrt_quant.load` and `StableHLOGraphModule.load` read it."""
        self._exported.save(directory_path)

    @staticmethod
    def load(directory_path: str | os.PathLike[str]) -> Any:
        """What `save` wrote, as a function of tensors."""
        return _quant().load(directory_path)

    def _module(self) -> Any:
        if self._folder is None:
            import tempfile

            self._folder = tempfile.mkdtemp(prefix="torch-xla-stablehlo-")
            self._exported.save(self._folder)
        return _quant().load(self._folder)


def exported_program_to_stablehlo(
    exported_model: torch.export.ExportedProgram, options: Any = None
) -> StableHLOGraphModule:
    """The program that `torch.export` has made, as StableHLO."""
    return StableHLOGraphModule(_quant().export(exported_model))


def save_as_stablehlo(
    exported_model: torch.export.ExportedProgram, stablehlo_dir: Any, options: Any = None
) -> None:
    """The same, written to a folder."""
    exported_program_to_stablehlo(exported_model).save(stablehlo_dir)


def save_torch_model_as_stablehlo(
    torchmodel: torch.nn.Module, args: Any, path: Any, options: Any = None
) -> None:
    """Export a model and write it to a folder."""
    save_as_stablehlo(torch.export.export(torchmodel, tuple(args)), path)


def _quant() -> Any:
    try:
        import torch_pjrt_quant
    except ImportError as error:
        raise UnsupportedError(
            "Export is in a package that is not installed.",
            hint="pip install 'torch-pjrt-xla-compat[stablehlo]'",
        ) from error
    return torch_pjrt_quant
