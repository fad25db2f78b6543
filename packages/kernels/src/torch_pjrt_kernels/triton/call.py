"""The call of a Triton kernel in a program: JAX's launcher, with arguments in the kernel's order.

The arrays are operands in the kernel's order. Those that it writes are results that share the operand's
memory: XLA copies an operand first that is read afterwards. The launcher takes the buffers from the front, so
that the results, behind the operands, are not handed to the kernel a second time.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from typing import Any, NamedTuple

import jax

from torch_pjrt.errors import LoweringError
from torch_pjrt.plugin import client
from torch_pjrt_kernels.triton.compiled import Launch, Pointer, compiled
from torch_pjrt_kernels.triton.configurations import chosen, function_of

Array = jax.Array

TARGET = "triton_kernel_call"
# Of addresses. XLA's arrays begin at multiples of 256.
_ALIGNMENT = 16


class Call(NamedTuple):
    """A kernel, its arguments by name (numbers, and a `Pointer` for each array), and how often it runs.

    grids           one, or one for each configuration of an autotuned kernel.
    configuration   the number of the one that is tried; None: the fastest that is known.
    fallback        a function of JAX's that other devices compute, of the arguments by name.
    """

    kernel: Any
    arguments: tuple[tuple[str, Any], ...]
    grids: tuple[tuple[int, ...], ...]
    configuration: int | None = None
    fallback: Callable[..., Any] | None = None


def capability() -> tuple[int, ...] | None:
    """That of the card which is compiled for; None where it is none of NVIDIA's."""
    said = getattr(client().chip, "compute_capability", None)
    if client().device.name != "GPU" or said is None:
        return None
    return tuple(int(n) for n in str(said).split("."))


def refused() -> LoweringError:
    """What is said on other devices, and where Triton is not installed."""
    return LoweringError(
        "A kernel written in Triton cannot run on tensors of `pjrt`"
        + (" on this device." if find_spec("triton") else " without the package `triton`."),
        saw=f"a device of {client().device.name}",
        expected='NVIDIA\'s cards, and `pip install "torch-pjrt-kernels[triton]"`',
        hint="say what is computed here instead, by `torch_pjrt_kernels.triton_call(kernel, fallback=...)` "
        "or a `torch.library.custom_op` around it with a rule in JAX (`torch_pjrt.extend.lowers`), or "
        "write it in Pallas (`torch_pjrt_kernels.pallas_op`)",
    )


def launched(call: Call, written: tuple[int, ...], *arrays: Array) -> Sequence[Array]:
    """What the arrays hold afterwards that the kernel writes: those at `written`.

    Raises `LoweringError` where the device is none of NVIDIA's cards and there is no fallback.
    """
    card = capability()
    if card is None:
        return _by_fallback(call, written, arrays)
    arguments, number = dict(call.arguments), call.configuration
    if number is None:
        number = chosen(call.kernel, arguments)
    grid = call.grids[min(number, len(call.grids) - 1)]
    launch = compiled(call.kernel, arguments, grid, card, configuration=number)
    return _launched(launch, written, arrays)


def _by_fallback(call: Call, written: tuple[int, ...], arrays: Sequence[Array]) -> Sequence[Array]:
    if call.fallback is None:
        raise refused()
    given, rest = dict(call.arguments), iter(arrays)
    function = function_of(call.kernel)
    for name in function.arg_names:
        if isinstance(given.get(name), Pointer):
            given[name] = next(rest)
    found = call.fallback(**given)
    results = list(found) if isinstance(found, (tuple, list)) else [found]
    wanted = [arrays[i] for i in written]
    if [(x.shape, x.dtype) for x in results] != [(x.shape, x.dtype) for x in wanted]:
        saw, expected = (
            ", ".join(f"{x.dtype}{list(x.shape)}" for x in these) for these in (results, wanted)
        )
        raise LoweringError(
            f"The fallback of the kernel `{function.__name__}` gave other arrays than the kernel writes.",
            saw=saw,
            expected=expected,
        )
    return results


def _launched(launch: Launch, written: tuple[int, ...], arrays: Sequence[Array]) -> Sequence[Array]:
    launcher = _launcher()
    kernel = launcher.TritonKernel(
        launch.name, launch.num_warps, launch.num_ctas, launch.shared_bytes, launch.code,
        launch.ir, launch.capability,
    )  # fmt: skip
    parameters = [
        launcher.create_array_parameter(0, _ALIGNMENT)
        if p is None
        else launcher.create_scalar_parameter(p.value, p.type)
        for p in launch.parameters
    ]
    call = launcher.TritonKernelCall(kernel, *launch.grid, parameters)
    results = [jax.ShapeDtypeStruct(arrays[i].shape, arrays[i].dtype) for i in written]
    found = jax.ffi.ffi_call(
        TARGET,
        results,
        custom_call_api_version=2,
        legacy_backend_config=zlib.compress(call.to_proto(launch.name, b"")),  # type: ignore[arg-type]
        input_output_aliases={i: n for n, i in enumerate(written)},
        has_side_effect=not written,
    )(*arrays)
    return list(found)


def _launcher() -> Any:
    """JAX's module that has it, which comes with its plugin for CUDA."""
    from jax._src.lib import gpu_triton  # pyright: ignore[reportPrivateImportUsage]

    if not hasattr(gpu_triton, "TritonKernel"):
        raise LoweringError(
            "Kernels written in Triton are launched by JAX's CUDA plugin, which is not installed.",
            hint='pip install "torch-pjrt-gpu[cuda13]"',
        )
    return gpu_triton
