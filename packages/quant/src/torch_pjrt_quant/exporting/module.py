"""`load`: an exported model as a module of PyTorch again."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch.utils._pytree import tree_map

from torch_pjrt import jax_function
from torch_pjrt.extend import jax_dtype, start
from torch_pjrt_quant.exporting import load as without_torch


class LoadedModule(torch.nn.Module):
    """An exported model's programs on its tensors, which are parameters and buffers by their old names.

    Calling it calls the first entry point; `entry(name)` is another one. The programs are parts of what is
    recorded, as other operators are. Parameters get gradients where the model was exported with
    `gradient=True`. Names have `_` in the place of dots, and a further `_` behind them where that name is
    taken; `names` says of each old name which one it has.
    """

    def __init__(self, folder: Path, model: without_torch.Model) -> None:
        super().__init__()
        self.model_signature = model.signature
        differentiable = any(
            "gradient" in e["program"] for e in model.signature["entries"].values()
        )
        self.names: dict[str, str] = {}
        self._functions = {
            name: jax_function(entry.exported.call) for name, entry in model.entries.items()
        }
        self._entries = model.entries
        tensors = safetensors.torch.load_file(folder / "weights.safetensors")
        with torch.no_grad():
            # What needs no other name comes first, and so has its own.
            for name in sorted(tensors, key=lambda n: ("." in n, n)):
                self.names[name] = own = self._free(name.replace(".", "_"))
                tensor = tensors[name]
                there = tensor.to("pjrt")
                if name in model.state or not tensor.is_floating_point():
                    self.register_buffer(own, there)
                else:
                    self.register_parameter(own, torch.nn.Parameter(there, differentiable))

    def _free(self, name: str) -> str:
        """The name, or one like it that no attribute has."""
        while hasattr(self, name):
            name += "_"
        return name

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.entry(next(iter(self._entries)))(*args, **kwargs)

    def entry(self, name: str) -> Any:
        """The entry point of that name: a function that takes and gives tensors."""
        if name not in self._entries:
            raise KeyError(f"no entry point {name!r}; there are {', '.join(self._entries)}")

        def call(*args: Any, seed: int = 0, **kwargs: Any) -> Any:
            return self._called(name, args, kwargs, seed)

        return call

    def _called(self, name: str, args: Any, kwargs: Any, seed: int) -> Any:
        entry = self._entries[name].signature
        given = _tensors(self._entries[name], args, kwargs)
        tensors = [getattr(self, self.names[n]) for n in entry["tensors"]]
        # What is updated below is kept for backward as it is now.
        updated = set(entry["updates"])
        tensors = [
            t.clone() if n in updated else t for n, t in zip(entry["tensors"], tensors, strict=True)
        ]
        rest = [torch.tensor(seed, dtype=torch.uint32, device="pjrt")] if entry["random"] else []
        writes = entry.get("writes", [])
        arguments = [x.to("pjrt") for x in given]
        for n in writes:
            arguments[n] = arguments[n].clone()
        results = list(self._functions[name](*tensors, *arguments, *rest))
        updates, leaves, written = self._entries[name].parted(results)
        with torch.no_grad():
            for updated, value in zip(entry["updates"], updates, strict=True):
                getattr(self, self.names[updated]).copy_(value)
            for n, value in written.items():
                given[n].copy_(value)
        return without_torch.built(entry["results"], leaves)


@dataclass(frozen=True, slots=True, eq=False)
class _Leaf:
    """A tensor as `load.py` looks at arrays."""

    tensor: torch.Tensor

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.tensor.shape)

    @property
    def dtype(self) -> Any:
        return jax_dtype(self.tensor.dtype)


def _tensors(entry: without_torch.Entry, args: Any, kwargs: Any) -> list[torch.Tensor]:
    """The tensors among the arguments, in the program's order, where they are.

    Raises `WrongInput` as `load.py` does.
    """
    leaves = tree_map(lambda x: _Leaf(x) if isinstance(x, torch.Tensor) else x, (args, kwargs))
    return [
        x.tensor if isinstance(x, _Leaf) else torch.as_tensor(x) for x in entry.flattened(*leaves)
    ]


def load(folder: str | Path) -> LoadedModule:
    """A folder that `ExportedModel.save` wrote, as a module on `pjrt`.

    Raises `ValueError` for a folder of another format or of a later version.
    """
    start()
    return LoadedModule(Path(folder), without_torch.load(folder))
