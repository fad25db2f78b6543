"""Parts of spread tensors that chips do not divide: programs give on them what they give on one chip."""

from __future__ import annotations

import pytest
import torch
from cases import CASES, Put
from test_one_chip_or_mesh import ROUNDED, SPECS, differences, given, on_mesh, on_one_chip

# The others give parameters to an optimizer, or ask how a tensor lies in memory.
NAMES = [name for name in CASES if not name.startswith(("trained by", "captured", "looked"))]


def in_part(put: Put) -> Put:
    """What brings a tensor as a part of a larger one, whose elements after it are ones."""

    def put_part(x: torch.Tensor) -> torch.Tensor:
        if not x.dim():
            return put(x)
        whole = torch.ones([n // 8 * 8 + 8 for n in x.shape]).to(x.dtype)
        part = tuple(slice(n) for n in x.shape)
        whole[part] = x
        return put(whole)[part]

    return put_part


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*runs on the CPU")  # a sparse tensor's operator
@pytest.mark.parametrize("name", NAMES)
def test_programs_on_uneven_parts_give_what_they_give_on_one_chip(name: str) -> None:
    expected = given(name, in_part(on_one_chip))

    found = given(name, in_part(on_mesh(SPECS[0])))

    assert not list(differences(found, expected, ROUNDED.get(name, 2e-5)))
