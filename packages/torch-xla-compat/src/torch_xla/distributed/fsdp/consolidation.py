"""One state dict made of those that the ranks of an FSDP model have saved.

Here a rank's `state_dict()` has whole parameters. Files of torch_xla have each rank's part of them, padded
and maybe flattened; `shard_metadata`, which torch_xla has saved beside them, says what they were.
"""

from __future__ import annotations

import glob
import math
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from torch_pjrt.errors import SettingError

__all__ = ["consolidate_sharded_model_checkpoints", "consolidate_sharded_state_dicts"]

_WRAPPERS = ("_fsdp_wrapped_module.", "_fpw_module.")


def consolidate_sharded_state_dicts(
    state_dict_list: Sequence[Mapping[str, Any]], shard_metadata: Mapping[str, Any]
) -> OrderedDict[str, Any]:
    """The whole state dict of those of all ranks, which are in their order.

    shard_metadata  what `get_shard_metadata()` of any rank gave. Raises `SettingError` if it is of another
                    number of ranks.
    """
    if len(state_dict_list) != shard_metadata["world_size"]:
        raise SettingError(
            "A state dict of each rank is needed.",
            saw=f"{len(state_dict_list)} of them",
            expected=f"{shard_metadata['world_size']}",
        )
    dtypes = shard_metadata.get("buffer_info", {})
    whole: OrderedDict[str, Any] = OrderedDict()
    for name, value in state_dict_list[0].items():
        prefix, part = _split(name)
        if part is not None:
            known = shard_metadata["shard_info"][prefix][part]
            joined = torch.cat([state_dict[name] for state_dict in state_dict_list])
            whole[_joined(prefix, known["_orig_name"])] = _unpadded(joined, known["_orig_size"])
        else:
            whole[name] = value.to(dtypes[name]["_orig_dtype"]) if name in dtypes else value
    flat = shard_metadata.get("flatten_info", {})
    pairs = (p for name, value in whole.items() for p in _unflattened(name, value, flat.get(name)))
    return OrderedDict((_plain(name), value) for name, value in pairs)


def consolidate_sharded_model_checkpoints(
    ckpt_prefix: str, ckpt_suffix: str = "*.pth", save_path: str = "", save_model: bool = True
) -> tuple[OrderedDict[str, Any], str | None]:
    """The whole state dict of the ranks' files `ckpt_prefix + ckpt_suffix`, and where it was written.

    A file has the rank's state dict as `model`, and its `get_shard_metadata()` as `shard_metadata`.

    save_path   where to write it, as `model` of a dict, if `save_model`; else `PREFIX_consolidated.pth`.

    Raises `SettingError` without files, and if they are not those of all ranks.
    """
    paths = glob.glob(ckpt_prefix + ckpt_suffix)
    files = [torch.load(path, map_location="cpu", weights_only=True) for path in paths]
    files.sort(key=lambda file: file["shard_metadata"]["rank"])
    ranks = [file["shard_metadata"]["rank"] for file in files]
    if not files or ranks != list(range(files[0]["shard_metadata"]["world_size"])):
        raise SettingError(
            "A checkpoint of an FSDP model is a file of each rank.",
            saw=f"files of the ranks {ranks}: {ckpt_prefix + ckpt_suffix}",
        )
    whole = consolidate_sharded_state_dicts(
        [file["model"] for file in files], files[0]["shard_metadata"]
    )
    path = (save_path or ckpt_prefix + "_consolidated.pth") if save_model else None
    if path is not None:
        torch.save({"model": whole}, path)
    return whole, path


def _split(name: str) -> tuple[str, str | None]:
    """The module of a rank's part and the part's own name; None for what is no part."""
    pieces = name.split(".")
    for i, piece in enumerate(pieces):
        if piece.startswith("_fsdp_shard"):
            return ".".join(pieces[:i]), ".".join(pieces[i:])
    return name, None


def _unpadded(joined: torch.Tensor, size: Sequence[int]) -> torch.Tensor:
    if joined.dim() == 1:
        return joined[: math.prod(size)].view(*size)
    return joined[: size[0]]


def _unflattened(name: str, value: Any, known: Any) -> Iterator[tuple[str, Any]]:
    """A flat parameter as those that it was made of: `known` has their names, shapes and numbers of
    elements."""
    if known is None:
        yield name, value
        return
    names, shapes, counts = known
    for own, shape, part in zip(names, shapes, value.split(counts), strict=True):
        yield _joined(name.rpartition(".")[0], own), part.view(shape)


def _joined(prefix: str, name: str) -> str:
    return f"{prefix}.{name}" if prefix else name


def _plain(name: str) -> str:
    for wrapper in _WRAPPERS:
        name = name.replace(wrapper, "")
    return name
