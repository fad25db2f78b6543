"""What an action gives on a device, told so that two devices can be compared.

An action takes the name of a device, makes its tensors there, and returns what is to be compared: tensors
and plain values, in any nest of lists, tuples and dicts. Or it raises. What is told of a tensor is all that a
program can see of it: versions, lazy bits, which tensors share memory. `sides.py` compares contents within a
tolerance, of many cases in one program.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch

Action = Callable[[str], object]


def outcome(action: Action, device: str) -> Any:
    """A description that is equal on two devices if they agree.

    Of a tensor: dtype, shape, strides, offset, lazy bits, version, content, and which of the tensors before
    it has the same storage. Of an error: its class and text. Warnings are part of it, but for those which
    say that an operator has no rule.
    """
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            leaves = list(_leaves(action(device)))
        except Exception as error:
            return [type(error).__name__, _neutral(str(error))]
        described = _described(leaves)
    told = {_neutral(str(w.message)) for w in caught}
    return [*described, *sorted(text for text in told if "runs on the CPU" not in text)]


def assert_as_on_cpu(action: Action) -> None:
    """The action gives on the device what it gives on CPU."""
    ours, theirs = outcome(action, "pjrt"), outcome(action, "cpu")
    assert ours == theirs, f"\n{ours}\non CPU\n{theirs}"


def _neutral(text: str) -> str:
    """The first lines of a message, without the names of devices and the lines of PyTorch's sources."""
    lines = [line for line in text.splitlines() if not line.startswith("Exception raised from")]
    first = lines[0] if lines else ""
    first = first.partition(" (Triggered internally")[0]
    first = re.sub(
        r"pjrt(\w+)Type", r"torch.\1Tensor", first
    )  # C++ names types of other devices so
    return first.replace("pjrt:0", "cpu").replace("torch.pjrt.", "torch.")


def _leaves(x: object) -> Iterator[object]:
    if isinstance(x, dict):
        x = list(x.values())
    if isinstance(x, (list, tuple)):
        for part in x:
            yield from _leaves(part)
    else:
        yield x


def _described(leaves: list[object]) -> list[object]:
    described: list[object] = []
    storages: list[int] = []
    for leaf in leaves:
        if not isinstance(leaf, torch.Tensor):
            described.append(leaf if not isinstance(leaf, torch.Size) else tuple(leaf))
            continue
        address = leaf.untyped_storage().data_ptr() if leaf.numel() else -len(storages)
        storages.append(address)
        described.append(
            {
                "dtype": leaf.dtype,
                "shape": tuple(leaf.shape),
                "strides": leaf.stride(),
                "offset": leaf.storage_offset(),
                "conj, neg": (leaf.is_conj(), leaf.is_neg()),
                "version": None if leaf.is_inference() else leaf._version,
                "requires_grad": leaf.requires_grad,
                "shares with": storages.index(address),
                "content": _content(leaf),
            }
        )
    return described


def _content(t: torch.Tensor) -> str:
    with torch.no_grad():
        host = t.detach().cpu().resolve_conj().resolve_neg()
    return str(host.tolist())
