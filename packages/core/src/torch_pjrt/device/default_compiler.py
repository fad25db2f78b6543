"""`torch.compile` with no backend named: graphs of the device go to the backend `pjrt`, others to Inductor.

PyTorch's default backend is Inductor, which has no code for our device. Whatever leads to it
(`torch.compile`, a decorator, `model.compile()`, `backend="inductor"`, a mode) calls one function, and that
function asks here first. It is wrapped when Inductor is imported, and not imported here.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch

from torch_pjrt.device.imports import after_import
from torch_pjrt.errors import MissingPackage, UnsupportedError

_INDUCTOR = "torch._inductor.compile_fx"
_BACKEND = "pjrt"


def install() -> None:
    """Stand before Inductor now, or when it is imported."""
    after_import(_INDUCTOR, _stand_before)


def _stand_before(inductor: Any) -> None:
    original = getattr(inductor, "compile_fx", None)
    if original is None or hasattr(original, "stands_before"):
        return

    @functools.wraps(original)
    def compile_fx(module: Any, inputs: Sequence[Any], *args: Any, **kwargs: Any) -> Any:
        if not is_on_device(module, inputs):
            return original(module, inputs, *args, **kwargs)
        _refuse_ahead_of_time()
        _warn_of_options(kwargs.get("config_patches") or {})
        return _backend()(module, inputs)

    compile_fx.stands_before = original  # type: ignore[attr-defined]
    inductor.compile_fx = compile_fx


def is_on_device(module: Any, inputs: Sequence[Any]) -> bool:
    """Whether any tensor of the graph is on `pjrt`: an input, a constant, or what a node makes."""
    return any(_is_ours(x) for x in inputs) or any(_is_ours(x) for x in _values_in(module))


def _is_ours(x: Any) -> bool:
    if isinstance(x, (list, tuple)):
        return any(_is_ours(part) for part in x)
    return isinstance(x, torch.Tensor) and x.device.type == _BACKEND


def _values_in(module: Any) -> Iterator[Any]:
    """What the nodes of the graph give, the bodies of its control flow included, and its constants."""
    if not isinstance(module, torch.nn.Module):
        return
    yield from module.parameters()
    yield from module.buffers()
    for part in module.modules():
        if isinstance(part, torch.fx.GraphModule):
            for node in part.graph.nodes:
                yield node.meta.get("example_value", node.meta.get("val"))


def _backend() -> Callable[..., Any]:
    from torch._dynamo.backends.registry import lookup_backend
    from torch._dynamo.exc import InvalidBackend

    try:
        return lookup_backend(_BACKEND)
    except InvalidBackend:
        raise MissingPackage(
            "`torch.compile` on `pjrt` takes the package `torch-pjrt-dynamo`, which is not installed.",
            hint='pip install "torch-pjrt[dynamo]"; without `torch.compile` XLA compiles the function too',
        ) from None


def _refuse_ahead_of_time() -> None:
    from torch._inductor.virtualized import V

    if getattr(V, "aot_compilation", False):
        raise UnsupportedError(
            "AOTInductor makes no code for tensors on `pjrt`.",
            hint="`torch_pjrt_dynamo.run(exported, ...)` runs an exported program on the device, "
            "`torch_pjrt.to_stablehlo` writes one out, `torch_pjrt.compile_for` compiles ahead of time",
        )


def _warn_of_options(patches: Mapping[str, Any]) -> None:
    """Say which of Inductor's options do nothing. A mode's need no word: XLA has no modes."""
    from torch._inductor import list_mode_options

    if patches and patches not in list_mode_options().values():
        warnings.warn(
            f"Inductor's options do nothing for tensors on `pjrt`: {', '.join(sorted(patches))}. "
            '`torch.compile(backend="pjrt", options=...)` takes those of its own.',
            stacklevel=2,
        )
