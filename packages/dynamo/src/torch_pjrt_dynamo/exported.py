"""`torch_pjrt_dynamo.run`: programs that `torch.export` made."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch.export import ExportedProgram
from torch.export.passes import move_to_device_pass
from torch.utils._pytree import tree_leaves, tree_map

from torch_pjrt_dynamo.setup import set_up

_compiled: WeakKeyDictionary[ExportedProgram, Callable[..., Any]] = WeakKeyDictionary()


def run(program: ExportedProgram, /, *args: Any, **kwargs: Any) -> Any:
    """What the exported program gives for these arguments, computed on `pjrt`.

    Its parameters are copied to the device at the first call. Tensors of the CPU are brought there, and where
    all tensors among the arguments are of the CPU, so are the results. Gradients do not follow.
    """
    set_up()
    compiled = _compiled.get(program)
    if compiled is None:
        module = move_to_device_pass(_copied(program), "pjrt").module()
        compiled = _compiled[program] = torch.compile(module, backend="pjrt", dynamic=False)
    tensors = [x for x in tree_leaves((args, kwargs)) if _is_tensor(x)]
    on_host = bool(tensors) and all(x.device.type == "cpu" for x in tensors)
    args, kwargs = _moved((args, kwargs), "pjrt")
    with torch.no_grad():
        results = compiled(*args, **kwargs)
    return _moved(results, "cpu") if on_host else results


def _copied(program: ExportedProgram) -> ExportedProgram:
    """A copy, which the pass may move.

    Copying a graph gives nodes other names where theirs are builtins of Python (`input`), and the program's
    signature knows its nodes by their names.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # PyTorch's own, of copying a pytree's spec
        twin = copy.deepcopy(program)
    for node, original in zip(twin.graph.nodes, program.graph.nodes, strict=True):
        node.name = original.name
    return twin


def _is_tensor(x: Any) -> bool:
    return isinstance(x, torch.Tensor)


def _moved(tree: Any, device: str) -> Any:
    return tree_map(lambda x: x.to(device) if _is_tensor(x) else x, tree)
