"""`torch.compile` with no backend named: graphs of the device go to the backend `pjrt`, others to Inductor.

PyTorch's default backend is Inductor, which has no code for our device. Whatever leads to it
(`torch.compile`, a decorator, `model.compile()`, `backend="inductor"`, a mode) calls one function, and that
function asks here first. It is wrapped when Inductor is imported, and not imported here.

`torch.compile(options=...)` refuses what is no option of Inductor's, before it knows which graphs there will
be. So options of the backend `pjrt` are taken out there, and given to it where it compiles.
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
    _take_options(getattr(torch, "_TorchCompileInductorWrapper", None))


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


# The attribute of PyTorch's object that holds the options of the backend `pjrt`.
_OPTIONS = "pjrt_options"


def _take_options(wrapper: Any) -> None:
    """Have `torch.compile` take our backend's options where no backend is named."""
    if wrapper is None or hasattr(wrapper, _OPTIONS):
        return
    apply_options, call, equals = wrapper.apply_options, wrapper.__call__, wrapper.__eq__

    @functools.wraps(apply_options)
    def apply(self: Any, options: Mapping[str, Any] | None) -> None:
        ours, names = _split(options or {})
        setattr(self, _OPTIONS, {**getattr(self, _OPTIONS), **ours})
        try:
            apply_options(self, {k: v for k, v in (options or {}).items() if k not in ours})
        except RuntimeError as error:
            if names:
                error.add_note(f"options for tensors on `pjrt`: {', '.join(sorted(names))}")
            raise

    @functools.wraps(call)
    def compile_graph(self: Any, module: Any, inputs: Sequence[Any], **how: Any) -> Any:
        ours = getattr(self, _OPTIONS)
        if not ours:
            return call(self, module, inputs, **how)
        if is_on_device(module, inputs):
            _warn_of_options(self.config)
            return _backend()(module, inputs, options=ours)
        warnings.warn(
            f"Options of the backend `pjrt` do nothing for a graph of the CPU: {', '.join(sorted(ours))}.",
            stacklevel=2,
        )
        return call(self, module, inputs, **how)

    @functools.wraps(equals)
    def is_equal(self: Any, other: Any) -> bool:
        return equals(self, other) and getattr(self, _OPTIONS) == getattr(other, _OPTIONS, {})

    setattr(wrapper, _OPTIONS, {})
    wrapper.apply_options, wrapper.__call__, wrapper.__eq__ = apply, compile_graph, is_equal


def _split(options: Mapping[str, Any]) -> tuple[dict[str, Any], frozenset[str]]:
    """The options that Inductor does not know and our backend does; all names of our backend's, if asked."""
    if not options:
        return {}, frozenset()
    from torch._inductor import config

    known = config.get_config_copy()
    unknown = [name for name in options if name.replace("-", "_") not in known]
    if not unknown:
        return {}, frozenset()
    try:
        names = frozenset(_backend().option_names)  # type: ignore[attr-defined]
    except MissingPackage:
        return {}, frozenset()
    return {name: options[name] for name in unknown if name in names}, names


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
