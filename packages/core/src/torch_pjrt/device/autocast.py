"""`torch.autocast("pjrt")`: kernels that cast an operator's inputs and call it again below autocast.

Which operators they are is the device's to say (`plugin/autocast.py`); every other one passes through.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Any

import torch

from torch_pjrt.overloads import Absent, named
from torch_pjrt.session import session

if TYPE_CHECKING:
    from torch_pjrt.plugin.autocast import AutocastRules

Kernel = Callable[..., Any]

_KEY = "AutocastPrivateUse1"
_BELOW = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastPrivateUse1)  # pyright: ignore[reportAttributeAccessIssue]
_exclude = torch._C._ExcludeDispatchKeyGuard
_libraries: list[torch.library.Library] = session.own("kernels of autocast", [])
_set_up_in = session.own("threads with a default of autocast", threading.local())

# Those without a `dtype`, and the overload that has one.
_WITH_DTYPE = {"norm.Scalar": "ScalarOpt_dtype", "norm.ScalarOpt_dim": "ScalarOpt_dim_dtype"}

# Parameters cast within this `torch.autocast`, by identity: the parameter, its version, and the copy.
_cast_parameters: dict[int, tuple[torch.Tensor, int, torch.Tensor]] = session.own(
    "parameters that autocast has cast", {}
)


def set_default_dtype() -> None:
    """bfloat16, where the user gives none; PyTorch's own default for a device of this kind is float16.

    The default is one of each thread's: `install` sees to other threads than this.
    """
    _set_up_in.done = True
    torch.set_autocast_dtype("pjrt", torch.bfloat16)


def install(rules: AutocastRules) -> None:
    """Register the kernels, and let operators without a rule through. Does nothing the second time."""
    if _libraries:
        return
    others = torch.library.Library("_", "IMPL")
    others.fallback(torch.library.fallthrough_kernel, _KEY)
    library = torch.library.Library("aten", "IMPL")
    _libraries.extend((others, library))
    for what, name in rules.rows():
        op = named(name)
        if not isinstance(op, Absent):
            library.impl(op, _MAKERS[what](op), _KEY)
    _let_control_flow_through()
    _clear_with_pytorchs_cache()
    _set_default_in_each_thread()


def _let_control_flow_through() -> None:
    """What CPU's autocast lets through: `torch.cond`, say, in whose bodies operators are cast."""
    keys = torch._C.DispatchKey
    for op in getattr(torch._ops, "_higher_order_ops", {}).values():
        if not op.non_fallthrough_keys.has(keys.AutocastCPU):
            op.fallthrough(keys.AutocastPrivateUse1)  # pyright: ignore[reportAttributeAccessIssue]


def _in_lower(op: Any) -> Kernel:
    def kernel(*args: Any, **kwargs: Any) -> Any:
        dtype = torch.get_autocast_dtype("pjrt")
        with _exclude(_BELOW):
            return op(*[_cast(a, dtype) for a in args], **_cast_named(kwargs, dtype))

    return kernel


def _in_float32(op: Any) -> Kernel:
    def kernel(*args: Any, **kwargs: Any) -> Any:
        with _exclude(_BELOW):
            return op(
                *[_cast(a, torch.float32) for a in args], **_cast_named(kwargs, torch.float32)
            )

    return kernel


def _in_widest(op: Any) -> Kernel:
    def kernel(*args: Any, **kwargs: Any) -> Any:
        lower = torch.get_autocast_dtype("pjrt")
        dtypes = set(_dtypes((*args, *kwargs.values())))
        dtype = torch.float32 if torch.float32 in dtypes else lower
        if not dtypes <= {torch.float32, lower}:
            raise RuntimeError("Unexpected floating ScalarType in at::autocast::prioritize")
        with _exclude(_BELOW):
            return op(*[_cast(a, dtype) for a in args], **_cast_named(kwargs, dtype))

    return kernel


def _with_float32_result(op: Any) -> Kernel:
    name = op._schema.name.removeprefix("aten::")
    named = _WITH_DTYPE.get(f"{name}.{op._schema.overload_name}")
    target = op if named is None else getattr(op.overloadpacket, named)
    positions = [a.name for a in op._schema.arguments]
    position = positions.index("dtype") if "dtype" in positions else len(positions)

    def kernel(*args: Any, **kwargs: Any) -> Any:
        given = kwargs.get("dtype") if len(args) <= position else args[position]
        with _exclude(_BELOW):
            if given is not None or not _is_eligible(args[0]):
                return op(*args, **kwargs)
            if named is not None:  # its other arguments have no defaults there
                rest = op._schema.arguments[len(args) : position]
                args += tuple(kwargs.get(a.name, a.default_value) for a in rest)
                kwargs = {}
            return target(*args[:position], **{**kwargs, "dtype": torch.float32})

    return kernel


_MAKERS: dict[str, Callable[[Any], Kernel]] = {
    "lower": _in_lower,
    "float32": _in_float32,
    "float32_result": _with_float32_result,
    "widest": _in_widest,
}


def _is_eligible(x: Any) -> bool:
    """Whether autocast may cast it: a floating tensor of this device that is not float64."""
    return (
        isinstance(x, torch.Tensor)
        and x.is_floating_point()
        and x.dtype is not torch.float64
        and x.device.type == "pjrt"
    )


def _dtypes(args: tuple[Any, ...] | list[Any]) -> list[torch.dtype]:
    found: list[torch.dtype] = []
    for a in args:
        if isinstance(a, (list, tuple)):
            found += _dtypes(a)
        elif _is_eligible(a):
            found.append(a.dtype)
    return found


def _cast_named(kwargs: dict[str, Any], dtype: torch.dtype) -> dict[str, Any]:
    return {name: _cast(a, dtype) for name, a in kwargs.items()} if kwargs else kwargs


def _cast(x: Any, dtype: torch.dtype) -> Any:
    """`x`, where it is a tensor that autocast may cast, in `dtype`; lists element by element."""
    if isinstance(x, (list, tuple)):
        return [_cast(i, dtype) for i in x] if x and not isinstance(x[0], (int, float)) else x
    if not isinstance(x, torch.Tensor) or x.dtype is dtype or not _is_eligible(x):
        return x
    if x.dtype is torch.float32 and dtype is not torch.float32 and _is_kept(x):
        return _kept(x, dtype)
    return x.to(dtype)


def _is_kept(x: torch.Tensor) -> bool:
    """Whether PyTorch keeps the cast of `x` until autocast ends: that of a parameter.

    Not where gradients are off: a gradient would not find its way through that copy afterwards.
    """
    return (
        x.requires_grad
        and x.is_leaf
        and not x._is_view()
        and torch.is_autocast_cache_enabled()
        and torch.is_grad_enabled()
        and not x.is_inference()
    )


def _kept(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The parameter's one copy in `dtype`, so that gradients of its uses add up in that dtype."""
    known = _cast_parameters.get(id(x))
    if known is not None and known[0] is x and known[1] == x._version and known[2].dtype is dtype:
        return known[2]
    copy = x.to(dtype)
    _cast_parameters[id(x)] = (x, x._version, copy)
    return copy


def _clear_with_pytorchs_cache() -> None:
    """Drop the copies where PyTorch drops its own: when the outermost autocast ends."""
    original = torch.clear_autocast_cache

    @wraps(original)
    def clear_autocast_cache() -> None:
        _cast_parameters.clear()
        original()

    torch.clear_autocast_cache = clear_autocast_cache


def _set_default_in_each_thread() -> None:
    """`torch.autocast("pjrt")` of a thread that has not used it before finds bfloat16 there as well."""

    def new(cls: type[Any], *args: Any, **kwargs: Any) -> Any:
        if not hasattr(_set_up_in, "done"):
            set_default_dtype()
        return object.__new__(cls)

    # Not around `__init__`, which warns of dtypes in the name of the line that called it. Dynamo binds
    # arguments by the signature of the class, which is that of `__new__` where there is one.
    new.__signature__ = inspect.signature(torch.autocast.__init__)  # type: ignore[attr-defined]
    torch.autocast.__new__ = new  # type: ignore[assignment]
