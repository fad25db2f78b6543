"""`load_quantized_`: a checkpoint of another tool into a module."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor

from torch_pjrt_quant.checkpoints import k_quants
from torch_pjrt_quant.checkpoints.formats import (
    METHODS,
    gguf_q4_0,
    gguf_q8_0,
    objection_to,
    read_layer,
)
from torch_pjrt_quant.replacing import off_fast_paths, put

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
    """Fill a module from a checkpoint of GPTQ, AWQ, compressed-tensors, bitsandbytes or blocks of float8.

    model     of the checkpoint's architecture, with linear layers of floats; it may be on `meta`.
    source    a folder with safetensors and perhaps a `config.json`, a file, or the tensors by name.
    config    the `quantization_config`, where `config.json` does not say it. `quant_method` is one of `gptq`,
              `awq`, `compressed-tensors`, `bitsandbytes`, `fp8`.
    device    where everything goes, layer by layer; no wide copy of a weight is made.

    Linear layers that the checkpoint has quantized are replaced. Returns the module. Raises `ValueError`
    where the method is not known, a layer is written otherwise, or parts of the module are not filled. A
    `UserWarning` names what the checkpoint has and the module has not.
    """
    if not isinstance(source, Mapping):
        config = config or _config_of(Path(source))
    config = config or {}
    method = config.get("quant_method")
    if method not in METHODS:
        raise ValueError(f"quant_method is {method!r}, and should be one of {', '.join(METHODS)}")
    if (objection := objection_to(method, config)) is not None:
        raise ValueError(objection)
    shared = _shared(model)
    layers = [name for name, m in model.named_modules() if isinstance(m, torch.nn.Linear) and name]
    with _opened(source) as tensors:
        names = set(tensors)
        quantized, taken, lacking = set(), set(), []
        for name in layers:
            own = {n for n in names if n.startswith(f"{name}.")}
            if not METHODS[method].are_there({n.removeprefix(f"{name}.") for n in own}):
                continue
            linear = model.get_submodule(name)
            assert isinstance(linear, torch.nn.Linear)
            parts = {n.removeprefix(f"{name}."): tensors[n] for n in own}
            made = read_layer(method, name, parts, linear, config)
            if linear.bias is not None and made.bias is None:
                lacking.append(f"{name}.bias")
            put(model, [name], made.to(device))
            quantized.add(name)
            taken |= own
        rest = {n: tensors[n].to(device) for n in names - taken}
    return _filled(model, rest, _Found(quantized, lacking, shared), device)


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

    shared = _shared(model)
    layers = {
        name: (m.in_features, m.out_features)
        for name, m in model.named_modules()
        if isinstance(m, torch.nn.Linear)
    }
    rest, quantized, biases = {}, set(), {}
    for tensor in gguf.GGUFReader(str(file)).tensors:
        name, kind = names(tensor.name), tensor.tensor_type.name
        path = name.removesuffix(".weight")
        if kind in GGUF and (sizes := layers.get(path)) is not None:
            found = tuple(int(n) for n in tensor.shape)
            if found != sizes:
                raise ValueError(f"`{path}`: the file has {found} of it, and the module {sizes}")
            raw = torch.from_numpy(tensor.data.copy()).view(torch.uint8)
            put(model, [path], GGUF[kind](raw, sizes).to(device))
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
    return _filled(model, rest, _Found(quantized, [], shared), device)


@dataclass(frozen=True, slots=True)
class _Found:
    """What is known of a module before the rest of it is filled.

    quantized    names of layers that have been replaced.
    lacking      of what those lack.
    shared       of parameters that were one: an embedding and what is tied to it.
    """

    quantized: set[str]
    lacking: list[str]
    shared: list[list[str]]


def _shared(model: torch.nn.Module) -> list[list[str]]:
    """Names of parameters that are one, together."""
    names: dict[int, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), []).append(name)
    return [several for several in names.values() if len(several) > 1]


def _filled(
    model: torch.nn.Module, rest: dict[str, Tensor], known: _Found, device: Any
) -> torch.nn.Module:
    """The module with the tensors that are no layer's of few bits. What it lacks is an error."""
    wide = dict(model.named_parameters(remove_duplicate=False))
    for name, tensor in rest.items():
        if name in wide and not (tensor.is_floating_point() or tensor.is_complex()):
            raise ValueError(
                f"`{name}` is {tensor.dtype} in the checkpoint, and a tensor of floats is expected: it is "
                "not written as `quant_method` says"
            )
    try:
        found = model.load_state_dict(rest, strict=False, assign=True)
    except RuntimeError as error:  # other sizes
        raise ValueError(str(error)) from error
    tied = _tied(model, rest, known.shared)
    missing = [
        name
        for name in found.missing_keys
        if name.rpartition(".")[0] not in known.quantized and name not in tied
    ]
    missing += known.lacking
    computed_there = {name for name, _ in model.named_buffers()}
    unknown = [name for name in found.unexpected_keys if name not in computed_there]
    if missing:
        raise ValueError(
            f"the checkpoint lacks {_some(missing)}"
            + (f"; it has {_some(unknown)}, which the module has not" if unknown else "")
        )
    if unknown:
        warnings.warn(
            f"the checkpoint has {_some(unknown)}, which the module has not",
            UserWarning,
            stacklevel=3,
        )
    computed = [name for name, b in model.named_buffers() if b.is_meta]
    if computed:
        raise ValueError(
            f"{', '.join(computed[:5])} are computed when a module is made and in no checkpoint: make the "
            "module on the CPU, not on meta"
        )
    return off_fast_paths(model.to(device))


def _tied(model: torch.nn.Module, rest: dict[str, Tensor], shared: list[list[str]]) -> set[str]:
    """Give parameters that were one with a loaded one what that is now. The names of those."""
    there = set(dict(model.named_parameters(remove_duplicate=False)))
    tied: set[str] = set()
    for names in shared:
        loaded = next((name for name in names if name in rest), None)
        if loaded is None:
            continue
        for name in names:
            if name not in rest and name in there:
                parent, _, own = name.rpartition(".")
                module = model.get_submodule(parent)
                module.register_parameter(own, model.get_parameter(loaded))
                tied.add(name)
    return tied


def _some(names: list[str]) -> str:
    return ", ".join(names[:5]) + " ..." * (len(names) > 5)


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
