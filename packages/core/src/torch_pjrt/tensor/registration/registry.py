"""Registering kernels with PyTorch's dispatcher, for the key `PrivateUse1`.

At `import torch` only the kernels that bring the first tensor into being are registered, and a fallback.
The first of them to run calls `register_all`: the rest of the special kernels, and one kernel for each
operator (functional, in-place and `out=`) that the device's lowering table can compute. An operator that
nobody registered reaches the fallback, which records it, decomposes it or runs it on the CPU.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

import torch

from torch_pjrt.errors import NoDevice
from torch_pjrt.interrupts.quiet import uncollected
from torch_pjrt.overloads import PYTORCHS, Absent, named, present
from torch_pjrt.session import session
from torch_pjrt.tensor.storage.unsupported_tensors import refuse_other_kinds

KEY = "PrivateUse1"
_has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
_SPARSE_KEYS = ("SparsePrivateUse1", "SparseCsrPrivateUse1")


class _Kernels:
    """What is registered with PyTorch's dispatcher.

    begun, done   `register_all` has started the device; it has registered all.
    at_start      what it calls when the device has started.
    libraries     PyTorch forgets what is registered when one of them goes.
    """

    def __init__(self) -> None:
        self.begun = self.done = False
        self.registering = threading.RLock()
        self.at_start: list[Callable[[], None]] = []
        self.libraries: list[torch.library.Library] = []


# On storages of the host for which pinned memory was asked.
_PINNED = "_torch_pjrt_asked_for_pinned_memory"

_kernels = session.own("kernels that are registered", _Kernels())


def register_first(set_up: Callable[[], None]) -> None:
    """What must be there before the first tensor is. Imports nothing heavy, starts nothing.

    `set_up` is called once, by `register_all`, when the device has been started.
    """
    _kernels.at_start.append(set_up)
    library = torch.library.Library("aten", "IMPL")
    for name in ("empty.memory_format", "empty_strided", "_copy_from"):
        library.impl(name, _first_of(name), KEY)
    library.impl("_pin_memory", _pin_memory, "CPU")
    library.impl("is_pinned", _is_pinned, "CPU")
    library.impl("record_stream", _record_stream, KEY)
    fallback = torch.library.Library("_", "IMPL")
    fallback.fallback(_fallback, KEY)
    for key in _SPARSE_KEYS:
        fallback.fallback(partial(_sparse_fallback, key), key)
    refuse_other_kinds(fallback, library, KEY)
    _kernels.libraries.extend((library, fallback))


def _pin_memory(self: torch.Tensor, device: torch.device | None = None) -> torch.Tensor:
    """A copy: there is no pinned memory here, but loaders ask for it."""
    pinned = self.clone()
    call_pinned(pinned)
    return pinned


def call_pinned(tensor: torch.Tensor) -> None:
    """Have `is_pinned()` say so of a CPU tensor and its views: who asked for pinned memory relies on it.

    >>> x = torch.ones(2)
    >>> call_pinned(x)
    >>> x.is_pinned(), x.clone().is_pinned()
    (True, False)
    """
    setattr(tensor.untyped_storage(), _PINNED, True)


def _is_pinned(self: torch.Tensor, device: torch.device | None = None) -> bool:
    return getattr(self.untyped_storage(), _PINNED, False)


def _record_stream(self: torch.Tensor, stream: Any) -> None:
    """Nothing to remember: arrays live as long as programs use them."""


def _first_of(name: str) -> Callable[..., Any]:
    kernel: Callable[..., Any] | None = None

    def first(*args: Any, **kwargs: Any) -> Any:
        nonlocal kernel
        if kernel is None:
            register_all()
            from torch_pjrt.tensor.kernels import creation

            kernel = _at_once_if_asked(creation.KERNELS[named(name)])
        return kernel(*args, **kwargs)

    return first


def register_all() -> None:
    """Register every kernel; starts the device. Does nothing the second time; other threads wait for it.

    >>> start()
    """
    if _kernels.done:
        return
    with _kernels.registering:
        if not _kernels.begun:
            with uncollected():
                _need_jax()
                _register_all()
            _kernels.done = True


def _need_jax() -> None:
    try:
        import jax  # noqa: F401
    except ImportError as error:
        raise NoDevice(
            "JAX cannot be imported, by which programs reach the device.",
            saw=f"{type(error).__name__}: {error}".partition("\n")[0],
            hint="`pip install torch-pjrt` brings it: `jax` and `jaxlib` of one version",
        ) from error


def _register_all() -> None:
    from torch_pjrt.client.client import client
    from torch_pjrt.tensor.checks.refusals import CHECKED, refusing
    from torch_pjrt.tensor.kernels import (
        attention,
        attention_batched,
        composites,
        convolution,
        linear,
        recurrent,
    )
    from torch_pjrt.tensor.padding import calls  # noqa: F401  what records calls has it from then on
    from torch_pjrt.tensor.recording import metas
    from torch_pjrt.tensor.recording.kernel_source import kernel_of
    from torch_pjrt.tensor.recording.schema import functional_of
    from torch_pjrt.tensor.registration import hand_written
    from torch_pjrt.tensor.sparse import operators

    table = client().lowerings
    _kernels.begun = True  # what follows may ask for it
    for set_up in _kernels.at_start:
        set_up()
    special = hand_written.kernels()
    library = torch.library.Library("aten", "IMPL")
    _kernels.libraries.append(library)
    already = {"aten::empty.memory_format", "aten::empty_strided", "aten::_copy_from"}
    for op, kernel in special.items():
        if op._schema.name + _dotted(op) not in already:
            library.impl(op, _at_once_if_asked(refusing(op, kernel)), KEY)
    _register_above_autograd(
        {
            **attention.ABOVE_AUTOGRAD,
            **composites.ABOVE_AUTOGRAD,
            **linear.ABOVE_AUTOGRAD,
            **recurrent.ABOVE_AUTOGRAD,
        }
    )
    with warnings.catch_warnings():  # it stands in the place of PyTorch's, for other devices too
        warnings.filterwarnings("ignore", "Warning only once for all operators")
        for by_key in (attention_batched.BATCHED, convolution.BY_KEY, linear.BY_KEY):
            for key, of_key in by_key.items():
                for op, kernel in of_key.items():
                    library.impl(op, kernel, key)
    for op, key, kernel in operators.kernels():
        library.impl(op, kernel, key)
    for op, meta in metas.missing().items():
        library.impl(op, meta, "Meta")
    for op in recordable(table):
        if op not in special:
            kernel = refusing(op, _lazily(kernel_of, op))
            library.impl(op, _at_once_if_asked(kernel), KEY)
    _record_own(own_of(table))
    for op in CHECKED:
        if functional_of(op) not in table and op not in table:
            kernel = refusing(op, _recorded(op))
            library.impl(op, _at_once_if_asked(kernel), KEY)


def is_own(op: Any) -> bool:
    """Whether the operator is another package's, and not PyTorch's or ours."""
    return isinstance(op, torch._ops.OpOverload) and op.namespace not in PYTORCHS


def own_of(table: Iterable[Any]) -> Iterable[Any]:
    """Those of other packages that have no kernel for our device, and that PyTorch does not decompose."""
    for op in table:
        if not is_own(op) or op._schema.is_mutable:
            continue
        if _has_kernel(op.name(), KEY):
            continue
        if not _has_kernel(op.name(), "CompositeImplicitAutograd"):
            yield op


def register_own(found: Callable[[], Iterable[Any]]) -> None:
    """Have calls of these operators of other packages recorded; `register_all` does so at the start."""
    with _kernels.registering:
        if _kernels.begun:
            _record_own(found())


def _record_own(ops: Iterable[Any]) -> None:
    from torch_pjrt.tensor.recording.kernel_source import kernel_of

    for op in ops:
        library = torch.library.Library(op.namespace, "FRAGMENT")
        _kernels.libraries.append(library)
        library.impl(op, _at_once_if_asked(_lazily(kernel_of, op)), KEY)


def _register_above_autograd(kernels: dict[Any, Callable[..., Any]]) -> None:
    from torch_pjrt.tensor.checks.refusals import refusing

    library = torch.library.Library("aten", "IMPL")
    _kernels.libraries.append(library)
    for op, kernel in present(kernels).items():
        library.impl(op, refusing(op, kernel), f"Autograd{KEY}")


def register_for_differentiated() -> None:
    """What only a backward that is differentiated needs. Called before the first."""
    from torch_pjrt.tensor.kernels import attention_backward

    _register_above_autograd(attention_backward.ABOVE_AUTOGRAD)


def _at_once_if_asked(kernel: Callable[..., Any]) -> Callable[..., Any]:
    from torch_pjrt.settings import settings

    if not settings.eager:
        return kernel
    from torch_pjrt.run.eager import at_once

    return at_once(kernel)


def recordable(table: Any) -> Iterator[Any]:
    """Every aten overload whose functional form has a rule, and which PyTorch does not decompose first."""
    from torch_pjrt.tensor.recording.schema import functional_form

    for full_name in torch._C._dispatch_get_all_op_names():
        if not full_name.startswith("aten::"):
            continue
        op = named(full_name.removeprefix("aten::"))
        if isinstance(op, Absent):
            continue  # TorchScript's own operators have no overload object
        if _has_kernel(full_name, "CompositeImplicitAutograd"):
            continue
        functional = functional_form(op)
        if functional in table:
            yield op


def _lazily(make: Callable[[Any], Callable[..., Any]], op: Any) -> Callable[..., Any]:
    """A kernel that is written out when it is first called."""
    kernel: Callable[..., Any] | None = None

    def first(*args: Any, **kwargs: Any) -> Any:
        nonlocal kernel
        if kernel is None:
            kernel = make(op)
        return kernel(*args, **kwargs)

    return first


def _recorded(op: Any) -> Callable[..., Any]:
    """The kernel that the fallback is, for one operator."""
    from torch_pjrt.tensor.recording import record

    return lambda *args, **kwargs: record.call(op, args, kwargs)


def _dotted(op: Any) -> str:
    name = op._schema.overload_name
    return f".{name}" if name else ""


def _fallback(op: Any, *args: Any, **kwargs: Any) -> Any:
    register_all()
    from torch_pjrt.tensor.recording import record

    return _at_once_if_asked(record.call)(op, args, kwargs)


def _sparse_fallback(key: str, op: Any, *args: Any, **kwargs: Any) -> Any:
    register_all()
    from torch_pjrt.tensor.sparse import operators

    return operators.call(key, op, *args, **kwargs)
