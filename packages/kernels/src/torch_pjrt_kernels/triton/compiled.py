"""A Triton kernel compiled for a card, here or not: its code, and what a program needs to launch it.

Triton's compiler makes the code (PTX) without a card and without a driver; what it has compiled is in its own
cache on disk. Arguments are specialized as Triton does: an integer of 1 is a constant, pointers and integers
that 16 divides are known to be so.

Tillet, Kung, Cox: "Triton: An Intermediate Language and Compiler for Tiled Neural Network
Computations" (2019).
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from typing import Any, NamedTuple

import torch

from torch_pjrt.errors import LoweringError

_one_at_a_time = threading.RLock()
# Of PTX: what CUDA 12.8 knows. That of Triton's own may be newer than the driver.
_PTX = 87


class Scalar(NamedTuple):
    """An argument that is a number: its value and Triton's name of its type."""

    value: int | float | bool
    type: str


class Pointer(NamedTuple):
    """An argument that is an array: what the kernel's code depends on, and what heuristics may ask for."""

    dtype: torch.dtype
    shape: tuple[int, ...] | None = None


class Launch(NamedTuple):
    """What JAX's launcher takes.

    code         PTX. ir: Triton's, for messages.
    capability   of the card that the code is for: 90 for 9.0.
    parameters   in the kernel's order: a `Scalar`, or None for an array, which the next buffer is.
    """

    name: str
    code: str
    ir: str
    capability: int
    num_warps: int
    num_ctas: int
    shared_bytes: int
    grid: tuple[int, int, int]
    parameters: tuple[Scalar | None, ...]


def compiled(
    kernel: Any, arguments: Mapping[str, Any], grid: Sequence[int], capability: tuple[int, ...],
    *, configuration: int = 0,
) -> Launch:  # fmt: skip
    """The kernel for a card of this compute capability.

    kernel      of `@triton.jit`, also with `@triton.autotune`, and within that with `@triton.heuristics`.
    arguments   all of its parameters by name: numbers, and a `Pointer` for each array.
    configuration   which one of an autotuned kernel.

    Raises `LoweringError` for arguments that do not fit, and for what Triton refuses.
    """
    triton = import_module("triton")
    compiler = import_module("triton.compiler")
    options: dict[str, Any] = {"ptx_version": _PTX}
    arguments = dict(arguments)
    if isinstance(kernel, triton.runtime.Autotuner):
        config = kernel.configs[configuration]
        arguments.update(config.kwargs)
        options.update(
            num_warps=config.num_warps, num_stages=config.num_stages, num_ctas=config.num_ctas
        )
        kernel = kernel.fn
    while isinstance(kernel, triton.runtime.Heuristics):
        arguments.update(_said_by(kernel, arguments))
        kernel = kernel.fn
    if not isinstance(kernel, triton.JITFunction):
        raise LoweringError(
            "Only kernels of `@triton.jit` run on `pjrt`, autotuned or not.",
            saw=type(kernel).__name__,
        )
    missing = [name for name in kernel.arg_names if name not in arguments]
    if missing:
        raise LoweringError(
            f"The kernel `{kernel.__name__}` lacks arguments.", saw=f"none for {', '.join(missing)}"
        )
    number = capability[0] * 10 + capability[1]
    target = _target(capability)
    backend = compiler.make_backend(target)
    signature: dict[str, str] = {}
    constants: dict[tuple[int], Any] = {}
    attributes: dict[tuple[int], Any] = {}
    parameters: list[Scalar | None] = []
    for i, parameter in enumerate(kernel.params):
        value = arguments[parameter.name]
        kind, key = _specialized(parameter, value)
        signature[parameter.name] = kind
        if kind == "constexpr":
            constants[(i,)] = value
            continue
        if isinstance(key, str) and key:
            attributes[(i,)] = backend.parse_attr(key)
        parameters.append(None if isinstance(value, Pointer) else Scalar(value, kind))
    source = compiler.ASTSource(kernel, signature=signature, constexprs=constants, attrs=attributes)
    try:
        made = triton.compile(source, target=target, options=options)
    except Exception as error:
        said = str(error).strip()
        raise LoweringError(
            f"Triton does not compile the kernel `{kernel.__name__}` for compute capability "
            f"{'.'.join(map(str, capability))}.",
            saw=f"{type(error).__name__}: {said}",
        ) from error
    if getattr(made.metadata, "global_scratch_size", 0):
        raise LoweringError(
            f"The kernel `{kernel.__name__}` takes memory beside its arguments, which nobody gives it.",
            saw=f"{made.metadata.global_scratch_size} bytes for each program",
            hint="kernels without TMA descriptors that they make themselves take none",
        )
    x, y, z = (*map(int, grid), 1, 1)[:3]
    return Launch(
        made.metadata.name, made.asm["ptx"], made.asm["ttir"], number, made.metadata.num_warps,
        getattr(made.metadata, "num_ctas", 1), made.metadata.shared, (x, y, z), tuple(parameters),
    )  # fmt: skip


def _said_by(kernel: Any, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """What heuristics say of the arguments. Arrays are tensors without values to them."""
    seen = {
        name: torch.empty(x.shape, dtype=x.dtype, device="meta")
        if isinstance(x, Pointer) and x.shape is not None
        else x
        for name, x in arguments.items()
    }
    found: dict[str, Any] = {}
    for name, value in kernel.values.items():
        try:
            found[name] = value({**seen, **found})
        except Exception as error:
            raise LoweringError(
                f"The heuristic for `{name}` fails, of a kernel that is compiled before it runs.",
                saw=f"{type(error).__name__}: {error}".partition("\n")[0],
                hint="it sees shapes and dtypes of arrays, and no values",
            ) from error
    return found


def _specialized(parameter: Any, value: Any) -> tuple[str, Any]:
    """Triton's name of an argument's type, `constexpr` for a constant, and what is known of its value."""
    if parameter.is_constexpr or value is None:
        return "constexpr", None
    if isinstance(value, Pointer):
        value = torch.empty(
            2, dtype=value.dtype, device="cpu"
        )  # as well aligned as XLA's arrays are
    special = not parameter.do_not_specialize
    aligned = not parameter.do_not_specialize_on_alignment
    base = import_module("triton.backends").BaseBackend
    specialize = import_module("triton.runtime.jit").native_specialize_impl
    kind, key = specialize(base, value, parameter.is_const, special, aligned)
    return parameter.annotation_type or kind, key


@contextmanager
def target_is(capability: tuple[int, ...]) -> Iterator[None]:
    """Within the block Triton takes a card of this compute capability for the one at hand.

    PyTorch's analysis of what a kernel writes asks for it, and PyTorch for the CPU has none.
    """
    driver = import_module("triton.runtime").driver
    here = threading.get_ident()

    class Ahead:
        """The driver, for this thread; others find the one that was there, or that Triton looks for."""

        def __getattr__(self, name: str) -> Any:
            if threading.get_ident() == here and name == "get_current_target":
                return lambda: _target(capability)
            return getattr(driver.default if before is None else before, name)

    with _one_at_a_time:
        before = getattr(driver, "_active", None)  # None: it is looked for when it is asked for
        driver.set_active(Ahead())
        try:
            yield
        finally:
            driver.set_active(before)


def _target(capability: tuple[int, ...]) -> Any:
    number = capability[0] * 10 + capability[1]
    return import_module("triton.backends.compiler").GPUTarget("cuda", number, 32)
