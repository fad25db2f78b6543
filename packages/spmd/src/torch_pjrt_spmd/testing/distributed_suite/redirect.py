"""A file of PyTorch's tests that is written for CUDA, read as if it were written for the device.

    it says                                  it means
    x.cuda(rank), x.to(rank), device=rank    this process's device: each has one, and it is number 0
    device_ids=[rank], gpus = [rank]         [0]
    assertEqual(x.device.index, rank)        assertEqual(x.device.index, 0)
    "cuda", "cuda:0", f"cuda:{rank}"         "pjrt", "pjrt:0", "pjrt:0"
    "nccl", of a backend                     "pjrt"
    torch.DoubleTensor(...)                  the same, moved to the device
    torch.cuda.f(...)                        `Chip.f(...)`, below
    torch.get_device_module(...).f(...)      the same
    torch.accelerator.device_count()         the same
    from torch.cuda.amp import ...           the same of `torch.amp`, for the device
    guards: which backend, how many GPUs     nothing: the backend claims all; what does not hold is listed

Guards of the number of processes hold. A tensor that is made without a device is made on the device, as the
suite runs the tests under `torch.device("pjrt")`, but for `MEAN_THE_CPU`. `autocast` casts what it casts on
CUDA, also on a device that casts as PyTorch's CPU. `_SMALLER` is what a CPU would compute for minutes.
"""

from __future__ import annotations

import ast
import functools
import os
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

DEVICE = "pjrt"

_MEANT = {"cuda": DEVICE, "cuda:0": f"{DEVICE}:0", "nccl": DEVICE}
_RANKS = {"rank", "my_rank", "self.rank", "next_rank", "device_id"}
_MAKES_ON_CPU = {"torch.DoubleTensor", "torch.FloatTensor", "torch.LongTensor"}
_GUARDS = {
    "skip_if_no_gpu",
    "nccl_skip_if_lt_x_gpu",
    "require_backend_is_available",
    "require_n_gpus_for_nccl_backend",
    "requires_nccl_version",
    "with_nccl_blocking_wait",
}

# Tests that mean the CPU by a tensor that is made without a device.
MEAN_THE_CPU = {"test_ddp_device"}
# Numbers that a test assigns to a name: images of 1000 x 1000 pixels, say.
_SMALLER = {"test_ddp_uneven_inputs": {"dim": 20}}
# Tests of many programs: how much more time than another one they get.
LONGER = {"test_ddp_uneven_inputs": 6}


class Chip:
    """What stands where a test says `torch.cuda`: `torch.pjrt`, whatever number of a device it is given."""

    def __getattr__(self, name: str) -> Any:
        import torch

        function = getattr(torch.get_device_module(DEVICE), name)
        if name not in ("set_device", "synchronize", "Stream", "device"):
            return function
        return lambda *_, **__: function(0)

    def device_count(self) -> int:
        """As many as there may be processes: each has its own."""
        return n_devices()


def cast_as_cuda() -> None:
    """Have autocast use the lists of PyTorch's accelerators, from before the device starts."""
    from torch_pjrt.extend import chosen_device_name
    from torch_pjrt.plugin import Device

    chosen = chosen_device_name()
    for kind in Device.__subclasses__():
        if getattr(kind, "name", None) == chosen:
            kind.autocast_rules = Device.autocast_rules


def n_devices() -> int:
    """How many processes, each with its device, a test may have."""
    return int(os.environ["DEVICES"])


def load(name: str) -> ModuleType:
    """The module, redirected, under its own name and for the whole process."""
    spec = find_spec(name)
    assert spec is not None
    assert spec.origin is not None
    return load_file(name, Path(spec.origin))


def load_file(name: str, path: Path) -> ModuleType:
    """A file as a module of that name, redirected."""
    tree = _Redirected().visit(ast.parse(path.read_text()))
    module = ModuleType(name)
    module.__file__ = str(path)
    module.__dict__.update(_chip=Chip(), _amp=_amp(), _skip_if_fewer=_skip_if_fewer)
    sys.modules[name] = module
    code = compile(ast.fix_missing_locations(tree), str(path), "exec", dont_inherit=True)
    exec(code, module.__dict__)
    module.__dict__["init_multigpu_helper"] = lambda size, backend: {r: [r] for r in range(size)}
    return module


def _amp() -> ModuleType:
    import torch

    amp = ModuleType("amp")
    amp.__dict__["autocast"] = functools.partial(torch.autocast, DEVICE)
    amp.__dict__["GradScaler"] = functools.partial(torch.GradScaler, DEVICE)
    return amp


def _skip_if_fewer(n: int, **_: Any) -> Callable[[Any], Any]:
    """PyTorch's `skip_if_lt_x_gpu`, of processes: each has a device."""
    import unittest

    return unittest.skipIf(n_devices() < n, f"needs {n} processes")


class _Redirected(ast.NodeTransformer):
    def visit_FunctionDef(self, node: ast.FunctionDef) -> Any:
        node.decorator_list = [d for d in node.decorator_list if not _is_guard(d)]
        for name, number in _SMALLER.get(node.name, {}).items():
            _assigns(node, name).value = ast.Constant(number)
        return self.generic_visit(node)

    def visit_ImportFrom(self, node: ast.ImportFrom) -> Any:
        if node.module != "torch.cuda.amp":
            return node
        return [ast.parse(f"{a.asname or a.name} = _amp.{a.name}").body[0] for a in node.names]

    def visit_Attribute(self, node: ast.Attribute) -> Any:
        if ast.unparse(node) in ("torch.cuda", "torch.accelerator.device_count"):
            chip = ast.copy_location(ast.Name("_chip", ast.Load()), node)
            return chip if node.attr == "cuda" else ast.Attribute(chip, node.attr, node.ctx)
        return self.generic_visit(node)

    def visit_Name(self, node: ast.Name) -> Any:
        if node.id == "skip_if_lt_x_gpu":
            node.id = "_skip_if_fewer"
        return node

    def visit_Call(self, node: ast.Call) -> Any:
        call = self.generic_visit(node)
        assert isinstance(call, ast.Call)
        of = call.func
        if ast.unparse(of) == "torch.get_device_module":
            return ast.copy_location(ast.Name("_chip", ast.Load()), node)
        if isinstance(of, ast.Attribute) and of.attr == "cuda":
            of.attr, call.args = "to", [ast.Constant(DEVICE)]
        elif isinstance(of, ast.Attribute) and (
            of.attr == "to" or ast.unparse(of) == "torch.device"
        ):
            call.args = [_own(x) for x in call.args]
        elif isinstance(of, ast.Attribute) and of.attr == "assertEqual":
            if ast.unparse(call.args[0]).endswith(".device.index"):
                call.args[1] = ast.Constant(0)
        elif isinstance(of, ast.Attribute) and ast.unparse(of) in _MAKES_ON_CPU:
            return ast.Call(ast.Attribute(call, "to", ast.Load()), [ast.Constant(DEVICE)], [])
        for keyword in call.keywords:
            if keyword.arg == "device":
                keyword.value = _own(keyword.value)
            if keyword.arg == "device_ids":
                keyword.value = _own_numbers(keyword.value)
        return call

    def visit_Assign(self, node: ast.Assign) -> Any:
        if ast.unparse(node.targets[0]) == "gpus":
            node.value = _own_numbers(node.value)
        if ast.unparse(node.targets[0]) in ("device", "device_id") and _is_rank(node.value):
            node.value = ast.Constant(0)
        return self.generic_visit(node)

    def visit_BinOp(self, node: ast.BinOp) -> Any:
        if isinstance(node.left, ast.Constant) and node.left.value == "cuda:":
            return ast.Constant(f"{DEVICE}:0")
        return self.generic_visit(node)

    def visit_JoinedStr(self, node: ast.JoinedStr) -> Any:
        first = node.values[0] if node.values else None
        if isinstance(first, ast.Constant) and first.value == "cuda:":
            return ast.Constant(f"{DEVICE}:0")
        return self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> Any:
        meant = _MEANT.get(node.value) if isinstance(node.value, str) else None
        return node if meant is None else ast.copy_location(ast.Constant(meant), node)


def _assigns(function: ast.FunctionDef, name: str) -> ast.Assign:
    """The statement of a function's body that gives a name its value."""
    found = (s for s in function.body if isinstance(s, ast.Assign))
    return next(s for s in found if ast.unparse(s.targets[0]) == name)


def _is_rank(number: ast.expr) -> bool:
    return ast.unparse(number) in _RANKS


def _own(device: ast.expr) -> ast.expr:
    """The device of this process where a number of one is meant."""
    return ast.Constant(DEVICE) if _is_rank(device) else device


def _own_numbers(devices: ast.expr) -> ast.expr:
    if isinstance(devices, ast.List):
        devices.elts = [ast.Constant(0) if _is_rank(x) else x for x in devices.elts]
    return devices


def _is_guard(decorator: ast.expr) -> bool:
    name = ast.unparse(decorator.func if isinstance(decorator, ast.Call) else decorator)
    if name == "skip_but_pass_in_sandcastle_if":
        return "BACKEND" in ast.unparse(decorator)
    return name in _GUARDS
