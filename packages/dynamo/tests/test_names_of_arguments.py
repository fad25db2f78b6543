"""Exported programs run on the device whatever their arguments are called, as PyTorch runs them."""

from __future__ import annotations

import builtins
import keyword
import os
from typing import Any

import pytest
import torch
from torch.export import ExportedProgram

import torch_pjrt_dynamo

# How an argument is taken; and what is computed of it, less `y`.
KINDS = {
    "by position or name": ("{name}, y", "{name}"),
    "by name": ("y, *, {name}", "{name}"),
    "the rest by position": ("y, *{name}", "{name}[0]"),
    "the rest by name": ("y, **{name}", "{name}['zeta']"),
}
OURS = "program args kwargs compiled module device results fn self_"
PYTORCHS = "name forward output state_dict mod obj torch inf fx_pytree args_0 l_args_0_"
BUILTINS = "input type dict sum hash print"
NAMES = " ".join((OURS, PYTORCHS, BUILTINS)).split()
if os.environ.get("TORCH_PJRT_TEST_NAMES") == "all":
    NAMES += [n for n in dir(builtins) if not keyword.iskeyword(n) and n not in NAMES]


def exported(name: str, kind: str) -> tuple[ExportedProgram, tuple[Any, ...], dict[str, Any]]:
    """A program `... - y`, and arguments for it."""
    x, y = torch.arange(3.0), torch.ones(3)
    takes, gives = (text.format(name=name) for text in KINDS[kind])
    space: dict[str, Any] = {"Module": torch.nn.Module}
    text = f"class Given(Module):\n    def forward(self, {takes}):\n        return {gives} - y\n"
    exec(text, space)
    args = {"the rest by position": (y, x)}.get(kind, (x, y) if takes.endswith("y") else (y,))
    by_name = {"zeta" if kind == "the rest by name" else name: x}
    kwargs = by_name if len(args) == 1 else {}
    return torch.export.export(space["Given"](), args, kwargs), args, kwargs


@pytest.mark.parametrize("name", NAMES)
def test_a_program_runs_whatever_its_argument_is_called(name: str) -> None:
    for kind in KINDS:
        if (name, kind) in REFUSED:
            continue
        program, args, kwargs = exported(name, kind)

        saw = torch_pjrt_dynamo.run(program, *args, **kwargs)

        assert saw.tolist() == [-1.0, 0.0, 1.0], kind


# PyTorch cannot export or run these itself.
REFUSED = {
    *((name, "by position or name") for name in ("torch", "fx_pytree")),
    *((name, "by name") for name in ("mod", "obj", "torch", "fx_pytree")),
}


@pytest.mark.parametrize(("name", "kind"), sorted(REFUSED))
def test_what_is_left_out_is_what_pytorch_cannot_run(name: str, kind: str) -> None:
    with pytest.raises((TypeError, AttributeError)):
        program, args, kwargs = exported(name, kind)
        program.module()(*args, **kwargs)
