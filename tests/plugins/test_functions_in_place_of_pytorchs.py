"""A function that stands in the place of one of PyTorch's takes every argument that PyTorch's takes."""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Callable, Iterator
from types import FunctionType
from typing import Any

import pytest
import torch

pytestmark = pytest.mark.slow("file")

# What packages wait for, to stand before functions of it.
MODULES = """
    torch._dynamo torch._higher_order_ops.triton_kernel_wrap torch._inductor.compile_fx torch._library.triton
    torch.distributed.checkpoint.default_planner torch.distributed.checkpoint.state_dict
    torch.distributed.tensor torch.export torch.nn.attention.flex_attention torch.nn.attention.varlen
    torch.utils.checkpoint torch.utils.data torch_pjrt_dynamo torch_pjrt_fsdp torch_pjrt_kernels
    torch_pjrt_quant torch_pjrt_spmd
    """


def is_ours(function: Callable[..., Any]) -> bool:
    """Whether its code is in a package of ours: `wraps` gives it PyTorch's name and module."""
    code = getattr(function, "__code__", None)
    return code is not None and "/torch_pjrt" in code.co_filename


def before(function: FunctionType) -> Callable[..., Any] | None:
    """PyTorch's, where it can be found: it is noted, wrapped, or the only function in the closure."""
    noted = vars(function).get("before") or vars(function).get("__wrapped__")
    if noted is not None:
        return noted
    held = [cell.cell_contents for cell in function.__closure__ or ()]
    theirs = [f for f in held if callable(f) and not is_ours(f)]
    return theirs[0] if len(theirs) == 1 else None


def replaced() -> Iterator[tuple[str, FunctionType, Callable[..., Any]]]:
    """Where they stand, each with PyTorch's."""
    seen: set[int] = set()
    for name, module in list(sys.modules.items()):
        if not name.startswith("torch") or name.startswith(("torch_pjrt", "torch_xla")):
            continue
        # Never `isinstance`, which asks an object for its class: some warn of whatever they are asked.
        classes = [x for x in vars(module).values() if issubclass(type(x), type)]
        for owner in (module, *[c for c in classes if c.__module__.partition(".")[0] == "torch"]):
            for attribute, found in list(vars(owner).items()):
                kind = type(found)
                function = found
                if kind in (staticmethod, classmethod, property):
                    function = found.fget if kind is property else found.__func__
                if type(function) is not FunctionType or id(function) in seen:
                    continue
                seen.add(id(function))
                theirs = before(function) if is_ours(function) else None
                if theirs is not None:
                    yield f"{owner.__name__}.{attribute}", function, theirs


def misfit(ours: Callable[..., Any], theirs: Callable[..., Any]) -> str | None:
    """Why a call that PyTorch's takes, by place but for what only has a name, is none for ours."""
    try:
        parameters = inspect.signature(theirs).parameters.values()
    except ValueError:  # in C
        return None
    by_place = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    by_name = {p.name: None for p in parameters if p.kind is p.KEYWORD_ONLY}
    # `__new__(*args, **kwargs)` in C is called with a class, which it does not say.
    if not by_place and any(p.kind is p.VAR_POSITIONAL for p in parameters):
        return None
    try:
        inspect.signature(ours, follow_wrapped=False).bind(*[None] * len(by_place), **by_name)
    except TypeError as error:
        return str(error)
    return None


def test_each_takes_what_pytorchs_takes() -> None:
    torch.zeros(1, device="pjrt")  # starts the device
    for name in MODULES.split():
        importlib.import_module(name)

    found = list(replaced())

    assert len(found) > 20, [where for where, *_ in found]
    wrong = {where: misfit(ours, theirs) for where, ours, theirs in found}
    assert {where: why for where, why in wrong.items() if why} == {}


def test_an_argument_that_ours_lacks_is_found() -> None:
    def theirs(x: int, fast: bool = False, *, quiet: bool = False) -> None: ...

    def lacks_one(x: int, *, quiet: bool = False) -> None: ...

    def lacks_a_name(x: int, fast: bool = False) -> None: ...

    def takes_all(*args: Any, **kwargs: Any) -> None: ...

    assert misfit(lacks_one, theirs) == "too many positional arguments"
    assert "quiet" in str(misfit(lacks_a_name, theirs))
    assert misfit(takes_all, theirs) is None
