"""Checkpoints of orbax, which JAX's programs write and read."""

from __future__ import annotations

import os
from collections.abc import Mapping, MutableMapping
from importlib import import_module
from typing import Any

import torch

from torch_pjrt import from_jax, to_jax
from torch_pjrt.extend import is_pjrt, start, store, value_of, x64
from torch_pjrt_fsdp.checkpoint import ranks
from torch_pjrt_fsdp.checkpoint.pieces import Path, is_stateful, leaves, name_of, set_at
from torch_pjrt_spmd import CheckpointError


def save_orbax(state: Mapping[str, Any], path: str | os.PathLike[str]) -> None:
    """Write a state as a checkpoint of orbax, and wait for it.

    state   tensors and numbers in nested dicts, and what has `state_dict`. Names in a module's state stay as
            they are, with their dots.
    path    a folder that is not there.

    Arrays go as they lie. For one process. Needs `pip install 'torch-pjrt-fsdp[orbax]'`. Raises
    `CheckpointError` for leaves of other kinds.

        save_orbax({"params": model}, "out/step-100")
    """
    orbax = _orbax()
    tree: dict[str, Any] = {}
    for key, value in state.items():
        for inner, leaf in leaves(value.state_dict() if is_stateful(value) else value, (key,)):
            set_at(tree, _texts(inner), _as_leaf(name_of(inner), leaf))
    with x64(), orbax.StandardCheckpointer() as checkpointer:
        checkpointer.save(os.path.abspath(path), tree)
        checkpointer.wait_until_finished()


def load_orbax(state: MutableMapping[str, Any], path: str | os.PathLike[str]) -> None:
    """Load a checkpoint of orbax into a state, in place: one that `save_orbax` or a program of JAX's wrote.

    state   as for `save_orbax`, with the keys of the checkpoint or some of them. Tensors get their content,
            each chip its own part, in their own dtypes; numbers are replaced.

    For one process. Raises `CheckpointError` for names that the checkpoint lacks, and other shapes.

        load_orbax({"params": {"dense": {"kernel": weight}}}, "out/step-100")
    """
    import jax

    orbax = _orbax()
    start()
    targets: dict[Path, tuple[Any, Path, Any]] = {}
    wanted: dict[str, Any] = {}
    held = {
        key: value.state_dict() if is_stateful(value) else value for key, value in state.items()
    }
    for path_of, leaf in leaves(held):
        targets[_texts(path_of)] = (held, path_of, leaf)
    with x64(), orbax.StandardCheckpointer() as checkpointer:
        there = checkpointer.metadata(os.path.abspath(path)).item_metadata.tree
        described = {_texts(path_of): one for path_of, one in leaves(there)}
        for path_of, (_, _, leaf) in targets.items():
            one = described.get(path_of)
            shape = None if one is None else tuple(getattr(one, "shape", ()) or ())
            if shape is None or (isinstance(leaf, torch.Tensor) and shape != tuple(leaf.shape)):
                raise CheckpointError(
                    f"The tensor {name_of(path_of)!r} cannot be loaded from {os.fspath(path)}.",
                    saw="nothing of this name" if shape is None else f"{list(shape)}",
                    expected=f"{list(leaf.shape)}" if isinstance(leaf, torch.Tensor) else None,
                )
        for path_of, one in described.items():
            set_at(wanted, path_of, _asked(jax, one, targets.get(path_of)))
        found = dict(leaves(checkpointer.restore(os.path.abspath(path), wanted)))
    with torch.no_grad():
        for path_of, array in found.items():
            target = targets.get(_texts(path_of))
            if target is None:
                continue
            nested, where, leaf = target
            if isinstance(leaf, torch.Tensor):
                _fill(leaf.detach(), array)
            else:
                set_at(nested, where, type(leaf)(array) if leaf is not None else array)
    for key, value in state.items():
        if is_stateful(value):
            value.load_state_dict(held[key])
        else:
            state[key] = held[key]


def _orbax() -> Any:
    if ranks.rank_and_size()[1] > 1:
        raise CheckpointError(
            "Checkpoints of orbax are for one process.",
            saw=f"{ranks.rank_and_size()[1]} processes",
            hint="save_checkpoint in the run; load_checkpoint and save_orbax in one process",
        )
    try:
        return import_module("orbax.checkpoint")
    except ImportError as error:
        raise ImportError(
            "Checkpoints of orbax need the package orbax-checkpoint: pip install 'torch-pjrt-fsdp[orbax]'"
        ) from error


def _texts(path: Path) -> Path:
    """Keys as orbax has them: texts."""
    return tuple(str(key[0] if isinstance(key, tuple) else key) for key in path)


def _as_leaf(name: str, leaf: Any) -> Any:
    if isinstance(leaf, torch.Tensor):
        return to_jax(leaf.detach() if is_pjrt(leaf) else leaf.detach().to("pjrt"))
    if isinstance(leaf, (int, float)):
        return leaf
    raise CheckpointError(
        f"{name!r} cannot be in a checkpoint of orbax.",
        saw=type(leaf).__name__,
        expected="tensors and numbers, in dicts",
    )


def _asked(jax: Any, one: Any, target: tuple[Any, Path, Any] | None) -> Any:
    """How an array is to come: as the tensor lies; what nobody wants on the first chip."""
    shape = tuple(getattr(one, "shape", ()) or ())
    if not shape and not hasattr(one, "sharding"):
        return 0
    leaf = target[2] if target is not None else None
    if isinstance(leaf, torch.Tensor) and is_pjrt(leaf):
        sharding = to_jax(leaf.detach()).sharding
    else:
        sharding = jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
    return jax.ShapeDtypeStruct(shape, one.dtype, sharding=sharding)


def _fill(tensor: torch.Tensor, array: Any) -> None:
    content = from_jax(array)
    if is_pjrt(tensor) and content.dtype == tensor.dtype:
        store(tensor, value_of(content))
    else:
        tensor.copy_(content)
