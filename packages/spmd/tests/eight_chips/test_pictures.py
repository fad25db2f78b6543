"""A picture has a rectangle for each part of a tensor, where that lies, with the chips that have it."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest
import torch

from torch_pjrt.errors import SettingError
from torch_pjrt_spmd import Mesh, distribute_tensor, visualize_sharding

SVG = "{http://www.w3.org/2000/svg}"

#   shape    spec    the chips of each part, from the top row on    parts beside each other
CASES: dict[str, tuple[tuple[int, ...], Any, list[str], int]] = {
    "both dims":        ((16, 8), ("data", "model"), [str(n) for n in range(8)], 4),
    "copies":           ((16, 8), ("data", None), ["0, 1, 2, 3", "4, 5, 6, 7"], 1),
    "columns":          ((16, 8), (None, "model"), ["0, 4", "1, 5", "2, 6", "3, 7"], 4),
    "whole on each":    ((16, 8), (), ["0, 1, 2, 3, 4, 5, 6, 7"], 1),
    "one dim":          ((16,), (("data", "model"),), [str(n) for n in range(8)], 8),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_each_part_is_a_rectangle_with_its_chips(name: str, tmp_path: Path) -> None:
    shape, spec, expected, beside = CASES[name]
    x = distribute_tensor(torch.ones(shape), Mesh((2, 4), ("data", "model")), spec)

    visualize_sharding(x, tmp_path / "x.svg")

    picture = ET.parse(tmp_path / "x.svg").getroot()
    title, *texts = [text.text for text in picture.iter(f"{SVG}text")]
    parts = [r for r in picture.iter(f"{SVG}rect") if r.get("fill", "").startswith("hsl")]
    assert title == f"float32{list(shape)}"
    assert texts == expected
    assert len({(r.get("x"), r.get("y")) for r in parts}) == len(expected)
    assert len({r.get("x") for r in parts}) == beside
    assert len({r.get("fill") for r in parts}) == len(expected)


def test_another_kind_of_file_is_refused_in_words(tmp_path: Path) -> None:
    x = torch.ones(4, 4, device="pjrt")

    with pytest.raises(SettingError, match=r"drawn as SVG[^$]*ends in \.svg"):
        visualize_sharding(x, tmp_path / "x.png")
