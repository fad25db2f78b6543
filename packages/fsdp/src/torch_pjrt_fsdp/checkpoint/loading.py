"""Loading: each tensor of a state, on any mesh, takes its parts from a checkpoint."""

from __future__ import annotations

import os
from collections.abc import Callable, MutableMapping
from typing import Any

import torch
from torch import nn

from torch_pjrt.extend import ArrivingParts, is_pjrt
from torch_pjrt_fsdp.checkpoint.pieces import (
    Path,
    asked,
    is_stateful,
    leaves,
    name_of,
    set_at,
    targets_of,
)
from torch_pjrt_fsdp.checkpoint.stored import Stored
from torch_pjrt_spmd import CheckpointError

_Work = Callable[[], None]


def load_checkpoint(
    state: MutableMapping[str, Any],
    path: str | os.PathLike[str],
    *,
    strict: bool = True,
    verify: bool = True,
) -> None:
    """Load a checkpoint into a state, in place: one that `save_checkpoint` wrote, or PyTorch's own `save`.

    state   as for `save_checkpoint`, of some of its keys: what it does not have is not read. Tensors get
            their content and keep dtype, device and how they lie. Modules must have the tensors that they
            had; optimizers and others get the state that was saved, also where they have none yet.
    strict  whether it is an error if a name of the state is not in the checkpoint, or the other way round
            for modules.
    verify  compare the checksum of all that is read.

    Each process reads the parts that its chips have, two at a time. Nothing but tensors, numbers, texts and
    their containers is loaded. Raises `CheckpointError`, before anything is loaded, for names and shapes that
    do not fit; and for a damaged file, with its name and that of the tensor.

        load_checkpoint({"model": model, "optimizer": optimizer}, "/shared/run/step-100")
    """
    load_stored(state, Stored(path, verify=verify), strict=strict)


def load_stored(state: MutableMapping[str, Any], stored: Stored, *, strict: bool = True) -> None:
    """As `load_checkpoint`, from one that is open."""
    loading = _Loading(stored, strict)
    for path, value in asked(state):
        if isinstance(value, nn.Module):
            loading.module(path, value)
        elif is_stateful(value):
            loading.stateful(path, value)
        else:
            loading.plain(state, path, value)
    loading.check()
    with torch.no_grad():
        for work in loading.fills + loading.ends:
            work()


class _Loading:
    """What is to be done, once all of it is known to fit."""

    def __init__(self, stored: Stored, strict: bool) -> None:
        self.fills: list[_Work] = []
        self.ends: list[_Work] = []
        self._stored = stored
        self._strict = strict
        self._missing: list[str] = []
        self._unexpected: list[str] = []

    def module(self, at: Path, module: nn.Module) -> None:
        """Its tensors are filled where they are."""
        held = module.state_dict()
        names = {name_of((*at, *path)): (path, leaf) for path, leaf in leaves(held)}
        self._unexpected += [name for name in self._below(at) if name not in names]
        others = False
        for name, (path, leaf) in names.items():
            if not self._has(name):
                continue
            if isinstance(leaf, torch.Tensor):
                self._fill(name, leaf)
            else:
                others = True
                self.fills.append(lambda path=path, name=name: self._set(held, path, name))
        hooked = any(
            m._load_state_dict_pre_hooks or m._load_state_dict_post_hooks for m in module.modules()
        )
        if others or hooked:
            self.ends.append(lambda: _ignore(module.load_state_dict(held, strict=False)))

    def stateful(self, at: Path, value: Any) -> None:
        """It gets the state that was saved, in its own tensors where they fit."""
        below = self._below(at)
        if not below:
            self._missing.append(name_of(at))
            return
        own = {name_of((*at, *path)): leaf for path, leaf in leaves(value.state_dict())}
        nested: Any = {}  # the state is below a name, as it need not be a dict
        for name in below:
            path = ("state", *self._stored.paths[name][len(at) :])
            set_at(nested, path, None)  # in the order that they had
            if name in self._stored.objects:
                self.fills.append(lambda path=path, name=name: self._set(nested, path, name))
                continue
            held = own.get(name)
            shape = self._stored.tensors[name].shape
            if isinstance(held, torch.Tensor) and tuple(held.shape) == shape:
                self._fill(name, held)
                set_at(nested, path, held)
            else:
                like = (
                    _parameter(value, path[1:])
                    if isinstance(value, torch.optim.Optimizer)
                    else None
                )
                self.fills.append(
                    lambda path=path, name=name, like=like: set_at(
                        nested, path, self._new(name, like)
                    )
                )
        self.ends.append(lambda: value.load_state_dict(nested["state"]))

    def plain(self, state: MutableMapping[str, Any], path: Path, leaf: Any) -> None:
        """Tensors are filled, other leaves replaced."""
        name = name_of(path)
        if not self._has(name):
            return
        if isinstance(leaf, torch.Tensor):
            self._fill(name, leaf)
        else:
            self.fills.append(lambda: self._set(state, path, name))

    def check(self) -> None:
        """Raise for names that do not fit."""
        for happened, names in (
            ("The checkpoint lacks what the state has.", self._missing),
            ("The checkpoint has what the module lacks.", self._unexpected),
        ):
            if names and self._strict:
                more = f" and {len(names) - 8} more" if len(names) > 8 else ""
                raise CheckpointError(
                    happened,
                    saw=", ".join(map(repr, names[:8])) + more,
                    expected=f"names of {self._stored.path}",
                    hint="strict=False leaves them out",
                )

    def _below(self, at: Path) -> list[str]:
        return [name for name, path in self._stored.paths.items() if path[: len(at)] == at]

    def _has(self, name: str) -> bool:
        there = name in self._stored.tensors or name in self._stored.objects
        if not there:
            self._missing.append(name)
        return there

    def _fill(self, name: str, tensor: torch.Tensor) -> None:
        tensor = tensor.detach()
        saved = self._stored.tensors.get(name)
        shape = None if saved is None else saved.shape
        if shape != tuple(tensor.shape) or tensor.device.type == "meta":
            raise CheckpointError(
                f"The tensor {name!r} cannot be loaded from {self._stored.path}.",
                saw=f"{'no tensor' if shape is None else list(shape)} in the checkpoint",
                expected=f"{list(tensor.shape)}, on {tensor.device}",
                hint='a model on "meta" takes model.to_empty(device="pjrt") first'
                if tensor.device.type == "meta"
                else None,
            )
        self.fills.append(lambda: self._filled(name, tensor))

    def _filled(self, name: str, tensor: torch.Tensor) -> None:
        if not tensor.numel():
            return
        for target in targets_of(tensor):
            if target.into is not None:
                self._stored.read(name, target.box, target.into)
            else:
                target.put(self._stored.read(name, target.box))
        self._stored.done_with(name)

    def _new(self, name: str, like: torch.Tensor | None) -> torch.Tensor:
        """A tensor of the checkpoint, which lies as a parameter does if it has its shape."""
        saved = self._stored.tensors[name]
        if like is None or tuple(like.shape) != saved.shape or not like.dim():
            return self._stored.read(name, ((0,) * len(saved.shape), saved.shape)).clone()
        like = like.detach()
        if type(like) is not torch.Tensor or not is_pjrt(like) or not like.numel():
            new = torch.empty_like(like, dtype=saved.dtype)
            self._filled(name, new)
            return new
        arriving = ArrivingParts(like, new=saved.dtype)
        for index in arriving.indices:
            box = tuple(s.start for s in index), tuple(s.stop - s.start for s in index)
            arriving.put(index, self._stored.read(name, box))
        self._stored.done_with(name)
        assert arriving.tensor is not None
        return arriving.tensor

    def _set(self, nested: Any, path: Path, name: str) -> None:
        set_at(nested, path, self._stored.object(name))


def _parameter(optimizer: torch.optim.Optimizer, path: Path) -> torch.Tensor | None:
    """The parameter that a tensor of an optimizer's state, at this path, belongs to."""
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    match path:
        case ("state", number, *_) if str(number).isdecimal() and int(number) < len(parameters):
            return parameters[int(number)]
    return None


def _ignore(found: Any) -> None:
    """What `load_state_dict` says of names has been looked at."""
