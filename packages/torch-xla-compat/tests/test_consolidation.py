"""Files of the ranks of an FSDP model become one, those that torch_xla has written too."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from torch_pjrt.errors import SettingError
from torch_xla.distributed.fsdp import (
    consolidate_sharded_ckpts,  # type: ignore[attr-defined]
    consolidate_sharded_state_dicts,
)

WEIGHT, BIAS = torch.arange(15.0).view(5, 3), torch.arange(5.0)


def padded_parts(tensor: torch.Tensor, ranks: int) -> list[torch.Tensor]:
    flat = tensor.flatten()
    length = -(-flat.numel() // ranks)
    return list(torch.nn.functional.pad(flat, (0, length * ranks - flat.numel())).split(length))


def files_of_torch_xla(form: str) -> tuple[list[dict[str, torch.Tensor]], dict[str, Any]]:
    """What two ranks have of a model `layer` with a weight and a bias, and of a buffer in float64."""
    metadata: dict[str, Any] = {
        "shard_info": {},
        "flatten_info": {},
        "buffer_info": {"scale": {"_orig_dtype": torch.float64}},
        "world_size": 2,
    }
    buffer = {"scale": torch.tensor(2.0)}
    module = "layer._fsdp_wrapped_module"
    if form == "flat":
        name = f"{module}._fsdp_shard.flat_param_0"
        parts = padded_parts(torch.cat([WEIGHT.flatten(), BIAS]), 2)
        metadata["shard_info"] = {
            module: {
                "_fsdp_shard.flat_param_0": {"_orig_size": (20,), "_orig_name": "flat_param_0"}
            }
        }
        metadata["flatten_info"] = {
            f"{module}.flat_param_0": (["weight", "bias"], [(5, 3), (5,)], [15, 5])
        }
        return [{name: part, **buffer} for part in parts], metadata
    weights = padded_parts(WEIGHT, 2)
    if form == "along dim 0":
        weights = list(torch.nn.functional.pad(WEIGHT, (0, 0, 0, 1)).split(3))
    metadata["shard_info"] = {
        module: {
            "_fsdp_shard.weight": {"_orig_size": (5, 3), "_orig_name": "weight"},
            "_fsdp_shard.bias": {"_orig_size": (5,), "_orig_name": "bias"},
        }
    }
    names = [f"{module}._fsdp_shard.{name}" for name in ("weight", "bias")]
    pairs = zip(weights, padded_parts(BIAS, 2), strict=True)
    return [dict(zip(names, pair, strict=True)) | buffer for pair in pairs], metadata


@pytest.mark.parametrize("form", ["each", "along dim 0", "flat"])
def test_parts_of_torch_xla_become_whole_parameters(form: str, tmp_path: Path) -> None:
    parts, metadata = files_of_torch_xla(form)
    for rank, part in enumerate(parts):
        torch.save(
            {"model": part, "shard_metadata": {**metadata, "rank": rank}}, tmp_path / f"{rank}.pth"
        )

    consolidate_sharded_ckpts.main(["--ckpt_prefix", f"{tmp_path}/"])

    whole = torch.load(tmp_path / "_consolidated.pth")["model"]
    assert list(whole) == ["layer.weight", "layer.bias", "scale"]
    assert torch.equal(whole["layer.weight"], WEIGHT)
    assert torch.equal(whole["layer.bias"], BIAS)
    assert whole["scale"].dtype == torch.float64


def test_all_ranks_are_needed(tmp_path: Path) -> None:
    parts, metadata = files_of_torch_xla("each")
    torch.save({"model": parts[1], "shard_metadata": {**metadata, "rank": 1}}, tmp_path / "1.pth")

    with pytest.raises(SettingError, match=r"ranks \[1\]"):
        consolidate_sharded_ckpts.main(["--ckpt_prefix", f"{tmp_path}/"])
    with pytest.raises(SettingError, match=r"ranks \[\]"):
        consolidate_sharded_ckpts.main(["--ckpt_prefix", f"{tmp_path}/nowhere"])
    with pytest.raises(SettingError, match="1 of them"):
        consolidate_sharded_state_dicts(parts[1:], metadata)
