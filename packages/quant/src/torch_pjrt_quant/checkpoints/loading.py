"""`load_quantized_`: a checkpoint of another tool into a module."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor

from torch_pjrt_quant.checkpoints import k_quants
from torch_pjrt_quant.checkpoints.formats import METHODS, gguf_q4_0, gguf_q8_0

# Kinds of GGUF's that stay small.
GGUF = {
    "Q4_0": gguf_q4_0,
    "Q8_0": gguf_q8_0,
    "Q2_K": k_quants.q2_k,
    "Q3_K": k_quants.q3_k,
    "Q4_K": k_quants.q4_k,
    "Q6_K": k_quants.q6_k,
}


def load_quantized_(
    model: torch.nn.Module,
    source: str | Path | Mapping[str, Tensor],
    *,
    config: Mapping[str, Any] | None = None,
    device: Any = "pjrt",
) -> torch.nn.Module:
    """Fill a module from a checkpoint that GPTQ, AWQ, compressed-tensors or bitsandbytes (NF4) has quantized.

    model     of the checkpoint's architecture, with linear layers of floats; it may be on `meta`.
    source    a folder with safetensors and perhaps a `config.json`, a file, or the tensors by name.
    config    the `quantization_config`, where `config.json` does not say it. `quant_method` is one of `gptq`,
              `awq`, `compressed-tensors`, `bitsandbytes`.
    device    where everything goes, layer by layer; no wide copy of a weight is made.

    Linear layers that the checkpoint has quantized are replaced. Returns the module. Raises `ValueError`
    where the method is not known, a layer is written otherwise, or parts of the module are not filled.
    """
    if not isinstance(source, Mapping):
        config = config or _config_of(Path(source))
    config = config or {}
    method = config.get("quant_method")
    if method not in METHODS:
        raise ValueError(f"quant_method is {method!r}, and should be one of {', '.join(METHODS)}")
    bits = config.get("bits", config.get("w_bit", 4))
    if method in ("gptq", "awq") and bits != 4:
        raise ValueError(f"the checkpoint has {bits} bits a number, and only 4 are read")
    read, needed = METHODS[method]
    layers = {
        name: m for name, m in model.named_modules() if isinstance(m, torch.nn.Linear) and name
    }
    with _opened(source) as tensors:
        names = set(tensors)
        quantized = {
            name: linear
            for name, linear in layers.items()
            if all(f"{name}.{part}" in names for part in needed)
        }
        taken: set[str] = set()
        for name, linear in quantized.items():
            own = {n for n in names if n.startswith(f"{name}.")}
            parts = {n.removeprefix(f"{name}."): tensors[n] for n in own}
            sizes = linear.in_features, linear.out_features
            try:
                made = read(parts, sizes, config)
            except ValueError as error:
                raise ValueError(f"`{name}`: {error}") from error
            if (bias := parts.get("bias")) is not None and linear.bias is not None:
                made.bias = torch.nn.Parameter(bias)
            _put(model, name, made.to(device))
            taken |= own
        rest = {n: tensors[n].to(device) for n in names - taken}
    return _filled(model, rest, set(quantized), device)


def load_gguf_(
    model: torch.nn.Module,
    file: str | Path,
    names: Callable[[str], str],
    *,
    device: Any = "pjrt",
) -> torch.nn.Module:
    """Fill a module from a GGUF file: weights of Q4_0, Q8_0, Q2_K, Q3_K, Q4_K and Q6_K stay small.

    Other kinds become float32, Q5_K too, which has no counterpart here.

    names    of a name in the file (`blk.0.attn_q.weight`), the module's name of it.

    Needs the package `gguf`. Linear layers whose weights are quantized are replaced. Returns the module.
    Raises `ValueError` where parts of the module are not filled. (llama.cpp permutes the rows of query and
    key weights of some architectures; a module must expect them so.)
    """
    import gguf  # pyright: ignore[reportMissingImports]

    layers = dict(model.named_modules())
    rest, quantized, biases = {}, set(), {}
    for tensor in gguf.GGUFReader(str(file)).tensors:
        name, kind = names(tensor.name), tensor.tensor_type.name
        layer = layers.get(name.removesuffix(".weight"))
        if kind in GGUF and isinstance(layer, torch.nn.Linear):
            raw = torch.from_numpy(tensor.data.copy()).view(torch.uint8)
            made = GGUF[kind](raw, (layer.in_features, layer.out_features))
            path = name.removesuffix(".weight")
            _put(model, path, made.to(device))
            quantized.add(path)
            continue
        wide = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        value = torch.from_numpy(wide.copy()).float().to(device)
        rest[name] = value
    for path in quantized:
        if (bias := rest.pop(f"{path}.bias", None)) is not None:
            biases[path] = bias
    for path, bias in biases.items():
        layer = model.get_submodule(path)
        layer.register_parameter("bias", torch.nn.Parameter(bias))
    return _filled(model, rest, quantized, device)


def _filled(
    model: torch.nn.Module, rest: dict[str, Tensor], quantized: set[str], device: Any
) -> torch.nn.Module:
    found = model.load_state_dict(rest, strict=False, assign=True)
    tied = {n for n, p in model.named_parameters(remove_duplicate=False) if not p.is_meta}
    missing = [
        name
        for name in found.missing_keys
        if name.rpartition(".")[0] not in quantized and name not in tied
    ]
    if missing:
        raise ValueError(
            f"the checkpoint lacks {', '.join(missing[:5])}" + " ..." * (len(missing) > 5)
        )
    computed = [name for name, b in model.named_buffers() if b.is_meta]
    if computed:
        raise ValueError(
            f"{', '.join(computed[:5])} are computed when a module is made and in no checkpoint: make the "
            "module on the CPU, not on meta"
        )
    return model.to(device)


def _put(model: torch.nn.Module, path: str, made: torch.nn.Module) -> None:
    parent, _, name = path.rpartition(".")
    setattr(model.get_submodule(parent), name, made)


def _config_of(source: Path) -> Mapping[str, Any] | None:
    folder = source if source.is_dir() else source.parent
    for name in ("config.json", "quantize_config.json", "quant_config.json"):
        if (file := folder / name).exists():
            config = json.loads(file.read_text())
            found = config.get("quantization_config")
            if found is not None or name != "config.json":
                return found or config
    return None


class _Files(Mapping[str, Tensor]):
    """Tensors of safetensors files, each read when it is asked for."""

    def __init__(self, files: list[Path]) -> None:
        self._files = [safe_open(file, "pt") for file in files]
        self._where = {name: file for file in self._files for name in file.keys()}  # noqa: SIM118

    def __getitem__(self, name: str) -> Tensor:
        return self._where[name].get_tensor(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._where)

    def __len__(self) -> int:
        return len(self._where)

    def __enter__(self) -> _Files:
        return self

    def __exit__(self, *_: Any) -> None:
        self._files.clear()
        self._where.clear()


class _Given(dict[str, Tensor]):
    def __enter__(self) -> _Given:
        return self

    def __exit__(self, *_: Any) -> None:
        self.clear()


def _opened(source: str | Path | Mapping[str, Tensor]) -> _Files | _Given:
    if isinstance(source, Mapping):
        return _Given(source)
    path = Path(source)
    files = sorted(path.glob("*.safetensors")) if path.is_dir() else [path]
    if not files:
        raise ValueError(f"{path} has no safetensors")
    return _Files(files)
